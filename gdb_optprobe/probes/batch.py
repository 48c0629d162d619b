"""Counts at thousands of tracer's sites, put in and taken out together; each is an ordinary probe afterwards.

    addresses ──► sites that are idle ──► a block of detours, a block of counters ──► flags ──► branches
                  one plan for all         written and read back in large pieces        by runs (guest/runs.py)
A site is one instruction that nothing else rewrites, so its plan is known without decoding, and no thread can be inside
it: the tracer's nop, or what is at the function's entry before it. A detour counts and calls nothing, so it is safe
wherever the kernel may call its own tracer. The journal has every item before the first byte is written, as of probes
that are put in one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour, build_count
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch, TextChanged
from gdb_optprobe.detours.planner import Plan, may_share_detour
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import LONGEST, Insn
from gdb_optprobe.probes.branch import Branch, PreservedRegisters, ProgramPart
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.journal_records import write_probe
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.site import Site, SiteState
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

LEAST = 64
"""Probes that are worth a batch."""
_PRESERVED = PreservedRegisters()


@dataclass(frozen=True, slots=True)
class _Placed:
    """A probe with all that is written for it."""

    probe: Probe
    plan: Plan
    site: FtraceSite
    slot: Slot
    detour: Detour
    branch: Patch


@dataclass(frozen=True)
class Batches:
    """What a session does to many counts at once."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]

    def add(self, spec: Spec, addresses: Sequence[int]) -> list[Probe]:
        """Put a count of `spec` at those of `addresses` where a batch can, as many as fit: all of them, or none.

        Raises OptprobeError, the guest as it was.
        """
        sites = self._sites(spec, addresses)
        if len(sites) < LEAST or (sample := self._sample(sites[0], spec)) is None:
            return []
        with held():
            try:
                placed = self._place(spec, sites, sample)
            except Refused:
                return []
            arena = self.optimizer.take_arena()
            if not placed or not arena.claim_block([one.slot for one in placed], self.target.guest.machine):
                for one in placed:
                    arena.free_count(one.probe.counter)
                return []
            try:
                self._write(placed, arena)
            except BaseException:
                self._forget(placed, arena)
                raise
            self._register(placed)
        return [one.probe for one in placed]

    def _sites(self, spec: Spec, addresses: Sequence[int]) -> list[FtraceSite]:
        """Return the sites among `addresses` that are idle and on which nothing else is, ascending."""
        if not spec.is_plain_count or spec.is_return or spec.in_program or spec.has_python_handler:
            return []
        limits = self.optimizer.limits([spec])
        if len(addresses) < LEAST or not may_share_detour(limits):
            return []
        stops = self.target.debugger.breakpoints()
        return [site for site in self.target.guest.idle_sites(addresses) if self._is_free(site, stops)]

    def _is_free(self, site: FtraceSite, stops: frozenset[int]) -> bool:
        start, end = site.address, site.end
        if stops and any(at in stops for at in range(start, end)):
            return False
        if self.optimizer.is_lost(start) or next(self.registry.patches(start, end), None) is not None:
            return False
        if any(start - LONGEST < other.address for other in self.registry.near(start, LONGEST)):
            return False
        return not self.registry.has_readers or self.optimizer.read_registers.in_function_of(start) == _PRESERVED

    def _sample(self, site: FtraceSite, spec: Spec) -> Plan | None:
        """Return the plan of a site as the planner makes it; None where it is not what the others' is taken for."""
        try:
            plan = self.optimizer.plan(site.address, [spec])
        except Refused:
            return None
        isa, insn = self.target.guest.isa, plan.insn
        whole = len(plan.displaced) == 1 and insn.data == site.idle and insn.address == site.address
        alike = plan.ftrace == site or (plan.ftrace is None and isa.moves_as_it_is(insn))
        # What a register holds at one function's entry may not be there at another's; what a tracer may clobber is dead
        # at each.
        dead = isa.dead_at_entry()
        clobbered = dead.registers <= plan.dead.registers and dead.flags <= plan.dead.flags
        same = plan.tier is Tier.OPTIMIZED and whole and alike and clobbered
        return replace(plan, dead=dead, base=None) if same else None

    # into the guest ----------------------------------------------------------------------------------------------

    def _place(self, spec: Spec, sites: Sequence[FtraceSite], sample: Plan) -> list[_Placed]:
        """Allocate memory and lay out all detours; nothing where they are not alike. Raises Refused likewise."""
        isa, handler = self.target.guest.isa, Handler()
        arena = self.optimizer.take_arena()
        at = arena.free_code(sample.head, isa.branch_reach)
        # The address of the first counter may end in zeros, which takes fewer instructions than the others'.
        second = arena.check_data(2 * handler.size, at, isa.data_reach) + handler.size
        model = build_count(sample, isa, at, second)
        step = arena.code_step
        size = -(-model.size // step) * step
        sites = sites[: arena.counts_that_fit(size, handler.size)]
        if len(sites) < LEAST:
            return []
        bounds = sites[0].address, sites[-1].end
        slots, counters = arena.allocate_counts(
            len(sites), size, handler.size, bounds, isa.branch_reach, isa.data_reach
        )
        sizes, (way,) = sizes_of(self.settings()), model.exits
        spelled = f"{way.target:x}"
        copy = model.data[model.programs[0][1] - model.address : way.address - model.address]
        made: list[_Placed] = []
        for site, slot, counter in zip(sites, slots, counters, strict=True):
            start, end = site.address, site.end
            traced = site if sample.ftrace is not None else None
            plan = replace(sample, address=start, displaced=(sample.insn._replace(address=start),), ftrace=traced)
            first = isa.count(counter.address, slot.address, sample.dead, sample.base)
            behind = slot.address + len(first)
            last = behind + len(copy)
            back = isa.branch(last, end)
            detour = Detour(
                slot.address,
                first + copy + back,
                start,
                ((slot.address, start), (last, end)),
                ((slot.address, behind, start),),
                (Insn(last, back, way.text.replace(spelled, f"{end:x}"), way.flow, end),),
            )
            if detour.size != model.size:  # a far counter's address may take more or fewer instructions
                for piece, data in zip(slots, counters, strict=True):
                    arena.code.free(piece)
                    arena.free_count(data)
                return []
            probe = Probe(self.registry.next_number(), spec, start, Handler(), sizes, counter=counter)
            change = Patch(start, site.idle, isa.branch(start, slot.address))
            made.append(_Placed(probe, plan, site, slot, detour, change))
        for one in (made[0], made[-1]):
            assert one.probe.counter is not None
            assert build_count(one.plan, isa, one.slot.address, one.probe.counter.address) == one.detour
        return made

    def _write(self, placed: Sequence[_Placed], arena: Arena) -> None:
        """Raises OptprobeError; what was written into text and flags is undone then."""
        guest, journal, padding = self.target.guest, arena.journal, self.target.guest.isa.breakpoint
        for one in placed:
            journal.text(one.plan.head, one.plan.original, one.plan.ftrace is not None)
            journal.code(one.slot, one.detour)
            write_probe(one.probe, journal)
        journal.flush()
        counters = [one.probe.counter for one in placed if one.probe.counter is not None]
        start, end = counters[0].address, counters[-1].end
        guest.machine.write(start, bytes(end - start))
        start, end = placed[0].slot.address, placed[-1].slot.end
        left = [(one.slot.size - one.detour.size) // len(padding) for one in placed]
        code = b"".join(one.detour.data + padding * more for one, more in zip(placed, left, strict=True))
        arena.write_block([one.slot for one in placed], code, guest.machine)
        sites = [one.plan.ftrace for one in placed if one.plan.ftrace is not None]
        self.target.tracer.hold_all(sites)
        try:
            patch.apply_in_runs([one.branch for one in placed], guest.machine)
        except BaseException:
            self.target.tracer.release_all(sites)
            raise

    def _forget(self, placed: Sequence[_Placed], arena: Arena) -> None:
        """Free what was allocated, unless a branch leads there: one that could not be undone."""
        places = [(one.branch.address, one.branch.end) for one in placed]
        texts = runs.at(places, runs.read(places, self.target.guest.machine))
        if any(text == one.branch.new for one, text in zip(placed, texts, strict=True)):
            return
        slots = [one.slot for one in placed]
        arena.wipe(slots, self.target.guest.machine)
        for one in placed:
            arena.code.free(one.slot)
            arena.journal.drop(Item.TEXT, one.plan.head)
            arena.journal.drop(Item.PROBE, one.probe.number)
            arena.free_count(one.probe.counter)
        arena.journal.flush()

    def _register(self, placed: Sequence[_Placed]) -> None:
        guest, sites, branches = self.target.guest, [], []
        moment = guest.moment()
        for one in placed:
            number, start = one.probe.number, one.probe.address
            parts = (ProgramPart(start, number, one.detour.programs[0][0], one.detour.programs[0][1]),)
            installed = InstalledDetour(one.slot, one.detour, moment)
            branches.append(Branch(one.plan, (start,), (number,), one.branch, installed, _PRESERVED, parts))
            sites.append(Site(start, one.plan))
        self.registry.add_all([(one.probe, site) for one, site in zip(placed, sites, strict=True)], branches)
        for site, branch in zip(sites, branches, strict=True):
            site.attach_branch(branch, self.target)
            self.optimizer.links.add(branch)

    # out of it ---------------------------------------------------------------------------------------------------

    def take_away(self, probes: Iterable[Probe]) -> set[int]:
        """Take the branches of disabled counts out of the guest, of those that displace one instruction.

        Return the numbers of the probes that nothing leads to any more: the others are removed one by one. Raises
        OptprobeError with all as it was.
        """
        found = [site for site in self.registry.sites(probes) if self._is_alone(site)]
        arena = self.optimizer.arena
        if len(found) < LEAST or arena is None:
            return set()
        with held():
            found.sort(key=lambda site: site.address)
            changes = [site.branch.patch for site in found if site.branch is not None]
            places = [(change.address, change.end) for change in changes]
            texts = runs.at(places, runs.read(places, self.target.guest.machine))
            # What others have changed is left alone, and reported, where probes are removed one by one.
            ours = [site for site, change, text in zip(found, changes, texts, strict=True) if text == change.new]
            ours = [site for site in ours if self._unlink(site)]
            branches = [site.branch for site in ours if site.branch is not None]
            try:
                patch.apply_in_runs([branch.patch.reverse for branch in branches], self.target.guest.machine)
            except BaseException:
                for branch in branches:
                    self.optimizer.links.add(branch)
                raise
            self.registry.remove_branches(branches)
            for site, branch in zip(ours, branches, strict=True):
                arena.journal.drop(Item.TEXT, branch.plan.head)
                site.detach_branch()
            self.target.tracer.release_all([one.plan.ftrace for one in branches if one.plan.ftrace is not None])
            self._release([branch.installed for branch in branches], arena)
        return {probe.number for site in ours for probe in site.probes}

    def _is_alone(self, site: Site) -> bool:
        branch = site.branch
        if branch is None or site.state is not SiteState.DETOUR or site.rethook is not None or site.enabled:
            return False
        if len(branch.addresses) > 1 or len(branch.plan.displaced) > 1 or branch.plan.tier is not Tier.OPTIMIZED:
            return False
        if self.target.modules.identity(site.address) is not None:
            return False
        return not self.optimizer.kernel_stops.is_lifted(branch)

    def _unlink(self, site: Site) -> bool:
        """Return whether no other detour leads into that of `site` any more, nor it into others."""
        assert site.branch is not None
        try:
            self.optimizer.links.remove(site.branch)
        except TextChanged:
            return False
        return True

    def _release(self, detours: Sequence[InstalledDetour], arena: Arena) -> None:
        """Release the memory of `detours` as InstalledDetour.release does of one."""
        moment = self.target.guest.moment()
        unused = [] if arena.has_retired_dispatchers else [one for one in detours if one.installed_at == moment]
        if unused:
            slots = [one.slot for one in unused]
            try:
                arena.wipe(slots, self.target.guest.machine)
            except OptprobeError:
                for slot in slots:
                    arena.code.discard(slot)
                raise
            for slot in slots:
                arena.code.free(slot)
        wiped = {one.slot for one in unused}
        for one in detours:
            if one.slot not in wiped:
                arena.retire(one.slot, one.detour)
