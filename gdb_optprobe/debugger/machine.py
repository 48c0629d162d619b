"""The guest through GDB: memory, registers and a bounded run of a QEMU stub.

Virtual memory is accessed through GDB, so that its caches stay right. Physical memory is accessed with packets to the
stub (`Qqemu.PhyMemMode`), because GDB would treat a physical address as a virtual one.

The stub keeps the vCPU that memory and register packets mean (`Hg`). GDB remembers which one it has set, to save the
packet. The two must agree:

    packet              which vCPU it means                         effect on `Hg`
    m, M physical       none                                        -
    z0, Z0              all                                         -
    P, M virtual        the one of Hg: see `_agree`                 -
    vCont;s:THREAD      THREAD                                      the stub sets THREAD: `_agree` again
GDB 13 reads memory for Python (`Inferior.read_memory`) as the selected thread, later versions as the process, which
QEMU maps to its first vCPU. All versions read a `gdb.Value` as the selected thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise

import gdb

from gdb_optprobe.debugger.guardian_process import GuardianProcess
from gdb_optprobe.debugger.interrupter import is_running
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.program_frames import StoppedPrograms
from gdb_optprobe.debugger.running import run_for
from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreadable
from gdb_optprobe.guest.machine import Changed, HasImages, Memory, Readable, ReadsMany, Vcpu
from gdb_optprobe.guest.memory import MUCH, Dump, KernelMemory
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.abi import SystemRegisters
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.recovery.guardian import Change

# A packet of QEMU 7.2 holds 4096 bytes: two hex digits a byte, less its header.
CHUNK = 1984
PAGE = 4096
# An encoding in which every byte is one character.
BYTES = "latin-1"
ADDRESS_MASK = (1 << 64) - 1
# More steps than any hit takes in detours, with no loop but a search in a table.
MOST_STEPS = 2000

HANDED_OVER = "optprobe: interrupted at a hit"


class GdbMachine:
    """A stopped guest. `memory` reads and writes kernel addresses; raw virtual access until it is replaced.

    stopped_programs: the vCPUs that are stopped in a program, which GDB shows to the user in place of our code.
    dump: reads much of physical memory at once, where that is possible.
    """

    def __init__(self, connection: gdb.RemoteTargetConnection, guard: GuardianProcess, isa: Isa) -> None:
        self.connection = connection
        self._guard = guard
        self._isa = isa
        self.memory: Memory = _RawVirtual(self)
        # Under page-table isolation a vCPU in user mode does not map the kernel.
        self._views = (self._read_chosen, self.read_selected)
        self.stopped_programs = StoppedPrograms()
        self._live: Memory | None = None
        self._is_physical = False
        self._pages: dict[int, bytes] | None = None
        self.dump: Dump | None = None

    # while the guest runs ----------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        return self._live is not None

    @contextmanager
    def reading(self, live: Memory) -> Iterator[None]:
        self._live = live
        try:
            yield
        finally:
            self._live = None

    def check_stopped(self) -> None:
        """Raise NeedsStop where the guest runs: a packet to its stub would stop it."""
        if self.runs:
            raise NeedsStop("the guest runs")

    def _check_reachable(self) -> None:
        """Raise NeedsStop where the guest runs, OptprobeError where it is gone: GDB would read its symbols' file."""
        self.check_stopped()
        if not self.connection.is_valid():  # QEMU has ended, and GDB has just noticed
            raise OptprobeError("the connection to the guest is closed", "connect again: target remote")

    # virtual memory ----------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        return (self._live or self.memory).read(address, size)

    def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        if not self.runs and isinstance(self.memory, ReadsMany):
            return self.memory.read_many(spans)
        return [self.read(start, end - start) for start, end in spans]

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes] | None:
        if not self.runs and isinstance(self.memory, ReadsMany):
            return self.memory.read_each(places)
        return None

    def image(self, start: int, end: int, changed: Changed | None = None) -> Readable | None:
        found = self.memory if not self.runs else None
        return found.image(start, end, changed) if isinstance(found, HasImages) else None

    def write(self, address: int, data: bytes) -> None:
        self.check_stopped()
        self.memory.write(address, data)

    def read_selected(self, address: int, size: int) -> bytes:
        """Read as the selected vCPU does. Raises Unreadable."""
        self._check_reachable()
        address = _wrapped(address, size)
        end = address + size
        # By pages: on an error GDB tries byte by byte to find the first that it cannot read.
        cuts = [address, *range(address - address % PAGE + PAGE, end, PAGE), end]
        # The element type of a string literal is one byte in every language; some have no `char`.
        start = gdb.Value(0).cast(gdb.Value("c").type.target().pointer())
        try:
            parts = [(start + at).string(BYTES, length=to - at) for at, to in pairwise(cuts) if to > at]
        except gdb.MemoryError:
            raise Unreadable(address, size) from None
        return "".join(parts).encode(BYTES)

    def write_selected(self, address: int, data: bytes) -> None:
        """Write as the selected vCPU does. Raises Unreadable."""
        self.check_stopped()
        self._guard.set_fallback()
        self._agree(address)
        self._write_in_packets(address, data)

    def read_virtual(self, address: int, size: int) -> bytes:
        """Read as the selected vCPU does; a kernel address as a vCPU that maps it. Raises Unreadable."""
        if not _is_kernel(address):
            return self.read_selected(address, size)
        first, second = self._views
        try:
            return first(address, size)
        except Unreadable:
            data = second(address, size)
            self._views = second, first
            return data

    def _read_chosen(self, address: int, size: int) -> bytes:
        """Read as the vCPU that GDB chooses, which is fastest. Raises Unreadable."""
        self._check_reachable()
        address = _wrapped(address, size)
        try:
            return bytes(gdb.selected_inferior().read_memory(address, size))
        except gdb.MemoryError:
            raise Unreadable(address, size) from None

    def write_virtual(self, address: int, data: bytes) -> None:
        """Write as the selected vCPU does; a kernel address as a vCPU that maps it. Raises Unreadable."""
        self._check_reachable()
        # This write may remove the detour in which the guardian would continue a vCPU.
        self._guard.set_fallback()
        if _is_kernel(address):
            with suppress(gdb.MemoryError):
                gdb.selected_inferior().write_memory(address, data)
                return
        self.write_selected(address, data)

    # physical memory ---------------------------------------------------------------------------------------------

    def read_physical(self, address: int, size: int) -> bytes:
        if size >= MUCH and self.dump is not None and (found := self.dump([(address, size)])) is not None:
            return found[0][:]
        if self._pages is not None:
            return self._from_pages(address, size, self._pages)
        return self._read_chunks(address, size)

    def _read_chunks(self, address: int, size: int) -> bytes:
        chunks = []
        with self.physical_mode():
            for at in range(address, address + size, CHUNK):
                length = min(CHUNK, address + size - at)
                answer = self._packet(f"m{at:x},{length:x}")
                if answer.startswith(b"E") or len(answer) != 2 * length:
                    raise Unreadable(at, length)
                chunks.append(bytes.fromhex(answer.decode("ascii")))
        return b"".join(chunks)

    def _from_pages(self, address: int, size: int, pages: dict[int, bytes]) -> bytes:
        """Read what is in pages that were read before, or are now. Raises Unreadable."""
        data = b""
        for page in range(address - address % PAGE, address + size, PAGE):
            if page not in pages:
                pages[page] = self._read_chunks(page, PAGE)
            data += pages[page][max(0, address - page) : address + size - page]
        return data

    @contextmanager
    def reading_pages(self) -> Iterator[None]:
        """Read each page of physical memory once within the block, whole: page tables, of which walks read a word at a
        time, and the same ones again.
        """
        with self.physical_mode():
            self._pages = {}
            try:
                yield
            finally:
                self._pages = None

    def write_physical(self, address: int, data: bytes) -> None:
        self._guard.set_fallback()
        if isinstance(self.memory, KernelMemory):
            self.memory.note_write(address, len(data))
        with self.physical_mode():
            self._write_in_packets(address, data)

    @contextmanager
    def physical_mode(self) -> Iterator[None]:
        """Switch the stub to physical addresses within the block. The mode is global, so it is always switched back."""
        if self._is_physical:
            yield
            return
        with held():
            if self._packet("Qqemu.PhyMemMode:1") != b"OK":
                raise OptprobeError(
                    "the target has no access to physical memory (Qqemu.PhyMemMode)", "connect to QEMU's own gdbstub"
                )
            self._is_physical = True
            try:
                yield
            finally:
                self._is_physical = False
                self._packet("Qqemu.PhyMemMode:0")

    def leave_physical_mode(self) -> bool:
        """Switch the stub to virtual addresses: a GDB that was killed may have left it in physical mode.

        Return whether it has such modes, as QEMU's alone has.
        """
        return self._packet("Qqemu.PhyMemMode:0") == b"OK"

    def _write_in_packets(self, address: int, data: bytes) -> None:
        try:
            for start in range(0, len(data), CHUNK):
                chunk = data[start : start + CHUNK]
                if self._packet(f"M{address + start:x},{len(chunk):x}:{chunk.hex()}") != b"OK":
                    raise Unreadable(address + start, len(chunk))
        finally:
            # GDB does not see this write: drop its cache, and ours.
            flush("dcache")
            if self._pages is not None:
                self._pages.clear()

    # packets -----------------------------------------------------------------------------------------------------

    def _packet(self, text: str) -> bytes:
        self._check_reachable()
        answer = self.connection.send_packet(text)
        return answer if isinstance(answer, bytes) else b""

    def _agree(self, address: int) -> None:
        """Have both GDB and the stub mean the selected vCPU."""
        # Before GDB reads memory as a vCPU it sends Hg, unless it has set it before. Then Hg is sent once more,
        # because our packets may have set another one meanwhile.
        with suppress(Unreadable):
            self.read_selected(address, 1)
        if self._packet(f"Hg{_thread_id(self.selected())}") != b"OK":
            raise OptprobeError(f"the target does not let vCPU {self.selected().number} be chosen")

    # vCPUs -------------------------------------------------------------------------------------------------------

    def vcpus(self) -> Sequence[Vcpu]:
        return tuple(_vcpu(thread) for thread in _threads())

    def selected(self) -> Vcpu:
        """Return the vCPU that the user has selected (or, at a stop, the one that stopped)."""
        thread = gdb.selected_thread()
        if thread is None:
            raise OptprobeError("the guest is gone")
        return _vcpu(thread)

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        self.check_stopped()
        system = self._isa.system
        printed = [name for name in names if name in system.printed]
        with _selected(vcpu, self.stopped_programs), _innermost():
            values = {name: read_any_register(name, system, _evaluate) for name in names if name not in printed}
        return {**values, **(_of_monitor(vcpu, printed) if printed else {})}

    @property
    def reads_by_command(self) -> bool:
        """Return whether some registers are read by a command of GDB's, which runs a breakpoint's commands too."""
        return bool(self._isa.system.printed or self._isa.system.evaluated)

    def of_each_vcpu(self, name: str) -> Sequence[int]:
        """Return a register of each vCPU. Raises LookupError if GDB has no register of that name."""
        try:
            return [self.registers(vcpu, (name,))[name] for vcpu in self.vcpus()]
        except ValueError:
            raise LookupError(name) from None

    def stops_at(self, address: int) -> bool:
        """Return whether the stub has a breakpoint at `address` now. Its answer to a removal says so."""
        if self._packet(f"z0,{address:x},1") != b"OK":
            return False
        self._packet(f"Z0,{address:x},1")
        return True

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None:
        """Write registers of a vCPU, all of them or none, even if GDB dies meanwhile. Raises OptprobeError."""
        with _selected(vcpu, self.stopped_programs), held(), self._guard.completing(self.change(values, ())):
            write_selected_registers(values)
            # A write may leave an outer frame selected, and GDB 13 aborts (get_selected_frame) when that is gone later.
            gdb.newest_frame().select()

    def redirect(self, vcpu: Vcpu, pc: str, address: int) -> None:
        """Set the PC of a vCPU by a packet. GDB must not see it: it is about to resume (infrun.c, proceed).

        pc: the register's name. GDB reads registers again at the next stop.
        """
        with _selected(vcpu, self.stopped_programs):
            self._agree(address)
            packet = f"P{self._isa.stub_numbers[pc]:x}={address.to_bytes(8, 'little').hex()}"
            if self._packet(packet) != b"OK":
                raise OptprobeError(f"the target does not let the PC of vCPU {vcpu.number} be set")

    def step_out(self, pc: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Step each vCPU out of `ranges`, one by one and without interrupts. One that does not come out is left there.

        pc: the register's name. The steps are packets, which GDB does not see. Use it only before GDB disconnects.
        """
        for vcpu in self.vcpus():
            with _selected(vcpu, self.stopped_programs):
                for _ in range(MOST_STEPS):
                    at = read_register(pc)
                    if not any(start <= at < end for start, end in ranges):
                        break
                    try:
                        self._packet(f"vCont;s:{_thread_id(vcpu)}")
                    finally:
                        # The stub means the stepped vCPU now.
                        self._agree(at)
                        flush("register-cache")
        flush("dcache")

    def change(self, registers: Mapping[str, int], memory: Iterable[tuple[int, bytes]]) -> Change:
        """Return writes to the selected vCPU as a guardian's change."""
        values = tuple((self._isa.stub_numbers[name], value.to_bytes(8, "little")) for name, value in registers.items())
        return Change(_thread_id(self.selected()), values, tuple(memory))

    def way_on(self, vcpu: Vcpu, pc: str, at: int, to: int) -> Change:
        """Return the change that moves a vCPU from `at` to our code at `to`. pc: the register's name."""
        number, size = self._isa.stub_numbers[pc], 8
        where = (number, at.to_bytes(size, "little")), (to, self.read(to, size))
        return Change(_thread_id(vcpu), ((number, to.to_bytes(size, "little")),), where=where)

    def translates_pages(self) -> bool:
        try:
            answer = gdb.execute("monitor info kvm", to_string=True) or ""
        except gdb.error:
            return False
        return bool(re.search(r"kvm support: (disabled|not compiled)", answer))

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        stops: list[gdb.Breakpoint] = []
        try:
            for address in addresses:
                stops.append(gdb.Breakpoint(f"*{address:#x}", internal=True))
                stops[-1].silent = True
            # A call cannot be left half done: a Ctrl-C waits.
            reached = run_for(timeout, heeds=False)
            hit = isinstance(reached, gdb.BreakpointEvent) and any(stop in reached.breakpoints for stop in stops)
            return self.selected() if hit else None
        finally:
            # Where the guest runs, GDB ends and cannot take out a breakpoint. Where it is gone, GDB would insert them
            # in the next one.
            if not is_running():
                for stop in stops:
                    _delete(stop)


def _delete(stop: gdb.Breakpoint) -> None:
    """Delete a breakpoint; warn where GDB cannot, so that the others are deleted too."""
    try:
        stop.delete()
    except (gdb.error, RuntimeError) as error:
        warn(f"a breakpoint of optprobe's stays: {error}")


class _RawVirtual:
    """Virtual memory as the selected vCPU sees it."""

    def __init__(self, machine: GdbMachine) -> None:
        self._machine = machine

    def read(self, address: int, size: int) -> bytes:
        return self._machine.read_selected(address, size)

    def write(self, address: int, data: bytes) -> None:
        self._machine.write_selected(address, data)


def _wrapped(address: int, size: int) -> int:
    """Return an address modulo 2**64, as a CPU computes it.

    Raises Unreadable where the range would continue at 0.
    """
    address &= ADDRESS_MASK
    if address + size > ADDRESS_MASK + 1:
        raise Unreadable(address, size)
    return address


def _is_kernel(address: int) -> bool:
    """Return whether an address is in the upper half. All vCPUs that map a page there map it alike."""
    return bool(address >> 63 & 1)


def _of_monitor(vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
    """Return registers as QEMU's monitor prints them. Raises OptprobeError."""
    printed = gdb.execute("monitor info registers -a", to_string=True) or ""
    of_vcpu = dict(zip(*[iter(re.split(r"^CPU#(\d+)\s*$", printed, flags=re.M)[1:])] * 2, strict=False))
    values = dict(re.findall(r"\b([A-Z]+\d?) ([0-9a-f]{16})\b", of_vcpu.get(str(vcpu.number), "")))
    try:
        return {name: int(values[name.upper()], 16) for name in names}
    except KeyError as missing:
        raise OptprobeError(f"QEMU does not print register {missing} of vCPU {vcpu.number}") from None


def read_register(name: str) -> int:
    """Return a register of the innermost frame of the selected vCPU, by the name that GDB has for it."""
    return _unsigned(gdb.newest_frame().read_register(name))


def _unsigned(value: gdb.Value) -> int:
    """Return a register's bits. GDB has flags as a signed number, and its sign may be a flag."""
    return int(value) & (1 << 8 * value.type.sizeof) - 1


def _evaluate(name: str) -> int:
    """Return a register of the selected frame. Raises ValueError where GDB has none of that name."""
    value = gdb.parse_and_eval(f"${name}")
    if value.type.code == gdb.TYPE_CODE_VOID:
        raise ValueError(name)
    return _unsigned(value)


@contextmanager
def _innermost() -> Iterator[None]:
    """Have the innermost frame of the selected vCPU selected within the block; its caller is not looked at.

    `gdb.newest_frame` unwinds to the caller and reads an instruction there. Of code without symbols GDB for some
    processors takes a word of the stack for that address (its scanners of prologues). It may be that of a device, and
    QEMU 7.2 ends where a debugger reads its interrupt controller (hw/intc/arm_gic.c). Nor is it a command that selects
    the frame: behind one GDB runs the commands of the breakpoint that has stopped the guest, and ours let it run on.
    """
    before = _place()
    gdb.invalidate_cached_frames()  # with no frame selected GDB takes the innermost (frame.c, get_selected_frame)
    was_outer = _place() != before
    try:
        yield
    finally:
        if was_outer:  # the user's, or a program's: GDB knows all frames up to there
            _select(before)


def _place() -> tuple[int, int]:
    """Return what tells the selected frame from others, inlined ones aside: a call may leave the stack as it was."""
    return _evaluate("sp"), _evaluate("pc")


def _select(place: tuple[int, int]) -> None:
    """Select the frame with these registers, if it is there."""
    frame: gdb.Frame | None = gdb.newest_frame()
    while frame is not None and frame.is_valid():
        if tuple(int(frame.read_register(name)) & ADDRESS_MASK for name in ("sp", "pc")) == place:
            frame.select()
            return
        frame = frame.older()


def read_any_register(name: str, system: SystemRegisters, read: Callable[[str], int] = read_register) -> int:
    """Return a register of the innermost frame of the selected vCPU, also one of `system`. Raises OptprobeError."""
    part = system.parts.get(name)
    if part is not None:
        return read(part.register) >> part.shift & (1 << part.bits) - 1
    return _evaluated(name, read) if name in system.evaluated else read(name)


def _evaluated(name: str, read: Callable[[str], int]) -> int:
    """Return a register that the stub may have of the first vCPU alone. QEMU's monitor has it of each."""
    try:
        return read(name)
    except (gdb.error, ValueError):
        pass
    thread = gdb.selected_thread()
    number = _vcpu(thread).number if thread is not None else 0
    chosen = re.search(r"^\* CPU #(\d+)", gdb.execute("monitor info cpus", to_string=True) or "", re.M)
    gdb.execute(f"monitor cpu {number}", to_string=True)
    try:
        return int(gdb.execute(f"monitor p ${name}", to_string=True) or "", 0)
    except ValueError:
        raise OptprobeError(f"QEMU does not print register {name} of vCPU {number}") from None
    finally:
        # The user may have chosen a CPU for monitor commands.
        gdb.execute(f"monitor cpu {chosen[1] if chosen else 0}", to_string=True)


def write_selected_registers(values: Mapping[str, int]) -> None:
    """Write registers of the selected vCPU, all of them or none. Raises OptprobeError."""
    before = {name: read_register(name) for name in values}
    try:
        for name, value in values.items():
            _write_register(name, value)
        # A single register is never half written. Reading back costs packets: GDB unwinds when it identifies a frame.
        for name, value in values.items() if len(values) > 1 else ():
            if (found := read_register(name)) != value:
                raise OptprobeError(f"${name} is {found:#x} after {value:#x} was written")
    except (gdb.error, OptprobeError) as error:
        try:
            for name, value in before.items():
                if read_register(name) != value:
                    _write_register(name, value)
        except (gdb.error, OptprobeError) as again:
            raise OptprobeError(f"registers are half written and cannot be restored: {again}") from error
        raise OptprobeError(f"registers cannot be written: {error}") from error


def _write_register(name: str, value: int) -> None:
    """Write a register of the selected vCPU. Raises gdb.error."""
    # After each write GDB finds its selected frame again by id, and the caller may have that id by then (value_assign
    # in valops.c). Its registers are different, or cannot be written.
    gdb.newest_frame().select()
    gdb.parse_and_eval(f"${name} = {value:#x}")


def _threads() -> list[gdb.InferiorThread]:
    return sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)


def _vcpu(thread: gdb.InferiorThread) -> Vcpu:
    # QEMU's thread ids are its CPU indexes plus one (gdbstub.c, cpu_gdb_index).
    return Vcpu(thread.ptid[1] - 1, f"{thread.inferior.num}.{thread.num}")


def _thread_id(vcpu: Vcpu) -> str:
    """Return the name of a vCPU in packets. It is valid with and without the multiprocess extension."""
    return f"{vcpu.number + 1:x}"


@contextmanager
def _selected(vcpu: Vcpu, programs: StoppedPrograms) -> Iterator[None]:
    """Select a vCPU within the block, then the user's thread again with its innermost frame, or a program's frame.

    The user's frame is not restored: GDB 13.1 can crash in `selected_frame` when the guest was reset meanwhile.
    """
    before = gdb.selected_thread()
    wanted = next((thread for thread in _threads() if _vcpu(thread) == vcpu), None)
    if wanted is None:
        raise OptprobeError(f"the guest has no vCPU {vcpu.number} any more")
    if before is not None and wanted.num == before.num:
        yield
        return
    try:
        wanted.switch()
        yield
    finally:
        if before is not None and before.is_valid():
            before.switch()
            programs.select()


def flush(cache: str) -> None:
    """Flush a cache of GDB: "dcache" or "register-cache"."""
    carry_out(f"maint flush {cache}")


def carry_out(command: str) -> str:
    """Return what a command of GDB's prints; "" where that is not known. Raises gdb.error."""
    # After any command GDB runs the commands of the current breakpoint, which end with this error at a handed-over hit.
    try:
        return gdb.execute(command, to_string=True) or ""
    except gdb.error as error:
        if str(error) != HANDED_OVER:
            raise
        return ""
