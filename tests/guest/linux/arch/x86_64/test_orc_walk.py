"""A hit that walks its stack by ORC finds the frames that the unwinder on the host finds, and reads stacks alone."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import Encoding, State, unwind
from gdb_optprobe.guest.linux.arch.x86_64.orc_walk import OrcWalk, start
from gdb_optprobe.guest.linux.current import STACK_SIZE
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import Column, Emit, Form, Map, Program, Records, Register, Update
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.handlers.lower_session_maps import session_layout
from gdb_optprobe.handlers.stack_walk import CODE, FRAMES, KNOWN, WANTED, Frames, frames, walk
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.aggregate import Count
from gdb_optprobe.maps.host_map import HostMap
from gdb_optprobe.maps.session_map import SessionMap
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
from tests.handlers import running
from tests.handlers.running import FAULTS, PAGE

START, MODULE = 0x1000, 0xFFFF_FFFF_C000_0000
WORDS = STACK_SIZE // 8
TOP = STACK + 8 * WORDS
OTHER, OTHER_WORDS = STACK - 0x10_0000, 32
"""The stack that the hit is on, of an interrupt: it leads to the thread's, which ends at TOP."""
RECORD = Records("", (Column("", Form.UNSIGNED),), kind=0)


@pytest.fixture(params=ENCODINGS.values(), ids=list(ENCODINGS))
def layout(request: pytest.FixtureRequest) -> Encoding:
    found: Encoding = request.param
    return found


def walked(kernel: Kernel, sp: int, bp: int, end: int, depth: int = 127, code: HostMap | None = None) -> Frames:
    """What a hit at START finds. code: of modules."""
    code = HostMap() if code is None else code

    def read(address: int, size: int) -> bytes:
        inside = any(first <= address and address + size <= stop for first, stop in readable)
        assert inside, f"{address:#x} is read, which is no stack and no table"
        return kernel.memory.read(address, size)

    tables = kernel.tables
    count = (tables.ips[1] - tables.ips[0]) // 4
    readable = [(STACK, TOP), (OTHER, OTHER + 8 * OTHER_WORDS)]
    readable += [(IPS, IPS + 4 * count), (ENTRIES, ENTRIES + 6 * count), (LOOKUP, LOOKUP + 4 * tables.lookup[1])]
    pc = fold.constant(TEXT + START)
    begin = start(pc, pc, fold.constant(sp), fold.constant(bp), fold.constant(end - sp))
    walker = OrcWalk(tables, begin, fold.constant(TOP))
    found = walk(walker, depth)
    program = Program(None, (*found.statements, Emit(RECORD, found.words)), quiet=True)
    contents = HostMap()
    words = []
    for _ in range(2):  # the second one finds what the first has kept
        outcome = run(program, Hit({"rsp": sp}, read, maps={FRAMES.name: contents, CODE.name: code}))
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
        if kernel.tables.holds(address) or any(first <= address and address + size <= stop for first, stop in stacks):
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
    kernel = Kernel([(0, orc(layout, CALL)), (START + 64, orc(layout, END))], layout)
    kernel.stack(MODULE + 0x21, 1, TEXT + START + 65)
    code = HostMap()
    found = walked(kernel, STACK, 0, TOP, code=code)
    assert found == Frames((TEXT + START, MODULE + 0x21), is_whole=False)
    assert code.words == {(MODULE + 0x20).to_bytes(8, "little"): (WANTED,)}
    # The host has looked for it meanwhile.
    code.put((MODULE + 0x20).to_bytes(8, "little"), (int.from_bytes(orc(layout, CALL, (SP, 16)), "little") | KNOWN,))
    assert walked(kernel, STACK, 0, TOP, code=code) == Frames((TEXT + START, MODULE + 0x21, TEXT + START + 65))


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


def test_a_hit_as_native_code_costs_what_is_promised(layout: Encoding) -> None:
    """Four frames, of a system call: the second hit finds what the first one has kept."""
    # A block of 256 bytes of text has 16 entries here; Linux has 11.
    entries = {at: orc(layout, CALL, (SP, 8 * (at % 64))) for at in range(0, START + 0x1000, 16)}
    entries[START] = orc(layout, CALL)
    for number, size in ((1, 24), (2, 56)):
        entries[START + 0x100 * number] = orc(layout, CALL, (SP, size), (PREV_SP, -16))
    entries[START + 0x300] = orc(layout, REGS, (SP, 0))
    kernel = Kernel(entries.items(), layout)
    returns = [TEXT + START + 0x100 * number + 8 for number in (1, 2, 3)]
    words = [returns[0], 0, 0, returns[1], *[0] * 6, returns[2], *[0] * 17, 0x33, *[0] * 3]
    tables = kernel.tables
    count = (tables.ips[1] - tables.ips[0]) // 4
    pages = {IPS: 4 * count, ENTRIES: 6 * count, LOOKUP: 4 * tables.lookup[1]}
    own = {at: kernel.memory.read(at, size).ljust(-(-size // PAGE) * PAGE, b"\0") for at, size in pages.items()}

    pc, sp = fold.constant(TEXT + START), Register("rsp")
    begin = start(pc, pc, sp, Register("rbp"), fold.constant(PAGE))
    walker = OrcWalk(tables, begin, fold.constant(running.STACK + PAGE))
    found = walk(walker, 127)
    by = Map("n", (Column("", Form.UNSIGNED),), Count(), 8)
    program = Program(None, (*found.statements, Update(by, None, found.words)), quiet=True)
    most = {FRAMES.name: 64, CODE.name: 8}
    kept = session_layout(replace(FRAMES, most=64))
    code_of_modules = session_layout(replace(CODE, most=8))
    places = {by.name: FAULTS + PAGE, CODE.name: FAULTS + 3 * PAGE, FRAMES.name: FAULTS + 6 * PAGE}
    around = replace(running.surroundings(program), maps=places, most=most)
    code = lower(program, around, BACKEND)(running.START)
    before = running.state({})
    initial = {places[by.name]: session_layout(by).initial(), places[FRAMES.name]: kept.initial()}
    initial[places[CODE.name]] = code_of_modules.initial()
    memory = running.memory_of(before, initial) | own
    stack = bytearray(memory[running.STACK - PAGE])
    stack[PAGE : PAGE + 8 * len(words)] = struct.pack(f"<{len(words)}Q", *words)
    memory[running.STACK - PAGE] = bytes(stack)
    first = running.execute(code, before, memory)
    second = running.execute(code, before, dict(first.memory))

    contents = session_layout(by).decode(second.read(places[by.name], session_layout(by).size)).by_key
    ((key, counted),) = contents.items()
    told = SessionMap(kept, bytearray(second.read(places[FRAMES.name], kept.size)))
    assert counted == (2,)
    assert frames(int.from_bytes(key, "little"), told) == Frames((TEXT + START, *returns))
    assert first.executed > second.executed <= 900
    assert second.registers == before.registers, "nothing is moved"
