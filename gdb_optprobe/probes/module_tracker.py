"""Probes in modules that are loaded and unloaded, and in modules that are not loaded yet.

    add ──────────► in the guest ──unloaded──► gone ──loaded again──► in the guest, with all that was counted
    add -pending ─► pending ──loaded──► in the guest

Which modules there are is compared at every stop and at every command, not when one comes or goes: that costs nothing.
Where a probe is -pending, the guest stops once for every module that is loaded, before anything of it runs.

Nothing is written where text is gone. The collector frees the detours that led there like any other: a thread in
one is in the module's function, so the module was not unloaded under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.call_table import CallCounts
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.kprobes import Kprobes
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.settings import Settings, with_sizes
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.stops import StopPoint
from gdb_optprobe.probes.target import Target


@dataclass
class ModuleTracker:
    """Sees modules come and go, on behalf of a session."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    kprobes: Kprobes
    is_same_guest: Callable[[], bool]
    _modules: dict[int, object] = field(default_factory=dict)
    _call_counts: dict[int, CallCounts] = field(default_factory=dict)
    _obstacles: dict[int, str] = field(default_factory=dict)
    _tried_modules: object = None
    _load_hook: StopPoint | None = None

    def track(self, probes: Iterable[Probe]) -> None:
        """Note which of `probes` are in modules: they are gone with them, and come back with them."""
        for probe in probes:
            at = probe.address
            identity = self.target.modules.identity(at) if probe.is_in_kernel else None
            if identity is not None:
                probe.home = self.target.modules.location(at)
                self._modules[at] = identity
                self.registry.site_of(probe).is_text_there = partial(self._is_same_load, at, identity)

    def _is_same_load(self, address: int, identity: object) -> bool:
        return self.target.modules.identity(address) == identity

    def wait_for_load(self, probe: Probe, obstacle: OptprobeError | None = None) -> None:
        """Register `probe` as pending: it comes to be in the guest when its module is loaded.

        obstacle: what keeps it out of the kernel's own text.
        """
        if isinstance(obstacle, Refused):
            self.registry.set_absent(probe, Presence.PENDING, obstacle.reason)
        else:
            why = f": {obstacle.message}" if obstacle is not None else ""
            self._obstacles[probe.number] = why
            self._set_pending(probe, why)
        self._tried_modules = None

    def mark_gone(self, probe: Probe) -> None:
        """Mark `probe` gone: its module was unloaded."""
        why = Refusal.MODULE_GONE.because(module=probe.home.partition(":")[0])
        self.registry.set_absent(probe, Presence.GONE, why)
        self._tried_modules = None

    def update_load_hook(self) -> None:
        """Have the guest stop as it loads modules for as long as a probe waits for that. Raises OptprobeError."""
        wanted = any(probe.spec.pending and probe.enabled for probe in self.registry.single_probes())
        if wanted and self._load_hook is None:
            self._load_hook = self.target.modules.on_load(self._on_load)
        elif not wanted and self._load_hook is not None:
            self._load_hook.remove()
            self._load_hook = None

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to notice."""
        absent = (probe.presence is not Presence.HERE for probe in self.registry.single_probes())
        return bool(self._modules) or any(absent)

    def abandon(self) -> None:
        """Forget everything: the guest is gone."""
        self._modules.clear()
        self._obstacles.clear()
        if self._load_hook is not None:
            self._load_hook.remove()
            self._load_hook = None

    def update(self) -> None:
        """At a stop, or before a command: what was unloaded is gone, and what was loaded again comes back."""
        self._remove_unloaded()
        self._install_loaded()

    def _on_load(self, module: int) -> None:
        """Probe a module that is complete before any of its code has run: no thread is inside. Raises OptprobeError."""
        if not self.is_same_guest():
            return
        self.optimizer.not_yet_run = self.target.modules.loading_text(module)
        try:
            self.update()
        finally:
            self.optimizer.not_yet_run = (0, 0)

    # going -----------------------------------------------------------------------------------------------------------

    def _remove_unloaded(self) -> None:
        self._modules = {at: of for at, of in self._modules.items() if self.registry.site(at) is not None}
        some = {identity: at for at, identity in self._modules.items()}
        loaded = {identity: self._is_loaded(at, identity) for identity, at in some.items()}
        gone = [at for at, identity in self._modules.items() if not loaded[identity]]
        for address in gone:
            del self._modules[address]
        sites = [site for address in gone if (site := self.registry.site(address)) is not None]
        if sites:
            self._remove_sites(sites)

    def _is_loaded(self, address: int, identity: object) -> bool:
        """Return whether the module is there, and no other load of it in the same place: that has none of our branches.
        """
        if not self._is_same_load(address, identity):
            return False
        branches = (self._branch_in_text(at) for at, other in self._modules.items() if other == identity)
        some = next((branch for branch in branches if branch is not None), None)
        if some is None:
            return True
        return self.target.guest.machine.read(some.patch.address, len(some.patch.old)) != some.patch.old

    def _branch_in_text(self, address: int) -> Branch | None:
        site = self.registry.site(address)
        branch = site.branch if site is not None else None
        return branch if branch is not None and not self.optimizer.kernel_stops.is_lifted(branch) else None

    def _remove_sites(self, sites: Sequence[Site]) -> None:
        arena = self.optimizer.arena
        branches = {site.branch.plan.head: site.branch for site in sites if site.branch is not None}
        for branch in branches.values():
            self._forget_branch(branch)
        probes = [probe for site in sites for probe in list(site.probes)]
        for site in sites:
            if site.rethook is not None:
                found = site.rethook.all_calls(self.target.guest)
                # The module is gone, so calls that were active have returned.
                before = found + CallCounts(returns=len(found.active))
                self._call_counts |= {probe.number: before for probe in site.probes if probe.is_return}
            site.remove_breakpoint(self.target.guest, arena)
            if arena is not None:
                self.optimizer.rethooks.close(site, self.target.guest, arena)
            site.abandon()
        for probe in probes:
            self.mark_gone(probe)
        self.optimizer.write_records(probes)

    def _forget_branch(self, branch: Branch) -> None:
        """Retire the detour of `branch`, as if the branch had been removed: its text is gone."""
        arena = self.optimizer.arena
        assert arena is not None, "a branch leads there"
        self.registry.remove_branch(branch)
        self.optimizer.kernel_stops.forget_branch(branch)
        self.optimizer.links.remove(branch)
        arena.journal.drop(Item.TEXT, branch.plan.head)
        if branch.plan.ftrace is not None:
            self.target.tracer.forget(branch.plan.ftrace)
        branch.installed.release(self.target.guest, arena, reached=True)

    # coming ----------------------------------------------------------------------------------------------------------

    def _install_loaded(self) -> None:
        waiting = [probe for probe in self.registry.single_probes() if _can_come_back(probe)]
        if not waiting:
            return
        there = self.target.modules.loaded_state()
        if there == self._tried_modules:
            return
        self._tried_modules = there
        placed: list[Probe] = []
        for probe in waiting:
            try:
                if self._install(probe):
                    placed.append(probe)
                elif probe.absence is not None and probe.absence.code == Refusal.PENDING.name:
                    # Its module, or what has kept it out, may have come or gone since the words were made.
                    self._set_pending(probe, self._obstacles.get(probe.number, ""))
            except OptprobeError as error:
                self._tried_modules = None  # the obstacle may go: the guest's own probe, say
                self._set_pending(probe, f": {error.message}")
        self.optimizer.settle(self.registry.sites(placed))
        self.optimizer.write_records(placed)

    def _set_pending(self, probe: Probe, why: str) -> None:
        reason = self.target.modules.waits(probe.spec.location, why)
        self.registry.set_absent(probe, Presence.PENDING, reason)

    def _install(self, probe: Probe) -> bool:
        """Return whether `probe` has a place. Raises OptprobeError where it has one and cannot be there as it was."""
        found = self.target.modules.find(probe.home or probe.spec.location)
        if not found:
            return False
        if len(found) > 1:
            raise OptprobeError(f"{len(found)} functions are called so")
        plan = self.kprobes.plan_at(found[0], replace(probe.spec, glob=False))
        assert plan is not None, "only a glob leaves out refused addresses"
        settings, old = with_sizes(self.settings(), probe.sizes), probe.handler
        handler = self.kprobes.compile(probe.spec, plan, settings, old.shared, old.function or None)
        if probe.home and handler.size != probe.handler.size:
            raise OptprobeError("it would not do there what it did before")
        probe.handler = handler
        if not probe.home:
            probe.clear()
        probe.address = plan.address
        site = self.registry.site(plan.address) or Site(plan.address, plan)
        self.registry.add(probe, site)
        try:
            self.kprobes.reserve(probe)
        except OptprobeError:
            if not probe.home:  # it was never there, and has counted nothing
                self.optimizer.release_counter(probe)
            raise
        self.track([probe])
        before = self._call_counts.pop(probe.number, None)
        if before is not None and site.next_rethook is not None:
            site.next_rethook.earlier_counts = before
        return True


def _can_come_back(probe: Probe) -> bool:
    """Return whether a probe is absent and comes back by itself: an address means nothing in another load."""
    return probe.presence is not Presence.HERE and not probe.spec.location.strip().startswith("*")
