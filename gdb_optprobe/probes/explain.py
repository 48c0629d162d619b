"""What an `add` would do, without doing it, by the same code as `add`.

    locations ──► addresses ──► the plan ──► the program ──► room for both ──► a view
                     a Refused is the answer; any other error is that of `add`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour, build_count, build_detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import NO_MEMORY, Refusal, Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes import kernel_rethooks, site_views
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.kprobes import Kprobes, LeftOut
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.user import uprobe_views
from gdb_optprobe.probes.user.uprobes import Uprobes
from gdb_optprobe.probes.views import ExplainView


@dataclass(frozen=True)
class Explainer:
    """Asks what `add` asks."""

    guest: Guest
    registry: Registry
    optimizer: Optimizer
    kprobes: Kprobes
    uprobes: Uprobes
    settings: Callable[[], Settings]

    def explain(self, places: Iterable[tuple[Spec, Sequence[int]]]) -> Iterator[ExplainView]:
        """Yield what a probe at each address of each spec's location would be. Raises OptprobeError as `add` does."""
        for spec, addresses in places:
            if spec.in_program:
                yield uprobe_views.explain_view(spec, self.uprobes, self.guest)
            elif not addresses:
                why = Refusal.PENDING.because(location=spec.location, why="")
                yield site_views.unprobeable_view(0, why, self.guest)
            errors: list[OptprobeError] = []
            views = [self._explain_at(address, spec, errors) for address in addresses]
            if errors and not any(view.tier for view in views):
                raise errors[0]
            yield from views

    def _explain_at(self, address: int, spec: Spec, errors: list[OptprobeError]) -> ExplainView:
        """Return what a probe at `address` would be. errors: gets why a glob leaves it out."""
        try:
            plan = self.kprobes.plan_at(address, replace(spec, glob=False))
            assert plan is not None, "no glob leaves anything out"
            settings = self.settings()
            handler = self.kprobes.compile_or_leave_out(spec, plan, settings)
            if isinstance(handler, LeftOut):
                errors.append(handler.error)
                return site_views.left_out_view(handler.address, handler.error, self.guest)
            probe = Probe(0, spec, plan.address, handler, sizes_of(settings))
            self.kprobes.lower(probe, plan)
            plan = replace(self._plan_with_memory(plan, probe), moved=plan.moved)
        except Refused as refused:
            return site_views.unprobeable_view(address, refused.reason, self.guest)
        view = site_views.explain_view(plan, self.guest, spec.is_plain_count and not spec.is_return)
        return replace(view, note="; ".join(filter(None, (view.note, handler.note))))

    def _plan_with_memory(self, plan: Plan, probe: Probe) -> Plan:
        """Return `plan` as it is possible beside the probes that are there and in free memory. Raises Refused."""
        site, spec = self.registry.site(plan.address), probe.spec
        specs = [*site.specs, spec] if site is not None else [spec]
        if len(specs) > 1:
            plan = self.optimizer.plan(plan.address, specs)
        if self.optimizer.needs_memory(probe, plan):
            with self.optimizer.suggesting_sizes(probe):
                self._check_data(probe)
        try:
            self._check_code(plan)
        except Refused as refused:
            plan = self.optimizer.plan_without_detour(plan.address, specs, refused.reason)
        if spec.tier:
            why = plan.why_not(Tier(spec.tier))
            if why is not None and why.code in NO_MEMORY:
                self.kprobes.check_tier(plan, spec)
        return plan

    def _check_data(self, probe: Probe) -> None:
        """Raises Refused where there is no memory for what `probe` gathers."""
        arena, reach = self.optimizer.find_arena(), self.guest.isa.data_reach
        _unless_full(arena, lambda: arena.check_data(probe.handler.size, probe.address, reach))
        if probe.is_return and self.registry.site(probe.address) is None:
            kernel_rethooks.check_memory(probe, self.guest, arena)

    def _check_code(self, plan: Plan) -> None:
        """Raises Refused where there is no memory for a detour of `plan`."""
        if plan.tier in (Tier.BREAKPOINT, Tier.EMULATED):
            return
        arena, isa = self.optimizer.find_arena(), self.guest.isa

        def lay_out(at: int) -> Detour:
            if plan.tier is Tier.BOOSTED:
                return build_detour(plan, isa, at)
            return build_count(plan, isa, at, at + site_views.COUNTER_DISTANCE)

        _unless_full(arena, lambda: InstalledDetour.check_memory(plan.head, lay_out, self.guest, arena))


def _unless_full(arena: Arena, check: Callable[[], object]) -> None:
    """Raise Refused as `check` does; but not where the arena is full of garbage that can be collected."""
    try:
        check()
    except Refused as refused:
        if refused.reason.code != Refusal.ARENA_FULL.code or not (arena.dirty() or arena.data.dirty):
            raise
