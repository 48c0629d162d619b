"""A stack as one word: its frames are found by that word, or the reason is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.handlers.fold import binary
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Assign, Break, Column, Constant, Emit, Form, If, Op, Program, Records, Statement
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.stack_walk import DEEPEST, FRAMES, LOST, PC, Frames, frames, walk
from gdb_optprobe.maps.host_map import HostMap

RECORD = Records("", (Column("", Form.UNSIGNED),), kind=0)


@dataclass(frozen=True)
class Down:
    """A Walker: from an address down to 0, in steps of 16."""

    first: int
    lost_at: int = 0

    @property
    def begin(self) -> Sequence[Statement]:
        return (Assign(PC, Constant(self.first)),)

    @property
    def step(self) -> Sequence[Statement]:
        lost = (Assign(LOST, Constant(1)), Break())
        return (
            If(binary(Op.EQ, PC, Constant(self.lost_at), 64, False), lost),
            Assign(PC, binary(Op.SUB, PC, Constant(16), 64, False)),
            If(binary(Op.EQ, PC, Constant(0), 64, False), (Break(),)),
        )


def word_of(walker: Down, kept: HostMap, depth: int = DEEPEST) -> int:
    found = walk(walker, depth)
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    return int.from_bytes(run(program, Hit({}, lambda at, size: b"", maps={FRAMES.name: kept})).done[-1].data, "little")


def test_the_word_leads_to_the_frames() -> None:
    kept = HostMap()
    assert frames(word_of(Down(48), kept), kept) == Frames((48, 32, 16))
    assert frames(word_of(Down(64), kept, depth=2), kept) == Frames((64, 48))
    assert frames(word_of(Down(48, lost_at=32), kept), kept) == Frames((48, 32), is_whole=False)
    assert frames(word_of(Down(0), kept), kept) == Frames(())


def test_its_frames_are_counted() -> None:
    for walker, depth, count in ((Down(48), 9, 3), (Down(64), 2, 2), (Down(48, lost_at=32), 9, 2), (Down(0), 9, 0)):
        found = walk(walker, depth)
        program = Program(None, (*found.statements, Emit(RECORD, (found.count,))), quiet=True)
        done = run(program, Hit({}, lambda at, size: b"", maps={FRAMES.name: HostMap()})).done
        assert int.from_bytes(done[-1].data, "little") == count


def test_equal_stacks_have_one_word_and_others_another() -> None:
    kept = HostMap()
    words = {word_of(Down(16 * first), kept, depth) for first in range(1, 60) for depth in (1, 5, DEEPEST)}
    assert words == {word_of(Down(16 * first), HostMap(), depth) for first in range(1, 60) for depth in (1, 5, DEEPEST)}
    assert len(words) == 59 + 58 + 54
    assert len({frames(word, kept) for word in words}) == len(words)


def test_no_stack_is_deeper_than_it_may_be() -> None:
    kept = HostMap()
    found = frames(word_of(Down(16 * 1000), kept), kept)
    assert isinstance(found, Frames) and len(found.addresses) == DEEPEST


def test_a_stack_without_room_is_told_as_such() -> None:
    kept = HostMap(most=2)
    told = frames(word_of(Down(16 * 5), kept), kept)
    assert isinstance(told, Missing) and "no room" in told.message
