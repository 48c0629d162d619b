"""Run the code of a program in Unicorn, and compare all that it leaves with what the interpreter says.

0xffff888001230000  data   what POINTERS point into          kept
0xffffc90000107000  stack  the stack pointer in its middle   kept from there on
gs: + 0x20000       per-CPU data                             kept
0xffff888000200000  page tables: they map data and per-CPU data, and both again at ALIAS and USER
0xffffffff80001000  code   and, behind it, an endless loop; on the last page what reads memory that may not be there
0xffffffff92000000  faults, then objects                     as the interpreter says
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import unicorn
from unicorn import x86_const

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct, routine
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import MASK, Cell, Clock, Constant, HashMap, Program, Records, Register, Stop, Update
from gdb_optprobe.handlers.lower_maps import layout
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.isa.x86_64.writer import branch
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Sum
from gdb_optprobe.maps.ring import RingLayout
from tests.guest.linux.arch.x86_64.tables import Tables

AREA = 512
PAGE = 4096
DATA, STACK, CODE, FAULTS = 0xFFFF_8880_0123_0000, 0xFFFF_C900_0010_7000, 0xFFFF_FFFF_8000_1000, 0xFFFF_FFFF_9200_0000
BELOW = 0xFFFF_FFFF_7FE0_0000  # where faults and objects may be instead: 32 bits do not name that
RING_OFFSET = 28 * PAGE
RING_AT = FAULTS + RING_OFFSET
RING, KIND, CPU, TABLE_BITS = RingLayout(6, 3), 7, Constant(3), 2
NEWEST = RingLayout(2, 1, overwrites=True)
GS, PER_CPU, OFFSET = 0xFFFF_8880_0777_0000, 0x2_0000, 0x2_0F00  # OFFSET: of this_cpu_off
SP = "rsp"
POINTERS = ("rdi", "rbp", "r12", "r13")
NUMBERS = ("rax", "rcx", "rdx", "rsi", "r8", "r9", "eflags")
DEAD_NAMES = tuple(name for name in (*abi.GENERAL, abi.CARRY) if name != SP)
NOTHING_DEAD = Dead()
LIMIT = 20_000
_REGISTERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*abi.GENERAL, abi.FLAGS)}
CLOCK = Update(Cell("clock", Sum(False)), Clock())
INNER = CODE + 2 * PAGE
START = CODE + 1  # of programs; before it is a nop, for Unicorn does not run nothing
DIRECT = Direct(0xFFFF_8880_0000_0000, 1 << 46)
ROOT = 0x20_0000
ALIAS, USER = 0xFFFF_C900_0020_0000, 0x5555_0000_0000
ROUTINE = routine(DIRECT)
READERS = ROUTINE.at(CODE + 4 * PAGE)
_PLACES = {DATA: 1, STACK - PAGE: 2, CODE: 5, GS + PER_CPU: 1}  # address: pages
_OBJECT_PAGES = 32
PAD = CODE + 4 * PAGE - 16


@dataclass(frozen=True)
class State:
    """registers: all general ones and the flags. seed: of what is in memory."""

    registers: Mapping[str, int]
    seed: int = 0


@dataclass(frozen=True)
class Left:
    """executed: instructions. depths: by offset of each, how far below its place the stack pointer was.

    stops: whether it ended at the PAD.
    """

    registers: Mapping[str, int]
    memory: Mapping[int, bytes]
    executed: int
    depths: Mapping[int, int]
    stops: bool = False

    def read(self, address: int, size: int) -> bytes:
        return read(self.memory, address, size)


@lru_cache
def tables() -> Tables:
    """Two pages side by side at ALIAS and at USER, where the user may read the first alone."""
    made = Tables(DIRECT, ROOT, lambda at: b"")
    frames = [DATA - DIRECT.start, GS + PER_CPU - DIRECT.start]
    for index, frame in enumerate(frames):
        made.map(DIRECT.start + frame, frame, 1)
        made.map(ALIAS + PAGE * index, frame, 1)
        made.map(USER + PAGE * index, frame, 1, user=not index)
    for frame in tuple(made.pages):
        made.map(DIRECT.start + frame, frame, 1)
    return made


def state(numbers: Mapping[str, int], seed: int = 0, arithmetic_flags: int = 0) -> State:
    registers = {name: random.Random(f"{name}{seed}").getrandbits(64) for name in abi.GENERAL} | numbers
    registers |= {name: DATA + 16 * index for index, name in enumerate(POINTERS)} | {SP: STACK}
    return State(registers | {abi.FLAGS: 0x202 | arithmetic_flags & abi.ARITHMETIC_FLAGS}, seed)


@lru_cache
def _contents(seed: int, size: int) -> bytes:
    """Anything, and what lies at the edges of types."""
    chosen = random.Random(seed)
    edges = [chosen.choice((0, 1, 0x7F, 0x80, 0x7FFF_FFFF, 0x8000_0000, 1 << 63, -1, -2)) for _ in range(size // 16)]
    data = b"".join((edge & MASK).to_bytes(8, "little") + chosen.randbytes(8) for edge in edges)
    return data[chosen.randrange(8) :].ljust(size, b"\x80")


def memory_of(state: State, objects: Mapping[int, bytes], faults: int = FAULTS) -> dict[int, bytes]:
    """By address: every place as it is before."""
    pages_at = _PLACES | {faults: _OBJECT_PAGES}
    filled = {at: bytearray(_contents(at ^ state.seed, pages * PAGE)) for at, pages in pages_at.items()}
    filled |= {DIRECT.start + at: page for at, page in tables().pages.items()}
    filled[CODE][:] = (b"\xcc" * (4 * PAGE) + ROUTINE.code).ljust(5 * PAGE, b"\xcc")
    filled[faults][:8] = bytes(8)
    gs = filled[GS + PER_CPU]
    gs[OFFSET - PER_CPU : OFFSET - PER_CPU + 8] = GS.to_bytes(8, "little")
    for address, data in objects.items():
        filled[faults][address - faults : address - faults + len(data)] = data
    return {at: bytes(data) for at, data in filled.items()}


def read(memory: Mapping[int, bytes], address: int, size: int) -> bytes:
    for at, data in memory.items():
        if at <= address and address + size <= at + len(data):
            return data[address - at : address - at + size]
    raise AssertionError(f"{address:#x} is not there")


def peeked(memory: Mapping[int, bytes], address: int, size: int) -> bytes:
    """What page tables lead to. Raises Unreadable."""
    places = [tables().place(address + at) for at in range(size)]
    return b"".join(read(memory, DIRECT.start + known(at, address), 1) for at in places)


def known(place: int | None, address: int) -> int:
    if place is None:
        raise Unreadable(address, 1)
    return place


def execute(
    code: bytes, state: State, memory: Mapping[int, bytes], interrupted: int = 0, inner: bytes = b""
) -> Left:
    """Run code that stands at START, until its end. Raises UcError where it cannot.

    interrupted: after so many instructions (if any) all of it runs in between, lower on the stack, as in an interrupt.
    inner: code that stands at INNER and runs then in place of it.
    """
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
    frames: dict[int, int] = {}
    physical = 0
    for at, data in memory.items():
        uc.mem_map(physical, len(data))
        uc.mem_write(physical, data)
        frames |= {at + page: physical + page for page in range(0, len(data), PAGE)}
        physical += len(data)
    code = b"\x90" + code
    uc.mem_write(frames[CODE], code + b"\xeb\xfe")
    uc.mem_write(frames[INNER], inner + b"\xeb\xfe")
    within = (INNER, INNER + len(inner)) if inner else (CODE, CODE + len(code))
    uc.mem_write(frames[PAD & -PAGE] + PAD % PAGE, branch(PAD, CODE + len(code)))

    def on_missing(_: object, address: int, access: int, entry: Any, __: object) -> bool:
        if address & -PAGE not in frames:
            return False
        entry.paddr, entry.perms = frames[address & -PAGE], unicorn.UC_PROT_ALL
        return True

    executed = 0
    stops = False
    depths: dict[int, int] = {}

    def on_code(_: object, address: int, __: int, ___: object) -> None:
        nonlocal executed, stops
        executed += 1
        stops |= address == PAD
        if not interrupted:
            depths[address - START] = state.registers[SP] - uc.reg_read(x86_const.UC_X86_REG_RSP)

    uc.hook_add(unicorn.UC_HOOK_TLB_FILL, on_missing)
    uc.hook_add(unicorn.UC_HOOK_CODE, on_code)
    for name, value in state.registers.items():
        uc.reg_write(_REGISTERS[name], value)
    uc.reg_write(x86_const.UC_X86_REG_GS_BASE, GS)
    uc.reg_write(x86_const.UC_X86_REG_CR3, ROOT)
    begin = CODE
    if interrupted:
        uc.emu_start(CODE, CODE + len(code), count=1 + interrupted)
        context, begin = uc.context_save(), uc.reg_read(x86_const.UC_X86_REG_RIP)
        below = uc.reg_read(x86_const.UC_X86_REG_RSP) - 256
        for name, value in (*state.registers.items(), (SP, below)):
            uc.reg_write(_REGISTERS[name], value)
        uc.emu_start(*within, count=LIMIT)
        uc.context_restore(context)
    uc.emu_start(begin, CODE + len(code), count=LIMIT)
    assert uc.reg_read(x86_const.UC_X86_REG_RIP) == CODE + len(code)
    registers = {name: uc.reg_read(number) for name, number in _REGISTERS.items()}
    left = {at: bytes(uc.mem_read(frames[at], len(data))) for at, data in memory.items()}
    return Left(registers, left | {CODE: memory[CODE]}, executed - 1, depths, stops)


def places(program: Program, faults: int = FAULTS) -> tuple[int, ...]:
    """Where its objects are."""
    found, at, ring_at = [], faults + 8, faults + RING_OFFSET
    for each in program.objects:
        found.append(ring_at if isinstance(each, Records) else at)
        at += 0 if isinstance(each, Records) else len(initial(each))
    return tuple(found)


def initial(target: Cell | HashMap | Records) -> bytes:
    match target:
        case Cell(_, kind):
            return aggregate.encode(aggregate.initial(kind))
        case HashMap():
            return layout(target, TABLE_BITS).initial()
        case Records():
            return RING.initial()


def ring_of(program: Program) -> RingLayout:
    """Return its ring: half of all random programs have one that overwrites."""
    return RING if len(program.actions) % 2 else replace(RING, overwrites=True)


def objects(program: Program, faults: int = FAULTS) -> dict[int, bytes]:
    """By address, before the first hit."""
    found = {at: initial(target) for at, target in zip(places(program, faults), program.objects, strict=True)}
    ring_at = faults + RING_OFFSET
    found[ring_at] = ring_of(program).initial()
    assert all(at == ring_at or at + len(data) <= ring_at for at, data in found.items())
    return found


def overwriting(around: LoweringContext) -> LoweringContext:
    """Return the same with a ring that overwrites in place of RING."""
    return replace(around, ring=NEWEST)


def surroundings(program: Program, dead: Dead = NOTHING_DEAD, faults: int = FAULTS) -> LoweringContext:
    where = places(program, faults)
    found = LoweringContext(CODE, where, faults, dead, OFFSET, None, TABLE_BITS, ring_of(program), KIND, CPU, READERS)
    return replace(found, passed=dead, pad=PAD)


def differences(program: Program, state: State, dead: Dead = NOTHING_DEAD, faults: int = FAULTS) -> Sequence[str]:
    """What is not as the interpreter says, or not as it was."""
    memory = memory_of(state, objects(program, faults), faults)
    left = execute(lower(program, surroundings(program, dead, faults), BACKEND)(START), state, memory)
    seen = NOTHING_DEAD if left.stops else dead
    outcome = interpreter.run(program, hit(state, memory, clock_of(program, left, faults)))
    return (*wrong_objects(program, left, outcome, faults), *kept(state, memory, left, seen, faults))


def hit(state: State, memory: Mapping[int, bytes], clock: int | None = None) -> interpreter.Hit:
    return interpreter.Hit(state.registers, partial(read, memory), GS, clock, probe_read=partial(peeked, memory))


def clock_of(program: Program, left: Left, faults: int = FAULTS) -> int | None:
    """The clock of a hit, as the first action of a program of programs.timed_programs says."""
    if program.actions[:1] != (CLOCK,):
        return None
    return int.from_bytes(left.read(places(program, faults)[0], 8), "little")


def wrong_objects(program: Program, left: Left, outcome: interpreter.Outcome, faults: int) -> Iterator[str]:
    """What is not as the interpreter says."""
    clock = clock_of(program, left, faults)
    if clock == 0:
        return  # the condition was false, and at what time is not known
    counted = int.from_bytes(left.read(faults, 8), "little")
    if counted != outcome.faults:
        yield f"{counted} faults for {outcome.faults}"
    emitted = []
    # Each action of a program has its own object: equal ones too.
    given = {id(done.action): done for done in outcome.done}
    actions = [action for action in program.actions if not isinstance(action, Stop)]
    if left.stops != outcome.stops:
        yield f"it stops: {left.stops}"
    for index, (at, action) in enumerate(zip(places(program, faults), actions, strict=True)):
        done = given.get(id(action))
        data = left.read(at, len(initial(action.target)))
        match action.target:
            case Cell(_, kind):
                words = aggregate.initial(kind)
                expected = aggregate.update(kind, words, done.value) if done else words
                if aggregate.decode(data) != expected:
                    yield f"{action.target}: {aggregate.decode(data)} for {expected}"
            case HashMap(_, _, kind) as table:
                rows = layout(table, TABLE_BITS).decode(data)
                words = aggregate.initial(kind)
                keys = {done.data: aggregate.update(kind, words, done.value)} if done else {}
                if rows.by_key != keys or rows.overflow:
                    yield f"{table}: {rows} for {keys}"
            case Records():
                emitted += [(KIND + index, CPU.value, done.data)] if done else []
    ring = ring_of(program)
    contents = ring.decode(left.read(faults + RING_OFFSET, ring.size))
    found = [(each.kind, each.cpu, each.fields) for each in contents.records]
    emitted = [(kind, cpu, fields.ljust(8 * RING.words, b"\0")) for kind, cpu, fields in emitted]
    if found != emitted or contents.dropped:
        yield f"{found} for {emitted}"
    if clock is not None and {each.time for each in contents.records} > {clock}:
        yield f"records of other times than {clock}: {contents.records}"


def kept(state: State, memory: Mapping[int, bytes], left: Left, dead: Dead, faults: int) -> Iterator[str]:
    for at, before in memory.items():
        start = PAGE if at == STACK - PAGE else 0  # below the stack pointer anything may be
        if at != faults and left.memory[at][start:] != before[start:]:
            yield f"memory at {at:#x} changed"
    lost = (abi.COUNTER_FLAGS if dead.flags else 0) | (abi.CF if abi.CARRY in dead.registers else 0)
    for name, value in state.registers.items():
        ignored = lost if name == abi.FLAGS else 0
        now = left.registers[name]
        if name not in dead.registers and now & ~ignored != value & ~ignored:
            yield f"{name}: {now:#x} for {value:#x}"


def translated(program: Program, names: Mapping[str, str], pointed: int, per_cpu: int) -> Program:
    """The same with another ISA's registers, and other addresses in the place of DATA and PER_CPU."""

    def same(node: object) -> object:
        match node:
            case Register(name):
                return Register(names[name])
            case Constant(value) if DATA <= value < DATA + 2 * PAGE:
                return Constant(value - DATA + pointed)
            case Constant(value) if PER_CPU <= value < PER_CPU + AREA:
                return Constant(value - PER_CPU + per_cpu & MASK)
            case tuple():
                return tuple(same(each) for each in node)
        if not dataclasses.is_dataclass(node) or isinstance(node, type):
            return node
        fields = {field.name: same(getattr(node, field.name)) for field in dataclasses.fields(node)}
        return replace(node, **fields)

    found = same(program)
    assert isinstance(found, Program)
    return found
