"""One branch in the guest's text, and the detour it leads to: it runs the programs of one site or of several.

    Site at +0 ─┐            text            detour
    Site at +3 ─┼─► Branch ──► jmp ─────────► program of +0, insn, program of +3, insn, …, jmp back
    Site at +4 ─┘
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.probes.placed import Placed


@dataclass(frozen=True)
class Branch:
    """addresses: of its sites, ascending. plan: of any of them. serves: the numbers of the probes it counts for.

    keeps: registers that it leaves as they were, dead or not.
    """

    plan: Plan
    addresses: tuple[int, ...]
    serves: tuple[int, ...]
    patch: Patch
    placed: Placed
    keeps: frozenset[str] = frozenset()

    @property
    def detour(self) -> Detour:
        return self.placed.detour
