"""A hit that walks its stack by frame records finds its callers, and reads stacks alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.guest.linux.arch.aarch64 import user_walk
from gdb_optprobe.guest.linux.arch.aarch64.record_walk import RecordWalk
from gdb_optprobe.guest.linux.arch.aarch64.user_walk import UserWalk
from gdb_optprobe.guest.linux.arch.base import Interrupted, WalkedFrom
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Column, Emit, Form, Program, Records
from gdb_optprobe.handlers.stack_walk import FRAMES, Frames, Walker, frames, walk
from gdb_optprobe.maps.host_map import HostMap

SIZE, RECORD, REGISTERS = 1 << 14, 0x130, 0x150
TEXT = 0xFFFF_C2C5_1CE0_0000
ENTRY, START = (TEXT + 0x800, TEXT + 0x1800), TEXT + 0x10_0000
STACK, INTERRUPT = 0xFFFF_8000_0F00_8000, 0xFFFF_8000_0801_0000
SP = STACK + 0x3000
LINK, FIRST, SECOND, THIRD = (TEXT + 0x20_0004 + 0x100 * number for number in range(4))
SIGNATURE = 0xE54A << 48
"""What changes bits of an address that a signature takes: above the lowest 48, but for bit 55."""
HERE = WalkedFrom(START)
EMITTED = Records("", (Column("", Form.UNSIGNED),), kind=0)


def run_walk(walker: Walker, registers: Mapping[str, int], words: Mapping[int, int], depth: int = 127) -> Frames:
    """What a hit finds; words of stacks that are not given are 0."""

    def read(address: int, size: int) -> bytes:
        inside = any(start <= address < start + SIZE for start in (STACK, INTERRUPT))
        assert inside and address % 8 == 0, f"{address:#x} is read, which is no word of a stack"
        return words.get(address, 0).to_bytes(size, "little")

    def peeked(address: int, size: int) -> bytes:
        return words.get(address, 0).to_bytes(size, "little")

    found = walk(walker, depth)
    program = Program(None, (*found.statements, Emit(EMITTED, found.words)), quiet=True)
    contents = HostMap()
    outcome = run(program, Hit(registers, read, maps={FRAMES.name: contents}, probe_read=peeked))
    told = frames(int.from_bytes(outcome.done[-1].data, "little"), contents)
    assert isinstance(told, Frames)
    return told


def walked(
    words: Mapping[int, int],
    frame: int = SP,
    *,
    in_link: bool = True,
    sp: int = SP,
    depth: int = 127,
    place: WalkedFrom = HERE,
) -> Frames:
    walker = RecordWalk(place, in_link, fold.constant(STACK), SIZE, ENTRY, RECORD)
    return run_walk(walker, {"sp": sp, "x29": frame, "x30": LINK}, words, depth)


def chain(*frames: tuple[int, int]) -> dict[int, int]:
    """Records at places, with return addresses; each leads to the next, the last one to none."""
    places = [*(place for place, _ in frames), 0]
    words = {place: after for (place, _), after in zip(frames, places[1:], strict=True)}
    return words | {place + 8: back for place, back in frames}


CHAIN = chain((SP, FIRST), (SP + 0x40, SECOND), (SP + 0x100, 0))


@pytest.mark.parametrize(("in_link", "wanted"), [(True, (LINK, FIRST, SECOND)), (False, (FIRST, SECOND))])
def test_what_the_probed_function_has_done_is_known(in_link: bool, wanted: tuple[int, ...]) -> None:
    assert walked(CHAIN, in_link=in_link) == Frames((START, *wanted))


def test_no_more_frames_than_are_asked_for() -> None:
    assert walked(CHAIN, depth=2) == Frames((START, LINK))


def test_a_signed_return_address_is_the_address() -> None:
    words = chain((SP, FIRST ^ SIGNATURE), (SP + 0x40, SECOND ^ SIGNATURE), (SP + 0x80, 0))
    assert walked(words, in_link=False) == Frames((START, FIRST, SECOND))


def test_where_a_function_has_returned_to_is_the_first_frame() -> None:
    place = WalkedFrom(START, returned=fold.constant(THIRD))
    assert walked(CHAIN, place=place) == Frames((THIRD, FIRST, SECOND))


@pytest.mark.parametrize("beyond", [STACK + SIZE, STACK + SIZE - 8, SP - 16, SP + 8, 0xDEAD_0000, INTERRUPT, 0x7000])
def test_a_chain_that_leads_nowhere_is_not_followed(beyond: int) -> None:
    words = {SP: beyond, SP + 8: FIRST, SP - 8: SECOND, INTERRUPT + 8: SECOND}
    assert walked(words, in_link=False) == Frames((START, FIRST), is_whole=False)


def exception(at: int, pc: int, frame: int, mode: int) -> dict[int, int]:
    """A pt_regs."""
    return {at + 8 * 29: frame, at + 0x100: pc, at + 0x108: mode, at + RECORD: frame, at + RECORD + 8: pc}


REGS = SP + 0x200
INTERRUPTED = {
    **chain((INTERRUPT + 0x100, FIRST), (REGS - 0x40, ENTRY[0] + 0x24)),
    REGS - 0x40: REGS + RECORD,
    **exception(REGS, SECOND, REGS + 0x400, 5),
    **chain((REGS + 0x400, THIRD), (REGS + 0x440, 0)),
}
"""From the stack for interrupts to the thread's."""


def test_an_interrupt_is_walked_through() -> None:
    found = walked(INTERRUPTED, INTERRUPT + 0x100, sp=INTERRUPT + 0x80)
    assert found == Frames((START, LINK, FIRST, ENTRY[0] + 0x24, SECOND, THIRD))


def test_the_stack_of_what_is_interrupted_can_be_walked_alone() -> None:
    places = [Interrupted(), Interrupted(fold.constant(REGS))]
    for place in (WalkedFrom(START, interrupted=each) for each in places):
        found = walked(INTERRUPTED, INTERRUPT + 0x100, sp=INTERRUPT + 0x80, place=place)
        assert found == Frames((SECOND, THIRD))
    # That is a program's, or it is not found.
    for changed in ({REGS + 0x108: 0}, {REGS - 0x40: 0xDEAD_0000}, {INTERRUPT + 0x108: 0}):
        found = walked({**INTERRUPTED, **changed}, INTERRUPT + 0x100, sp=INTERRUPT + 0x80, place=WalkedFrom(
            START, interrupted=Interrupted()
        ))  # fmt: skip
        assert found.addresses == ()


def test_where_a_program_has_entered_the_kernel_the_stack_ends() -> None:
    regs = STACK + SIZE - REGISTERS
    words = {**chain((SP, FIRST), (SP + 0x40, ENTRY[1] - 4)), SP + 0x40: regs + RECORD}
    words |= exception(regs, 0x40_1000, 0x7FFF_0000, 0)
    assert walked(words) == Frames((START, LINK, FIRST, ENTRY[1] - 4))


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (0, Frames((0x40_1000, 0x40_2000, 0x40_3000))),
        (0x10, Frames((0x40_1000,), is_whole=False)),
        (5, Frames(())),
    ],
)
def test_the_frames_of_a_program_are_its_own(mode: int, wanted: Frames) -> None:
    """Of AArch32 its PC is known, and a thread of the kernel has none."""
    regs, frame = STACK + SIZE - REGISTERS, 0x7FFF_1000
    words = exception(regs, 0x40_1000, frame, mode)
    words |= {frame: frame + 0x20, frame + 8: 0x40_2000 | 0x123 << 48, frame + 0x20: 0, frame + 0x28: 0x40_3000}
    walker = user_walk.from_stack(fold.constant(STACK), SIZE, REGISTERS)
    assert run_walk(walker, {"sp": SP}, words) == wanted


@pytest.mark.parametrize(("bits", "wanted"), [(64, Frames((0x1000, 0x2000))), (32, Frames((0x1000,), is_whole=False))])
def test_a_program_has_its_registers_where_it_is_probed(bits: int, wanted: Frames) -> None:
    walker: UserWalk = user_walk.of_program(bits)
    registers = {"sp": 0, "pc": 0x1000, "x29": 0x7FFF_1000}
    assert run_walk(walker, registers, {0x7FFF_1008: 0x2000}) == wanted
