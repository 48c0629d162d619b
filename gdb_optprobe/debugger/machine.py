"""The guest through GDB: memory, registers and a bounded run of a QEMU stub.

Virtual memory goes through GDB, so that its caches stay right; physical memory goes past it, in packets of the
stub's own (`Qqemu.PhyMemMode`), because GDB would take a physical address for a virtual one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import gdb

from gdb_optprobe.debugger.running import run_for
from gdb_optprobe.debugger.shown import Shown
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guardian import Change
from gdb_optprobe.guest.machine import Memory, Vcpu
from gdb_optprobe.interrupts import held

# A packet of QEMU 7.2 holds 4096 bytes: two hex digits a byte, less its header.
PHYSICAL_CHUNK = 1984
ADDRESS_MASK = (1 << 64) - 1
# More than any hit's way through detours, which has no loops but a search in a table.
MOST_STEPS = 2000
# QEMU 7.2's stub tells special registers of the first vCPU alone; its monitor tells these of each.
UNTOLD = ("srr0", "srr1")
# Registers' numbers in the stub's packets (QEMU, gdb-xml/i386-64bit.xml, gdb-xml/power64-core.xml).
_X86_64 = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *(f"r{n}" for n in range(8, 16)), "rip", "eflags")
_POWER = {**{f"r{n}": n for n in range(32)}, "pc": 64, "cr": 66, "lr": 67, "ctr": 68, "xer": 69}
NUMBERS = {**{name: number for number, name in enumerate(_X86_64)}, **_POWER}

HANDED_OVER = "optprobe: interrupted at a hit"


class GdbMachine:
    """A stopped guest. `memory` is what reads and writes kernel addresses; raw virtual access until it is replaced.

    shown: of which vCPUs the user is shown a program.
    """

    def __init__(self, connection: gdb.RemoteTargetConnection) -> None:
        self.connection = connection
        self.memory: Memory = _RawVirtual(self)
        self.shown = Shown()

    # virtual memory ----------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        return self.memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        self.memory.write(address, data)

    def read_virtual(self, address: int, size: int) -> bytes:
        """Through the page tables of the selected vCPU. Raises Unreadable."""
        try:
            return bytes(gdb.selected_inferior().read_memory(address, size))
        except gdb.MemoryError:
            raise Unreadable(address, size) from None

    def write_virtual(self, address: int, data: bytes) -> None:
        try:
            gdb.selected_inferior().write_memory(address, data)
        except gdb.MemoryError:
            raise Unreadable(address, len(data)) from None

    # physical memory ---------------------------------------------------------------------------------------------

    def read_physical(self, address: int, size: int) -> bytes:
        chunks = []
        with self._physical_mode():
            for at in range(address, address + size, PHYSICAL_CHUNK):
                length = min(PHYSICAL_CHUNK, address + size - at)
                answer = self._packet(f"m{at:x},{length:x}")
                if answer.startswith(b"E") or len(answer) != 2 * length:
                    raise Unreadable(at, length)
                chunks.append(bytes.fromhex(answer.decode("ascii")))
        return b"".join(chunks)

    def write_physical(self, address: int, data: bytes) -> None:
        with self._physical_mode():
            for start in range(0, len(data), PHYSICAL_CHUNK):
                chunk = data[start : start + PHYSICAL_CHUNK]
                if self._packet(f"M{address + start:x},{len(chunk):x}:{chunk.hex()}") != b"OK":
                    raise Unreadable(address + start, len(chunk))
        # GDB knows nothing of this write: make it forget what it has read.
        flush("dcache")

    @contextmanager
    def _physical_mode(self) -> Iterator[None]:
        """The stub's mode is global: whatever happens, it goes back to virtual addresses."""
        with held():
            if self._packet("Qqemu.PhyMemMode:1") != b"OK":
                raise OptprobeError(
                    "the target has no access to physical memory (Qqemu.PhyMemMode)", "connect to QEMU's own gdbstub"
                )
            try:
                yield
            finally:
                self._packet("Qqemu.PhyMemMode:0")

    def leave_physical_mode(self) -> None:
        """The stub keeps its mode over connections: a GDB that was killed may have left it in the other one."""
        self._packet("Qqemu.PhyMemMode:0")

    def _packet(self, text: str) -> bytes:
        answer = self.connection.send_packet(text)
        return answer if isinstance(answer, bytes) else b""

    # vCPUs -------------------------------------------------------------------------------------------------------

    def vcpus(self) -> Sequence[Vcpu]:
        return tuple(_vcpu(thread) for thread in _threads())

    def selected(self) -> Vcpu:
        """The vCPU that the user has selected (or, at a stop, the one that stopped)."""
        thread = gdb.selected_thread()
        if thread is None:
            raise OptprobeError("the guest is gone")
        return _vcpu(thread)

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        special = [name for name in names if name in UNTOLD]
        with _selected(vcpu, self.shown):
            values = {name: read_register(name) for name in names if name not in special}
        return {**values, **(_of_monitor(vcpu, special) if special else {})}

    def stops_at(self, address: int) -> bool:
        """Whether the stub has a breakpoint at `address` now, past GDB: it says so when asked to take it away."""
        if self._packet(f"z0,{address:x},1") != b"OK":
            return False
        self._packet(f"Z0,{address:x},1")
        return True

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None:
        with _selected(vcpu, self.shown):
            write_selected_registers(values)

    def redirect(self, vcpu: Vcpu, pc: str, address: int) -> None:
        """Set the PC past GDB, which does not bear changed registers when it is about to resume (infrun.c, proceed).

        pc: its name. GDB reads registers anew at the next stop.
        """
        with _selected(vcpu, self.shown):
            # A read has GDB tell the stub which vCPU is meant.
            self.read_virtual(address, 1)
            packet = f"P{NUMBERS[pc]:x}={address.to_bytes(8, 'little').hex()}"
            if self._packet(packet) != b"OK":
                raise OptprobeError(f"the target does not let the PC of vCPU {vcpu.number} be set")

    def step_out(self, pc: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Step each vCPU out of `ranges` by itself, no interrupt taken meanwhile; one that does not come out is left.

        pc: its name. Past GDB, for which these are no steps of the user's: for who is about to let the guest go.
        """
        for vcpu in self.vcpus():
            for _ in range(MOST_STEPS):
                at = self.registers(vcpu, [pc])[pc]
                if not any(start <= at < end for start, end in ranges):
                    break
                self._packet(f"vCont;s:p1.{vcpu.number + 1:x}")
                flush("register-cache")
        flush("dcache")

    def change(self, registers: Mapping[str, int], memory: Iterable[tuple[int, bytes]]) -> Change:
        """What the selected vCPU is about to get, as the stub has it."""
        values = tuple((NUMBERS[name], value.to_bytes(8, "little")) for name, value in registers.items())
        return Change(f"p1.{self.selected().number + 1:x}", values, tuple(memory))

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        stops = [gdb.Breakpoint(f"*{address:#x}", internal=True) for address in addresses]
        try:
            for stop in stops:
                stop.silent = True
            # Half a call cannot be left: a Ctrl-C waits.
            reached = run_for(timeout, heeds=False)
            hit = isinstance(reached, gdb.BreakpointEvent) and any(stop in reached.breakpoints for stop in stops)
            return self.selected() if hit else None
        finally:
            for stop in stops:
                stop.delete()


class _RawVirtual:
    """Virtual memory as the selected vCPU sees it."""

    def __init__(self, machine: GdbMachine) -> None:
        self._machine = machine

    def read(self, address: int, size: int) -> bytes:
        return self._machine.read_virtual(address, size)

    def write(self, address: int, data: bytes) -> None:
        self._machine.write_virtual(address, data)


def _of_monitor(vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
    """Registers as QEMU's monitor prints them. Raises OptprobeError."""
    told = gdb.execute("monitor info registers -a", to_string=True) or ""
    of_vcpu = dict(zip(*[iter(re.split(r"^CPU#(\d+)\s*$", told, flags=re.M)[1:])] * 2, strict=False))
    values = dict(re.findall(r"\b([A-Z]+\d?) ([0-9a-f]{16})\b", of_vcpu.get(str(vcpu.number), "")))
    try:
        return {name: int(values[name.upper()], 16) for name in names}
    except KeyError as missing:
        raise OptprobeError(f"QEMU does not tell register {missing} of vCPU {vcpu.number}") from None


def read_register(name: str) -> int:
    """A register of the innermost frame of the selected vCPU; "cpl" is x86's current privilege level."""
    if name == "cpl":
        return read_register("cs") & 3
    if name == "pid":
        return _pid()
    return int(gdb.newest_frame().read_register(name)) & ADDRESS_MASK


def _pid() -> int:
    """ppc64le's process identifier. QEMU 7.2's stub tells it of the first vCPU alone, its monitor of each."""
    try:
        return int(gdb.newest_frame().read_register("pid"))
    except gdb.error:
        pass
    thread = gdb.selected_thread()
    number = _vcpu(thread).number if thread is not None else 0
    gdb.execute(f"monitor cpu {number}", to_string=True)
    try:
        return int(gdb.execute("monitor p $pid", to_string=True) or "", 0)
    except ValueError:
        raise OptprobeError(f"QEMU does not tell the process of vCPU {number}") from None
    finally:
        gdb.execute("monitor cpu 0", to_string=True)


def write_selected_registers(values: Mapping[str, int]) -> None:
    """Write registers of the selected vCPU."""
    gdb.newest_frame().select()
    for name, value in values.items():
        gdb.parse_and_eval(f"${name} = {value:#x}")


def _threads() -> list[gdb.InferiorThread]:
    return sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)


def _vcpu(thread: gdb.InferiorThread) -> Vcpu:
    # QEMU's thread ids are its CPU indexes plus one (gdbstub.c, cpu_gdb_index).
    return Vcpu(thread.ptid[1] - 1, f"{thread.inferior.num}.{thread.num}")


@contextmanager
def _selected(vcpu: Vcpu, shown: Shown) -> Iterator[None]:
    """Select a vCPU and come back to the user's own thread, whose innermost frame is selected then, or a program's.

    Its frame is not looked for: GDB 13.1 can crash in `selected_frame` when the guest was reset meanwhile.
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
            shown.select()


def flush(cache: str) -> None:
    """Behind any command GDB runs those of the breakpoint it is at: where a hit hands the guest over, with an error."""
    try:
        gdb.execute(f"maint flush {cache}", to_string=True)
    except gdb.error as error:
        if str(error) != HANDED_OVER:
            raise
