"""Which registers and fields of CR nothing reads before it writes them, proven from one function's code.

    probed ──► cmpdi ──┬──► beq ──► mr r9,r4 ──► …            every path forward, until all is decided:
                       │                                        read first      live
                       └──► bl                                  written first   dead on this path
                                                                the code ends   live
Everything but LR is live at a call, all at a return, an indirect jump, a trap, a way out of the function, and at an
instruction that is not in the tables: `_savegpr0_29`, the entry of a module's function and other assembly rely on what
the ABI calls volatile. r1, r2 and r13 never are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from ..base import Dead, Flow, Insn
from .abi import CLOBBERED_AT_RETURN, CLOBBERED_BY_TRACER, RESERVED
from .uses import ALL_NAMES, CR0, Uses, uses_of

BUDGET = 400
_EVERYTHING = sum(1 << bit for bit, name in enumerate(ALL_NAMES) if name not in RESERVED)
_GOES_ON = frozenset((Flow.NEXT, Flow.JUMP, Flow.BRANCH))
_LEAVES = frozenset((Flow.CALL, Flow.RETURN, Flow.JUMP))


def dead_at(
    address: int,
    code: Mapping[int, Insn],
    also: Mapping[int, Sequence[int]] | None = None,
    leaving: Callable[[Insn], Dead] | None = None,
) -> Dead:
    """What is dead before the instruction at `address`, proven from `code` (a function's, by address) alone.

    also: where else execution may go after an instruction, by its address: the fixup of one with an exception-table
          entry, both ways of a jump label, an alternative. An address outside `code` makes everything live there.
    leaving: what is dead where an instruction leaves `code` (a call, a return, a jump out of it): `dead_at_entry()`
          where it calls or jumps to the entry of a function with an ftrace site, `dead_at_return()` where it returns
          from one. Nothing, where it is not given.

    flags is CR0; the other fields of CR are among the registers, as cr1 to cr7, and so are ctr and lr.
    """
    live, budget = 0, BUDGET
    explored: dict[int, int] = {}
    pending = [(address, _EVERYTHING)]
    while pending:
        at, open_ = pending.pop()
        while open_ := open_ & ~live & ~explored.get(at, 0):
            explored[at] = explored.get(at, 0) | open_
            insn = code.get(at)
            if insn is None or budget == 0:
                live |= open_
                break
            budget -= 1
            uses = _uses(insn)
            live |= uses.reads & open_
            if also and at in also:  # there before the instruction has written anything
                pending += [(other, open_ & ~uses.reads) for other in also[at]]
            open_ &= ~(uses.reads | uses.kills)
            if insn.flow not in _GOES_ON or (insn.flow is Flow.JUMP and insn.target not in code):
                live |= open_ & ~(_bits(leaving(insn)) if leaving and insn.flow in _LEAVES else 0)
                break
            if insn.flow is Flow.BRANCH and insn.target is None:  # a return on a condition
                live |= open_
                break
            if insn.flow is Flow.BRANCH and insn.target is not None:
                pending.append((insn.target, open_))
            at = insn.target if insn.flow is Flow.JUMP and insn.target is not None else insn.end
    return Dead(not live & CR0, names(_EVERYTHING & ~live & ~CR0))


_UNKNOWN = Uses(_EVERYTHING, 0)


def _uses(insn: Insn) -> Uses:
    return _UNKNOWN if insn.flow in (Flow.TRAP, Flow.SYSTEM) else uses_of(insn.data) or _UNKNOWN


def dead_at_entry() -> Dead:
    """What the ABI lets a tracer clobber at the entry of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_BY_TRACER)


def dead_at_return() -> Dead:
    """What the ABI lets a tracer clobber at the return of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_AT_RETURN)


@lru_cache(1024)
def _bits(dead: Dead) -> int:
    registers = sum(1 << bit for bit, name in enumerate(ALL_NAMES) if name in dead.registers)
    return registers | (CR0 if dead.flags else 0)


@lru_cache(4096)
def names(bits: int) -> frozenset[str]:
    """GDB's names of general registers and SPRs, and ours of the fields of CR."""
    return frozenset(name for bit, name in enumerate(ALL_NAMES) if bits >> bit & 1)
