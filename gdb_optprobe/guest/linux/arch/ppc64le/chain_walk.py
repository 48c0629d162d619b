"""Walk the kernel's stack at a hit by its back chain: back_chain.py as statements of a program (handlers/ir.py).

What the innermost function has done to its frame and to LR follows from its code, when the probe is added. Behind it
every function has saved its return address, up to an interrupt: whether the interrupted one has is not known at a hit,
so it is the last frame, and its callers are reported as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.base import WalkedFrom
from gdb_optprobe.guest.linux.arch.ppc64le.back_chain import (
    MARKER,
    MARKERS,
    PROBLEM_STATE,
    PT_REGS,
    SHORT_MARKER,
    Frame,
    Function,
    frame_at,
)
from gdb_optprobe.guest.linux.arch.ppc64le.threads import Layout
from gdb_optprobe.guest.linux.current import STACK_SIZE
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    WORD,
    And,
    Assign,
    Break,
    Constant,
    Continue,
    Expr,
    If,
    Loop,
    Op,
    Or,
    Register,
    Statement,
    Variable,
)
from gdb_optprobe.handlers.stack_walk import DEEPEST, PC, binary, lost, plus, word
from gdb_optprobe.isa.ppc64le.abi import LR, LR_SAVE, SP
from gdb_optprobe.isa.ppc64le.abi import PC as NIP

_SP, _CALLER, _PLACE, _FIRST, _EXACT = (
    Variable(f"%walk.{name}") for name in ("sp", "caller", "place", "first", "exact")
)
REPLAYS = ("__replay_soft_interrupts", "replay_soft_interrupts")
_REGS_BEHIND = 16
"""Bytes from a marker to the pt_regs."""
_MOST_FRAMES = 1024
"""A frame has 32 bytes at least, and few stacks have 16 KiB."""
_INTERRUPT_FRAME = max(MARKERS) + _REGS_BEHIND + WORD * len(PT_REGS)
"""Bytes that a frame with a pt_regs has at least."""


@dataclass(frozen=True)
class ChainWalk:
    """A Walker. frame: of the innermost function. stack, size: of the running thread.

    replays: start and end of the kernel's function that calls the handlers of interrupts that came while they were off.
    """

    place: WalkedFrom
    frame: Frame
    stack: Expr
    size: int
    replays: tuple[int, int] = (0, 0)

    @property
    def begin(self) -> Sequence[Statement]:
        returned = self.place.returned
        own = (
            Assign(PC, fold.constant(self.place.address) if returned is None else returned),
            Assign(_SP, Register(SP)),
            Assign(_FIRST, Constant(int(returned is None))),
            Assign(_EXACT, Constant(0)),
        )
        if (interrupted := self.place.interrupted) is None:
            return own
        if interrupted.registers is not None:
            mode, pc = (word(_PLACE, WORD * PT_REGS.index(name)) for name in ("msr", NIP))
            is_program = binary(Op.AND, mode, PROBLEM_STATE)
            found = If(is_program, (Assign(PC, Constant(0)),), (Assign(PC, pc),))
            return (*own, Assign(_PLACE, interrupted.registers), Assign(_EXACT, Constant(1)), found)
        # An interrupt that came while they were off is handled once they are on again, by a call.
        replayed = binary(Op.LT, plus(PC, -self.replays[0]), self.replays[1] - self.replays[0])
        up = Loop((If(Or(_EXACT, replayed), (Break(),)), *self.step), most=DEEPEST)
        from_program = binary(Op.EQ, Or(_EXACT, replayed), 0)
        return (*own, up, If(from_program, (Assign(PC, Constant(0)),)))

    @property
    def step(self) -> Sequence[Statement]:
        return (
            If(_EXACT, lost()),
            If(_FIRST, (Assign(_FIRST, Constant(0)), *self._innermost()), self._next()),
        )

    def to_program(self) -> tuple[Expr, tuple[Statement, ...]]:
        """Return what finds the pt_regs with which the thread has left its program, and their address then, or 0."""
        found: tuple[Statement, ...] = ()
        for at in MARKERS:
            regs = at + _REGS_BEHIND
            mode = word(_SP, regs + WORD * PT_REGS.index("msr"))
            is_program = binary(Op.AND, mode, PROBLEM_STATE)
            marked = If(_is_marked(at), (If(is_program, (Assign(_PLACE, plus(_SP, regs)), Break())),))
            last = Assign(_PLACE, plus(_SP, regs + WORD * (len(PT_REGS) - 1)))
            found = (*found, last, If(self._is_up(_PLACE), (marked,)), Assign(_PLACE, Constant(0)))
        up = (
            *found,
            Assign(_CALLER, word(_SP)),
            If(binary(Op.EQ, self._is_up(_CALLER), 0), (Break(),)),
            Assign(_SP, _CALLER),
        )
        return _PLACE, (Assign(_SP, Register(SP)), Assign(_PLACE, Constant(0)), Loop(up, most=_MOST_FRAMES))

    def _innermost(self) -> tuple[Statement, ...]:
        """Return what goes to the caller of the probed function."""
        if self.frame.size == 0:
            saved = (Assign(_PLACE, plus(_SP, LR_SAVE)), self._up_to(_PLACE), Assign(PC, word(_PLACE)))
            return (Assign(PC, Register(LR)),) if self.frame.in_lr else saved
        made = (Assign(_CALLER, word(_SP)), self._up_to(_CALLER))
        if self.frame.in_lr:
            return (*made, Assign(_SP, _CALLER), Assign(PC, Register(LR)))
        return (*made, *self._saved())

    def _next(self) -> tuple[Statement, ...]:
        """Return what goes to a caller by the back chain alone."""
        distance = binary(Op.SUB, _CALLER, _SP)
        # In a frame that interrupts user mode the chain leads to the program's stack, in any other one further up.
        may_interrupt = binary(Op.GE, distance, _INTERRUPT_FRAME)
        return (
            Assign(_CALLER, word(_SP)),
            If(may_interrupt, self._interrupted()),
            If(binary(Op.EQ, _CALLER, 0), (Break(),)),
            self._up_to(_CALLER),
            *self._saved(),
        )

    def _saved(self) -> tuple[Statement, ...]:
        """Return what takes the return address from the frame of the caller, and goes to that."""
        place = Assign(_PLACE, plus(_CALLER, LR_SAVE))
        return (place, self._up_to(_PLACE), Assign(PC, word(_PLACE)), Assign(_SP, _CALLER))

    def _interrupted(self) -> tuple[Statement, ...]:
        """Return what looks for a pt_regs in the frame: its code is the next frame, or it is a program's."""
        found: tuple[Statement, ...] = ()
        for at in MARKERS:
            regs = at + _REGS_BEHIND
            mode = word(_SP, regs + WORD * PT_REGS.index("msr"))
            marked = (
                If(binary(Op.AND, mode, PROBLEM_STATE), (Break(),)),
                Assign(PC, word(_SP, regs + WORD * PT_REGS.index(NIP))),
                Assign(_EXACT, Constant(1)),
                Continue(),
            )
            last = Assign(_PLACE, plus(_SP, regs + WORD * (len(PT_REGS) - 1)))
            found = (*found, last, If(self._is_up(_PLACE), (If(_is_marked(at), marked),)))
        return found

    def _up_to(self, place: Variable) -> Statement:
        """Return what ends the walk unless a word at `place` is one of a stack: further up in this one, or in the
        thread's.
        """
        return If(binary(Op.EQ, self._is_up(place), 0), lost())

    def _is_up(self, place: Variable) -> Expr:
        """Return whether there is a word of a stack, at a multiple of a word. Stacks are aligned to their size."""
        here = And(binary(Op.GE, place, _SP), _same(place, _SP, STACK_SIZE))
        elsewhere = binary(Op.EQ, _same(_SP, self.stack, self.size), 0)
        return Or(here, And(elsewhere, _same(place, self.stack, self.size)))


def walker(kernel: Kernel, function: Callable[[int], Function | None], layout: Layout, place: WalkedFrom) -> ChainWalk:
    """Return the walk from a probed instruction. function: finds the one around an address."""
    around = function(place.address)
    if around is None:
        raise NoSuchKernel("what the probed code has done to its stack is not known")
    task = word(Register("r13"), layout.current)
    replay = next(filter(None, map(kernel.symbols.address, REPLAYS)), None)
    replays = kernel.symbols.function_bounds(replay) if replay is not None else None
    frame = frame_at(place.address, *around)
    return ChainWalk(place, frame, word(task, layout.stack), layout.thread_size, replays or (0, 0))


def _is_marked(at: int) -> Expr:
    """Return whether a marker is so far up in the frame."""
    marker = word(_SP, at)
    return Or(*(binary(Op.EQ, marker, one) for one in (MARKER, SHORT_MARKER)))


def _same(place: Expr, stack: Expr, size: int) -> Expr:
    """Return whether two places are of one stack, and a number of whole words apart."""
    return binary(Op.EQ, binary(Op.AND, binary(Op.XOR, place, stack), ~(size - WORD)), 0)
