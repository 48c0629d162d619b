"""A hit that walks its stack by ORC finds the frames that the unwinder on the host finds, and reads stacks alone."""

from __future__ import annotations

import random
import struct

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import Encoding, State, unwind
from gdb_optprobe.guest.linux.arch.x86_64.orc_walk import OrcWalk
from gdb_optprobe.guest.linux.current import STACK_SIZE
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Column, Emit, Form, Program, Records
from gdb_optprobe.handlers.stack_walk import FRAMES, Frames, frames, walk
from gdb_optprobe.maps.host_map import HostMap
from tests.guest.linux.arch.x86_64.test_orc_unwind import (
    BP,
    BP_INDIRECT,
    CALL,
    ENCODINGS,
    END,
    ENTRIES,
    IPS,
    LOOKUP,
    NOTHING,
    PARTIAL,
    PREV_SP,
    R10,
    REGS,
    SP,
    SP_INDIRECT,
    STACK,
    TEXT,
    UNDEFINED,
    Kernel,
    orc,
)

START = 0x1000
WORDS = STACK_SIZE // 8
TOP = STACK + 8 * WORDS
OTHER, OTHER_WORDS = STACK - 0x10_0000, 32
"""The stack that the hit is on, of an interrupt: it leads to the thread's, which ends at TOP."""
RECORD = Records("", (Column("", Form.UNSIGNED),), kind=0)


@pytest.fixture(params=ENCODINGS.values(), ids=list(ENCODINGS))
def layout(request: pytest.FixtureRequest) -> Encoding:
    found: Encoding = request.param
    return found


def walked(kernel: Kernel, sp: int, bp: int, end: int, depth: int = 127) -> Frames:
    """What a hit at START finds."""

    def read(address: int, size: int) -> bytes:
        inside = any(start <= address and address + size <= stop for start, stop in readable)
        assert inside, f"{address:#x} is read, which is no stack and no table"
        return kernel.memory.read(address, size)

    tables = kernel.tables
    count = (tables.ips[1] - tables.ips[0]) // 4
    readable = [(STACK, TOP), (OTHER, OTHER + 8 * OTHER_WORDS)]
    readable += [(IPS, IPS + 4 * count), (ENTRIES, ENTRIES + 6 * count), (LOOKUP, LOOKUP + 4 * tables.lookup[1])]
    pc = fold.constant(TEXT + START)
    walker = OrcWalk(tables, pc, pc, fold.constant(sp), fold.constant(bp), fold.constant(end - sp), fold.constant(TOP))
    found = walk(walker, depth)
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    contents = HostMap()
    words = []
    for _ in range(2):  # the second one finds what the first has kept
        outcome = run(program, Hit({"rsp": sp}, read, maps={FRAMES.name: contents}))
        words.append(int.from_bytes(outcome.done[-1].data, "little"))
        assert not outcome.faults
    assert words[0] == words[1]
    told = frames(words[0], contents)
    assert isinstance(told, Frames)
    return told


def unwound(kernel: Kernel, sp: int, bp: int, end: int, depth: int = 127) -> list[int]:
    """What the host finds in the same stacks."""

    def read(address: int, size: int) -> bytes:
        stacks = ((STACK, TOP), (OTHER, OTHER + 8 * OTHER_WORDS))
        if kernel.tables.holds(address) or any(start <= address and address + size <= stop for start, stop in stacks):
            return kernel.memory.read(address, size)
        raise Unreadable(address, size)

    state: State | None = State({"rip": TEXT + START, "rsp": sp, "rbp": bp})
    found = []
    while state is not None and len(found) < depth:
        found.append(state.registers["rip"])
        state = unwind(state, kernel.tables, read)
    return found


def test_frames_of_calls(layout: Encoding) -> None:
    framed, last = orc(layout, CALL, (SP, 24), (PREV_SP, -16)), orc(layout, END)
    kernel = Kernel([(0, orc(layout, CALL)), (START + 8, framed), (START + 64, last)], layout)
    kernel.stack(TEXT + START + 16, 0xB, STACK, TEXT + START + 17, 0xB, STACK, TEXT + START + 65)
    found = walked(kernel, STACK, STACK + 32, TOP)
    assert found.is_whole
    assert found.addresses == (TEXT + START, TEXT + START + 16, TEXT + START + 17, TEXT + START + 65)
    assert walked(kernel, STACK, 0, TOP, depth=2).addresses == found.addresses[:2]


def test_code_without_a_table_ends_a_stack_that_is_told_to_go_on(layout: Encoding) -> None:
    kernel = Kernel([(0, orc(layout, CALL))], layout)
    kernel.stack(0xFFFF_FFFF_C000_0000, 1, 2)
    found = walked(kernel, STACK, 0, TOP)
    assert found == Frames((TEXT + START, 0xFFFF_FFFF_C000_0000), is_whole=False)


def test_a_frame_beyond_the_stack_is_not_read(layout: Encoding) -> None:
    kernel = Kernel([(0, orc(layout, CALL, (SP, 8 * WORDS + 16)))], layout)
    kernel.stack(*[TEXT] * WORDS)
    assert walked(kernel, STACK, 0, TOP) == Frames((TEXT + START,), is_whole=False)


def test_the_way_from_an_interrupt_to_the_thread(layout: Encoding) -> None:
    entries = [
        (0, orc(layout, CALL)),
        (START + 8, orc(layout, CALL, (SP_INDIRECT, 8))),
        (START + 16, orc(layout, REGS, (SP, 0))),
        (START + 24, orc(layout, CALL, (BP, 16), (PREV_SP, -16))),
        (START + 32, orc(layout, END)),
    ]
    kernel = Kernel(entries, layout)
    own = struct.pack(f"<{OTHER_WORDS}Q", TEXT + START + 9, *[0] * (OTHER_WORDS - 2), STACK)
    # A call has led to START; its caller has a stack of one word more, which leads to the thread's.
    kernel.memory.place(OTHER, own[:8] + struct.pack("<Q", STACK) + own[16:])
    regs = [0] * 21
    regs[4], regs[16], regs[17], regs[19] = STACK + 8 * 40, TEXT + START + 24, 0x10, STACK + 8 * 30
    words = [TEXT + START + 17, *regs, *[0] * (WORDS - 22)]
    words[40:42] = [0xB, TEXT + START + 33]
    kernel.stack(*words)
    found = walked(kernel, OTHER, 0, OTHER + 8 * OTHER_WORDS)
    assert [hex(address - TEXT - START) for address in found.addresses] == ["0x0", "0x9", "0x11", "0x18", "0x21"]
    assert found.is_whole


@pytest.mark.parametrize("seed", range(40))
def test_any_table_and_stack(layout: Encoding, seed: int) -> None:
    """What is found is what the host finds, or the first part of it where callers are told to be unknown."""
    rng = random.Random(seed)
    registers = [SP] * 6 + [BP] * 3 + [SP_INDIRECT, BP_INDIRECT, R10, UNDEFINED]
    kinds = [CALL] * 8 + [REGS, PARTIAL, END, NOTHING]
    entries = [(0, orc(layout, CALL, (SP, 8)))]
    for at in range(START + 8, START + 8 + 16 * 40, 16):
        sp = (rng.choice(registers), rng.choice([0, 8, 16, 24, 32, 64, -8]))
        bp = (rng.choice([UNDEFINED, UNDEFINED, PREV_SP, BP]), rng.choice([-16, -24, 8]))
        entries.append((at, orc(layout, rng.choice(kinds), sp, bp)))
    kernel = Kernel(entries, layout)

    def word() -> int:
        return rng.choice([
            TEXT + START + rng.randrange(9, 16 * 40), STACK + 8 * rng.randrange(WORDS), rng.randrange(1 << 64), 0x10,
            TEXT + START + rng.randrange(9, 16 * 40), OTHER + 8 * rng.randrange(OTHER_WORDS),
        ])  # fmt: skip

    kernel.stack(*(word() for _ in range(WORDS)))
    kernel.memory.place(OTHER, struct.pack(f"<{OTHER_WORDS}Q", *(word() for _ in range(OTHER_WORDS))))
    for sp, end in ((STACK + 8 * rng.randrange(20), TOP), (OTHER + 8 * rng.randrange(8), OTHER + 8 * OTHER_WORDS)):
        bp = STACK + 8 * rng.randrange(WORDS)
        found, wanted = walked(kernel, sp, bp, end), unwound(kernel, sp, bp, end)
        assert list(found.addresses) == wanted[: len(found.addresses)]
        assert len(found.addresses) == len(wanted) or not found.is_whole
