"""From a session's probes to what commands print of them: a row of each, or of the functions of a block at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours.block import WORD
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.ring import START
from gdb_optprobe.probes import probe_views, site_views
from gdb_optprobe.probes.block_members import BlockMembers
from gdb_optprobe.probes.count_block import CountBlock, SymbolsOf
from gdb_optprobe.probes.kinds import Kinds
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.read_results import read_results
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.results import Results
from gdb_optprobe.probes.return_block import ReturnBlock
from gdb_optprobe.probes.sampler import Sampler, Several, Single, is_chosen, shared_losses
from gdb_optprobe.probes.session_scripts import SessionScripts
from gdb_optprobe.probes.shared_maps import MapsContents
from gdb_optprobe.probes.shared_returns import SharedReturns
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import CountsView, ObjectView, ProbeView, rows

RETURN = "%return"
"""Behind the name of a row of returns."""


@dataclass(frozen=True)
class SessionViews:
    """Makes views, of what the guest's memory holds now. whole: with what else than hits was gathered."""

    target: Target
    registry: Registry
    kinds: Kinds
    returns: SharedReturns
    members: BlockMembers
    scripts: Callable[[], SessionScripts]

    def of_numbers(self, numbers: Sequence[int], whole: bool = False) -> Sequence[ProbeView]:
        """Return the views of these; returns that share a hook stay in their block."""
        found = {number: self.registry.block_of(number) for number in dict.fromkeys(numbers)}
        shared = {number: at for number, at in found.items() if at is not None and isinstance(at[0], ReturnBlock)}
        probes = self.registry.probes([number for number in numbers if number not in shared])
        parts = {id(at[0]): rows(self.of_blocks([at[0]], whole=whole)) for at in shared.values()}
        members = {one.number: one for part in parts.values() for one in part if one.number in shared}
        return rows([*self.of_probes(probes, whole), *members.values()])

    def of(self, probes: Sequence[Probe], blocks: Sequence[CountBlock]) -> Sequence[ProbeView]:
        return rows([*self.of_probes(probes), *self.of_blocks(blocks)])

    def of_all(self, whole: bool = False) -> list[ProbeView | CountsView]:
        blocks = self.of_blocks(self.registry.blocks, whole=whole)
        return [*self.of_probes(self.registry.single_probes(), whole), *blocks]

    def of_blocks(self, blocks: Iterable[CountBlock], whole: bool = False) -> Iterator[ProbeView | CountsView]:
        """Yield the views of blocks, one for each run of numbers. whole: with what else than hits was gathered."""
        guest = self.target.guest
        blocks = list(blocks)
        shared = {id(one): one for block in blocks if whole and (one := block.handler.shared) is not None}
        maps = {identity: one.read(guest.machine, guest.machine.runs) for identity, one in shared.items()}
        for block in blocks:
            symbols = block.symbols = block.symbols or SymbolsOf(block.sites, guest.symbols)
            is_new = block.installed_at == guest.moment()  # the guest has not run: nothing was counted yet
            counted = bytes(block.data.size) if is_new else guest.machine.read(block.data.address, block.data.size)
            hits = aggregate.decode(counted)
            branches = block.isa.branches(block.sites, range(block.code.address, block.code.end, block.step))
            for start, end in block.runs():
                probe, site = self.members.member(block, start)
                view = site_views.site_view(probe, site, self.target, lambda _: ())
                found = replace(Results.empty(probe.handler), head=(hits[start],))
                first = replace(probe_views.probe_view(probe, view, found, guest), objects=())
                part = CountsView(
                    first=self.returns.in_block(block, first),
                    addresses=block.sites[start:end],
                    symbols=symbols[start:end],
                    hits=hits[start:end],
                    originals=block.originals[start:end],
                    branches=branches[start:end] if block.enabled else (),
                    step=block.step,
                )
                if whole and block.handler.shared is not None:
                    yield from self._with_maps(block, part, start, maps)
                else:
                    yield from self.returns.with_times(block, part, start) if whole else [part]

    def _with_maps(
        self, block: CountBlock, part: CountsView, start: int, maps: Mapping[int, MapsContents]
    ) -> Iterator[ProbeView | CountsView]:
        """Yield the rows of a part of a block, from index `start` on: those of functions with hits by themselves, with
        what they have in maps.

        maps: by their identities.
        """
        contents, guest = maps[id(block.handler.shared)], self.target.guest

        def gathered(place: int) -> tuple[ObjectView, ...]:
            handler = block.handler_of(start + place)
            results = Results.decode(handler, aggregate.encode((part.hits[place],)), START, contents)
            return probe_views.object_views(handler, results, guest.symbol)

        yield from part.with_objects(gathered)

    def of_probes(self, probes: Sequence[Probe], whole: bool = False) -> tuple[ProbeView, ...]:
        found = read_results(probes, self.target.guest, whole)
        guest, scripts = self.target.guest, self.scripts()
        sites = (self.kinds.of(probe.spec).site_view(probe) for probe in probes)
        return tuple(
            probe_views.probe_view(probe, site, found[probe.number], guest, scripts)
            for probe, site in zip(probes, sites, strict=True)
        )

    def sampler(self, pattern: str) -> Sampler:
        """Return what reads the rows that a glob names, "" for all, while the guest runs. Call it at a stop."""
        known = self.registry.single_probes()
        probes = [probe for probe in known if is_chosen(pattern, self._label(probe), probe.spec.name)]
        several: list[Several] = []
        for block in self.registry.blocks:
            block.symbols = list(block.symbols or self.target.guest.symbols(block.sites))
            indexes = [index for index in block.members if is_chosen(pattern, block.symbols[index], block.spec.name)]
            several += (Several(block, run.start, run.stop) for run in _runs(indexes))
        singles = [self._single(probe) for probe in probes]
        blocks = {id(part.block): part.block for part in several}.values()
        scripts, numbers = self.scripts(), None if not pattern else {probe.number for probe in probes}
        return Sampler(
            singles,
            several,
            [*shared_losses(probes, blocks), *scripts.lost_words(numbers)],
            scripts.texts(numbers),
            self.target.guest.known_symbol,
        )

    def _single(self, probe: Probe) -> Single:
        kind, machine = self.kinds.of(probe.spec), self.target.guest.machine
        words = kind.missed_words(probe)
        counted = sum(int.from_bytes(machine.read(at, WORD), "little") for at in words)
        return Single(probe, self._label(probe), words, kind.missed(probe) - counted)

    def _label(self, probe: Probe) -> str:
        """Return how a row of the probe is called: by its symbol, a return as such."""
        if probe.spec.event is not None or probe.absence is not None:
            return probe.spec.location
        if probe.is_in_kernel:
            found = self.target.guest.symbol(probe.address)
        else:
            found = self.kinds.of(probe.spec).site_view(probe).symbol
        return (found or f"{probe.address:#x}") + (RETURN if probe.is_return else "")


def _runs(indexes: Sequence[int]) -> Iterator[range]:
    """Yield ascending numbers as ranges of those that follow one another."""
    start = 0
    for place in range(1, len(indexes) + 1):
        if place == len(indexes) or indexes[place] != indexes[place - 1] + 1:
            yield range(indexes[start], indexes[place - 1] + 1)
            start = place
