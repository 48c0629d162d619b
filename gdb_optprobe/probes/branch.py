"""One branch in the guest's text, and the detour it leads to: it runs the programs of one site or of several.

    Site at +0 ─┐            text            detour
    Site at +3 ─┼─► Branch ──► jmp ─────────► program of +0, insn, program of +3, insn, …, jmp back
    Site at +4 ─┘
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.probes.installed_detour import InstalledDetour


@dataclass(frozen=True)
class PreservedRegisters:
    """Registers that probes of one function read, so that others' programs there leave them as they are, dead or not.

    read: by some probe. by_others: by another one too, whichever probe is asked about that reads all of them.
    """

    read: frozenset[str] = frozenset()
    by_others: frozenset[str] = frozenset()

    def __le__(self, other: PreservedRegisters) -> bool:
        return self.read <= other.read and self.by_others <= other.by_others

    def __or__(self, other: PreservedRegisters) -> PreservedRegisters:
        return PreservedRegisters(self.read | other.read, self.by_others | other.by_others)


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """The program of one probe at `address`; that of a call's entry is of the last return probe there.

    start, end: where it is in the detour. routine: what it calls, the program of many probes.
    """

    address: int
    number: int
    start: int
    end: int
    routine: Detour | None = None


@dataclass(frozen=True)
class Branch:
    """addresses: of its sites, ascending. plan: of any of them. probe_numbers: of the probes it counts for.

    parts: of the detour's programs; empty in one that an earlier session made.
    """

    plan: Plan
    addresses: tuple[int, ...]
    probe_numbers: tuple[int, ...]
    patch: Patch
    installed: InstalledDetour
    preserved: PreservedRegisters = PreservedRegisters()
    parts: tuple[ProgramPart, ...] = ()

    @property
    def staying(self) -> list[int]:
        """Return those of its sites' addresses that it does not displace."""
        return [at for at in self.addresses if not self.plan.head <= at < self.plan.end]

    @property
    def detour(self) -> Detour:
        return self.installed.detour
