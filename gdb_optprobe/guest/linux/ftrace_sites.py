"""Ftrace sites: the instructions at which functions call tracers, and the kernel's records of them.

    ftrace_pages_start ─► ftrace_page ──────────► ftrace_page ─► …        (kernel/trace/ftrace.c)
                          │ next                  records:             
                          │ records ─► ┌──────┬───────┬────────┐
                          │ index      │ ip   │ flags │ module │         (include/linux/ftrace.h, struct dyn_ftrace;
                          └ …          └──────┴───────┴────────┘          not on every ISA)    
`flags` has the number of users in its low bits and states in its high ones. Where states begin has moved down (bit 23
up to 6.2, bit 19 in 6.12), but only two states of a site without users may be set in between.

With foreign bytes at a site the function tracer finds "an ftrace bug" and is dead until reboot, so a site is *disabled*
in its record before a branch goes in: then the kernel passes over it (ftrace.c, skip_record). It is enabled again only
while no tracer runs at all: one that was started meanwhile has not counted this site and must not uncount it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import eq, itemgetter, lt
from struct import Struct, unpack

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.little_endian import little_endian
from gdb_optprobe.guest.text import FtraceSite

WORDS = Struct("<QQ")  # the beginning of every record
WORD = 8
DISABLED = 1 << 25  # FTRACE_FL_DISABLED
HISTORY = 1 << 20 | 1 << 19  # FTRACE_FL_TOUCHED (6.5), FTRACE_FL_MODIFIED (6.8): the site was used once
# Limits (budget.py), and what Debian's kernels have at the most.
PAGES = 1 << 14
"""Of records: 300, and one or two of each module."""
MOST_SITES = 1 << 19
"""46,935, and those of modules."""
SAMPLES = 64
NEAR = 256
"""Bytes between two records that are read along: less than a packet costs."""
WHAT = "the kernel's list of traced functions"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes. nop: the bytes of an unused site, on most kernels. record: of one site, ip and flags first."""

    nop: bytes
    record: Struct


NO_SITE = Shape(b"", Struct("<QQ"))
"""An address at which no site is."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of the site `ip`, at the address `at`, with its `flags`."""

    at: int
    ip: int
    flags: int

    @property
    def disabled(self) -> bool:
        return bool(self.flags & DISABLED)

    @property
    def in_use(self) -> bool:
        return is_in_use(self.flags)


def is_in_use(flags: int) -> bool:
    """Return whether a tracer has counted itself in, or the site is in a state that only tracers cause."""
    return bool(flags & ~(DISABLED | HISTORY))


def is_idle(flags: int) -> bool:
    """Return whether no tracer uses the site, and none is kept off it."""
    return not flags & ~HISTORY


def _first_words(data: bytes, step: int) -> array[int]:
    """Return the first word of each `step` bytes, which are words."""
    words = little_endian(array("Q", data))
    return words[:: step // words.itemsize]


class FtraceSites:
    """The sites. Their addresses never change (modules aside); `flags` are read anew at each call."""

    def __init__(
        self,
        kernel: Kernel,
        shape: Shape,
        of: tuple[int, int] | None = None,
        nop: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Read the records.

        of: the text of a module (its sites have their own pages); None for all.
        nop: the bytes that the kernel writes to an unused site; None where they are unknown.
        """
        self._kernel = kernel
        self._shape = shape
        self._of = of
        self._nop = nop

    @cached_property
    def _index(self) -> tuple[list[int], list[int]]:
        """Return the addresses of sites, ascending, and of their records."""
        kernel = self._kernel
        head = kernel.symbols.address("ftrace_pages_start")
        ips, ats, size = list[int](), list[int](), self._shape.record.size
        page = kernel.word(head) if head is not None else 0
        following, records, index = self._page_layout()
        seen: set[int] = set()
        pages, sites = (Budget(*limit) for limit in ((PAGES, WHAT, "pages"), (MOST_SITES, WHAT, "records")))
        while page and page not in seen:
            pages.spend()
            seen.add(page)
            words = kernel.memory.read(page, 32)
            first = int.from_bytes(words[records : records + 8], "little")
            count = int.from_bytes(words[index : index + 4], "little")
            if count and self._is_wanted(first):
                sites.spend(count)
                end = first + count * size
                ips += _first_words(kernel.read(first, end), size)  # of tens of thousands
                ats += range(first, end, size)
            page = int.from_bytes(words[following : following + 8], "little")
        if all(ips) and all(map(lt, ips, islice(ips, 1, None))):
            return ips, ats  # the kernel's own are sorted; those of modules are behind them
        pairs = sorted(filter(itemgetter(0), zip(ips, ats, strict=True)))
        return [ip for ip, _ in pairs], [at for _, at in pairs]

    def _is_wanted(self, record: int) -> bool:
        return self._of is None or self._of[0] <= self._kernel.word(record) < self._of[1]

    def _page_layout(self) -> tuple[int, int, int]:
        try:
            members = (self._kernel.offset("ftrace_page", name) for name in ("next", "records", "index"))
            following, records, index = members
        except OptprobeError:
            return 0, 8, 16
        return following, records, index

    def __len__(self) -> int:
        return len(self._index[0])

    @cached_property
    def idle(self) -> bytes:
        """Return the bytes of a site without a tracer.

        They are known from the kernel, or else from most of the sites that no tracer has ever used.
        """
        if (found := self._nop()) is not None:
            return found
        ips, size = self._index[0], len(self._shape.nop)
        some = self.flags(ips[:: max(1, len(ips) // SAMPLES)])
        never = sorted(ip for ip, flags in some.items() if not flags)
        unused = [data for data in runs.heads(never, size, self._kernel.memory) if data]  # init text is freed
        most = max(set(unused), key=unused.count, default=b"")
        return most if 2 * unused.count(most) > len(unused) else self._shape.nop

    def within(self, start: int, end: int) -> Sequence[int]:
        """Return the sites that overlap [start, end)."""
        ips = self._index[0]
        return ips[bisect_left(ips, start - len(self._shape.nop) + 1) : bisect_left(ips, end)]

    def records(self, ips: Iterable[int]) -> dict[int, Record]:
        """Return the current records of these sites. An address that is no site is left out."""
        addresses, ats = self._index
        found: dict[int, Record] = {}
        for ip in ips:
            place = bisect_left(addresses, ip)
            if place < len(addresses) and addresses[place] == ip:
                read_ip, flags = WORDS.unpack(self._kernel.memory.read(ats[place], WORDS.size))
                if read_ip == ip:
                    found[ip] = Record(ats[place], ip, flags)
        return found

    @cached_property
    def record_at(self) -> Mapping[int, int]:
        """Return the addresses of the records, by site."""
        return dict(zip(*self._index, strict=True))

    def flags(self, ips: Collection[int]) -> dict[int, int]:
        """Return the flags of these sites as they are now, of thousands: all records around them are read.

        An address that is no site is left out.
        """
        at_of, size, found = self.record_at.get, self._shape.record.size, dict[int, int]()
        words, rest = size // WORD, bytes(size - WORDS.size)
        spans = list(_joined(sorted(filter(None, map(at_of, ips))), WORDS.size, size))
        for (start, end), data in zip(spans, runs.read_spans(spans, self._kernel.memory), strict=True):
            held = unpack(f"<{(len(data) + len(rest)) // WORD}Q", data + rest)
            sites, flags, places = held[::words], held[1::words], range(start, end, size)
            if all(map(eq, map(at_of, sites), places)):
                found.update(zip(sites, flags, strict=True))
            else:  # another site is in a record by now
                rows = zip(sites, flags, places, strict=True)
                found |= {ip: word for ip, word, at in rows if at_of(ip) == at}
        return {ip: found[ip] for ip in ips if ip in found}

    @property
    def addresses(self) -> Sequence[int]:
        """Return the sites, ascending."""
        return self._index[0]

    def is_site(self, address: int) -> bool:
        return address in self.record_at

    def record(self, ip: int) -> Record | None:
        return self.records([ip]).get(ip)

    def sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        """Return the sites that overlap [start, end), as the planner needs them."""
        records = self.records(self.within(start, end)).values()
        return [FtraceSite(r.ip, len(self._shape.nop), r.in_use, self.idle) for r in records]

    def tracing(self) -> bool:
        """Return whether any tracer is registered (kernel/trace/ftrace.c: ftrace_ops_list ends in ftrace_list_end)."""
        first = self._kernel.symbols.address("ftrace_ops_list")
        last = self._kernel.symbols.address("ftrace_list_end")
        return first is None or last is None or self._kernel.word(first) != last


def _joined(ats: Sequence[int], size: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of records, `size` bytes at each of the ascending `ats`: those that follow one another, in arrays
    of records, as one.
    """
    if not ats:
        return
    start = last = ats[0]
    for at in ats:
        if at - last >= NEAR + size or (at - start) % step:
            yield start, last + size
            start = at
        last = at
    yield start, last + size
