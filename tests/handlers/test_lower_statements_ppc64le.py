"""On ppc64le, statements as native code do what the interpreter says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hypothesis import strategies as st

from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.paths import depth
from gdb_optprobe.isa.ppc64le import PPC64LE

from ..isa.ppc64le.oracle import DATA, HERE, needs_oracle
from . import running, scripts
from .power import FAULTS, Trial
from .programs import drawn
from .test_lower_program_ppc64le import EXAMPLES, reached, wrong


@dataclass(frozen=True)
class ScriptTrial(Trial):
    """A program of statements, and all else by chance."""

    @cached_property
    def around(self) -> LoweringContext:
        usual = Trial(self.original, self.seed).around
        return replace(usual, maps=scripts.places(self.program, FAULTS))

    @cached_property
    def memory(self) -> bytes:
        memory = bytearray(Trial(self.original, self.seed).memory)
        for name, at in scripts.places(self.program, FAULTS).items():
            data = self.maps[name].data[:]
            memory[at - DATA : at - DATA + len(data)] = data
        return bytes(memory)

    @property
    def maps(self) -> Mapping[str, scripts.SessionMap]:
        """The maps before the hit."""
        return scripts.contents(self.program)

    def wrong_results(self, left: running.Left, hit: interpreter.Hit) -> Iterator[str]:
        maps = self.maps
        outcome = interpreter.run(self.program, replace(hit, maps=maps))
        yield from scripts.wrong_results(self.program, left.read, FAULTS, [outcome], maps)


def trials(number: int, made: st.SearchStrategy[Program]) -> list[Trial]:
    """Those that native code can do."""
    found: list[Trial] = []
    for trial in (ScriptTrial(*each) for each in drawn(number, made)):
        try:
            assert trial.code is not None
        except NotLowered as refused:
            assert "registers" in refused.why or "stack" in refused.why
        else:
            found.append(trial)
    assert len(found) > number // 2
    return found


@needs_oracle
def test_same_as_the_interpreter() -> None:
    found = wrong(trials(EXAMPLES, scripts.scripts(3)))
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


@needs_oracle
def test_wild_pointers_are_zeros_or_faults() -> None:
    found = wrong(trials(EXAMPLES // 2, scripts.wild_scripts((running.DATA, running.DATA, running.ALIAS, 1 << 63))))
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


def test_all_of_it_is_instructions_and_the_stack_is_where_an_unwinder_reckons_it() -> None:
    for trial in trials(EXAMPLES // 3, scripts.scripts(3)):
        insns = PPC64LE.decode(trial.code, HERE)
        assert sum(len(insn.data) for insn in insns) == len(trial.code)
        assert depth(insns, HERE + len(trial.code), PPC64LE.pushed) == 0
        jumps = [insn for insn in reached(insns) if insn.target is not None and insn.flow is not Flow.CALL]
        for insn in jumps[:: len(jumps) // 20 + 1]:
            at, to = (depth(insns, address or 0, PPC64LE.pushed) for address in (insn.address, insn.target))
            assert at == to
