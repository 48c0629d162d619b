"""What happens to probes when the guest stops, when the user's breakpoints change, and when GDB leaves.

    stop               what waits is tried again; what was read of the guest is forgotten
    breakpoint …       probes make way for it, and come back
    detach, quit       `set optprobe on-exit`: keep, remove or ask, while memory can still be written
    kill               the guest is gone: forget it
    a lost connection  nothing: whether the next one leads to the same guest is seen then (attach.py)
    however it ends    the guardian may go: GDB has not died
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import gdb

from gdb_optprobe.debugger.attach import Attachment, Attachments
from gdb_optprobe.debugger.event_loop import exit_safely, post
from gdb_optprobe.debugger.interrupter import mark_running, mark_stopped
from gdb_optprobe.debugger.machine import flush
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.parameters import current_settings, machine_interface
from gdb_optprobe.debugger.running import is_stopped
from gdb_optprobe.debugger.stops import Hidden, define_hook
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.interrupts import held, is_held, unbroken
from gdb_optprobe.probes.leaving import leave

LEAVING = ("detach", "disconnect")


class Lifecycle:
    """Listens to GDB's events on behalf of the attachment there is, if any."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments
        self._mi = machine_interface()
        gdb.events.stop.connect(unbroken(mark_stopped))
        gdb.events.cont.connect(unbroken(mark_running))
        gdb.events.stop.connect(unbroken(self._stopped))
        gdb.events.cont.connect(unbroken(self._resumed))
        gdb.events.inferior_call.connect(unbroken(self._resumed))
        gdb.events.register_changed.connect(unbroken(self._resumed))
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

    def _monitored(self) -> None:
        """QEMU's monitor may have loaded a snapshot or reset the guest: GDB and we have read another one's memory."""
        if self._attachments.current is not None and is_stopped():
            flush("register-cache")
            flush("dcache")
        self._resumed(None)
        # Else it is a command of ours that asks the monitor.
        if not is_held() and is_stopped() and (attachment := self._attachments.here()) is not None:
            self._is_gone(attachment)

    def _exit(self) -> None:
        """GDB ends, and a Ctrl-C at our question does not keep it: then the probes stay."""
        try:
            self.leave()
        except KeyboardInterrupt:
            if self._attachments.current is not None:
                self._keep(self._attachments.current)

    def leave(self) -> None:
        """GDB is about to let go of the guest. Raises KeyboardInterrupt where the user does not want that after all."""
        attachment = self._attachments.current
        if attachment is None:
            return
        count = len(attachment.session.registry)
        if gdb.selected_thread() is None:  # it let go before
            return
        if not count:
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
        """A tracer's site that is not given back by then stays with us: another GDB's probe there takes it over."""
        attachment.machine.stopped_programs.clear()
        try:
            leave(attachment.session)
        finally:
            for line in attachment.session.passed_over():
                warn(line)

    def _remove(self, count: int) -> bool:
        wish = current_settings().on_exit
        if wish == "ask" and sys.stdin is not None and sys.stdin.isatty():
            return _asked(f"Remove the {_counted(count)} of optprobe from the guest?")
        return wish != "keep"

    def _stopped(self, _: gdb.StopEvent) -> None:
        attachment = self._attachments.here()
        if attachment is None:
            return
        if attachment.linux is not None:
            attachment.linux.forget()
            self._quietly(attachment.linux.tracer.give_back)
        if attachment.session.comings.watches:
            self._quietly(attachment.session.target.alive)
        self._quietly(partial(self._look, attachment))

    def _look(self, attachment: Attachment) -> None:
        """What waits is tried again. Raises OptprobeError."""
        try:
            # No unwinder may read what GDB's own view of memory lacks: a user's program may not see the kernel's.
            attachment.session.users.calls.look(attachment.machine.read_selected)
            attachment.session.optimizer.stopped()
        except Unreadable:
            if not self._is_gone(attachment):
                raise

    def _is_gone(self, attachment: Attachment) -> bool:
        """Whether the probes are in the guest no more, which is told once: the next command forgets them."""
        count = len(attachment.session.registry)
        before, attachment.gone = attachment.gone, bool(count) and not attachment.is_here()
        if attachment.gone and not before:
            is_gone = "is" if count == 1 else "are"
            warn(f"the guest was reset, or put back to a snapshot: its {_counted(count)} {is_gone} gone")
        return attachment.gone

    def _resumed(self, _: object) -> None:
        """Not every run ends in a stop that GDB tells of: hits of ours do not, nor do calls. Or the user set a PC."""
        attachment = self._attachments.current
        if attachment is not None and attachment.linux is not None:
            attachment.linux.forget()

    def _breakpoints_changed(self, breakpoint: gdb.Breakpoint, gone: bool = False) -> None:
        if self._attachments.current is None or breakpoint.number <= 0 or not is_stopped():
            return
        if self._mi:
            # Else the answer to -break-insert would tell of a breakpoint of ours.
            post(unbroken(self._make_way))
        else:
            # At this event a deleted breakpoint is still among GDB's.
            self._make_way(breakpoint if gone else None)

    @held()
    def _make_way(self, leaving: gdb.Breakpoint | None = None) -> None:
        attachment = self._attachments.current
        if attachment is None or not is_stopped() or not attachment.is_here():
            # What is to be told of another guest is told at the next stop or command: GDB is in the middle of this.
            return
        attachment.leaving = leaving
        now = attachment.session.target.breakpoints()
        changed, attachment.breaks = now ^ attachment.breaks, now
        try:
            if changed:
                self._quietly(lambda: attachment.session.make_way(changed))
        finally:
            attachment.leaving = None

    def _quietly(self, action: Callable[[], object]) -> None:
        """In an event nobody waits for an answer: what goes wrong is told and the guest is as it was."""
        try:
            with held():
                action()
        except (OptprobeError, gdb.error) as error:
            warn(error)


def _asked(question: str) -> bool:
    """As GDB asks: again where the answer is neither; the end of the input is a yes."""
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
