"""Branches with bytes that something else has changed: they are left alone, with all they lead to.

The guest's own kprobe is on one, say. Once it is gone our bytes are there again, and are removed then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes import branch_patch
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.links import Links
from gdb_optprobe.probes.probe import Probe


@dataclass
class LostBranches:
    """branches: that could not be removed. kept: deleted probes that they serve, by number: their programs may still
    write what the probes have in the guest.
    """

    branches: list[Branch] = field(default_factory=list)
    kept: dict[int, Probe] = field(default_factory=dict)

    @property
    def rings(self) -> Iterator[Slot]:
        """Yield the memory of rings that kept probes share with others."""
        return (probe.spec.records.memory for probe in self.kept.values() if probe.spec.records is not None)

    def covers(self, address: int) -> bool:
        """Return whether `address` is in the text of one."""
        return any(branch.patch.address <= address < branch.patch.end for branch in self.branches)

    def keep(self, probe: Probe) -> bool:
        """Return whether a lost branch serves `probe`, which is deleted: then all that it has in the guest stays."""
        if not self._serve(probe.number):
            return False
        self.kept[probe.number] = probe
        return True

    def recover(self, links: Links, guest: Guest, arena: Arena) -> list[Branch]:
        """Take those away that hold our bytes again, or the original ones, with their links; return those."""
        back = [branch for branch in self.branches if _is_ours_again(branch, links, guest, arena)]
        self.branches = [branch for branch in self.branches if branch not in back]
        return back

    def take_unserved(self) -> list[Probe]:
        """Return the kept probes that no lost branch serves any more; they are kept no longer."""
        numbers = [number for number in self.kept if not self._serve(number)]
        return [self.kept.pop(number) for number in numbers]

    def _serve(self, number: int) -> bool:
        return any(number in branch.probe_numbers for branch in self.branches)


def _is_ours_again(branch: Branch, links: Links, guest: Guest, arena: Arena) -> bool:
    change = branch.patch
    try:
        links.remove(branch)  # it may be lost because they could not be removed
        # A trap that was about to be written when the guest could not be reached any more.
        is_original = guest.machine.read(change.address, len(change.old)) == change.old
        branch_patch.remove(branch, (), guest, arena, lifted=is_original)
    except TextChanged:
        return False
    return True
