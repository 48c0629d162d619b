"""Internal breakpoints that run a callback at each hit and resume the guest.

GDB can resume after a breakpoint in two ways, and neither serves alone:

* ``stop()`` returns False: GDB single-steps the instruction in place (two stops of the guest). No command of the user
  is disturbed: a ``finish`` or ``next`` in progress continues.
* ``stop()`` returns True and the breakpoint's ``commands`` move the PC and ``continue`` (one stop). That cancels a
  ``finish``, ``next``, ``until``, ``advance`` or ``stepi`` in progress, and GDB prints "[Switching to Thread …]"
  whenever another vCPU than last time is hit.

So the second way is used only where nothing can be lost: the user's last command was ``continue``, the user has no
breakpoint at the same address, and the vCPU is the one that stopped last.

QEMU can report one hit twice: where two vCPUs come to breakpoints at once, the second one's request to stop is still
pending when GDB resumes the first for its step, and stops it again before it has moved. See `_reported_again`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gdb

from gdb_optprobe.debugger.guardian_process import GuardianProcess
from gdb_optprobe.debugger.interrupter import Interrupter, mark_running, mark_stopped
from gdb_optprobe.debugger.machine import (
    HANDED_OVER,
    GdbMachine,
    read_any_register,
    read_register,
    write_selected_registers,
)
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.pad_breakpoints import (
    PadBreakpoints,
    ProbePadBreakpoint,
    ProgramPadBreakpoint,
    ReturnPadBreakpoint,
    announcement,
    returned,
)
from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.debugger.program_frames import ProgramFrames
from gdb_optprobe.debugger.running import never
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.guest_text import lines
from gdb_optprobe.interrupts import held, is_held, unbroken
from gdb_optprobe.isa.abi import SystemRegisters
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.stops import (
    Hit,
    Move,
    OnHit,
    ProbeStop,
    ProgramStop,
    ReturnStop,
    StoppedProgram,
    StoppedReturn,
    StopPoint,
)

MOVE_COMMAND = "optprobe-move"
MOVING = f"silent\n{MOVE_COMMAND}\ncontinue"
CONTINUING_COMMAND = "optprobe-continuing"
HAND_OVER = "hand over"


class GdbStops:
    """All stop points of one connection, and how the guest was last resumed."""

    def __init__(self, machine: GdbMachine, isa: Isa, guard: GuardianProcess) -> None:
        self.machine = machine
        self._guard = guard
        self._isa = isa
        # The last hit that GDB was left to step over: its vCPU and all registers.
        self._stepping: tuple[int, ...] | None = None
        self._points: dict[int, _Breakpoint] = {}
        self._retired: dict[int, _Breakpoint] = {}
        self._continuing = False
        self._last_thread: int | None = None
        # A thread that is still at the address of its last hit, after the callbacks have run; and the address.
        self._standing: tuple[int | None, int] | None = None
        self._move: Move | str | None = None
        # A run of the user's own command; `run_for` watches its own.
        self._interrupter: Interrupter | None = None
        self.asked: Callable[[], bool] = never
        self._handed_over = False
        self._pads = PadBreakpoints(machine, isa)
        self._frames = ProgramFrames()
        # The vCPUs that are stopped at a probed address for the user, and the addresses.
        self._shown: dict[Vcpu, int] = {}
        # A vCPU reported twice at an address where its hit has run: a breakpoint of GDB itself may stop it there.
        self._again: tuple[Vcpu, int] | None = None
        # What the next stop announces: numbers of probes, returned values, a program. announced: the last announcement.
        self._stopped_by: list[int] = []
        self._values: list[tuple[str, int]] = []
        self._program = ("", "")
        self.announced = ""
        self._behind: Callable[[int], int | None] = lambda _: None
        self._moved: Callable[[], None] = lambda: None
        self._events: tuple[tuple[Any, Callable[[Any], None]], ...] = (
            (gdb.events.stop, unbroken(self._note_stop, holds=False)),
            (gdb.events.before_prompt, unbroken(self._note_prompt, holds=False)),
            (gdb.events.cont, unbroken(self._note_resume, holds=False)),
        )
        Hidden(MOVE_COMMAND, self._carry_out_move)
        Hidden(CONTINUING_COMMAND, self._note_continue)
        define_hook("continue", CONTINUING_COMMAND)
        for event, handler in self._events:
            event.connect(handler)

    def set(self, address: int, on_hit: OnHit, restarts: bool = False) -> StopPoint:
        if address not in self._points:
            retired = address in self._retired
            self._points[address] = self._retired.pop(address) if retired else _Breakpoint(address, self)
            self._points[address].enabled = True
        point = _Point(self._points[address], on_hit)
        self._points[address].points.append(point)
        self._points[address].restarts |= restarts
        return point

    def stop_at_probe(self, stop: ProbeStop) -> StopPoint:
        return self._pads.add(ProbePadBreakpoint(stop, self._pads, self._arrived_at_gate))

    def stop_at_return(self, stop: ReturnStop) -> StopPoint:
        return self._pads.add(ReturnPadBreakpoint(stop, self._pads, self._returned))

    def stop_in_program(self, stop: ProgramStop) -> StopPoint:
        self._frames.load(stop.saved, stop.gates)
        return self._pads.add(ProgramPadBreakpoint(stop, self._pads, self._program_arrived))

    def selected(self) -> Hit:
        vcpu = self.machine.selected().number
        pc = int(gdb.selected_frame().pc())
        return Hit(pc, vcpu, _Registers(self._isa.system), self.machine.read, self._writer(vcpu))

    def shows_program(self) -> bool:
        return self.machine.stopped_programs.is_any()

    def selects_program(self) -> bool:
        return self.machine.stopped_programs.is_selected()

    def on_resume(self, behind: Callable[[int], int | None], moved: Callable[[], None]) -> None:
        self._behind, self._moved = behind, moved

    def go_on(self) -> None:
        """Move each vCPU that is stopped at a probed address to where its hit continues: the guest is about to run.

        GDB is in the middle of `proceed` then, or about to detach.
        """
        self.machine.stopped_programs.clear()
        self._guard.set_fallback()
        stopped, self._shown = self._shown, {}
        try:
            for vcpu, address in stopped.items():
                pc = self._isa.pc
                to = self._behind(address) if self.machine.registers(vcpu, [pc])[pc] == address else None
                if to is not None:
                    self.machine.redirect(vcpu, pc, to)
            self._moved()
        except OptprobeError as error:
            warn(error)

    def _update_fallback(self) -> None:
        """Give the guardian what `go_on` would do, so that each hit is counted once even if GDB dies now."""
        try:
            ways = [(vcpu, address, self._behind(address)) for vcpu, address in self._shown.items()]
            pc = self._isa.pc
            changes = (self.machine.way_on(vcpu, pc, at, to) for vcpu, at, to in ways if to is not None)
            self._guard.set_fallback(*changes)
        except OptprobeError as error:
            warn(error)

    def close(self) -> None:
        """Remove all breakpoints and listeners: the connection is gone, or about to end."""
        for event, handler in self._events:
            event.disconnect(handler)
        self._end_interrupter()
        self.machine.stopped_programs.clear()
        for breakpoint in list(self._points.values()):
            self.retire(breakpoint)
        self._delete_retired()

    # called by _Breakpoint ---------------------------------------------------------------------------------------

    def hit(self, breakpoint: _Breakpoint) -> bool:
        """Run the callbacks. Return whether GDB must stop and run the commands; else it steps the instruction."""
        if self._is_handled_at_gate(breakpoint.at):
            breakpoint.stay()
            return True
        stops = self._run(breakpoint)
        if not self.asked() or isinstance(self._move, str):
            return stops
        self._handed_over = True
        if self._move is None:
            self._move = HAND_OVER
        return True

    def _is_handled_at_gate(self, address: int) -> bool:
        """Return whether the selected vCPU has passed a stop pad: its hit has run in the detour, the gate stops it."""
        return self._shown.get(self.machine.selected()) == address or self._pads.is_coming(address)

    def _run(self, breakpoint: _Breakpoint) -> bool:
        vcpu = self.machine.selected().number
        state = self._state(vcpu)
        again = self._reported_again(breakpoint, state)
        self._again = (self.machine.selected(), breakpoint.at) if again else None
        if again:
            return False
        self._standing = (_selected_thread(), breakpoint.at)
        self._stepping = state
        hit = Hit(breakpoint.at, vcpu, _Registers(self._isa.system), self.machine.read, self._writer(vcpu))
        moves = []
        for point in list(breakpoint.points):
            try:
                moves.append(point.on_hit(hit))
            except Exception as error:  # a user's handler: report what it raises, and leave the guest stopped
                self._move = f"a handler of the probe at {hit.address:#x} failed: {type(error).__name__}: {error}"
                return True
        if hit.stopped_by:
            for point in breakpoint.points:
                point.moved += 1
            breakpoint.stay()
            self._show(hit)
            return True
        move = next((move for move in moves if move is not None), None)
        one_stop = move is not None and self._may_move(breakpoint.at, move)
        for point in breakpoint.points:
            point.moved += one_stop
            point.stepped += not one_stop
        self._move = move if one_stop else None
        if one_stop:
            self._stepping = None
        return one_stop

    def _writer(self, vcpu: int) -> Callable[[Mapping[str, int]], None]:
        """Return a function that sets registers of the selected vCPU at its hit. vcpu: its number."""

        def write(values: Mapping[str, int]) -> None:
            write_selected_registers(values)
            self._stepping = self._state(vcpu)

        return write

    def _state(self, vcpu: int) -> tuple[int, ...]:
        """Return the number of the selected vCPU and all its registers. vcpu: the number."""
        return (vcpu, *(read_register(name) for name in self._isa.registers))

    def _arrived_at_gate(self, stop: ProbeStop) -> None:
        """Report the selected vCPU, which came by a stop pad and is at the probed address."""
        vcpu = self.machine.selected().number
        hit = Hit(stop.address, vcpu, _Registers(self._isa.system), self.machine.read, self._writer(vcpu))
        self._standing = (_selected_thread(), stop.address)
        self._stepping = self._state(vcpu)
        stop.on_stop(hit)
        self._show(hit)

    def _returned(self, stopped: StoppedReturn) -> None:
        """Keep what to announce of the selected vCPU, which came by the pad of a function's returns."""
        self._stopped_by += stopped.probes
        if stopped.value is not None:
            self._values.append((stopped.function, stopped.value))

    def _program_arrived(self, stopped: StoppedProgram) -> None:
        """Keep what to announce of the selected vCPU, which is stopped in code at a user program's trap."""
        self._stopped_by += stopped.probes
        self._values += [stopped.returned] if stopped.returned is not None else []
        self._program = stopped.process, stopped.place
        self.machine.stopped_programs.add(int(gdb.newest_frame().pc()))

    def _show(self, hit: Hit) -> None:
        self._shown[self.machine.selected()] = hit.address
        self._stopped_by += hit.stopped_by

    def handed_over(self) -> bool:
        """Return whether a hit has ended a run that had to end, since the last call of this."""
        handed_over, self._handed_over = self._handed_over, False
        return handed_over

    def _reported_again(self, breakpoint: _Breakpoint, state: tuple[int, ...]) -> bool:
        """Return whether this is the last hit, reported a second time with nothing executed since.

        The same vCPU with the same registers may also be in the next iteration of a loop. But while GDB steps over a
        breakpoint, the breakpoint is not in the stub. The same holds for the iterations of one string instruction.
        """
        same_turn = state == self._stepping
        next_turn = breakpoint.restarts and self._standing == (_selected_thread(), breakpoint.at)
        return (same_turn or next_turn) and not self.machine.stops_at(breakpoint.at)

    def arrived(self, address: int) -> None:
        """Run the hit of the selected vCPU if it is at `address` and a stop point was set there after it came."""
        if address in self._points and _pc() == address and not self._has_run(address):
            self._run(self._points[address])
            self._move = None
            self._points[address].go_by()
            self._stopped_by.clear()

    def passed(self, address: int) -> None:
        """Take the hit of the selected vCPU for run if it is at `address`: its program ran in a detour."""
        if _pc() == address:
            self._standing = _selected_thread(), address

    def take_back(self, address: int) -> int:
        """Forget the hit of a vCPU that is still at `address`. Return how many there are: 0 or 1."""
        # GDB sends no event when it steps over a breakpoint and resumes the guest: compare the PC.
        if not self._has_run(address) or self._shown.get(self.machine.selected()) == address:
            return 0
        self._standing = self._stepping = None
        return 1

    def _has_run(self, address: int) -> bool:
        """Return whether the selected vCPU is at `address` and its hit there has run."""
        return self._standing == (_selected_thread(), address) and _pc() == address

    def retire(self, breakpoint: _Breakpoint) -> None:
        """Disable a breakpoint now and delete it at the next prompt."""
        # GDB crashes when a breakpoint is deleted while it reports that another one was deleted.
        self._points.pop(breakpoint.at, None)
        if breakpoint.is_valid():
            breakpoint.enabled = False
            self._retired[breakpoint.at] = breakpoint

    def _delete_retired(self) -> None:
        for breakpoint in self._retired.values():
            if breakpoint.is_valid():
                breakpoint.delete()
        self._retired.clear()
        self._pads.delete_dropped()

    def _may_move(self, address: int, move: Move) -> bool:
        # GDB steps over a breakpoint from where it stopped last: of a jump to itself one hit would be lost.
        is_elsewhere = move.registers.get(self._isa.pc) != address
        same_vcpu = _selected_thread() == self._last_thread
        theirs = address in addresses_of_users() or self._pads.has_returned(address)
        return is_elsewhere and self._continuing and same_vcpu and not theirs

    # called by GDB -----------------------------------------------------------------------------------------------

    def _carry_out_move(self) -> None:
        move, self._move = self._move, None
        if isinstance(move, str):
            self._end_run()
            if move == HAND_OVER:
                raise gdb.GdbError(HANDED_OVER)
            raise gdb.GdbError(f"optprobe: {move}")
        if move is None:
            return
        with held(), self._guard.completing(self.machine.change(move.registers, move.writes)):
            for address, data in move.writes:
                self.machine.write(address, data)
            write_selected_registers(move.registers)
        if self._handed_over:
            self._end_run()
            raise gdb.GdbError(HANDED_OVER)

    def _end_run(self) -> None:
        """End the run: the guest stays where it has stopped."""
        self._continuing = False
        self._end_interrupter()

    def _end_interrupter(self) -> None:
        interrupter, self._interrupter = self._interrupter, None
        if interrupter is not None:
            interrupter.end()

    def _note_continue(self) -> None:
        self._continuing = True

    def _note_stop(self, event: gdb.StopEvent) -> None:
        is_for_user = True
        try:
            is_for_user = self._is_for_user(event)
        finally:
            if is_for_user:
                self._end_run()

    @held()
    def _is_for_user(self, event: gdb.StopEvent) -> bool:
        """Make the stop what the user sees; return whether it sees it."""
        self._last_thread = _selected_thread()
        again, self._again = self._again, None
        if again is not None and again == (self.machine.selected(), _pc()):
            self._shown[again[0]] = again[1]
        self.announced = ""
        if self._stopped_by:
            self._announce(event)
        elif isinstance(event, gdb.BreakpointEvent) and all(isinstance(b, _Breakpoint) for b in event.breakpoints):
            return False
        if isinstance(event, gdb.SignalEvent):
            # A Ctrl-C that finds the vCPU just before a probed instruction.
            self._standing = None
            self.arrived(_pc())
        if self._shown:
            self._update_fallback()
        return True

    def _announce(self, event: gdb.StopEvent) -> None:
        for breakpoint in self._points.values():
            breakpoint.go_by()
        self._reload_frames()
        process, place = self._program
        is_seen = self.machine.stopped_programs.select()
        self.announced = announcement(self._stopped_by, (process, place if is_seen else "")) + returned(self._values)
        self._program = ("", "")
        self._stopped_by.clear()
        self._values.clear()
        gdb.write(f"\n{lines(self.announced)}")

    def _reload_frames(self) -> bool:
        """Load object files that a command of the user has unloaded, if they are needed now. Return whether any was."""
        try:
            return self.machine.stopped_programs.is_any() and self._frames.reload()
        except gdb.error as error:
            warn(f"the program that has stopped cannot be shown: {error}")
            return False

    def _note_resume(self, _: gdb.ContinueEvent) -> None:
        self._standing = None
        self._pads.mark_running()
        with held():
            self.go_on()
        if not is_held():
            self._interrupter = Interrupter()

    def _note_prompt(self, *_: object) -> None:
        with held():
            self._delete_retired()
            if self._reload_frames():
                self.machine.stopped_programs.select()
            if self._shown:
                # A write by the last command has cleared the guardian's fallback.
                self._update_fallback()
        self._last_thread = _selected_thread()
        # The guest may be gone, or run in the background: then a Ctrl-C concerns the line that is typed.
        self._end_interrupter()


class _Point:
    """One callback at a breakpoint."""

    def __init__(self, breakpoint: _Breakpoint, on_hit: OnHit) -> None:
        self._breakpoint = breakpoint
        self.on_hit = on_hit
        self.stepped = 0
        self.moved = 0

    def remove(self) -> None:
        self._breakpoint.points.remove(self)
        if not self._breakpoint.points:
            self._breakpoint.drop()


class _Breakpoint(gdb.Breakpoint):
    """Our one breakpoint at an address; internal, and shared by every stop point there."""

    def __init__(self, address: int, stops: GdbStops) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self.commands = MOVING
        self.at = address
        self.points: list[_Point] = []
        self.restarts = False
        self._stops = stops

    def stop(self) -> bool:
        mark_stopped()
        stops = unbroken(self._stops.hit)(self)
        if not stops:
            mark_running()
        return stops

    def stay(self) -> None:
        """Make the current stop one of the user's: without commands, and silent but for a machine interface."""
        self.commands = ""
        self.silent = not machine_interface()

    def go_by(self) -> None:
        """Make the next stop silent again, with the commands that resume."""
        if self.commands != MOVING + "\n":
            self.commands = MOVING
            self.silent = True

    def drop(self) -> None:
        self._stops.retire(self)


class _Registers(Mapping[str, int]):
    """The registers of the vCPU that was hit. Each is read when it is used."""

    def __init__(self, system: SystemRegisters) -> None:
        self._system = system

    def __getitem__(self, name: str) -> int:
        try:
            return read_any_register(name, self._system)
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter([register.name for register in gdb.newest_frame().architecture().registers()])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Hidden(gdb.Command):
    """A hidden GDB command for our breakpoints and hooks."""

    def __init__(self, name: str, action: Callable[[], Any]) -> None:
        super().__init__(name, gdb.COMMAND_OBSCURE)
        self._action = action

    def invoke(self, argument: str, from_tty: bool) -> None:
        self._action()


def define_hook(command: str, action: str, post: bool = False) -> None:
    """Have GDB run `action` before (or after) `command`. A hook that the user has defined is kept instead."""
    name = f"hook{'post' if post else ''}-{command}"
    try:
        gdb.execute(f"show user {name}", to_string=True)
    except gdb.error:
        gdb.execute(f"define {name}\n{action}\nend", to_string=True)


def _pc() -> int:
    return int(gdb.newest_frame().pc())


def _selected_thread() -> int | None:
    thread = gdb.selected_thread()
    return thread.num if thread is not None else None


# GDB's own kinds of breakpoints on code.
_CODE = (gdb.BP_BREAKPOINT, gdb.BP_HARDWARE_BREAKPOINT)


def addresses_of_users(without: gdb.Breakpoint | None = None) -> frozenset[int]:
    """Return the addresses of the user's enabled breakpoints. without: one that is being deleted."""
    theirs = [breakpoint for breakpoint in gdb.breakpoints() if breakpoint is not without]
    return frozenset(address for breakpoint in theirs for address in _addresses(breakpoint))


def _addresses(breakpoint: gdb.Breakpoint) -> list[int]:
    """Return the addresses of a breakpoint of the user; none for internal ones, which have negative numbers."""
    if breakpoint.number <= 0 or not breakpoint.enabled or breakpoint.type not in _CODE:
        return []
    return [location.address for location in breakpoint.locations]
