"""A block's members by index, with those that are out left aside, against a plain list of them."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.detours.block import WORD, Block
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.isa.x86_64 import X86_64

CODE, DATA, STEP, SIZE = 0x20000, 0x40000, 24, 5
STEPS = st.lists(st.integers(SIZE, 40), min_size=1, max_size=20)


def block_of(steps: list[int], out: set[int]) -> Block:
    """Return a block of sites so far behind each other, without some members."""
    sites = array("Q", [0x1000 + sum(steps[:number]) for number in range(len(steps))])
    code, data = Slot(CODE, STEP * len(sites)), Slot(DATA, WORD * len(sites))
    originals = [bytes([number + 1]) * SIZE for number in range(len(sites))]
    block = Block(sites=sites, originals=originals, code=code, data=data, step=STEP, is_uniform=False)
    for index in out:
        block.take_out(index % len(sites)) if block.has(index % len(sites)) else None
    return block


@given(STEPS, st.sets(st.integers(0, 19)))
def test_members_are_those_that_are_not_out(steps: list[int], out: set[int]) -> None:
    block = block_of(steps, out)
    members = [index for index in range(len(steps)) if index not in block.out]
    assert [*block.members] == members and len(block) == len(members)
    assert [index for index in range(-2, len(steps) + 2) if block.has(index)] == members
    assert [index for start, end in block.runs() for index in range(start, end)] == members
    assert all(start <= index < end for index in members for start, end in [block.run_of(index)])
    assert {block.run_of(index) for index in members} == {*block.runs()}
    assert block.places() == [(block.sites[index], block.sites[index] + SIZE) for index in members]
    assert block.texts() == [bytes([index + 1]) * SIZE for index in members]
    words = array("Q", range(len(steps)))
    assert block.hits(words.tobytes()) == members
    assert block.branches(X86_64) == [X86_64.branch(block.sites[one], block.slot(one).address) for one in members]
    assert sum(code.size for code, _ in block.pieces()) == STEP * len(members)
    assert sum(data.size for _, data in block.pieces()) == WORD * len(members)


@given(STEPS, st.sets(st.integers(0, 19)), st.integers(0xFF0, 0x1400), st.integers(0, 200))
def test_members_by_address(steps: list[int], out: set[int], start: int, size: int) -> None:
    block = block_of(steps, out)
    by_address = {block.sites[index]: index for index in block.members}
    inside = [index for address, index in by_address.items() if start <= address < start + size]
    assert block.within(start, start + size) == inside and block.has_within(start, start + size) == bool(inside)
    assert block.at(start) == by_address.get(start)


@given(STEPS, st.sets(st.integers(0, 19)), st.integers(CODE - 30, CODE + 500))
def test_members_by_code(steps: list[int], out: set[int], pc: int) -> None:
    block = block_of(steps, out)
    found = [one for one in block.members if block.slot(one).address <= pc < block.slot(one).end]
    assert block.slot_at(pc) == (found[0] if found else None)
