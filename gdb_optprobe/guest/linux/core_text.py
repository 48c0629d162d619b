"""The text of a Linux kernel's image: the part that is the same on every architecture.

    _stext ──────────────────── _etext      _sinittext ──── _einittext
    │ functions, entry text among them │      │ init: freed after boot │      modules' text: elsewhere
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.lasting_text import LastingText, ShelvedText
from gdb_optprobe.guest.linux.bug_table import BugTable
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import DISABLED, FtraceSites, is_idle, is_in_use
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.machine import Readable
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Function, IdleSites, Mark, Place

LARGEST = 1 << 20
"""More bytes than any function has: a longer symbol is padding."""

PIECE = 1 << 14
"""Bytes of text that are read at once."""

FEW_AT_A_TIME = 2 * runs.MANY
"""Places that are read a few at a time until all text is read, which takes as long as some hundred packets."""

REMEMBERED = 1024
"""Functions kept decoded, so that a sweep over all of them needs no more memory."""
REMEMBERED_PLACES = 1 << 14
"""Addresses of which the function is kept: a call graph asks for the same ones again, and symbols do not change."""


_BOUNDARY = re.compile(r"__\w+_text_end")


def is_boundary(name: str) -> bool:
    """Return whether the linker ended a part of the text at this symbol: until the next symbol there is padding."""
    return _BOUNDARY.fullmatch(name) is not None


class CoreText(ABC):
    """Fills guest.text.Text for a kernel. `forget` after the guest has run: it rewrites its own text."""

    def __init__(
        self,
        kernel: Kernel,
        originals: OriginalText,
        ftrace: FtraceSites,
        entry: tuple[int, int],
        modules: tuple[int, int],
        shelf: Shelf | None = None,
    ) -> None:
        """Take a kernel's text. entry, modules: start and end of entry text and of modules' text.
        shelf: caches what is found in this kernel's text.
        """
        self._kernel = kernel
        self.originals = originals
        self._functions: dict[int, Function] = {}
        self._places: dict[int, Place | None] = {}
        self._ordinary: dict[int, dict[int, bool]] = {}
        self._pieces: dict[int, bytes] = {}
        self._asked = 0
        self._image: Readable | None = None
        self._shelf = shelf
        self.ftrace = ftrace
        self._text = kernel.range("_stext", "_etext")
        self._init = kernel.range("_sinittext", "_einittext")
        self._areas = (
            (entry, Area.ENTRY),
            (self._text, Area.TEXT),
            (self._init, Area.INIT),
            (modules, Area.MODULE),
        )

    @property
    @abstractmethod
    def exceptions(self) -> ExceptionTable: ...

    @abstractmethod
    def _named(self, name: str) -> Area:
        """Return the kind of code that the function `name` of the kernel's text is."""

    @abstractmethod
    def _decode(self, start: int, end: int) -> Function:
        """Return the function [start, end)."""

    @cached_property
    def jump_labels(self) -> JumpLabels:
        return JumpLabels(self._kernel)

    @cached_property
    def bugs(self) -> BugTable:
        return BugTable(self._kernel)

    def forget(self) -> None:
        """Drop what was read: the guest has run, or a branch was written or removed."""
        self._functions.clear()
        self._pieces.clear()
        self._asked, self._image = 0, None
        self.originals.forget()

    def area(self, address: int) -> Area:
        found = self._range(address)
        return self._core(address) if found is Area.TEXT else found

    def _range(self, address: int) -> Area:
        """Return the area by the sections of the image alone."""
        for (start, end), area in self._areas:
            if start <= address < end:
                return area
        return Area.NOT_TEXT

    def _core(self, address: int) -> Area:
        """Return the area of an `address` of the text that is not entry text."""
        found = self._kernel.symbols.at(address)
        return self._named(found.name) if found is not None else Area.TEXT

    def function(self, address: int) -> Function | None:
        bounds = self._bounds(address)
        if bounds is None:
            return None
        start, _ = bounds
        if start not in self._functions:
            if len(self._functions) >= REMEMBERED:
                self._functions.clear()
            self._functions[start] = self._decode(*bounds)
        return self._functions[start]

    def place(self, address: int) -> Place | None:
        """See guest.Guest."""
        if address not in self._places:
            if len(self._places) >= REMEMBERED_PLACES:
                self._places.clear()
            bounds = self._bounds(address)
            self._places[address] = Place(self._name(bounds[0]), *bounds) if bounds is not None else None
        return self._places[address]

    def code(self, places: Sequence[Place]) -> Sequence[bytes | None]:
        """See guest.Guest."""
        start, end = self._text
        spans = sorted({(one.start, one.end) for one in places if start <= one.start and one.end <= end})
        if self.originals.missing:  # then decoding shows which bytes are not original
            return [None] * len(places)
        read = runs.read(spans, self.reader(spans))
        found = {span: self.originals(span[0], data) for span, data in zip(spans, runs.at(spans, read), strict=True)}
        return [found.get((one.start, one.end)) for one in places]

    def reader(self, spans: Sequence[tuple[int, int]]) -> Readable:
        """Return what these more places, ascending, are read from. Those that follow calls through the text ask for few
        at a time: once all they have asked for are many, all text is read at once, until it is forgotten or written:
        then other branches are in it than an overlay shows.
        """
        if not spans or spans[0][0] < self._text[0] or spans[-1][1] > self._text[1]:
            return self._kernel.memory
        if self._image is None and len(spans) < runs.MANY:
            self._asked += len(spans)
            if self._asked >= FEW_AT_A_TIME:
                self._asked, self._image = 0, runs.image(*self._text, self._kernel.memory, self._drop_image)
        return self._image or self._kernel.memory

    def _drop_image(self) -> None:
        self._image = None

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        found = [Mark(Fact.EXCEPTION, at, 1) for at in self.exceptions.faulting(start, end)]
        found += [Mark(Fact.JUMP_LABEL, at, 1) for at, _ in self.jump_labels.within(start, end)]
        return [*found, *self._kprobes(start, end)]

    def _kprobes(self, start: int, end: int) -> Iterator[Mark]:
        """Yield marks of the guest's own kprobes: a patch over one is overwritten, or the kprobe is lost."""
        for probe in self.originals.kprobes(start, end):
            # On a tracer's site a kprobe is one of the tracer's users: it writes nothing itself.
            if probe.written or not self.ftrace.within(probe.address, probe.address + 1):
                fact = Fact.KPROBE if not probe.written else Fact.KPROBE_JUMP if probe.jumps else Fact.KPROBE_BREAKPOINT
                yield Mark(fact, probe.address, probe.size)

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        return self.ftrace.sites(start, end)

    def own_kprobes(self) -> frozenset[int]:
        """See guest.Guest."""
        return frozenset(probe.address for probe in self.originals.kprobes(*self._text))

    def read_ahead(self) -> None:
        """See guest.Guest."""
        start, end = self._text
        missing = [at for at in range(start - start % PIECE, end, PIECE) if at not in self._pieces]
        spans = [(max(at, start), min(at + PIECE, end)) for at in missing]
        for at, (low, _), data in zip(missing, spans, runs.read_spans(spans, self._kernel.memory), strict=True):
            self._pieces[at] = bytes(low - at) + self.originals(low, data)

    def _read_all(self, start: int, end: int) -> bytes:
        """Read much of the original text, which plans are about to be made from."""
        self.read_ahead()
        return self._read(start, end)

    def _read(self, start: int, end: int) -> bytes:
        """Read original text, in pieces that many functions share.

        A piece is original when it is read: a branch in it may be removed while the guest is stopped.
        """
        first = start - start % PIECE
        for at in range(first, end, PIECE):
            if at not in self._pieces:
                low, high = max(at, self._text[0]), min(at + PIECE, self._text[1])
                held = (self._image or self._kernel.memory).read(low, high - low)
                self._pieces[at] = bytes(low - at) + self.originals(low, held)
        return b"".join(self._pieces[at] for at in range(first, end, PIECE))[start - first : end - first]

    def shelved(self) -> ShelvedText | None:
        """See guest.Guest.shelved_text."""
        start, end = self._text
        return ShelvedText(start, end - start, self._shelf) if self._shelf is not None else None

    # text that lasts -------------------------------------------------------------------------------------------------

    def lasting(self) -> LastingText | None:
        """See guest.Guest.lasting_text."""
        if self._shelf is None or self.originals.missing:
            return None
        try:
            key = self._text_key()
        except OptprobeError:
            return None
        if not key:
            return None
        start, end = self._text
        found = sha256(key.encode())
        for table in self._table_rows():
            found.update(f"{len(table)}\n".encode() + array("Q", [at - start & MASK for at in table]).tobytes())
        return LastingText(start, end - start, found.hexdigest(), self._shelf, self._read, self._lasting)

    @abstractmethod
    def _text_key(self) -> str:
        """Return a hash of the text and its symbols, the same in each boot; "" where none is. Raises OptprobeError."""

    def _table_rows(self) -> Iterator[Sequence[int]]:
        """Yield what the kernel's tables say of its text: addresses."""
        yield [at for row in self.jump_labels.within(0, MASK) for at in row]
        yield [at for row in self.exceptions.fixups(0, MASK) for at in row]
        yield self.exceptions.faulting(0, MASK)
        yield sorted(self.bugs.addresses) if self.bugs.addresses is not None else [MASK]
        yield self.ftrace.within(*self._text)

    def _lasting(self, addresses: Iterable[int]) -> frozenset[int]:
        """Return those of `addresses` in functions of which all that is known follows from the text and the tables.

        Kprobes of the guest's come and go. A tracer's site changes, too: now it must be as an unused one is.
        """
        around = {at: bounds for at in addresses if (bounds := self._bounds(at)) is not None}
        sites = {bounds: self.ftrace.within(*bounds) for bounds in {*around.values()}}
        busy = self._busy([site for those in sites.values() for site in those])
        lasting = {one for one in sites if busy.isdisjoint(sites[one]) and self._function_lasts(*one)}
        return frozenset(at for at, bounds in around.items() if bounds in lasting)

    def _busy(self, sites: Collection[int]) -> frozenset[int]:
        """Return the tracer's sites that are in use, or have other bytes than unused ones."""
        flags, idle = self.ftrace.flags(sites), self.ftrace.idle

        def is_busy(site: int) -> bool:
            return site not in flags or is_in_use(flags[site]) or self._read(site, site + len(idle)) != idle

        return frozenset(filter(is_busy, sites))

    def _function_lasts(self, start: int, end: int) -> bool:
        return not self.originals.kprobes(start, end)

    # -----------------------------------------------------------------------------------------------------------------

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """See guest.Guest.idle_sites."""
        if self.originals.missing:
            return IdleSites()
        start, end = self._text
        flags = self.ftrace.flags([at for at in addresses if start <= at < end])
        # Few words differ among thousands of records.
        words, ours = {*flags.values()}, frozenset(kept_off)
        unused = {word for word in words if is_idle(word)}
        but_for_us = {word for word in words if is_idle(word & ~DISABLED)}
        idle = [ip for ip, word in flags.items() if word in unused or (word in but_for_us and ip in ours)]
        return self._untouched(sorted(idle), self.ftrace.idle)

    def steady(self, places: Sequence[tuple[int, int]]) -> Sequence[bytes | None]:
        """See guest.Guest."""
        if self.originals.missing:
            return [None] * len(places)
        by_size: dict[int, list[int]] = {}
        for start, end in places:
            by_size.setdefault(end - start, []).append(start)
        ordinary = {(at, at + size) for size, those in by_size.items() for at in self._ordinary_of(those, size)}
        probed = {at for probe in self.originals.kprobes(*self._text) for at in range(probe.address, probe.end)}

        def is_steady(start: int, end: int) -> bool:
            return probed.isdisjoint(range(start, end)) and not self.ftrace.within(start, end)

        found = [place for place in places if place in ordinary and is_steady(*place)]
        held = dict(zip(found, runs.held(found, self._kernel.memory), strict=True))
        return [held.get(place) for place in places]

    def _untouched(self, addresses: Sequence[int], data: bytes) -> IdleSites:
        """Return those of the ascending `addresses`, at which functions begin, where the text holds `data`.

        And nothing of the guest's but its tracer writes there, nor knows it by its address.
        """
        size = len(data)
        probed = {at for probe in self.originals.kprobes(*self._text) for at in range(probe.address, probe.end)}
        found = self._ordinary_of(addresses, size)
        if probed:
            found = [at for at in found if probed.isdisjoint(range(at, at + size))]
        places = [(at, at + size) for at in found]
        held = runs.held(places, self._kernel.memory)
        return IdleSites([at for at, there in zip(found, held, strict=True) if there == data], data)

    def _ordinary_of(self, addresses: Sequence[int], size: int) -> list[int]:
        """Return those of the ascending `addresses` that are text of the usual kind, which nothing but a tracer, or a
        kprobe, rewrites; kept for all.
        """
        known, rewritten, place = self._ordinary.setdefault(size, {}), self._always_rewritten, 0
        new = [address for address in addresses if address not in known]
        for address, name in zip(new, self._kernel.symbols.names_at(new), strict=True):
            place = bisect_left(rewritten, address, place)
            is_free = place == len(rewritten) or rewritten[place] >= address + size
            is_text = is_free and self._named(name) is Area.TEXT and self._range(address) is Area.TEXT
            known[address] = is_text and not self._compares_entry(name)
        return [address for address in addresses if known[address]]

    @cached_property
    def _always_rewritten(self) -> list[int]:
        return sorted(self._rewritten())

    def _rewritten(self) -> Iterator[int]:
        """Yield what the guest's tables say of the text as `marks` does: addresses at which it may write, or faults.

        Kprobes aside, these never change.
        """
        yield from self.exceptions.faulting(*self._text)
        yield from (at for at, _ in self.jump_labels.within(*self._text))

    def _compares_entry(self, name: str) -> bool:
        """Return whether the guest rewrites the beginning of the function `name` and compares it before."""
        return False

    def spell(self, address: int) -> str:
        found = self._kernel.symbols.at(address)
        if found is None:
            return f"{address:#x}"
        return f"{address:#x} <{found.name}+{found.offset}>" if found.offset else f"{address:#x} <{found.name}>"

    def _name(self, address: int) -> str:
        found = self._kernel.symbols.at(address)
        return found.name if found is not None else f"{address:#x}"

    def _bounds(self, address: int) -> tuple[int, int] | None:
        """Return start and end of the function around `address`."""
        bounds = self._kernel.symbols.function_bounds(address)
        if bounds is None or not self._text[0] <= bounds[0] < self._text[1] or bounds[1] - bounds[0] > LARGEST:
            return None
        return None if is_boundary(self._name(bounds[0])) else bounds
