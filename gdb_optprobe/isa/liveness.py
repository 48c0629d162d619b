"""Find the registers and flags that nothing reads before it writes them, from one function's code.

    probed ──► add ──┬──► jne ──► mov %rsi,%rax ──► …         every path forward, until all is decided:
                     │                                          read first      live
                     └──► call                                  written first   dead on this path
                                                                the code ends   live
An ISA gives only the effects of single instructions (`Liveness.uses`). Everything else lives at a call, a return, an
indirect jump, a trap and an exit of the function: an assembly helper may rely on what an ABI calls volatile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from gdb_optprobe.isa.base import Dead, Flow, Insn

BUDGET = 400
_CONTINUES = frozenset((Flow.NEXT, Flow.JUMP, Flow.BRANCH))
_LEAVES = frozenset((Flow.CALL, Flow.RETURN, Flow.JUMP))


@dataclass(frozen=True, slots=True)
class RegisterEffects:
    """reads: bits that may be read; kills: bits certainly overwritten, whatever they were. A bit may be in both."""

    reads: int
    kills: int


@dataclass(frozen=True, eq=False)
class Liveness:
    """The effects of an ISA's instructions.

    registers: by name, the bit of each register that can be dead.
    flags:     the bits of `Dead.flags`.
    uses:      returns what an instruction reads and overwrites; None if that is not known: it may read everything.
    """

    registers: Mapping[str, int]
    flags: int
    uses: Callable[[Insn], RegisterEffects | None]

    @cached_property
    def everything(self) -> int:
        """Return all bits."""
        return self.flags | sum(self.registers.values())

    def dead_at(
        self,
        address: int,
        code: Mapping[int, Insn],
        also: Mapping[int, Sequence[int]] | None = None,
        leaving: Callable[[Insn], Dead] | None = None,
        budget: int = BUDGET,
    ) -> Dead:
        """Return what is dead before the instruction at `address`, proven from `code` (a function's, by address) alone.

        also: where else execution may continue after an instruction, by its address: the fixup of one with an
              exception-table entry, both targets of a jump label, an alternative, whatever a static call may call. An
              address outside `code` makes everything live there.
        leaving: returns what is dead where an instruction leaves `code` (a call, a return, a jump out of it): the ISA's
              `dead_at_entry()` where it calls or jumps to the entry of a function with an ftrace site,
              `dead_at_return()` where it returns from one. Without it nothing is.
        budget: how many instructions are looked at; all that is open then lives.
        """
        live = 0
        explored: dict[int, int] = {}
        pending = [(address, self.everything)]
        while pending:
            at, open_ = pending.pop()
            while open_ := open_ & ~live & ~explored.get(at, 0):
                explored[at] = explored.get(at, 0) | open_
                insn = code.get(at)
                if insn is None or budget == 0:
                    live |= open_
                    break
                budget -= 1
                uses = self.uses(insn) or RegisterEffects(self.everything, 0)
                live |= uses.reads & open_
                if also and at in also:  # there before the instruction has written anything
                    pending += [(other, open_ & ~uses.reads) for other in also[at]]
                open_ &= ~(uses.reads | uses.kills)
                if insn.flow not in _CONTINUES or (insn.flow is Flow.JUMP and insn.target not in code):
                    live |= open_ & ~(_bits(self, leaving(insn)) if leaving and insn.flow in _LEAVES else 0)
                    break
                if insn.flow is Flow.BRANCH:
                    if insn.target is None:  # a return on a condition
                        live |= open_
                        break
                    pending.append((insn.target, open_))
                at = insn.target if insn.flow is Flow.JUMP and insn.target is not None else insn.end
        return Dead(not live & self.flags, _names(self, self.everything & ~live))


@lru_cache(1024)
def _bits(liveness: Liveness, dead: Dead) -> int:
    registers = sum(bit for name, bit in liveness.registers.items() if name in dead.registers)
    return registers | (liveness.flags if dead.flags else 0)


@lru_cache(4096)
def _names(liveness: Liveness, bits: int) -> frozenset[str]:
    return frozenset(name for name, bit in liveness.registers.items() if bits & bit)
