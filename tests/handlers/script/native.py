"""Scripts as native code in Unicorn, one after the other in one emulator: what hits leave is what the interpreter says.

Memory is that of running.py (x86-64), of power.py (ppc64le) and of arm.py (aarch64); arguments are in registers, two of
them lead to texts.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import unicorn
from unicorn import arm64_const, ppc_const, x86_const

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import MASK, WORD, Program, Records
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.script.compile import compile_script
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.handlers.trap_frame import rename_registers
from gdb_optprobe.isa.aarch64 import abi as a64
from gdb_optprobe.isa.aarch64 import encodings as a64_encodings
from gdb_optprobe.isa.aarch64.codegen import BACKEND as ARM_BACKEND
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.codegen import Backend, ProbeReadRoutines
from gdb_optprobe.isa.ppc64le import abi, encodings
from gdb_optprobe.isa.ppc64le.codegen import BACKEND as POWER_BACKEND
from gdb_optprobe.isa.x86_64.codegen import BACKEND as INTEL_BACKEND
from gdb_optprobe.maps.ring import RingLayout
from gdb_optprobe.maps.session_map import SessionMap
from tests.handlers import arm as a64_guest
from tests.handlers import power, running, scripts
from tests.handlers.calling import ARM, IBM, INTEL, Side
from tests.handlers.script.kernel import FakeKernel
from tests.isa.ppc64le import oracle

PAGE = running.PAGE
SETTINGS = Settings(max_map_keys=4, max_strlen=32)
MOST = 200_000
"""Instructions of a hit."""
HITS = 3
RING_BITS = 5
TEXTS = (b"abc\0", b"abdz\0", b"hello, world\0", b"\0", b"abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnop\0")
MAPS_OFFSET, MAPS_ROOM = 64 * PAGE, 128 * PAGE
"""From the faults on: behind what running.py has there."""
LIMITS = ("registers", "stack", "searches in a text of the hit", "bytes")
"""What a refusal to make native code speaks of."""
_LITTLE_ENDIAN = 1 << 63 | 1
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
EDGES = (0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 63)


@dataclass(frozen=True)
class Place:
    """Where an ISA's code runs.

    arguments: registers, by number. room: bytes of code that there may be. texts: where texts are, in a page that
    probe_read reads. faults: of objects. before: memory, by address. frame: of it, where code may have its stack.
    peek: as interpreter.Hit's.
    """

    side: Side
    backend: Backend
    arguments: Sequence[str]
    code: int
    room: int
    texts: int
    faults: int
    stack: int
    frame: range
    per_cpu: int
    before: Mapping[int, bytes]
    around: Callable[[Program, Dead], LoweringContext]
    peek: Callable[[int, int], bytes]


@lru_cache(4)
def compiled(text: str, arguments: Sequence[str] = ARGUMENTS) -> Program:
    """Return the program of a script's probe. Raises OptprobeError.

    It is the same on each ISA but for the names of registers, so that one is made for all.
    """
    return compile_script(text, FakeKernel(arguments=arguments), settings=SETTINGS).probes[0].program


class _Registers:
    """The registers of an emulator, all at once. Unicorn's own reg_read_batch makes several objects for each."""

    def __init__(self, uc: Any, numbers: Mapping[str, int]) -> None:
        self._uc = uc
        self._names = [*numbers]
        self._values = (ctypes.c_uint64 * len(numbers))()
        places = range(ctypes.addressof(self._values), ctypes.addressof(self._values) + 8 * len(numbers), 8)
        self._all = (
            (ctypes.c_int * len(numbers))(*numbers.values()),
            (ctypes.c_void_p * len(numbers))(*places),
            ctypes.c_int(len(numbers)),
        )

    def write(self, values: Mapping[str, int]) -> None:
        self._values[:] = [values[name] for name in self._names]
        assert self._uc._do_reg_write_batch(*self._all) == unicorn.UC_ERR_OK

    def read(self) -> Iterator[tuple[str, int]]:
        ctypes.memset(self._values, 0, ctypes.sizeof(self._values))
        assert self._uc._do_reg_read_batch(*self._all) == unicorn.UC_ERR_OK
        return zip(self._names, self._values, strict=True)


class Machine:
    """One emulator. It runs a script's hits, and says what is not as the interpreter has it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._uc: Any = unicorn.Uc(*place.side.engine)
        if place.side.engine == ARM.engine:
            self._uc.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX)
        self._uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        self._frames: dict[int, int] = {}
        physical = PAGE
        for at, data in (*place.before.items(), (place.faults + MAPS_OFFSET, bytes(MAPS_ROOM))):
            self._frames |= {at + page: physical + page for page in range(0, len(data), PAGE)}
            physical += len(data)
        self._memory = mmap.mmap(-1, physical)
        host = ctypes.addressof((ctypes.c_char * physical).from_buffer(self._memory))
        self._uc.mem_map_ptr(0, physical, unicorn.UC_PROT_ALL, host)
        for at, data in place.before.items():
            self.write(at, data)
        self._kept = [*self._all_kept()]
        self._registers = _Registers(self._uc, place.side.numbers)
        self._uc.hook_add(unicorn.UC_HOOK_TLB_FILL, self._fill)
        if place.side is INTEL:
            self._uc.reg_write(x86_const.UC_X86_REG_GS_BASE, running.GS)
            self._uc.reg_write(x86_const.UC_X86_REG_CR3, running.ROOT)
        elif place.side is IBM:
            self._uc.reg_write(ppc_const.UC_PPC_REG_MSR, _LITTLE_ENDIAN)
        else:
            tpidr_el1 = (13, 0, 3, 0, 4)
            self._uc.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (*tpidr_el1, place.per_cpu))

    def _fill(self, _: object, address: int, access: int, entry: Any, __: object) -> bool:
        if address & -PAGE not in self._frames:
            return False
        entry.paddr = self._frames[address & -PAGE] + (address % PAGE & -self.place.side.page)
        entry.perms = unicorn.UC_PROT_ALL
        return True

    def _all_kept(self) -> Iterator[tuple[int, slice, bytes]]:
        """Yield what no hit may change: all memory but its frame, the code and objects. Address, place, and bytes."""
        place = self.place
        for at, data in place.before.items():
            if at & -PAGE == place.code & -PAGE or at <= place.faults < at + len(data):
                continue
            own = place.frame if place.frame.start in range(at, at + len(data)) else range(at, at)
            for part in (range(at, own.start), range(own.stop, at + len(data))):
                if part:
                    physical = self._frames[at] + part.start - at
                    yield part.start, slice(physical, physical + len(part)), data[part.start - at : part.stop - at]

    def read(self, address: int, size: int) -> bytes:
        assert address & -PAGE in self._frames, f"{address:#x} is not there"
        at = self._frames[address & -PAGE] + address % PAGE
        return self._memory[at : at + size]

    def write(self, address: int, data: bytes) -> None:
        at = self._frames[address & -PAGE] + address % PAGE
        self._memory[at : at + len(data)] = data

    def differences(self, text: str, seed: int, other: str = "") -> Iterator[str]:
        """Yield what hits of a script leave that is not as the interpreter says. seed: of all else.

        other: what the interpreter is given in its place.
        Raises NotLowered, and OptprobeError where the script does not compile, or its code is too long.
        """
        place, chosen = self.place, random.Random(seed)
        program = self.program(text)
        interpreted = self.program(other) if other else program
        dead = place.side.isa.dead_at_entry() if chosen.random() < 0.5 else Dead()
        words = max([8, *(each.size for each in program.objects if isinstance(each, Records))]) // WORD
        ring = RingLayout(words, RING_BITS)
        ring_at = place.faults + running.RING_OFFSET
        around = replace(
            place.around(program, dead),
            ring=ring,
            objects=(ring_at,) * len(program.objects),
            maps=scripts.places(program, place.faults, MAPS_OFFSET, MAPS_ROOM),
        )
        code = lower(program, around, place.backend)(place.code)
        if len(code) > place.room:
            raise OptprobeError(f"{len(code)} bytes of code, for {place.room}")
        maps = scripts.contents(program)
        self._prepare(code, {at: maps[name].data[:] for name, at in around.maps.items()} | {ring_at: ring.initial()})
        outcomes = []
        for _ in range(HITS):
            registers = self._chosen(chosen)
            outcomes.append(interpreter.run(interpreted, self._hit(registers, maps)))
            yield from self._run(registers, len(code), dead)
        yield from self._wrong(program, ring, ring_at, outcomes, maps)

    def program(self, text: str) -> Program:
        """Return the program of a script's probe, for this ISA. Raises OptprobeError."""
        names = dict(zip(ARGUMENTS, self.place.arguments, strict=True))
        return rename_registers(compiled(text), names) if self.place.arguments != ARGUMENTS else compiled(text)

    def _prepare(self, code: bytes, data: Mapping[int, bytes | bytearray]) -> None:
        self._uc.ctl_flush_tb()
        self.write(self.place.code, code)
        self.write(self.place.faults, bytes(WORD))
        for at, each in data.items():
            self.write(at, bytes(each))

    def _chosen(self, chosen: random.Random) -> dict[str, int]:
        place = self.place
        found = {name: chosen.getrandbits(64) for name in place.side.numbers}
        for name in place.arguments[:4]:
            edge = chosen.choice(EDGES)
            found[name] = chosen.choice((edge, -edge & MASK, chosen.getrandbits(64), chosen.getrandbits(6)))
        for name in place.arguments[4:]:
            found[name] = self._address(chosen)
        flags = {place.side.isa.flags: chosen.getrandbits(32) & place.side.random | (place.side is INTEL) << 1}
        found |= {place.side.isa.sp: place.stack} | flags
        if place.side is IBM:
            found |= {"r13": power.PACA, abi.XER: found[abi.XER] & 0xE000_007F}
        return found

    def _address(self, chosen: random.Random) -> int:
        """Return where a text is, or the page's end, or nothing."""
        texts = self.place.texts
        at = [texts + sum(map(len, TEXTS[:number])) for number in range(len(TEXTS))]
        return chosen.choice((*at, *at, (texts | PAGE - 1) + 1 - chosen.randrange(1, 9), 0, chosen.getrandbits(64)))

    def _hit(self, registers: Mapping[str, int], maps: Mapping[str, SessionMap]) -> interpreter.Hit:
        return interpreter.Hit(registers, self.read, self.place.per_cpu, probe_read=self.place.peek, maps=maps)

    def _run(self, registers: Mapping[str, int], size: int, dead: Dead) -> Iterator[str]:
        """Run the code once. Yield what is not kept."""
        place, uc = self.place, self._uc
        self._registers.write(registers)
        try:
            uc.emu_start(place.code, place.code + size, count=MOST)
        except unicorn.UcError as error:
            yield f"{error} at {uc.reg_read(place.side.pc):#x}"
            return
        if uc.reg_read(place.side.pc) != place.code + size:
            yield f"it ended at {uc.reg_read(place.side.pc):#x}"
        lost = place.side.lost(dead)
        for name, now in self._registers.read():
            if (now ^ registers[name]) & ~lost.get(name, 0):
                yield f"{name}: {now:#x} for {registers[name]:#x}"
        for at, where, before in self._kept:
            if self._memory[where] != before:
                yield f"memory at {at:#x} changed"
                self._memory[where] = before

    def _wrong(
        self,
        program: Program,
        ring: RingLayout,
        ring_at: int,
        outcomes: Sequence[interpreter.Outcome],
        maps: Mapping[str, SessionMap],
    ) -> Iterator[str]:
        counted = int.from_bytes(self.read(self.place.faults, WORD), "little")
        if counted != sum(each.faults for each in outcomes):
            yield f"{counted} faults for {[each.faults for each in outcomes]}"
        found = [(each.kind, each.fields) for each in ring.decode(self.read(ring_at, ring.size)).records]
        done = [each for outcome in outcomes for each in outcome.done]
        wanted = [(each.action.target.kind, each.data.ljust(WORD * ring.words, b"\0")) for each in done]  # type: ignore[union-attr]
        if found != wanted[: ring.places]:
            yield f"{found} for {wanted}"
        for name, at in scripts.places(program, self.place.faults, MAPS_OFFSET, MAPS_ROOM).items():
            layout = maps[name].layout
            left, right = layout.decode(self.read(at, layout.size)), layout.decode(maps[name].data)
            if (left.by_key, left.dropped) != (right.by_key, right.dropped):
                yield f"@{name}: {left} for {right}"


def intel() -> Machine:
    """Return one of x86-64."""
    before = running.memory_of(running.state({}), {})
    texts = running.DATA + 64
    page = bytearray(before[running.DATA])
    page[64 : 64 + len(b"".join(TEXTS))] = b"".join(TEXTS)
    before[running.DATA] = bytes(page)

    @lru_cache(1 << 12)
    def place_of(page: int) -> int | None:
        return running.tables().place(page)

    def peek(address: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            at = address + len(data)
            found = place_of(at & -PAGE)
            if found is None:
                raise Unreadable(at, 1)
            some = min(size - len(data), PAGE - at % PAGE)
            data += running.read(before, running.DIRECT.start + found + at % PAGE, some)
        return data

    frame = range(running.STACK - PAGE, running.STACK)
    return Machine(Place(
        INTEL, INTEL_BACKEND, ARGUMENTS, running.START, running.PAD - running.START, texts, running.FAULTS,
        running.STACK, frame, running.GS, before, running.surroundings, peek,
    ))  # fmt: skip


def ibm() -> Machine:
    """Return one of ppc64le."""
    page = bytearray(power.PRISTINE)
    texts = power.POINTED + 64
    at = texts - power.DATA
    page[at : at + len(b"".join(TEXTS))] = b"".join(TEXTS)
    at = power.PACA + power.DATA_OFFSET - power.DATA
    page[at : at + WORD] = (power.PER_CPU - running.PER_CPU & MASK).to_bytes(WORD, "little")
    routine = encodings.encode_items([*power.read_routine()])
    code = bytes(oracle.CODE_SIZE // 2) + routine.ljust(oracle.CODE_SIZE // 2, b"\0")
    split = power.FAULTS - power.DATA
    before = {oracle.HERE: code, power.DATA: bytes(page[:split]), power.FAULTS: bytes(page[split:])}

    def around(program: Program, dead: Dead) -> LoweringContext:
        readers = ProbeReadRoutines(power.ROUTINE, power.ROUTINE)
        usual = running.surroundings(program, dead, power.FAULTS)
        return replace(usual, address=oracle.HERE, per_cpu=power.DATA_OFFSET, base=None, readers=readers)

    def peek(address: int, size: int) -> bytes:
        if not power.POINTED <= address <= power.POINTED + PAGE - size:
            raise Unreadable(address, size)
        return before[power.DATA][address - power.DATA :][:size]

    arguments = ("r3", "r4", "r5", "r6", "r7", "r8")
    frame = range(power.DATA + oracle.DATA_SIZE // 2, oracle.STACK - IBM.below)
    return Machine(Place(
        IBM, POWER_BACKEND, arguments, oracle.HERE, oracle.CODE_SIZE // 2, texts, power.FAULTS, oracle.STACK,
        frame, power.PER_CPU - running.PER_CPU & MASK, before, around, peek,
    ))  # fmt: skip


def arm() -> Machine:
    """Return one of aarch64."""
    texts, per_cpu = a64_guest.POINTED + 64, a64_guest.PER_CPU - running.PER_CPU & MASK
    page = bytearray(a64_guest.pristine(a64_guest.DATA))
    page[64 : 64 + len(b"".join(TEXTS))] = b"".join(TEXTS)
    routine = a64_encodings.encode_items([*a64_guest.read_routine()])
    code = bytes(a64_guest.ROUTINE - a64_guest.CODE) + routine.ljust(PAGE, b"\0")
    stack = a64_guest.FRAME.start
    before = {
        a64_guest.CODE: code,
        a64_guest.DATA: bytes(page),
        stack: a64_guest.pristine(stack),
        a64_guest.FAULTS: bytes(a64_guest.pristine(a64_guest.FAULTS)),
    }

    def around(program: Program, dead: Dead) -> LoweringContext:
        readers = ProbeReadRoutines(a64_guest.ROUTINE, a64_guest.ROUTINE)
        usual = running.surroundings(program, dead, a64_guest.FAULTS)
        return replace(usual, address=a64_guest.CODE, per_cpu=1, readers=readers)

    def peek(address: int, size: int) -> bytes:
        if not a64_guest.POINTED <= address <= a64_guest.POINTED + PAGE - size:
            raise Unreadable(address, size)
        return before[a64_guest.DATA][address - a64_guest.DATA :][:size]

    side = replace(ARM, numbers={**ARM.numbers, a64.LR: arm64_const.UC_ARM64_REG_LR})
    return Machine(Place(
        side, ARM_BACKEND, a64.ARGUMENTS[:6], a64_guest.CODE, a64_guest.ROUTINE - a64_guest.CODE, texts,
        a64_guest.FAULTS, a64_guest.STACK, a64_guest.FRAME, per_cpu, before, around, peek,
    ))  # fmt: skip
