"""What the kernel's functions are made of: entries, tables, what a tracer's site leaves alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache

import pytest

from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.register_effects import ALL_NAMES, CR0, effects_of
from tests.examples import samples
from tests.isa.ppc64le.kernel import kernel

START = 0xC000_0000_0010_0000
TOC = 0xC000_0000_0114_8100


def code(*words: int) -> Mapping[int, Insn]:
    return {insn.address: insn for insn in PPC64LE.decode(to_bytes(*words), START)}


def test_the_local_entry_is_behind_what_makes_the_toc() -> None:
    makes_it = code(0x3C4C0105, 0x38428100, 0x7C0802A6)
    assert PPC64LE.entry(START, makes_it) == START + 8
    assert PPC64LE.toc(START, makes_it) == START + 0x1050000 - 0x7F00
    assert PPC64LE.entry(START, code(0x7C0802A6, 0x60000000)) == START
    assert PPC64LE.toc(START, {}) is None


def test_every_function_has_the_kernels_toc_or_none() -> None:
    found = kernel()
    tocs = {PPC64LE.toc(start, found.function(start, min(size, 8))) for start, size in found.functions[::7]}
    assert tocs == {None, TOC}


SETUP = (0x3C4C0105, 0x38428100)  # addis r2,r12,…; addi r2,r2,…


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ((0x60000000, 0x4E800020), (0, 1)),
        ((0x4E800421, 0xE8410018, 0x60000000), (0, 2)),  # bctrl; ld r2,24(r1); nop: behind the call it is not known
        ((0x4E800421, 0x60000000), ()),  # nobody loads it again
        ((0x7C621B78, 0x60000000), ()),  # mr r2,r3
        ((0xE8410020, 0x60000000), ()),  # ld r2,32(r1)
        ((0xF8410018, 0x60000000), (0, 1)),  # std r2,24(r1)
        ((0x7C6223F8, 0x60000000), ()),  # cmpb r2,r3,r4: no compare, it writes r2
        ((0x7C022000, 0x60000000), (0, 1)),  # cmpw r2,r4
    ],
)
def test_where_the_toc_is_in_r2(body: tuple[int, ...], known: tuple[int, ...]) -> None:
    function = code(*SETUP, *body)
    value = PPC64LE.toc(START, function)
    assert PPC64LE.bases(START, function) == {START + 8 + 4 * number: value for number in known}


def test_a_table_behind_its_jump() -> None:
    words = (0x4E800420, 12, 16, 0x60000000, 0x4E800020, 0x4E800420, 0xFFFFFFF8)
    tables = PPC64LE.jump_tables(to_bytes(*words), START)
    assert tables == {START + 4: (START + 16, START + 20), START + 24: (START + 16,)}


def test_a_jump_without_a_table() -> None:
    assert PPC64LE.jump_tables(to_bytes(0x4E800420, 0x60000000, 0x4E800020), START) == {}


def test_jumps_by_a_table_stay_in_their_function() -> None:
    words = (0x4E800420, 12, 16, 0x60000000, 0x4E800020, 0x4E800420, 0xFFFFFFF8)
    assert PPC64LE.switches(to_bytes(*words), START) == {START: range(START + 4, START + 12)}, "one case is a chance"


@pytest.mark.parametrize("words", [(0x4E800420, 0, 0, 0), (0x4E800420, 0x60000000), (0x4E800420,), (0x4E800421, 8, 8)])
def test_a_jump_with_padding_behind_it_may_lead_anywhere(words: tuple[int, ...]) -> None:
    assert not PPC64LE.switches(to_bytes(*words), START)


def test_whatever_is_no_instruction_in_the_kernels_functions_is_a_table() -> None:
    found, tables = kernel(), 0
    for start, size in found.functions:
        data = found.code(start, size)
        own = PPC64LE.jump_tables(data, start) if b"\x20\x04\x80\x4e" in data else {}
        if not own:
            continue
        tables += len(own)
        entries = {at + 4 * index for at, targets in own.items() for index in range(len(targets))}
        insns = found.function(start, size)
        unknown = {
            at
            for at in range(start, start + size & ~3, 4)
            if at not in insns and data[at - start : at - start + 4] != bytes(4)
        }
        assert unknown <= entries
        assert all(target in insns and target not in entries for targets in own.values() for target in targets)
    assert tables > 400


def first_read(name: str, start: int, insns: Mapping[int, Insn]) -> Insn | None:
    """The instruction that reads a register before anything writes it, in the function's own code; calls aside."""
    bit, pending, seen = 1 << ALL_NAMES.index(name), [start], set[int]()
    while pending:
        at = pending.pop()
        insn = insns.get(at)
        if at in seen or insn is None or insn.flow is Flow.TRAP:
            continue
        seen.add(at)
        uses = effects_of(insn.data)
        if uses is not None and uses.reads & bit:
            return insn
        if (uses is None or not uses.kills & bit) and insn.flow not in (Flow.CALL, Flow.INDIRECT_CALL):
            pending += [insn.end] if insn.falls_through else []
            pending += [insn.target] if insn.target is not None else []
    return None


SOME = samples(2_000)


@cache
def sites() -> list[tuple[int, Mapping[int, Insn]]]:
    """Tracer's sites of some functions, each with its function: `mflr r0; bl _mcount` among the first words."""
    found, chosen = kernel(), []
    for start, size in random.Random(1).sample(found.functions, SOME):
        insns = found.function(start, size)
        for at in (start, start + 8):
            call = insns.get(at + 4)
            if at in insns and insns[at].text == "mflr r0" and call is not None and call.flow is Flow.CALL:
                chosen.append((call.end, insns))
    return chosen


@pytest.mark.parametrize("name", sorted(PPC64LE.dead_at_entry().registers))
def test_what_a_tracer_clobbers_is_never_read_behind_its_site(name: str) -> None:
    assert len(sites()) > 0.75 * SOME
    assert not [insn for after, insns in sites() if (insn := first_read(name, after, insns)) is not None]


def test_cr0_behind_a_site_is_read_only_where_all_of_cr_is_saved() -> None:
    assert PPC64LE.dead_at_entry().flags and ALL_NAMES[CR0.bit_length() - 1] == "cr0"
    readers = [insn for after, insns in sites() if (insn := first_read("cr0", after, insns)) is not None]
    assert readers and all(insn.text.startswith("mfcr") for insn in readers)
