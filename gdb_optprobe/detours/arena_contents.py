"""Decode what an earlier GDB's arena holds from its journal; accept it only if the guest's memory agrees.

    journal ──decode──► ArenaContents ──restoring_patches──► patches that take all branches out of text and detours
              Damaged                    TextChanged
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from gdb_optprobe.detours import stop_pad
from gdb_optprobe.detours.block import WORD, Block
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import FULL, Item, TableKind
from gdb_optprobe.detours.lent_block import LentBlock, decode_all
from gdb_optprobe.detours.patch import Patch, TextChanged
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.isa.base import Insn, OutOfReach
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import Damaged, State

Range = tuple[int, int]
DetoursByHead = Mapping[int, Sequence[int]]
"""Where detours begin, by the address of their branch."""
LONGEST = 16
"""Bytes that a branch changes, at most."""
FAR = 1 << 16
"""Bytes within which are all instructions that one branch displaces."""
MOST_USED = 1 << 12
"""Pieces of memory that one piece of code uses, at most."""
LARGEST_STEP, MOST_SITES, LARGEST_NUMBER = 1 << 10, 1 << 17, 1 << 32
"""Bytes of a block's detour, its sites, and what no probe's number reaches."""
MOST_BITS = 17
"""What no table of histograms has."""
_KINDS = frozenset(Item)
_TABLES = frozenset(TableKind)
_ADDRESS = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Addresses that are possible.

    text: of the kernel. code, data: of the arena. loaded: where modules are loaded.
    fill: the byte of free code memory. more: data that the kernel has lent besides.
    handlers: code of the arena that the kernel calls: probes can be there. lent_code: of `code`, what is lent.
    """

    text: Range
    code: tuple[Range, ...]
    data: Range
    fill: int = 0
    loaded: Range = (0, 0)
    more: tuple[Range, ...] = ()
    handlers: tuple[Range, ...] = ()
    lent_code: tuple[Range, ...] = ()

    def is_loaded(self, address: int) -> bool:
        """Return whether text there is loaded and unloaded."""
        (start, end), (first, last) = self.text, self.loaded
        return first <= address < last and not start <= address < end and not self._is_ours(address)

    def has(self, address: int) -> bool:
        """Return whether the guest can have text there, or optprobe has a function that can be probed."""
        return self.text[0] <= address < self.text[1] or self.is_loaded(address) or self._is_ours(address)

    def _is_ours(self, address: int) -> bool:
        return any(start <= address < end for start, end in self.handlers)


@dataclass(frozen=True, slots=True)
class PatchedText:
    """Text that a branch or a trap overwrites, or was about to.

    traced: whether ftrace is kept off its site. loaded: whether it is in a module, which may have been unloaded since.
    """

    address: int
    original: bytes
    traced: bool
    loaded: bool = False

    def is_trap(self, isa: Isa) -> bool:
        """Return whether it may be a trap in place of a branch."""
        return len(self.original) == len(isa.trap)


@dataclass(kw_only=True)
class BlockRecord(Block):
    """Counts of one `add` that were written together.

    first: the number of the first member's probe. is_live: whether they are probes; else only the code is left.
    probe: the journal record of the first probe; the others' differ in numbers and addresses.
    times: of returns with their times, where these are gathered, and the bits of the table there.
    """

    first: int
    is_live: bool
    probe: Mapping[str, Any]
    times: tuple[int, int] | None = None


def block_value(
    block: Block, beside: int, probe: Mapping[str, Any] | None, times: tuple[int, int] | None = None
) -> list[Any]:
    """Return what the journal keeps of a block. See BlockRecord; probe: None where they are no probes any more.

    beside: what the item's key is not: where its code is, or the number of the first probe.
    """
    steps = [one - before for before, one in pairwise(block.sites)]
    originals = block.originals[0].hex() if block.is_uniform else [each.hex() for each in block.originals]
    value = [block.step, block.data.address, originals, block.traced, beside, probe, block.sites[0], steps]
    return value if times is None else [*value, [*times]]


@dataclass(frozen=True, slots=True)
class ArenaContents:
    """What the journal of an earlier GDB lists.

    code:       detours, retired ones too, by their slots. Those not written yet, or wiped again, hold `fill`.
    data:       ascending.
    probes, points, calls, hits, users: their journal records.
    references: by the address of the code, what it may reference.
    tables:     the tables of which there is one.
    bounds:     where all of it can be.
    lent:       data that the kernel lends.
    events:     journal records of code that the kernel may call, by its address.
    """

    texts: tuple[PatchedText, ...] = ()
    code: Mapping[Slot, Detour] | None = None
    pads: tuple[Slot, ...] = ()
    data: tuple[Slot, ...] = ()
    probes: Mapping[int, Any] | None = None
    points: Mapping[int, Any] | None = None
    fill: int = 0
    users: Mapping[int, Any] | None = None
    calls: Mapping[int, Any] | None = None
    references: Mapping[int, frozenset[int]] = field(default_factory=dict)
    tables: Mapping[TableKind, Slot] = field(default_factory=dict)
    bounds: Bounds = Bounds((0, 0), (), (0, 0))
    blocks: tuple[BlockRecord, ...] = ()
    lent: tuple[LentBlock, ...] = ()
    events: Mapping[int, Any] = field(default_factory=dict)
    hits: Mapping[int, Any] = field(default_factory=dict)

    @property
    def live_blocks(self) -> tuple[BlockRecord, ...]:
        """Return the blocks of which there are probes."""
        return tuple(block for block in self.blocks if block.is_live)

    @property
    def detours(self) -> Mapping[Slot, Detour]:
        return self.code or {}

    def data_at(self, address: int | None) -> Slot | None:
        """Return the piece of data that begins at `address`."""
        if address is None:
            return None
        place = bisect_left(self.data, address, key=lambda slot: slot.address)
        return self.data[place] if place < len(self.data) and self.data[place].address == address else None


def decode(state: State, bounds: Bounds, memory: Memory, isa: Isa) -> ArenaContents:
    """Decode a journal's state. Raises Damaged if it is impossible, OptprobeError if it is incomplete."""
    if FULL in state:
        raise OptprobeError(
            "an earlier GDB had more probes in this guest than its journal has room for", "reboot the guest"
        )
    kinds: dict[str, dict[int, Any]] = {}
    try:
        for key, value in state.items():
            kind, at = _key(key)
            kinds.setdefault(kind, {})[at] = value
        codes = sorted(kinds.get(Item.CODE, {}).items())
        code_sizes = [(at, validate.number(validate.row(value, 5)[0])) for at, value in codes]
        slots = [_checked_inside(Slot(at, size), *bounds.code) for at, size in code_sizes]
        handlers = tuple((slot.address, slot.end) for slot in slots if slot.address in kinds.get(Item.EVENT, {}))
        bounds = replace(bounds, handlers=handlers)
        texts = tuple(_text(at, value, bounds) for at, value in sorted(kinds.get(Item.TEXT, {}).items()))
        pages = tuple(_page(at, size, bounds) for at, size in sorted(kinds.get(Item.PADS, {}).items()))
        sizes = sorted(kinds.get(Item.DATA, {}).items())
        data = tuple(_checked_inside(Slot(at, validate.number(size)), bounds.data, *bounds.more) for at, size in sizes)
        blocks = tuple(_blocks(kinds, bounds))
        block_code, block_data = ([piece[of] for block in blocks for piece in block.pieces()] for of in (0, 1))
        data = tuple(sorted((*data, *block_data)))
        starts = {slot.address for slot in slots}
        listed = kinds.get(Item.REFERENCES, {})
        references = {at: _references(at, value) for at, value in listed.items() if at in starts}
        pieces = {slot.address: slot for slot in data}
        tables = {_table(number): validate.number(at) for number, at in kinds.get(Item.TABLE, {}).items()}
        # Disjoint pieces are bounded by the arena's size, so little is read below.
        _check_disjoint([*slots, *pages, *block_code])
        _check_disjoint(data)
        code = {slot: _code(slot, value, bounds, memory, isa) for slot, (_, value) in zip(slots, codes, strict=True)}
        lent = decode_all(state, bounds.data)
        if any(one.cell not in pieces for one in lent):
            raise ValueError("a block of data without a word of it")
    except ValueError as wrong:
        raise Damaged(f"{wrong}") from None
    probes, points, users, calls = (kinds.get(kind, {}) for kind in (Item.PROBE, Item.POINT, Item.USER, Item.CALLS))
    there = {table: pieces[at] for table, at in tables.items() if at in pieces}
    items = probes, points, bounds.fill, users, calls, references, there
    events = {at: value for at, value in kinds.get(Item.EVENT, {}).items() if at in starts}
    return ArenaContents(texts, code, pages, data, *items, bounds, blocks, lent, events, kinds.get(Item.HITS, {}))


def restoring_patches(contents: ArenaContents, memory: Memory, isa: Isa) -> tuple[list[Patch], list[Patch]]:
    """Return the patches after which no branch leads into a detour: of the text, and of the detours' exits.

    Raises TextChanged if the guest holds neither the original bytes nor a branch or trap of the earlier GDB.
    """
    heads: dict[int, list[int]] = {}
    for detour in contents.detours.values():
        heads.setdefault(detour.head, []).append(detour.address)
    texts = [
        Patch(one.address, found, one.original)
        for one in contents.texts
        for found in _changed_in_text(one, _possible_bytes(one, heads, isa), memory)
    ]
    texts += (patch for block in contents.blocks for patch in _branches_of(block, memory, isa))
    exits = [
        Patch(one.address, found, one.data)
        for detour in contents.detours.values()
        for one in detour.exits
        if memory.read(one.address, one.size) != bytes([contents.fill]) * one.size
        for found in _changed(one.address, one.data, _redirected(one, heads, isa), memory)
    ]
    return texts, exits


def _branches_of(block: BlockRecord, memory: Memory, isa: Isa) -> Iterator[Patch]:
    """Yield the patches that take the branches of a block out of the text, where they are in it. Raises TextChanged."""
    places = block.places()
    held = runs.held(places, memory)
    try:
        branches = block.branches(isa)
    except OutOfReach:
        raise Damaged(f"the block at {block.code.address:#x} cannot be reached from its sites") from None
    for (address, _), found, branch, original in zip(places, held, branches, block.texts(), strict=True):
        if found == branch:
            yield Patch(address, found, original)
        elif found != original and block.is_live:
            raise TextChanged(address, original, found)


def _changed_in_text(text: PatchedText, branches: Iterator[bytes], memory: Memory) -> Sequence[bytes]:
    """Do as `_changed`. If a module's text holds something else, it is not the text that was probed."""
    try:
        return _changed(text.address, text.original, branches, memory)
    except (TextChanged, Unreadable):
        if text.loaded:
            return ()
        raise


def _changed(address: int, original: bytes, branches: Iterator[bytes], memory: Memory) -> Sequence[bytes]:
    """Return the bytes that are there instead of `original`, if any. Raises TextChanged if they are foreign."""
    found = memory.read(address, len(original))
    if found == original:
        return ()
    if found not in tuple(branches):
        raise TextChanged(address, original, found)
    return (found,)


def _possible_bytes(text: PatchedText, heads: DetoursByHead, isa: Isa) -> Iterator[bytes]:
    """Yield what an earlier GDB may have written there: a trap, a branch to a detour, a redirected call or branch."""
    if text.is_trap(isa):
        yield from isa.traps
    for target in heads.get(text.address, ()):
        try:
            yield isa.branch(text.address, target)
        except OutOfReach:
            continue
    for insn in isa.decode(text.original, text.address)[:1]:
        yield from _redirected(insn, heads, isa)


def _redirected(insn: Insn, heads: DetoursByHead, isa: Isa) -> Iterator[bytes]:
    for target in heads.get(insn.target or 0, ()):
        try:
            yield isa.redirect(insn, target)
        except OutOfReach:
            continue


def _key(key: str) -> tuple[Item, int]:
    kind, _, at = key.partition(" ")
    if kind not in _KINDS or not _ADDRESS.fullmatch(at):
        raise ValueError(f"no item has the key {key[:40]!a}")
    return Item(kind), int(at, 16)


def _text(at: int, value: Any, bounds: Bounds) -> PatchedText:
    original, traced = validate.row(value, 2)
    original = validate.data(original, LONGEST)
    loaded = bounds.is_loaded(at)
    _checked_inside(Slot(at, len(original)), *((bounds.loaded,) if loaded else (bounds.text, *bounds.handlers)))
    return PatchedText(at, original, validate.flag(traced), loaded)


def _code(slot: Slot, value: Any, bounds: Bounds, memory: Memory, isa: Isa) -> Detour:
    _, used, head, origins, exits = value
    at, used = slot.address, validate.number(used, slot.size + 1, 1)
    if validate.number(head) != at and not bounds.has(head):
        raise ValueError(f"code at {at:#x} is for nothing at {head:#x}")
    branches = [_exit(at, used, each, isa) for each in validate.items(exits, used)]
    places = tuple(_origin(at, used, head, one) for one in validate.items(origins, used))
    return Detour(at, memory.read(at, used), head, places, exits=tuple(branches))


def _blocks(kinds: Mapping[str, Mapping[int, Any]], bounds: Bounds) -> Iterator[BlockRecord]:
    """Yield the blocks. The slot of a member that left one may be another's by now: a number never is."""
    alone, out = (kinds.get(item, {}) for item in (Item.ALONE, Item.OUT))
    for number, value in sorted(kinds.get(Item.COUNTS, {}).items()):
        at, row = _beside(value)
        yield _block(at, number, row, range(number, number + MOST_SITES), alone, bounds)
    for at, value in sorted(kinds.get(Item.BLOCK, {}).items()):
        first, row = _beside(value)
        yield _block(at, first, row, range(at, validate.WORD, max(1, validate.number(row[0]))), out, bounds)


def _beside(value: Any) -> tuple[int, Sequence[Any]]:
    timed = isinstance(value, list) and len(value) == 9
    row = validate.row(value, 8 + timed)
    return validate.number(row[4]), [*row[:4], *row[5:]]


def _block(
    at: int, first: int, row: Sequence[Any], keys: Sequence[int], out: Container[int], bounds: Bounds
) -> BlockRecord:
    """at: where its code is. keys: of its members, by index. out: keys of those that are not in it any more."""
    step, data, originals, traced, probe, start, steps, *times = row
    step = validate.number(step, LARGEST_STEP, 1)
    places = [*accumulate(validate.numbers(steps, MOST_SITES, least=1), initial=validate.number(start))]
    sites = array("Q", places[: bisect_left(places, validate.WORD)])
    if len(sites) < len(places):
        raise ValueError(f"sites of the block at {at:#x} are at no address")
    is_uniform = isinstance(originals, str)
    listed = [originals] if is_uniform else validate.row(originals, len(sites))
    texts = [validate.data(each, LONGEST) for each in listed] * (len(sites) if is_uniform else 1)
    code = _checked_inside(Slot(at, step * len(sites)), *bounds.code)
    counters = _checked_inside(Slot(validate.number(data), WORD * len(sites)), bounds.data, *bounds.more)
    _checked_inside(Slot(sites[0], sites[-1] + len(texts[-1]) - sites[0]), bounds.text)
    if any(one + len(text) > other for text, (one, other) in zip(texts, pairwise(sites), strict=False)):
        raise ValueError(f"sites of the block at {at:#x} overlap")
    if probe is not None and not isinstance(probe, dict):
        raise ValueError(f"what is noted of the probes of the block at {at:#x}")
    gone = [index for index, key in zip(range(len(sites)), keys, strict=False) if key in out]
    return BlockRecord(
        sites=sites,
        originals=texts,
        code=code,
        data=counters,
        step=step,
        traced=validate.flag(traced),
        is_uniform=is_uniform,
        out=gone,
        first=validate.number(first, LARGEST_NUMBER, 1),
        is_live=probe is not None and len(gone) < len(sites),
        probe=probe or {},
        times=_times(times),
    )


def _times(value: Sequence[Any]) -> tuple[int, int] | None:
    if not value:
        return None
    at, bits = validate.numbers(validate.row(value[0], 2), 2)
    return validate.number(at), validate.number(bits, MOST_BITS)


def _exit(at: int, used: int, value: Any, isa: Isa) -> Insn:
    offset, data = validate.row(value, 2)
    insns = isa.decode(validate.data(data, LONGEST), at + validate.number(offset, used))
    if len(insns) != 1 or insns[0].end > at + used:
        raise ValueError(f"an exit outside of the detour at {at:#x}")
    return insns[0]


def _references(at: int, value: Any) -> frozenset[int]:
    distances = validate.numbers(value, MOST_USED, least=1 - validate.WORD)
    return frozenset(validate.number(at + distance) for distance in distances)


def _origin(at: int, used: int, head: int, value: Any) -> tuple[int, int]:
    offset, original = validate.row(value, 2)
    return at + validate.number(offset, used), head + validate.number(original, FAR, -FAR)


def _table(number: int) -> TableKind:
    if number not in _TABLES:
        raise ValueError(f"no table has the number {number}")
    return TableKind(number)


def _page(at: int, size: Any, bounds: Bounds) -> Slot:
    if validate.number(size) != stop_pad.PAGE:
        raise ValueError(f"a page of {size} bytes at {at:#x}")
    return _checked_inside(Slot(at, stop_pad.PAGE), *bounds.code)


def _checked_inside(slot: Slot, *bounds: Range) -> Slot:
    if not slot.size or not any(start <= slot.address and slot.end <= end for start, end in bounds):
        where = ", ".join(f"{start:#x}-{end:#x}" for start, end in bounds)
        raise ValueError(f"{slot.size} bytes at {slot.address:#x} lie outside of {where}")
    return slot


def _check_disjoint(slots: Sequence[Slot]) -> None:
    ordered = sorted(slots)
    for one, other in pairwise(ordered):
        if one.end > other.address:
            raise ValueError(f"pieces at {one.address:#x} and {other.address:#x} overlap")
