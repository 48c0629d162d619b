"""Probes when the guest stops, when the user's breakpoints change, and when GDB leaves.

    stop               waiting probes are tried again; cached reads of the guest are dropped
    breakpoint …       probes below it move down a tier, and up again afterwards
    detach, quit       `set optprobe on-exit`: keep, remove or ask, while memory can still be written
    prompt             how the probes' data are read should the guest run in the background
    kill               the guest is gone: forget it
    a lost connection  nothing; the next connection shows whether the guest is the same (attach.py)
    any of the last three   the guardian is dismissed: GDB has not died
    an end by Ctrl-D, a hang-up or a signal   as quit; where the guest runs then, the guardian frees it, if it has one
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import gdb

from gdb_optprobe.debugger.attach import Attachment, Attachments, choose_live_memory
from gdb_optprobe.debugger.event_loop import exit_safely, post
from gdb_optprobe.debugger.interrupter import is_running, mark_running, mark_stopped
from gdb_optprobe.debugger.machine import flush
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.parameters import current_settings, machine_interface
from gdb_optprobe.debugger.running import is_stopped
from gdb_optprobe.debugger.stops import Hidden, define_hook
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.interrupts import held, is_held, unbroken
from gdb_optprobe.recovery.teardown import teardown

LEAVING = ("detach", "disconnect")
UNGUARDED = (
    "no guardian frees the guest: it stops at the next breakpoint that QEMU keeps, until a GDB attaches",
    "'optprobe recover -remove' there takes out what is left",
)


class Lifecycle:
    """Listens to GDB's events for the current attachment, if there is one."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments
        self._mi = machine_interface()
        gdb.events.stop.connect(unbroken(mark_stopped))
        gdb.events.cont.connect(unbroken(mark_running))
        gdb.events.stop.connect(unbroken(self._stopped))
        gdb.events.cont.connect(unbroken(self._resumed))
        gdb.events.inferior_call.connect(unbroken(self._resumed))
        gdb.events.register_changed.connect(unbroken(self._resumed))
        gdb.events.memory_changed.connect(unbroken(self._written, holds=False))
        gdb.events.before_prompt.connect(unbroken(lambda *_: choose_live_memory()))
        gdb.events.gdb_exiting.connect(lambda _: self._exit())
        exit_safely()
        gdb.events.connection_removed.connect(unbroken(lambda gone: attachments.parted(gone.connection)))
        gdb.events.breakpoint_created.connect(unbroken(self._breakpoints_changed))
        gdb.events.breakpoint_modified.connect(unbroken(self._breakpoints_changed))
        gdb.events.breakpoint_deleted.connect(unbroken(lambda each: self._breakpoints_changed(each, gone=True)))
        for command in LEAVING:
            Hidden(f"optprobe-before-{command}", self.leave)
            define_hook(command, f"optprobe-before-{command}")
        Hidden("optprobe-after-kill", attachments.forget)
        define_hook("kill", "optprobe-after-kill", post=True)
        Hidden("optprobe-after-monitor", self._monitored)
        define_hook("monitor", "optprobe-after-monitor", post=True)
        define_hook("restore", "optprobe-after-monitor", post=True)

    def _monitored(self) -> None:
        """Drop all cached reads: QEMU's monitor may have loaded a snapshot or reset the guest, GDB restored memory."""
        if is_held():  # the command is one that the plugin has given, which changes nothing
            return
        if self._attachments.current is not None and is_stopped():
            flush("register-cache")
            flush("dcache")
        self._resumed(None)
        if is_stopped() and (attachment := self._attachments.here()) is not None:
            self._is_gone(attachment)

    def _exit(self) -> None:
        """Leave the guest at GDB's exit. A Ctrl-C at the question keeps the probes; it does not keep GDB."""
        try:
            self.leave()
        except KeyboardInterrupt:
            if self._attachments.current is not None:
                self._keep(self._attachments.current)
        finally:
            if is_running():
                # GDB cannot detach now: QEMU would keep its breakpoints, and the guest wait at the next one for ever.
                self._attachments.abandon()
                if (left := self._attachments.current) is not None and not self._attachments.guard.is_running:
                    # Where there are probes, `leave` has said so.
                    what = "" if len(left.session.registry) else "code without probes stays in the guest; "
                    warn(f"{what}{UNGUARDED[0]}; {UNGUARDED[1]}")

    def leave(self) -> None:
        """Keep or remove the probes: GDB is about to disconnect. Raises KeyboardInterrupt where the user cancels it."""
        attachment = self._attachments.current
        if attachment is None:
            return
        count = len(attachment.session.registry)
        if gdb.selected_thread() is None:  # it has disconnected before
            return
        if not count or attachment.boot is not None:  # what waits has changed nothing
            self._quietly(lambda: self._clean(attachment))
            return
        if not is_stopped():
            warn(f"the guest is running: {_probes(count)} in it ('optprobe recover' in a new GDB takes them over)")
            return
        if self._remove(count):
            self._quietly(lambda: self._clean(attachment))
        else:
            self._keep(attachment)

    def _keep(self, attachment: Attachment) -> None:
        self._quietly(attachment.stops.go_on)
        warn(f"{_probes(len(attachment.session.registry))} in the guest; what is optimized counts on")

    def _clean(self, attachment: Attachment) -> None:
        """Remove everything from the guest, but ftrace sites that cannot be given back: another GDB may reuse them."""
        attachment.machine.stopped_programs.clear()
        try:
            teardown(attachment.session)
        finally:
            for line in attachment.session.untraced():
                warn(line)

    def _remove(self, count: int) -> bool:
        wish = current_settings().on_exit
        if wish == "ask" and sys.stdin is not None and sys.stdin.isatty():
            return _asked(f"Remove the {_counted(count)} of optprobe from the guest?")
        return wish != "keep"

    def _stopped(self, event: gdb.StopEvent) -> None:
        attachment = self._attachments.here()
        if attachment is None:
            return
        attachment.session.target.guest.forget()
        has_commands = isinstance(event, gdb.BreakpointEvent) and any(each.commands for each in event.breakpoints)
        if has_commands and attachment.machine.reads_by_command:
            return  # they would run, and the guest with them, while it is looked at
        self._quietly(attachment.session.target.tracer.give_back)
        if attachment.session.module_tracker.is_needed:
            self._quietly(attachment.session.check_alive)
        self._quietly(partial(self._look, attachment))

    def _look(self, attachment: Attachment) -> None:
        """Try waiting probes again. Raises OptprobeError."""
        try:
            # An unwinder may read only through GDB: a user program may not map the kernel's memory.
            attachment.session.uprobes.rethooks.read_calls_if_hidden(attachment.machine.read_selected)
            attachment.session.optimizer.on_stop()
        except Unreadable:
            if not self._is_gone(attachment):
                raise

    def _is_gone(self, attachment: Attachment) -> bool:
        """Return whether the probes are gone from the guest, and warn once. The next command forgets them."""
        count = len(attachment.session.registry)
        before, attachment.gone = attachment.gone, bool(count) and not attachment.is_current()
        if attachment.gone and not before:
            # A snapshot may have some of them, as they were then: the next command looks.
            warn(f"the guest was reset, or put back to a snapshot: its {_counted(count)} may be gone")
        return attachment.gone

    def _resumed(self, _: object) -> None:
        """Drop cached reads. Not every run ends in a stop event: our hits and inferior calls have none."""
        attachment = self._attachments.current
        if attachment is not None:
            attachment.session.target.guest.forget()

    def _written(self, change: gdb.MemoryChangedEvent) -> None:
        """Drop cached reads, as of the text, where the user has written: `set {int}ADDRESS = …`."""
        if not is_held():  # else we have written
            self._resumed(change)

    def _breakpoints_changed(self, breakpoint: gdb.Breakpoint, gone: bool = False) -> None:
        if self._attachments.current is None or breakpoint.number <= 0 or not is_stopped():
            return
        if self._mi:
            # Later, because the answer to -break-insert would otherwise report one of our breakpoints.
            post(unbroken(self._make_way))
        else:
            # At this event GDB still lists a deleted breakpoint.
            self._make_way(breakpoint if gone else None)

    def _make_way(self, leaving: gdb.Breakpoint | None = None) -> None:
        attachment = self._attachments.current
        if attachment is None or not is_stopped() or not attachment.is_current():
            # GDB is in the middle of a command: the next stop or command warns of another guest.
            return
        attachment.leaving = leaving
        now = attachment.session.target.debugger.breakpoints()
        changed, attachment.breaks = now ^ attachment.breaks, now
        try:
            if changed:
                self._quietly(lambda: attachment.session.settle_around(changed))
        finally:
            attachment.leaving = None

    def _quietly(self, action: Callable[[], object]) -> None:
        """Run `action` in an event, where no caller takes an error: warn instead."""
        try:
            with held():
                action()
        except (OptprobeError, gdb.error) as error:
            warn(error)


def _asked(question: str) -> bool:
    """Ask as GDB does: again until the answer is y or n. The end of the input is a yes."""
    while True:
        try:
            answer = input(f"{question} (y or n) ").strip().lower()
        except EOFError:
            gdb.write("EOF [assumed Y]\n")
            return True
        if answer[:1] in ("y", "n"):
            return answer[:1] == "y"
        gdb.write("Please answer y or n.\n")


def _counted(probes: int) -> str:
    return "1 probe" if probes == 1 else f"{probes} probes"


def _probes(count: int) -> str:
    return f"{_counted(count)} {'stays' if count == 1 else 'stay'}"
