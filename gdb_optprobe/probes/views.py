"""What the commands print: values read once from the guest, with nothing left to look up.

The fields are the contract's JSON keys, in its order; addresses are integers here and become "0x…" in JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from gdb_optprobe.maps.aggregate import Aggregate


@dataclass(frozen=True, slots=True)
class ReasonView:
    """Why no better tier: a code of the closed list, the reason in words, the next step."""

    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class DetourView:
    """Where a probe's code lives.

    instructions: of the whole detour, neighbours' programs among them.
    added:        what a hit runs beyond the original code: this probe's site's programs, the branch and the way back.
    least:        the same where conditions are false and every jump takes the shortest path.
    head:         the address of the branch that leads there: the probe's address or before it.
    own, own_least: the same two without the programs of other probes at the address.
    """

    address: int
    size: int
    instructions: int
    added: int
    least: int
    head: int
    own: int
    own_least: int


class Address(int):
    """A number that is an address, and shown as one."""


@dataclass(frozen=True, slots=True)
class ActiveCallView:
    """An active call.

    thread: which makes it, in words, "" where that is not known. pid, comm: None and "" where it is no thread.
    """

    thread: str
    pid: int | None
    comm: str


@dataclass(frozen=True, slots=True)
class CallsView:
    """Of a return probe's function, shared by all that are on it. entries: the sum of the others.

    active: under way. missed: found no room. dropped: never returned. out: those under way.
    """

    entries: int
    returns: int
    active: int
    missed: int
    dropped: int
    out: tuple[ActiveCallView, ...] = ()


@dataclass(frozen=True, slots=True)
class RowView:
    """words: as maps/aggregate.py lays them out. key: empty where the action has none. spelled: it, for people."""

    key: tuple[int | str, ...]
    words: tuple[int, ...]
    spelled: str = ""


NANOSECONDS = "ns"


@dataclass(frozen=True, slots=True)
class ObjectView:
    """What an action gathered. action: as typed; lost: values that found no room; keys: how many `by` has.

    labels: of the parts of a key, as typed.
    unit: of the values, "" where it is not known. shared: whether the room is that of all probes of a glob.
    lost_together: values that found no room, of all of them, where it is not known of which; lost is None then.
    """

    action: str
    aggregate: Aggregate
    rows: tuple[RowView, ...]
    lost: int | None = 0
    keys: int = 0
    unit: str = ""
    shared: bool = False
    lost_together: int = 0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameView:
    """A frame of a stack. symbol: "vfs_read+0x13", or "" where none is known. address: 0 where the caller is not known;
    symbol is "…" then, with the limit that ends the stack where there is one.

    sure: else it may be left on the stack from an earlier call.
    is_interrupted: a trap or an interrupt came there.
    """

    address: int
    symbol: str
    sure: bool = True
    is_interrupted: bool = False

    @property
    def text(self) -> str:
        """For people; a doubt as the kernel's own traces have it."""
        return ("" if self.sure else "? ") + (self.symbol or f"{self.address:#x}")


@dataclass(frozen=True, slots=True)
class RecordView:
    """What `record`, `print` or `stack` kept of one hit.

    time: of the guest's clock; None where the hit stopped the guest.
    since_boot: the same in nanoseconds, as the guest's log has it; None where that is not known.
    lost_before, lost_after: how many are lost that came before or after it, with no other record in between.
    values: its parts. names: of these, as typed. text: as the format has them. stack: of `stack`, the innermost frame
    first.
    """

    cpu: int
    time: int | None
    values: tuple[int | str, ...]
    text: str
    stack: tuple[FrameView, ...] = ()
    since_boot: int | None = None
    lost_before: int = 0
    lost_after: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionMapView:
    """A map of scripts and blocks. text: as bpftrace prints it. line: its JSON, of one line.

    name: with its at-sign. rows: none where its values are no numbers. aggregate: None where each value is one number,
    which is the row's word.
    """

    text: str
    line: str
    name: str = ""
    aggregate: Aggregate | None = None
    rows: tuple[RowView, ...] = ()


@dataclass(frozen=True, slots=True)
class CallView:
    """A call that a graph has shown. begin, end: in nanoseconds since boot.

    entered, cpu: the CPUs where it began and where it ended. depth: how many calls of its thread are around it.
    values: arguments and result, by name.
    """

    function: str
    begin: int
    end: int
    entered: int
    cpu: int
    depth: int
    pid: int
    comm: str
    values: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class StackView:
    """A stack that was seen so often. frames: the thread, then functions, the outermost first.

    time: nanoseconds of all of these together; None where no time was taken.
    """

    frames: tuple[str, ...]
    count: int
    time: int | None = None


@dataclass(frozen=True, slots=True)
class GatheredView:
    """What a command that probes by itself has shown. title: the command, with the function that it was given.

    calls: each behind the one that it is in, those of a thread in the order of time. function, words: of a latency, a
    histogram of nanoseconds. intervals: such histograms, one after the other; skipped: how many came before these.
    every: the seconds of each, but the last, which may be shorter. lost: records that found no room. notes: lines to
    print with it.
    """

    title: str
    calls: tuple[CallView, ...] = ()
    stacks: tuple[StackView, ...] = ()
    function: str = ""
    words: tuple[int, ...] = ()
    intervals: tuple[tuple[int, ...], ...] = ()
    skipped: int = 0
    every: float = 0.0
    lost: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOutView:
    """A function among a glob's that has no probe. text: why, as an error's message."""

    address: int
    symbol: str
    text: str


@dataclass(frozen=True, slots=True)
class ProbeView:
    """One row of `optprobe list`.

    symbol:  "vfs_read+0x13", or "" where no symbol is known.
    tier:    "breakpoint", "boosted", "emulated", "trapped" or "optimized".
    state:   "armed", "optimizing", "disabled", "pending" or "gone"; "deleted", with the number 0, while calls are under
             way that return probes saw entered which were deleted since.
    tags:    the kernel's: "OPTIMIZED", "DISABLED", "GONE", "FTRACE", and "OPTIMIZING", "DELETED".
    missed:  None where it is not known of which functions that share a table of calls some were missed.
    missed_together: how many were then, of all of them.
    stops:   how often this probe stopped the guest.
    entry:   of a return probe, what it does where the function is entered, as it is typed.
    note:    of one that was just added, as ExplainView has it.
    left_out: of the first one that was just added for a glob.
    """

    number: int
    name: str
    kind: str
    location: str
    address: int
    symbol: str
    tier: str
    state: str
    tags: tuple[str, ...]
    enabled: bool
    needs_gdb: bool
    reason: ReasonView | None
    patch_size: int
    original_bytes: bytes
    patched_bytes: bytes
    detour: DetourView | None
    condition: str
    actions: tuple[str, ...]
    hits: int
    missed: int | None
    active: int
    dropped: int
    faults: int
    stops: int
    objects: tuple[ObjectView, ...] = ()
    records: tuple[RecordView, ...] = ()
    calls: CallsView | None = None
    entry: str = ""
    note: str = ""
    left_out: tuple[LeftOutView, ...] = ()
    missed_together: int = 0


@dataclass(frozen=True, slots=True)
class CountsView(Sequence[ProbeView]):
    """The rows of counts that were added together, with numbers that follow one another, as columns.

    first: the first of them, of which the others differ in what the columns have, and in their numbers.
    originals: what the text held. branches: what is in it; none where they are disabled. step: bytes from one detour to
    the next.
    """

    first: ProbeView
    addresses: Sequence[int]
    symbols: Sequence[str]
    hits: Sequence[int]
    originals: Sequence[bytes]
    branches: Sequence[bytes]
    step: int

    def __len__(self) -> int:
        return len(self.addresses)

    @overload
    def __getitem__(self, place: int) -> ProbeView: ...

    @overload
    def __getitem__(self, place: slice) -> list[ProbeView]: ...

    def __getitem__(self, place: int | slice) -> ProbeView | list[ProbeView]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        address, first = self.addresses[place], self.first
        detour = first.detour
        return replace(
            first,
            number=first.number + place,
            address=address,
            symbol=self.symbols[place],
            hits=self.hits[place],
            original_bytes=self.originals[place],
            patched_bytes=self.branches[place] if self.branches else b"",
            detour=replace(detour, address=detour.address + place * self.step, head=address) if detour else None,
        )

    def between(self, start: int, end: int) -> CountsView:
        """Return the rows from the place `start` to before `end`."""
        some = slice(start, end)
        return replace(
            self,
            first=self[start],
            addresses=self.addresses[some],
            symbols=self.symbols[some],
            hits=self.hits[some],
            originals=self.originals[some],
            branches=self.branches[some],
        )

    def with_objects(self, gathered: Callable[[int], tuple[ObjectView, ...]]) -> Iterator[ProbeView | CountsView]:
        """Yield the same rows, those with hits by themselves. gathered: returns what one of them has, by its place."""
        begin = 0
        for place, hits in enumerate(self.hits):
            if hits:
                if begin < place:
                    yield self.between(begin, place)
                yield replace(self[place], objects=gathered(place))
                begin = place + 1
        if begin < len(self):
            yield self.between(begin, len(self))

    def first_apart(self) -> list[ProbeView | CountsView]:
        """Return the first row by itself, and the others."""
        return [self[0], self.between(1, len(self))] if len(self) > 1 else [self[0]]


@dataclass(frozen=True, slots=True)
class Rows(Sequence[ProbeView]):
    """Rows in the order of their numbers, those of CountsViews as one part each."""

    parts: tuple[ProbeView | CountsView, ...] = ()

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, CountsView) else 1 for part in self.parts)

    def __iter__(self) -> Iterator[ProbeView]:
        for part in self.parts:
            if isinstance(part, CountsView):
                yield from part
            else:
                yield part

    @overload
    def __getitem__(self, place: int) -> ProbeView: ...

    @overload
    def __getitem__(self, place: slice) -> list[ProbeView]: ...

    def __getitem__(self, place: int | slice) -> ProbeView | list[ProbeView]:
        if isinstance(place, slice):
            return list(self)[place]
        place = range(len(self))[place]
        for part in self.parts:
            size = len(part) if isinstance(part, CountsView) else 1
            if place < size:
                return part[place] if isinstance(part, CountsView) else part
            place -= size
        raise AssertionError("the place is that of a row")


def parts_of(probes: Sequence[ProbeView]) -> Sequence[ProbeView | CountsView]:
    """Return rows, those of CountsViews as one part each."""
    return probes.parts if isinstance(probes, Rows) else probes


def rows(parts: Iterable[ProbeView | CountsView], behind: Iterable[ProbeView] = ()) -> Rows:
    """Return the rows in the order of their numbers, and those `behind`, which have none."""
    ordered = sorted(parts, key=lambda part: part.first.number if isinstance(part, CountsView) else part.number)
    return Rows((*ordered, *behind))


@dataclass(frozen=True, slots=True)
class CollectorView:
    """What the slot collector has done. Times are in seconds.

    runs:        how often it ran, by why.
    failed:      of those, when not all stacks could be enumerated.
    longest, total: for how long it held the guest.
    stacks:      that the last run has looked through.
    garbage_…:   released, and not proven to be empty.
    quarantined: why the garbage never is; "" where it may be.
    """

    runs: Mapping[str, int]
    failed: int
    slots: int
    bytes: int
    longest: float
    total: float
    stacks: int
    garbage_slots: int
    garbage_bytes: int
    quarantined: str


@dataclass(frozen=True, slots=True)
class GuestTraceView:
    """A trace of a stack that the guest has printed up to a trampoline, with the callers beyond.

    pid, name: of the thread. frames: the innermost first. is_cut: calls beyond them are known to be there.
    left_out: traces behind this one that were not unwound.
    """

    pid: int | None
    name: str
    cpu: int | None
    frames: tuple[FrameView, ...]
    is_cut: bool = False
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One instruction of a listing.

    note: what the section that it opens is for, "" inside a section.
    part: of a probe's program, what it is for: the whole, a part of that, …; empty where that is not known.
    """

    address: int
    data: bytes
    text: str
    note: str = ""
    part: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShowView:
    """`optprobe show N`: the same place as it was, as it is, and where it goes.

    trampoline: where calls with a probed return come back to.
    """

    probe: ProbeView
    original: tuple[CodeLine, ...]
    patched: tuple[CodeLine, ...]
    detour: tuple[CodeLine, ...]
    trampoline: tuple[CodeLine, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedView:
    """A better tier that an address cannot have."""

    tier: str
    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ExplainView:
    """`optprobe explain LOCATION`: the tier it would get and why no better one. tier "": it gets no probe.

    patch_size:   bytes that would be overwritten; 0 unless optimized.
    waits:        whether the patch covers several instructions and so waits until no thread is inside.
    instructions: what a hit would run beyond the original code, alone there; 0 where that is not known beforehand.
    least:        the same where the condition is false and every jump takes the shortest path.
    condition, actions: as typed.
    nearest:      the nearest address that would be optimized, where this one would not.
    note:         why it is behind the requested address, or why calls may bypass it; "" where nothing is known.
    kind:         of the probe: kprobe, …
    """

    address: int
    symbol: str
    tier: str
    reason: ReasonView | None
    displaced: tuple[CodeLine, ...]
    refused: tuple[RefusedView, ...]
    patch_size: int = 0
    waits: bool = False
    instructions: int = 0
    least: int = 0
    condition: str = ""
    actions: tuple[str, ...] = ()
    nearest: int | None = None
    nearest_symbol: str = ""
    note: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SavedProbes:
    """`optprobe save`.

    lines: of the file. count: of probes in it. left_out: the numbers of those that only Python can make again.
    """

    lines: tuple[str, ...]
    count: int
    left_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FacilityView:
    """One line of `optprobe doctor`. detail: the fact worth knowing where it works. reason: None where it works."""

    name: str
    detail: str
    reason: ReasonView | None = None


@dataclass(frozen=True, slots=True)
class GuestView:
    """The guest at a glance; None and "" for what is not known. banner: what the kernel calls itself.

    event_costs: what a hit of Linux's own events takes there, see LinuxArch.
    """

    architecture: str = ""
    vcpus: int | None = None
    banner: str = ""
    event_costs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DoctorView:
    """`optprobe doctor`. qemu: "" where it does not tell."""

    version: str
    gdb: str
    python: str
    qemu: str
    guest: GuestView
    facilities: tuple[FacilityView, ...]
