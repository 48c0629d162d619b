"""Uprobes that stop the guest: in the kernel, at a pad of the trap's code, from which the vCPU continues.

    trap's code   program ── does not stop ───────────────────────────────┐
                     └─ actions ───────────► ticket, number, a call ──────┴► the next program … the instruction
    pad           a return                ◄── GDB's breakpoint
The number is the probe's; the ticket tells a hit from one that QEMU reports twice. No register is changed: without GDB,
or when GDB dies while the guest is stopped there, the hit continues. One pad serves all probes, so that code can be
replaced while a vCPU is stopped; returns have another one, because their PC is saved otherwise.

A kprobe stops otherwise (../kernel_stops.py): the vCPU is moved to the probed address, and each probe has its own pad.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user import mm
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.guest.trap_frames import Gate, SavedRegisters
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ctype import Pointer
from gdb_optprobe.handlers.scope import Rvalue
from gdb_optprobe.isa.base import Code, Dead, NotedCode, Notes, joined, notes_of
from gdb_optprobe.isa.codegen import Address, EntryState, RegisterPool
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.maps.aggregate import number
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import install_pad
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.stops import ProgramStop, StoppedProgram, StopPoint, Stops
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_context import TrapSite
from gdb_optprobe.probes.user.uprobe_site import UprobeSite

WORD = 8


@dataclass(frozen=True, slots=True)
class _InstalledPad:
    pad: StopPad
    point: StopPoint
    gate: Gate


@dataclass(frozen=True, slots=True)
class Shown:
    """A program, by its file's inode; the process has it `bias` bytes above the address that it was linked for."""

    inode: int
    bias: int


@dataclass
class UprobeStops:
    """counts: how often each probe has stopped the guest, by its number.

    shown: by vCPUs, the programs that were stopped there last, where their code was.
    """

    guest: Guest
    stops: Stops
    registry: Registry
    counts: Counter[int] = field(default_factory=Counter)
    shown: dict[Vcpu, Shown] = field(default_factory=dict)
    _pads: dict[int, _InstalledPad] = field(default_factory=dict)

    def code(self, probe: Probe, handler: Handler, dead: Dead, user: UserTarget, arena: Arena) -> Code:
        """Return the code of `probe`, which leaves to its pad to stop. dead: what it may change. Raises Refused."""
        assert probe.counter is not None, "reserved"
        near, memory = user.kernel.calls.handler, probe.counter.address
        if not handler.stops:
            return handler.code(self.guest.isa, TrapSite(near), dead, memory, probe.readers)
        stopping = user.kernel.isa.stopping
        pad = self._install_pad(0 if probe.is_return else user.kernel.isa.behind, user, arena).pad

        def program(leaves: int) -> Code:
            way = StopPad(Slot(leaves, 0), b"")
            return handler.code(self.guest.isa, TrapSite(near), dead, memory, probe.readers, way)

        tickets = arena.tickets(near, self.guest.isa.data_reach).address
        call = joined((_take_ticket(user.kernel.isa, dead, tickets), stopping.call(probe.number, pad.address)))
        return with_stop_call(program, call, self.guest.isa, near)

    def gate_at(self, pc: int) -> Gate | None:
        """Return the gate that leads a debugger from the pad at `pc` to the program; None where no pad is there."""
        return next((one.gate for one in self._pads.values() if one.pad.address == pc), None)

    def traps_near(
        self, start: int, end: int, exits: Iterable[tuple[int, int, tuple[int, ...]]], leaving: bytes
    ) -> Mapping[Patch, tuple[int, ...]]:
        """Return the traps in [start, end) of the process that the user is shown, with the numbers of their probes.

        exits: see UserRethooks.exit_traps. leaving: the instruction there.
        """
        shown = self.shown.get(self.guest.machine.selected()) if self.stops.selects_program() else None
        if shown is None:
            return {}
        trap = self.guest.user_kernel.isa.trap
        return {
            Patch(at, leaving, trap): numbers
            for inode, address, numbers in exits
            if inode == shown.inode and start <= (at := address + shown.bias) < end
        } | {
            Patch(at, point.insn.data[: len(point.trap)], point.trap): tuple(each.number for each in point.enabled)
            for point in self.registry.uprobe_sites()
            if point.installed is not None
            and point.program.inode == shown.inode
            and start <= (at := point.insn.address + shown.bias) < end
        }

    def remove_pads(self, arena: Arena) -> None:
        """Remove the pads: no trap is left that may stop the guest."""
        for one in self._pads.values():
            one.point.remove()
            arena.pads.release(one.pad.slot)
        self._pads.clear()

    def abandon(self) -> None:
        """Forget all: the guest that held it is gone."""
        for one in self._pads.values():
            one.point.remove()
        self._pads.clear()

    def _install_pad(self, behind: int, user: UserTarget, arena: Arena) -> _InstalledPad:
        """Raises Refused."""
        if behind not in self._pads:
            stopping = user.kernel.isa.stopping
            pad = install_pad(user.kernel.calls.handler, stopping.place, self.guest, arena)
            on_pad, ticket = partial(self._on_pad, user), partial(self._read_register, stopping.ticket)
            stop = ProgramStop(pad, on_pad, ticket, saved_registers(user.kernel.isa), stopping.gates)
            point = self.stops.stop_in_program(stop)
            self._pads[behind] = _InstalledPad(pad, point, Gate(stopping.gates, behind, stopping.swapped))
        return self._pads[behind]

    def _read_register(self, name: str) -> int:
        """Read a register of the selected vCPU."""
        return self.guest.machine.registers(self.guest.machine.selected(), (name,))[name]

    def _on_pad(self, user: UserTarget) -> StoppedProgram | None:
        """Return what is stopped at a pad, on the selected vCPU; None where no probe wants it to stop any more."""
        isa, machine = user.kernel.isa, self.guest.machine
        user.programs.forget()
        vcpu = machine.selected()
        told = machine.registers(vcpu, (isa.stopping.number, isa.frame))
        probe = next((each for each in self.registry.single_probes() if each.number == told[isa.stopping.number]), None)
        if probe is None or not probe.enabled or not probe.handler.stops:
            return None
        self.counts[probe.number] += 1
        point, registers = self.registry.uprobe_site_of(probe), _Registers(isa, told[isa.frame], machine.read)
        returned = _return_value(point, user, registers, machine.read) if probe.is_return else None
        at = registers[self.guest.isa.pc] - isa.behind
        self.shown.pop(vcpu, None)
        if not probe.is_return:
            self.shown[vcpu] = Shown(point.program.inode, at - point.insn.address)
        process = mm.process(user.programs.kernel, user.programs.current(vcpu))
        place = point.program.spell(probe.address) if not probe.is_return else ""
        return StoppedProgram((probe.number,), str(process), place, returned)


def _take_ticket(isa: UserTrapping, dead: Dead, at: int) -> Code:
    """Encode: take the next ticket into its register."""
    before = EntryState(isa.scratch, frozenset((isa.frame,)))
    emit = isa.emitter(before)
    usable = dead.registers - {isa.stopping.ticket}
    emit.pool = RegisterPool([name for name in isa.order(before) if name in usable])
    emit.atomic_fetch_add(isa.stopping.ticket, Address(offset=at, near=True), 1)
    return emit.finish


def with_stop_call(program: Callable[[int], Code], call: Code, isa: Isa, near: int) -> Code:
    """Return the program, and behind it the call, by which it leaves where it stops. program: by where it leaves to."""
    size, step = len(program(near)(near)), len(isa.branch(near, near + isa.branch_size))

    def whole(at: int) -> bytes:
        leaves = at + size + step
        stops = call(leaves)
        return program(leaves)(at) + isa.branch(at + size, leaves + len(stops)) + stops

    def notes(at: int) -> Notes:
        leaves = at + size + step
        return {**notes_of(program(leaves), at), at + size: ("stop",)}

    return NotedCode(whole, notes)


class _Registers(Mapping[str, int]):
    """Those that a trap has saved."""

    def __init__(self, isa: UserTrapping, frame: int, read: Callable[[int, int], bytes]) -> None:
        self._at = {name: frame + offset for name, offset in isa.registers.items()}
        self._read = read

    def __getitem__(self, name: str) -> int:
        return int.from_bytes(self._read(self._at[name], WORD), "little")

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


def _return_value(
    point: UprobeSite, user: UserTarget, registers: Mapping[str, int], read: Callable[[int, int], bytes]
) -> tuple[str, int] | None:
    """Return what the function has returned, and which that is."""
    found = user.guest.program_names_at_return(point.program.bits).names.dollar("retval")
    if not isinstance(found, Rvalue):
        return None
    word = interpreter.evaluate(found.expr, interpreter.Hit(registers, read))
    # Where a function has a local entry, that is behind its symbol.
    name = point.program.spell(point.insn.address).rpartition(":")[2].partition("+")[0]
    return name, number(word, not isinstance(found.type, Pointer) and found.type.signed)


def saved_registers(isa: UserTrapping) -> SavedRegisters:
    stopping = isa.stopping
    columns = stopping.columns
    offsets = {columns[name]: offset for name, offset in isa.registers.items() if name in columns}
    pc = next(column for column, offset in offsets.items() if offset == isa.pc)
    return SavedRegisters(stopping.machine, columns[isa.frame], offsets, pc)
