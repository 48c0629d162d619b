"""Bring every site to the best tier that is safe now, and down again when something demands it.

              plan is optimized                     nobody inside
    breakpoint ───────────────► optimizing ───────────────────────► optimized
        ▲                         (works as a stop point)               │
        └───────────────────────────────────────────────────────────────┘
          a handler, a neighbour, a user's breakpoint, a setting

A branch over several instructions is written only when no saved PC is inside them (rule 3). Waiting sites are tried
again at every stop that occurs anyway; one scan of the stacks serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours import quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.planner import Limits, Neighbour, Plan, plan
from gdb_optprobe.detours.planner import Site as Place
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

# No branch of ours covers more bytes than this, nor does the longest instruction it starts at.
WIDEST = 16


@dataclass
class Optimizer:
    """Decides and carries out the tiers of a session's sites."""

    target: Target
    registry: Registry
    settings: Callable[[], Settings]
    _arena: Arena | None = None
    _arena_missing: Reason | None = None

    @property
    def arena(self) -> Arena | None:
        """The arena if it was needed so far."""
        return self._arena

    # what would be best ------------------------------------------------------------------------------------------

    def plan(self, address: int, specs: Sequence[Spec]) -> Plan:
        """The best plan for probes `specs` at `address` as things stand. Raises Refused where there is none."""
        limits = self._limits(specs)
        place = Place(address, self._neighbours(address), self.target.breakpoints())
        best = plan(place, self.target.isa, self.target.text, limits)
        if best.tier not in (Tier.OPTIMIZED, Tier.BOOSTED) or self.need_arena():
            return best
        assert self._arena_missing is not None
        return self._lower(place, limits, best, self._arena_missing)

    def _lower(self, place: Place, limits: Limits, refused: Plan, reason: Reason) -> Plan:
        """The best plan that needs no detour, where `refused` could not be carried out for `reason`."""
        without = replace(limits, optimization=False, boost=False)
        lower = plan(place, self.target.isa, self.target.text, without)
        needs_memory = (Tier.OPTIMIZED, Tier.BOOSTED)
        refusals = tuple((tier, reason if tier in needs_memory else why) for tier, why in lower.refused)
        return replace(lower, reason=reason, refused=refusals)

    def _limits(self, specs: Sequence[Spec]) -> Limits:
        settings = self.settings()
        forced = [Tier(spec.tier) for spec in specs if spec.tier]
        return Limits(
            optimization=settings.optimization,
            boost=settings.boost,
            emulation=settings.emulation,
            forced=min(forced) if forced else None,
            post_handler=any(spec.post_handler is not None for spec in specs),
            python_handler=any(spec.pre_handler is not None or spec.post_handler is not None for spec in specs),
            stacks_missing=self.target.stacks_missing,
            detours=self._arena.ranges.code[0][0] if self._arena is not None and self._arena.ranges.code else None,
        )

    def _neighbours(self, address: int) -> tuple[Neighbour, ...]:
        """Probed instructions that a branch at `address` must not cover."""
        return tuple(
            Neighbour(site.probes[0].number, site.address, site.address + 1)
            for site in self.registry.sites()
            if site.enabled and 0 < site.address - address < WIDEST
        )

    def need_arena(self) -> Arena | None:
        """The arena, found at first need; None, with the reason kept, where there is no memory for one."""
        if self._arena is None and self._arena_missing is None:
            try:
                self._arena = self.target.new_arena()
            except Refused as refused:
                self._arena_missing = refused.reason
            except OptprobeError as error:
                self._arena_missing = Refusal.ARENA_MISSING.because(why=error.message)
        return self._arena

    def forget_arena(self) -> None:
        """The setting changed: look for memory anew when it is next needed, if none is in use."""
        self._arena_missing = None
        if self._arena is not None and not any(site.detour for site in self.registry.sites()):
            self._arena = None

    def drop_arena(self) -> None:
        """Its memory was given back."""
        self._arena = self._arena_missing = None

    # carrying it out ---------------------------------------------------------------------------------------------

    def settle(self, sites: Iterable[Site]) -> None:
        """Arm `sites` as well as is safe now; those that must wait work as stop points meanwhile."""
        planned = [site for site in sites if not site.gone and self._replan(site)]
        waiting = [site for site in planned if site.plan.waits and site.tier is not Tier.OPTIMIZED]
        blocked = self._who_is_inside(waiting)
        for site in planned:
            site.waits = blocked.get(site.address, "")
            self._arm(site)

    def retry(self) -> None:
        """At a stop that occurred anyway: try the sites that wait for somebody to leave."""
        waiting = [site for site in self.registry.sites() if site.waits and site.enabled]
        if waiting:
            self.target.alive()
            self.settle(waiting)

    def clear_way(self, address: int) -> list[Site]:
        """A new probe comes to `address`: a branch that covers it goes before it is planned. To be settled: those."""
        covering = [
            site
            for site in self.registry.sites()
            if site.patch is not None and site.address < address < site.patch.end
        ]
        for site in covering:
            self._disarm(site)
        return covering

    def pin(self, site: Site) -> None:
        """Bring a site down to a breakpoint until `unpin`: its original instructions are about to be stepped."""
        site.pinned = True
        self._arm(site)

    def unpin(self, site: Site) -> None:
        """The next `settle` brings it up again."""
        site.pinned = False

    def resettle_around(self, address: int) -> None:
        """A probe at `address` came or went: sites before it may reach over it now, or no longer."""
        self.settle([site for site in self.registry.sites() if 0 < address - site.address < WIDEST])

    def release_counter(self, probe: Probe) -> None:
        """A deleted probe's counter: code that still runs may write there, so it is reused only with the code."""
        if probe.counter is not None and self._arena is not None:
            self._arena.data.release(probe.counter)
            probe.counter = None

    def _replan(self, site: Site) -> bool:
        """Renew the plan from the text as it was before ours. False, and out of the guest, when none is enabled."""
        if not site.enabled:
            self._disarm(site)
            return False
        # While our branch stands there the old plan's decoding holds: Text shows the original code.
        site.plan = self.plan(site.address, [probe.spec for probe in site.enabled])
        return True

    def _arm(self, site: Site) -> None:
        wanted = self._meanwhile(site.plan) if site.waits or site.pinned else site.plan
        if site.placed is not None and site.tier is wanted.tier and not site.stale:
            return
        self._disarm(site)
        try:
            self._place(site, wanted)
        except Refused as refused:
            place = Place(site.address, self._neighbours(site.address), self.target.breakpoints())
            limits = self._limits([probe.spec for probe in site.enabled])
            site.plan = self._lower(place, limits, wanted, refused.reason)
            self._place(site, site.plan)

    def _place(self, site: Site, wanted: Plan) -> None:
        arena = self.need_arena() if wanted.tier in (Tier.OPTIMIZED, Tier.BOOSTED) else self._arena
        if wanted.tier is Tier.OPTIMIZED:
            assert arena is not None
            self._optimize(site, wanted, arena)
        elif arena is not None:
            self._with_room(lambda: site.stop_at(wanted, self.target, arena), arena)
        else:
            site.stop_at(wanted, self.target, None)

    def _optimize(self, site: Site, wanted: Plan, arena: Arena) -> None:
        """The tracer is kept off before the branch is written, and let in again when it cannot be written."""
        if wanted.ftrace is not None:
            self.target.tracer.hold(wanted.ftrace)
        try:
            self._with_room(lambda: site.optimize(wanted, self.target, arena), arena)
        except OptprobeError:
            if wanted.ftrace is not None:
                self.target.tracer.release(wanted.ftrace)
            raise

    def _meanwhile(self, wanted: Plan) -> Plan:
        """How a site works while it waits: as a breakpoint, which needs nothing and nobody."""
        return replace(wanted, tier=Tier.BREAKPOINT, displaced=wanted.displaced[:1], patch_size=0, ftrace=None)

    def _disarm(self, site: Site) -> None:
        placed = site.placed
        if placed is None:
            return
        site.disarm(self.target, self._arena)
        if placed.ftrace is not None and placed.tier is Tier.OPTIMIZED:
            self.target.tracer.release(placed.ftrace)

    def _with_room(self, action: Callable[[], None], arena: Arena) -> None:
        """Do it; where the arena is full, collect what is proven empty and try once more."""
        try:
            action()
        except Refused as refused:
            if refused.reason.code != Refusal.ARENA_FULL.code or not self.collect(arena):
                raise
            action()

    def collect(self, arena: Arena) -> int:
        """Free the slots that nobody can be inside; how many. None where the stacks cannot be enumerated (rule 3)."""
        if self.target.stacks_missing or not arena.dirty():
            return 0
        try:
            saved = list(self.target.saved())
        except OptprobeError:
            return 0
        freed = arena.reclaim(lambda ranges: {inside.where for inside in quiescence.busy(ranges, saved)})
        for slot in freed:
            arena.wipe(slot, self.target.machine)
        return len(freed)

    def _who_is_inside(self, sites: Sequence[Site]) -> dict[int, str]:
        """For each of `sites` that must wait: who is inside, in words."""
        if not sites:
            return {}
        windows = {quiescence.window(site.address, site.plan.patch_size): site.address for site in sites}
        try:
            inside = quiescence.busy(windows, self.target.saved())
        except OptprobeError as error:
            # The guest was stopped while it switched threads, say: nobody is proven to be outside.
            return dict.fromkeys(windows.values(), error.message)
        return {
            windows[found.where]: Refusal.NOT_QUIESCENT.because(
                who=found.who, pc=self.target.text.spell(found.pc)
            ).text
            for found in inside
        }
