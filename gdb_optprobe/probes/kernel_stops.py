"""Kprobes that stop the guest: from the pad the vCPU is moved to the probed address, and to the detour when it runs.

    detour    program ─► pad ~~~~ GDB ~~~~► X: the user looks ~~~~ GDB ~~~~► detour, behind the programs
                                            text is original
While a vCPU is stopped where a branch has its bytes, the branch is not in the text: it leads to the detour only from
its head. Whatever resumes the guest then finds valid code. Before GDB resumes it, the vCPU is moved and the branch
written again.

A uprobe stops otherwise (user/uprobe_stops.py): its program cannot be reached from the kernel's code, so the vCPU stays
at the pad. Both are registered with the debugger by probes/stops.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.links import Links
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.stops import Hit, ProbeStop, Stops


@dataclass
class KernelStops:
    """The pads of kprobes that stop the guest.

    _lifted: the branches that are not in the text meanwhile, by head.
    """

    guest: Guest
    stops: Stops
    registry: Registry
    links: Links
    _lifted: dict[int, Branch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stops.on_resume(self._resume_address, self.restore_branches)

    def install(self, site: Site) -> None:
        """Stop vCPUs that come to the pads of the probes at `site`, to which a branch leads."""
        for probe in site.enabled:
            if probe.pad is not None and probe.pad_breakpoint is None:
                probe.pad_breakpoint = self.stops.stop_at_probe(self._probe_stop(probe, probe.pad))

    def is_lifted(self, branch: Branch) -> bool:
        return branch.plan.head in self._lifted

    def forget_branch(self, branch: Branch) -> bool:
        """Forget `branch`, which is about to be removed. Return whether it is not in the text already."""
        return self._lifted.pop(branch.plan.head, None) is not None

    def restore_branches(self) -> None:
        """Write the lifted branches again: no vCPU is in their bytes any more. Raises TextChanged."""
        while self._lifted:
            _, branch = self._lifted.popitem()
            # In a snapshot from before the stop the branch is in the text; in an older one there is no detour.
            if self._is_installed(branch) and patch.check([branch.patch], self.guest.machine):
                patch.apply([branch.patch], self.guest.machine)

    def _probe_stop(self, probe: Probe, pad: StopPad) -> ProbeStop:
        return ProbeStop(pad, probe.address, lambda: self._on_pad(probe), lambda hit: self._on_stop(probe, hit))

    def _on_pad(self, probe: Probe) -> bool:
        if not self.registry.has(probe) or not probe.enabled:
            return False
        self._lift_branch(self.registry.site_of(probe))
        return True

    def _on_stop(self, probe: Probe, hit: Hit) -> None:
        site = self.registry.site_of(probe)
        self._lift_branch(site)
        site.run_stopped(probe, hit, self.guest)

    def _lift_branch(self, site: Site) -> None:
        branch = site.branch
        if branch is None or site.address in branch.staying:
            return
        if branch.plan.head != site.address and not self.is_lifted(branch):
            patch.revert([branch.patch], self.guest.machine)
            self._lifted[branch.plan.head] = branch

    def _resume_address(self, address: int) -> int | None:
        site = self.registry.site(address)
        inside = site is not None and site.branch is not None and self._is_installed(site.branch)
        return site.resume_address() if site is not None and inside else None

    def _is_installed(self, branch: Branch) -> bool:
        """Return whether the guest holds the detour of `branch`. GDB is resuming the guest: nothing more is read."""
        try:
            held = self.guest.machine.read(branch.detour.address, branch.detour.size)
        except Unreadable:
            return False
        return held == self.links.detour_bytes(branch)
