"""Putting probes in: all that one `add` asks for, or none.

    specs ──► addresses ──► blocks, of what can be together ──► the others, one by one
                 ▲                          │ data find no room
                 └── all anew ◄── the guest's kernel lends more, LOANS times at most
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.arena import Lack
from gdb_optprobe.detours.refusal import Reason, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.clauses import check_action
from gdb_optprobe.interrupts import checkpoint, held
from gdb_optprobe.probes.batch import Batches
from gdb_optprobe.probes.block_planner import BlockPlanner
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.kinds import Kinds
from gdb_optprobe.probes.kprobes import LeftOut
from gdb_optprobe.probes.module_tracker import ModuleTracker
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.session_views import SessionViews
from gdb_optprobe.probes.settings import DEFAULT_MAX_PROBES, Settings, sizes_of
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.site_views import moved_note
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import CountsView, LeftOutView, ProbeView, rows

# Addresses of one location that are worked on together: the code around them is decoded once.
AT_ONCE = 256

LOANS = 5
"""How often the kernel is asked for more memory by one `add` or `enable`, at most; once is enough for the journal."""
OF_A_COUNT, OF_A_PROBE, OF_A_MEMBER = 34, 64, 4
"""Bytes that the journal takes for a count, for a probe that gathers more or of a return, and for one in a block."""
MANY_RETURNS = 100
A_RETURN = 20_000
"""Bytes of data that a return probe with a table of its own takes, at most, where it counts or gathers times."""
OWN_UNWINDER = (
    "with so many returns probed, the guest's own traces of its stacks (an oops, /proc/PID/stack, lockdep, livepatch) "
    "end where a probed function returns; GDB's do not, and optprobe report has what the guest prints of an oops, whole"
)
OWN_TABLE = OptprobeError("a return probe with a table of calls of its own is for few functions: name them")
NO_BRANCH = OptprobeError(
    "a hit would stop the guest (optprobe add takes it), or it cannot be probed: optprobe explain FUNCTION says which"
)
NO_ROOM = OptprobeError("there is no room for more detours and counters")
NO_CALL = OptprobeError(
    "its detour cannot call what the others share, and for all such functions there is no room: name those that matter"
)


@dataclass(frozen=True, slots=True)
class Added:
    """What was put in. probes: those that are in no block. last: the number of the last one."""

    views: Sequence[ProbeView]
    probes: Sequence[Probe]
    last: int


class _Lacks(Exception):
    """Data of `add` found no room: `lack`. more: bytes that the other probes of the same `add` need besides."""

    def __init__(self, lack: Lack, more: int) -> None:
        super().__init__()
        self.lack, self.more = lack, more


@dataclass
class _Progress:
    """What one `add` has put in so far.

    may_lend: whether it begins anew, with more memory, where data find no room. left_out: by the number of the first
    probe of a spec. data_before: bytes in use when it began. had_many_returns: whether there were MANY_RETURNS then.
    """

    may_lend: bool
    data_before: int
    had_many_returns: bool
    probes: list[Probe] = field(default_factory=list)
    blocks: list[CountBlock] = field(default_factory=list)
    left_out: dict[int, tuple[LeftOutView, ...]] = field(default_factory=dict)

    @property
    def with_counters(self) -> int:
        return sum(probe.counter is not None for probe in self.probes)

    @property
    def numbers(self) -> list[int]:
        return [*(probe.number for probe in self.probes), *(block.numbers[-1] for block in self.blocks)]


@dataclass(frozen=True)
class Adding:
    """Puts probes in for a session.

    remove: takes some, and blocks, out again. watch_traces: is called when they are in.
    """

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    kinds: Kinds
    batches: Batches
    planner: BlockPlanner
    modules: ModuleTracker
    views: SessionViews
    remove: Callable[[Sequence[Probe], Sequence[CountBlock]], None]
    watch_traces: Callable[[], None]

    def add(self, specs: Sequence[Spec], is_told: bool = True) -> Added:
        """Put a probe at every address of each spec's location. Raises OptprobeError, with none put in.

        is_told: whether there are to be views of them: what a hit costs, for one, takes as long as putting them in.
        """
        places = self.resolve(specs)
        if self.borrow_memory(places):
            places = self.resolve(specs)  # the guest has run
        had_arena, numbering = self.optimizer.arena is not None, self.registry.numbering
        try:
            for _ in range(LOANS):
                try:
                    return self._add(places, is_told)
                except _Lacks as lacks:
                    self.registry.renumber(numbering)
                    lent, is_for_journal = self._lend(lacks), lacks.lack.is_for_journal
                places = self.resolve(specs)  # the guest has run
                if not lent and not is_for_journal:
                    break
            return self._add(places, is_told, may_lend=False)
        except BaseException:
            if not had_arena:
                with suppress(Exception):  # why `add` is refused is what to read; the next one finds the arena
                    self.optimizer.release_arena()
            raise

    def _add(self, places: Sequence[tuple[Spec, Sequence[int]]], is_told: bool, may_lend: bool = True) -> Added:
        """may_lend: whether to raise _Lacks, with nothing put in, where data found no room that may be lent."""
        new = _Progress(may_lend, self.optimizer.watch_data(), self.registry.has_more_returns(MANY_RETURNS))
        try:
            sizes = (OF_A_MEMBER * len(found) if spec.glob else _recorded(spec, len(found)) for spec, found in places)
            self._check_journal(sum(sizes), new)
            for spec, addresses in places:
                self._put_in(spec, addresses, new)
            self.modules.update_load_hook()
            self._check_room(new)
            self.watch_traces()
        except BaseException as error:
            lack = self._lack(new) if isinstance(error, Refused) else None
            others = sum(len(addresses) for _, addresses in places) - (have := new.with_counters)
            more = self.optimizer.data_used_since(new.data_before) // max(have, 1) * max(others - 1, 0)
            try:
                self.remove([probe for probe in new.probes if self.registry.has(probe)], new.blocks)
            except Exception as failure:  # of GDB's own errors too
                if isinstance(error, OptprobeError):  # what it says of the guest is to be read, too
                    raise OptprobeError(f"{error}; {failure}") from error
                raise
            if lack is not None:
                raise _Lacks(lack, more) from error
            raise
        return Added(self._told(new) if is_told else (), new.probes, max(new.numbers))

    def _put_in(self, spec: Spec, addresses: Sequence[int], new: _Progress) -> None:
        """Put in the probes of `spec`: in blocks what can be, the others one by one."""
        self.target.debugger.guard()
        if spec.pending and not addresses:
            new.probes.append(self._add_pending(spec))
            return
        blocks = self._put_in_together(spec, addresses, new) if spec.glob else []
        taken = {address for block in blocks for address in block.sites}
        left_out = self._unwanted(spec, set(addresses) - taken, blocks)
        taken.update(one.address for one in left_out)
        others = [address for address in addresses if address not in taken]
        if others or not blocks:
            maps = next((block.handler.shared for block in blocks), None)
            left_out += self._put_in_singly(spec, others, new, maps)
        mine = [*(probe.number for probe in new.probes if probe.spec is spec), *(block.first for block in blocks)]
        if left_out and not mine:
            raise left_out[0].error
        if others and not mine:
            can_be = spec.tier or "probed"
            raise OptprobeError(f"none of the {len(others)} addresses of {spec.location} can be {can_be}")
        new.left_out[min(mine, default=0)] = self._left_out(left_out)

    def _put_in_together(self, spec: Spec, addresses: Sequence[int], new: _Progress) -> list[CountBlock]:
        """Put in what blocks can have of a glob; where they find no room, it is not tried one by one before a loan."""
        try:
            with held():  # until they are in `new`
                new.blocks += (blocks := self.batches.add(spec, addresses, new.may_lend))
        except Refused as refused:
            if (lack := self._lack(new)) is not None:
                raise _Lacks(lack, 0) from refused if spec.is_return else None
            raise
        if not blocks:
            self._check_room(new)
        return blocks

    def _put_in_singly(
        self, spec: Spec, addresses: Sequence[int], new: _Progress, maps: SharedMaps | None
    ) -> list[LeftOut]:
        """Put in probes one by one. maps: that those in blocks share. Return what is left out."""
        kind, left_out = self.kinds.of(spec), list[LeftOut]()
        maps = maps or kind.share(spec, len(addresses))
        for first in range(0, len(addresses) or 1, AT_ONCE):
            checkpoint()
            self._check_journal(_recorded(spec, len(addresses) - first), new)
            probes, without = kind.plan(spec, addresses[first : first + AT_ONCE], maps)
            new.probes += probes
            left_out += without
            self.modules.track(probes)
            for probe in probes:
                kind.reserve(probe)
            if lacking := kind.install(probes):
                self.remove(lacking, ())
                new.probes = [probe for probe in new.probes if self.registry.has(probe)]
            self.optimizer.write_records(probe for probe in probes if self.registry.has(probe))
            if lacking and spec.is_whole_kernel:  # the others would stop the guest as well
                rest = addresses[first + AT_ONCE :]
                left_out += (LeftOut(at, NO_ROOM) for at in (*(one.address for one in lacking), *rest))
                break
        return left_out

    def _lack(self, new: _Progress) -> Lack | None:
        """Return what has found no room since `new` began, where the kernel may lend some; None where all did."""
        return self.optimizer.lacking() if new.may_lend else None

    def _check_journal(self, size: int, new: _Progress) -> None:
        """Raises _Lacks where the journal may have no room for so many bytes more, and may be moved to lent memory."""
        if new.may_lend and (lack := self.optimizer.journal_lack(size)) is not None:
            raise _Lacks(lack, 0)

    def _check_room(self, new: _Progress) -> None:
        """Raises _Lacks where something has found no room."""
        if (lack := self._lack(new)) is not None:
            raise _Lacks(lack, 0)

    def _told(self, new: _Progress) -> Sequence[ProbeView]:
        """Return the views of what was put in, with what is worth knowing."""
        notes = {probe.number: self._note(probe, is_first=probe.number in new.left_out) for probe in new.probes}
        if len(new.probes) == 1 and not new.blocks:
            moved = moved_note(new.probes[0].moved, new.probes[0].address, self.target.guest)
            notes = {number: "; ".join(filter(None, (moved, note))) for number, note in notes.items()}
        found = rows([*self.views.of_probes(new.probes), *self.views.of_blocks(new.blocks)])
        if not new.had_many_returns and self.registry.has_more_returns(MANY_RETURNS):
            number = found[0].number
            notes[number] = "; ".join(filter(None, (notes.get(number, ""), OWN_UNWINDER)))

        def told(view: ProbeView) -> ProbeView:
            number = view.number
            return replace(view, note=notes.get(number, ""), left_out=new.left_out.get(number, ()))

        # A note on the first of a block is not repeated for each.
        parts = (part.first_apart() if isinstance(part, CountsView) else [part] for part in found.parts)
        return rows(told(one) if isinstance(one, ProbeView) else one for part in parts for one in part)

    def _lend(self, lacks: _Lacks) -> bool:
        """Have the guest's kernel lend what is lacking; return whether it did. Raises Refused where it must.

        A probe that works without it, as a breakpoint, is put in without it.
        """
        self.target.debugger.guard()
        try:
            with held():
                self.optimizer.lend(lacks.lack, lacks.more)
        except OptprobeError as error:
            if not isinstance(refused := lacks.__cause__, Refused):
                return False
            reason = refused.reason
            text = f"{reason.text}; its kernel lends no more: {error.message}"
            hint = ", or ".join(filter(None, (reason.hint, error.hint)))
            raise Refused(Reason(reason.code, text, hint)) from None
        return True

    def lend_lacking(self, probes: Iterable[Probe]) -> bool:
        """Have the guest's kernel lend what found no room for `probes` since `watch_data`.

        Return whether it did, so the guest ran. Should GDB be killed meanwhile, the next one finds them as they are.
        """
        if (lack := self.optimizer.lacking()) is None:
            return False
        self.optimizer.write_records(probes)
        return self._lend(_Lacks(lack, 0))

    def _unwanted(self, spec: Spec, addresses: Collection[int], blocks: Sequence[CountBlock]) -> list[LeftOut]:
        """Return which of the addresses that are in no block the probes of a glob leave out. blocks: of others."""
        if spec.is_return and (blocks or spec.is_whole_kernel):
            fit = 2 * len(addresses) * A_RETURN <= self.optimizer.take_arena().data.largest
            return [] if fit else [LeftOut(address, OWN_TABLE) for address in sorted(addresses)]
        if not spec.is_whole_kernel:
            return []
        if self.batches.is_full:
            return [LeftOut(address, NO_ROOM) for address in sorted(addresses)]
        stopping = self.planner.stopping(spec, addresses)
        rest = [] if self.batches.fit_singly(blocks, len(addresses) - len(stopping)) else {*addresses} - stopping
        why = {**dict.fromkeys(stopping, NO_BRANCH), **dict.fromkeys(rest, NO_CALL)}
        return [LeftOut(address, why[address]) for address in sorted(why)]

    def _note(self, probe: Probe, is_first: bool) -> str:
        """Return what is worth knowing of a new probe. is_first: of its spec; the others have the same handler."""
        bypassed = self.target.guest.why_bypassed(probe.address) if probe.is_in_kernel else ""
        return "; ".join(filter(None, (bypassed, probe.handler.note if is_first else "")))

    def _left_out(self, found: Sequence[LeftOut]) -> tuple[LeftOutView, ...]:
        guest = self.target.guest
        return tuple(LeftOutView(one.address, guest.symbol(one.address), one.error.message) for one in found)

    def _add_pending(self, spec: Spec) -> Probe:
        """Register a probe on a function that is not there yet."""
        probe = Probe(self.registry.next_number(), spec, 0, sizes=sizes_of(self.settings()))
        self.modules.wait_for_load(probe)
        self.optimizer.write_records([probe])
        return probe

    def resolve(self, specs: Sequence[Spec]) -> list[tuple[Spec, tuple[int, ...]]]:
        """Return the addresses of each spec's location, each once; none of one that waits, or is a program's.

        Raises OptprobeError.
        """
        found: list[tuple[Spec, tuple[int, ...]]] = []
        seen: set[int] = set()
        for spec in specs:
            for action in spec.action_parts:
                check_action(action)
            addresses = self.kinds.of(spec).addresses(spec)
            new = tuple(address for address in addresses if address not in seen)
            seen |= {*new}
            if new or not addresses:
                found.append((spec, new))
        limit = self.settings().max_probes
        whole = limit == DEFAULT_MAX_PROBES and all(spec.is_whole_kernel for spec in specs)
        many = sum(len(block) for block in self.registry.blocks if block.spec.is_whole_kernel)
        if len(self.registry) - many + len(seen) > limit and not whole:
            raise OptprobeError(
                f"{','.join(spec.location for spec in specs)} has {len(seen)} addresses and max-probes is {limit}",
                "set optprobe max-probes N, or name fewer",
            )
        return found

    def borrow_memory(self, places: Iterable[tuple[Spec, Sequence[int]]]) -> bool:
        """Have the guest's kernel lend memory where there is no other and a probe needs some.

        Return whether the guest has run for it, before anything is planned: a plan expires when it does.
        """
        if not self.optimizer.memory.must_borrow():
            return False
        if not any(self.kinds.of(spec).needs_memory(spec, addresses) for spec, addresses in places):
            return False
        self.target.debugger.guard()
        with suppress(Refused):  # the probes' plans say why there is none
            self.optimizer.take_arena(borrow=True)
        return True


def _recorded(spec: Spec, probes: int) -> int:
    """Return about how many bytes the journal takes for so many probes of `spec` that are in no block."""
    return probes * (OF_A_COUNT if spec.is_plain_count and not spec.is_return else OF_A_PROBE)
