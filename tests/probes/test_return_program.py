"""Where return probes of one function have their words in a call's slot, and what their programs read of them."""

from __future__ import annotations

from gdb_optprobe.handlers.fold import binary, constant
from gdb_optprobe.handlers.ir import Expr, Load, Op, Program, Register
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.maps.call_table import SAVED, WORD
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.return_program import entry_parts, return_handler
from gdb_optprobe.probes.spec import Kind, Spec

ALWAYS = EntryProgram(words=(Register("a"), Register("b")))
SOMETIMES = EntryProgram(condition=Register("c"), words=(Register("d"),))


def test_words_of_one_probe_behind_the_others() -> None:
    """A probe has its own words before those that it saves, and only those of them that it needs."""
    plain, chosen = _probe(ALWAYS), _probe(SOMETIMES)
    python = _probe(ALWAYS, Spec("f", Kind.KRETPROBE, pre_handler=print, return_handler=print))
    (alone,) = entry_parts([chosen], SAVED)
    assert (alone.area, alone.armed, alone.flag, alone.data, alone.time) == (SAVED, 0, 0, 0, 0)
    first, second, third = entry_parts([plain, chosen, python], SAVED, lambda probe: probe is python)
    assert (first.area, first.armed) == (SAVED, 0)
    assert (second.armed, second.area) == (SAVED + 2 * WORD, SAVED + 3 * WORD)
    own = [SAVED + WORD * number for number in range(4, 9)]
    assert [third.armed, third.flag, third.data, third.time, third.area] == own


def test_a_program_reads_its_own_words() -> None:
    """It names them as if they were the slot's first; those that are not armed for a call leave it out."""
    plain, chosen = _probe(ALWAYS), _probe(SOMETIMES)
    parts = entry_parts([plain, chosen], SAVED)
    assert return_handler(plain.handler, parts[0], "slot", "slot") is plain.handler
    moved = return_handler(chosen.handler, parts[1], "slot", "r9").program
    assert moved.condition is not None and {*moved.registers} == {"r9"}
    armed, condition = moved.condition.left, moved.condition.right  # type: ignore[attr-defined]
    assert (armed, condition) == (_word("r9", parts[1].armed), _word("r9", parts[1].area))


def _probe(entry: EntryProgram, spec: Spec | None = None) -> Probe:
    handler = Handler(Program(_word("slot", SAVED), ()), entry=entry)
    return Probe(1, spec or Spec("f", Kind.KRETPROBE), 0x1000, handler)


def _word(register: str, offset: int) -> Expr:
    return Load(binary(Op.ADD, Register(register), constant(offset), 64, False), WORD, signed=False, mapped=True)
