"""Traces of stacks that the guest prints while many returns are probed, unwound as it begins to print them.

    the guest's own   panic ◄─ trampoline ◄─ ?             it knows no caller of a trampoline
    unwound here      panic ◄─ sysrq_handle_crash ◄─ …     the table of calls has where each one really returns

An oops, a warning, a panic and a lockup print their trace by one function of the kernel. The guest stops there, for
some milliseconds. Later is too late: a thread that an oops kills exits on the same stack, and any other runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.evaluate import value_lines
from gdb_optprobe.probes.kernel_rethooks import KernelRethooks
from gdb_optprobe.probes.stops import Caller, Hit, StopPoint
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import FrameView, GuestTraceView

MOST = 16
"""Traces that are kept: the first ones tell why the others came."""
MOST_STOPS = 256
"""Stops for them, with those for traces of other threads, of which SysRq-T prints hundreds."""
OWN = "!(long)$arg1 || (long)$arg1 == (long)$task"
"""Whether the printed stack is that of the running thread."""
STACK = 1 << 14
"""What the size of every stack is a multiple of."""


@dataclass
class GuestTraces:
    """Keeps the traces in which a probed return hides a caller from the guest."""

    target: Target
    rethooks: KernelRethooks
    _point: StopPoint | None = None
    _stops: int = 0
    _kept: list[GuestTraceView] = field(default_factory=list)
    _left_out: int = 0

    def watch(self, is_wanted: bool) -> None:
        """Have the guest stop as it prints a trace, or no more."""
        if is_wanted and self._point is None and self._stops < MOST_STOPS:
            at = self.target.guest.trace_printer
            self._point = self.target.stops.set(at, self._printed) if at is not None else None
        elif not is_wanted:
            self.abandon()

    def abandon(self) -> None:
        """Stop the guest no more; what is kept stays."""
        if self._point is not None:
            self._point.remove()
            self._point = None

    def views(self) -> Sequence[GuestTraceView]:
        """Return the traces in the order in which they were printed."""
        if not self._kept:
            return ()
        *before, last = self._kept
        return (*before, replace(last, left_out=self._left_out))

    def clear(self) -> None:
        """Forget the traces."""
        self._kept, self._left_out, self._stops = [], 0, 0

    def _printed(self, hit: Hit) -> None:
        self._stops += 1
        self.target.guest.forget()
        if self._stops == MOST_STOPS:
            self.abandon()
        if self._value(OWN, hit) != "1":
            return
        frames = list(self.target.debugger.callers(hit))
        if not any(frame.hidden for frame in frames):
            return  # the guest has found all of them
        if len(self._kept) == MOST:
            self._left_out += 1
            return
        pid, name, cpu = (self._value(what, hit) for what in ("$pid", "$comm", "$cpu"))
        found = tuple(self._frame(frame) for frame in frames)
        self._kept.append(GuestTraceView(_number(pid), name.strip('"'), _number(cpu), found, self._is_cut(frames[-1])))

    def _value(self, text: str, hit: Hit) -> str:
        """Return the value of an expression at the hit; "" where it is not known."""
        try:
            return value_lines(text, hit, self.target.guest)[0]
        except OptprobeError:
            return ""

    def _frame(self, frame: Caller) -> FrameView:
        # A call may be the last instruction of its function: the address behind it is another function's.
        symbol = self.target.guest.symbol(frame.pc)
        if not frame.exact and "+" not in symbol:
            symbol = self.target.guest.symbol(frame.pc - 1)
        return FrameView(frame.pc, symbol, is_interrupted=frame.exact)

    def _is_cut(self, last: Caller) -> bool:
        """Return whether calls are under way on the stack beyond the last frame: the unwinder has lost it."""
        end = last.sp - last.sp % STACK + STACK
        return any(last.sp < at < end for at in self.rethooks.shared_calls(self.target.guest))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
