"""A program stops the guest: from its pad the vCPU is brought to the probed address, and on from there when it runs.

    detour    program ─► pad ~~~~ GDB ~~~~► X: the user looks ~~~~ GDB ~~~~► detour, behind the programs
                                            text is original
While somebody stands where a branch's bytes are, the branch is out of the text: it leads on from its head only. Whoever
resumes the guest then finds right code; and before GDB does, he who stands there is moved, and the branch comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.lower_program import RING_COUNT
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.links import Links
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.stops import Hit, ProbeStop, Stops


@dataclass
class KernelStops:
    """The pads of probes that stop the guest, and the branches that are out of the text meanwhile, by head."""

    guest: Guest
    stops: Stops
    registry: Registry
    links: Links
    _lifted: dict[int, Branch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stops.on_resume(self._resume_address, self.restore_branches)

    def install(self, site: Site) -> None:
        """A branch leads to programs of `site`: have those that come to its probes' pads stop."""
        for probe in site.enabled:
            if probe.pad is not None and probe.pad_breakpoint is None:
                probe.pad_breakpoint = self.stops.stop_at_probe(self._stop_pad(probe, probe.pad))

    def is_lifted(self, branch: Branch) -> bool:
        return branch.plan.head in self._lifted

    def forget_branch(self, branch: Branch) -> bool:
        """`branch` is about to go: whether it is out of the text already."""
        return self._lifted.pop(branch.plan.head, None) is not None

    def restore_branches(self) -> None:
        """Nobody stands in the bytes of the branches that were lifted. Raises TextChanged."""
        while self._lifted:
            _, branch = self._lifted.popitem()
            # Where a snapshot of before the stop was loaded it stands, in an older one there is nothing to lead to.
            if self._is_installed(branch) and patch.check([branch.patch], self.guest.machine):
                patch.apply([branch.patch], self.guest.machine)

    def _stop_pad(self, probe: Probe, pad: StopPad) -> ProbeStop:
        return ProbeStop(
            probe.address,
            pad.address,
            pad.via,
            pad.doorbell,
            pad.doorbell + RING_COUNT,
            lambda: self._on_pad(probe),
            lambda hit: self._on_arrival(probe, hit),
        )

    def _on_pad(self, probe: Probe) -> bool:
        if not self.registry.has(probe) or not probe.enabled:
            return False
        self._lift_branch(self.registry.site_of(probe))
        return True

    def _on_arrival(self, probe: Probe, hit: Hit) -> None:
        site = self.registry.site_of(probe)
        self._lift_branch(site)
        site.run_stopped(probe, hit, self.guest)

    def _lift_branch(self, site: Site) -> None:
        branch = site.branch
        if branch is not None and branch.plan.head != site.address and not self.is_lifted(branch):
            patch.revert([branch.patch], self.guest.machine)
            self._lifted[branch.plan.head] = branch

    def _resume_address(self, address: int) -> int | None:
        site = self.registry.site(address)
        inside = site is not None and site.branch is not None and self._is_installed(site.branch)
        return site.resume_address() if site is not None and inside else None

    def _is_installed(self, branch: Branch) -> bool:
        """Whether the guest holds the detour of `branch`; asked while GDB resumes it, which is no time for more."""
        try:
            held = self.guest.machine.read(branch.detour.address, branch.detour.size)
        except Unreadable:
            return False
        return held == self.links.detour_bytes(branch)
