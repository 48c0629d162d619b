"""A hit that walks its stack by the back chain finds its callers, and reads stacks alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.guest.linux.arch.base import WalkedFrom
from gdb_optprobe.guest.linux.arch.ppc64le.back_chain import MARKER, MARKERS, SHORT_MARKER, Frame
from gdb_optprobe.guest.linux.arch.ppc64le.chain_walk import ChainWalk
from gdb_optprobe.guest.linux.arch.ppc64le.user_walk import of_program
from gdb_optprobe.guest.linux.arch.ppc64le.user_walk import walker as user_walker
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Column, Emit, Form, Program, Records
from gdb_optprobe.handlers.stack_walk import FRAMES, Frames, frames, walk
from gdb_optprobe.maps.host_map import HostMap

SIZE = 1 << 14
START, STACK, INTERRUPT = 0xC000_0000_0010_0000, 0xC000_0000_0F00_4000, 0xC000_0000_0A00_8000
SP, CALLER, OUTER = STACK + 0x3000, STACK + 0x3080, STACK + 0x3100
LR, FIRST, SECOND = 0xC000_0000_0020_0004, 0xC000_0000_0020_0104, 0xC000_0000_0020_0204
ENTERED = Frame()
RECORD = Records("", (Column("", Form.UNSIGNED),), kind=0)


def walked(
    words: Mapping[int, int], frame: Frame = ENTERED, sp: int = SP, depth: int = 127, user: bool = False
) -> Frames:
    """What a hit at START finds; words that are not given are 0."""

    def read(address: int, size: int) -> bytes:
        inside = any(start <= address < start + SIZE for start in (STACK, INTERRUPT)) or (user and address < 1 << 60)
        assert inside and address % 8 == 0, f"{address:#x} is read, which is no word of a stack"
        return words.get(address, 0).to_bytes(size, "little")

    kernel = ChainWalk(WalkedFrom(START), frame, fold.constant(STACK), SIZE)
    found = walk(user_walker(kernel) if user else kernel, depth)
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    contents = HostMap()
    outcome = run(program, Hit({"r1": sp, "lr": LR}, read, maps={FRAMES.name: contents}))
    told = frames(int.from_bytes(outcome.done[-1].data, "little"), contents)
    assert isinstance(told, Frames)
    return told


CHAIN = {SP: CALLER, CALLER: OUTER, CALLER + 16: FIRST, OUTER + 16: SECOND}


@pytest.mark.parametrize(
    "frame, wanted",
    [
        (Frame(), (LR, FIRST, SECOND)),
        (Frame(0, in_lr=False), (0x1234, FIRST, SECOND)),
        (Frame(128), (LR, SECOND)),
        (Frame(128, in_lr=False), (FIRST, SECOND)),
        (Frame(None, in_lr=False), (FIRST, SECOND)),
    ],
)
def test_what_the_probed_function_has_done_is_known(frame: Frame, wanted: tuple[int, ...]) -> None:
    assert walked({**CHAIN, SP + 16: 0x1234}, frame) == Frames((START, *wanted))


def test_no_more_frames_than_are_asked_for() -> None:
    assert walked(CHAIN, depth=2) == Frames((START, LR))


@pytest.mark.parametrize("marker", [MARKER, SHORT_MARKER])
@pytest.mark.parametrize("offset", MARKERS)
@pytest.mark.parametrize("user", [False, True])
def test_an_interrupt_is_the_end_of_what_is_known(offset: int, marker: int, user: bool) -> None:
    regs = OUTER + offset + 16
    chain = {**CHAIN, OUTER: 0x7FFF_0000_1000 if user else OUTER + 0x400, OUTER + offset: marker}
    chain |= {regs + 8 * 32: 0xABCD0, regs + 8 * 33: 0x9000 | user << 14}
    found = walked(chain)
    assert found == Frames((START, LR, FIRST, SECOND, *(() if user else (0xABCD0,))), is_whole=user)


def test_the_chain_leads_from_the_stack_of_an_interrupt_to_the_threads() -> None:
    chain = {**CHAIN, INTERRUPT + 0x100: SP, SP + 16: 0x5678}
    assert walked(chain, Frame(), INTERRUPT + 0x100).addresses == (START, LR, 0x5678, FIRST, SECOND)


@pytest.mark.parametrize("beyond", [STACK + SIZE, SP - 8, CALLER + 4, 0xDEAD_0000, INTERRUPT])
def test_a_chain_that_leads_nowhere_is_not_followed(beyond: int) -> None:
    assert walked({SP: beyond}) == Frames((START, LR), is_whole=False)


REGS = OUTER + MARKERS[1] + 16
PROGRAM = {0x7FFF_1000: 0x7FFF_1080, 0x7FFF_1080: 0x7FFF_1100, 0x7FFF_1090: 0x1000_0200, 0x7FFF_1110: 0x1000_0300}
ENTERED_KERNEL = {
    **CHAIN, OUTER: 0x7FFF_1000, OUTER + MARKERS[1]: SHORT_MARKER, REGS + 8: 0x7FFF_1000, REGS + 8 * 32: 0x1000_0000,
    REGS + 8 * 33: 0x9000 | 1 << 14, REGS + 8 * 36: 0x1000_0100,
}  # fmt: skip


@pytest.mark.parametrize("sp", [SP, INTERRUPT])
def test_the_chain_leads_to_the_program_and_its_own_chain(sp: int) -> None:
    """Also from an interrupt of the kernel, and from another stack."""
    chain = {**ENTERED_KERNEL, INTERRUPT: SP, **PROGRAM}
    found = walked(chain, sp=sp, user=True)
    assert found == Frames((0x1000_0000, 0x1000_0100, 0x1000_0200, 0x1000_0300))


@pytest.mark.parametrize("returned", [False, True])
def test_a_program_has_its_registers_where_it_is_probed(returned: bool) -> None:
    """Where a function has returned LR is none of its callers', and the frame that it has returned to is there."""
    pc, link, at, caller, outer = (0x1000_0000 + 0x100 * number for number in range(5))
    words = {at: caller, caller: outer, caller + 16: 0x1234, outer + 16: 0x5678}
    found = walk(of_program(returned), 127)
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    contents = HostMap()

    def read(address: int, size: int) -> bytes:
        return words.get(address, 0).to_bytes(size, "little")

    outcome = run(program, Hit({"pc": pc, "r1": at, "lr": link}, read, maps={FRAMES.name: contents}))
    told = frames(int.from_bytes(outcome.done[-1].data, "little"), contents)
    assert told == Frames((pc, *([] if returned else [link]), 0x1234, 0x5678))


def test_a_thread_of_the_kernel_has_no_program() -> None:
    assert walked(CHAIN, user=True) == Frames(())
