"""A hit that walks its stack by frame records finds its callers, whatever is in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.aarch64.record_walk import RecordWalk, of_program
from gdb_optprobe.guest.linux.arch.base import Interrupted, WalkedFrom
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Column, Emit, Expr, Form, Program, Records
from gdb_optprobe.handlers.stack_walk import FRAMES, Frames, Walker, frames, walk
from gdb_optprobe.maps.host_map import HostMap

START, STACK = 0xFFFF_8000_0810_0000, 0xFFFF_8000_0A00_0000
FIRST, SECOND, LINK = START + 0x1004, START + 0x2004, START + 0x3004
RECORD = Records("", (Column("", Form.UNSIGNED),), kind=0)
CHAIN = {STACK: STACK + 0x40, STACK + 8: FIRST, STACK + 0x40: STACK + 0x80, STACK + 0x48: SECOND}
CHAIN |= {STACK + 0x80: 0, STACK + 0x88: 0}


def sparse(words: Mapping[int, int]) -> Callable[[int, int], bytes]:
    def read(address: int, size: int) -> bytes:
        if address not in words:
            raise Unreadable(address, size)
        return words[address].to_bytes(8, "little")[:size]

    return read


def walked(walker: Walker, read: Callable[[int, int], bytes], frame: int = STACK, depth: int = 127) -> Frames:
    found = walk(walker, depth)
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    contents = HostMap()
    registers = {"x29": frame, "x30": LINK, "pc": START}
    outcome = run(program, Hit(registers, read, maps={FRAMES.name: contents}))
    told = frames(int.from_bytes(outcome.done[-1].data, "little"), contents)
    assert isinstance(told, Frames)
    return told


def kernel(has_record: bool, interrupted: Expr | None = None) -> RecordWalk:
    return RecordWalk(WalkedFrom(START, interrupted=Interrupted(interrupted)), has_record, interrupted)


@pytest.mark.parametrize("has_record, wanted", [(True, (FIRST, SECOND)), (False, (LINK, FIRST, SECOND))])
def test_callers(has_record: bool, wanted: tuple[int, ...]) -> None:
    assert walked(kernel(has_record), sparse(CHAIN)).addresses == (START, *wanted)


def test_a_signed_return_address() -> None:
    signed = CHAIN | {STACK + 8: FIRST & ~(0xFF << 56) | 0x5A << 56}
    assert walked(kernel(True), sparse(signed)).addresses == (START, FIRST, SECOND)


def test_what_an_exception_has_interrupted() -> None:
    regs = STACK + 0x1000
    saved = {regs + 29 * 8: STACK, regs + 32 * 8: START + 8, regs + 33 * 8: 0x6000_0005}
    walker = kernel(True, fold.constant(regs))
    assert walked(walker, sparse(CHAIN | saved), frame=0).addresses == (START + 8, FIRST, SECOND)
    assert walked(walker, sparse(CHAIN | saved | {regs + 33 * 8: 0x6000_0000})).addresses == (), "a program"


def test_a_program_s_callers_are_its_own() -> None:
    words = {0x7000: 0x7040, 0x7008: 0x40_1000, 0x7040: STACK, 0x7048: 0x40_2000}
    assert walked(of_program(), sparse(words), frame=0x7000).addresses[1:] == (0x40_1000, 0x40_2000)


def test_records_that_lead_in_a_circle_end() -> None:
    words = {STACK: STACK, STACK + 8: FIRST}
    assert walked(kernel(True), sparse(words), depth=20).addresses == (START, *(FIRST,) * 19)


@pytest.mark.parametrize("seed", range(10))
def test_any_memory(seed: int) -> None:
    source = random.Random(seed)

    def read(address: int, size: int) -> bytes:
        if source.random() < 0.1:
            raise Unreadable(address, size)
        return (source.getrandbits(64) | 1 << 55 & ~7).to_bytes(8, "little")[:size]

    assert len(walked(kernel(seed % 2 == 0), read, depth=30).addresses) <= 30
