"""The kernel's text as it was in an earlier boot: what address randomization has changed is changed back.

    rising    an address of the image, sign-extended or physical     as much more as the image lies higher
    falling   a per-CPU offset from where the instruction ends       as much less
A running kernel does not say which of its bytes are such a field. So of one boot the hash of the text is kept, with all
fields of four bytes that may be one, at whatever offset. In another boot those that differ by just that much are
changed back; if the hash is the same then, only these fields differ. That alone proves nothing: a hostile guest may
have had a branch there that is another one here. So each of them must be an operand of an instruction, and no branch's:
then both texts have the same instructions, and lead to the same places. That is proven once, by decoding the functions
that have fields; from then on only these fields are changed back.

Where a function does not decode, no field may overlap what may be a branch into the text.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from struct import Struct, unpack_from

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.x86_64.decoder import shape

Decode = Callable[[bytes, int], list[Insn]]
KIND = "text"
"""What the files are called on the shelf, with the hash of the text."""
HEADER = Struct("<IIQII32s")
"""A number of the format, whether all fields are proven to be operands, the text's address, how many fields rise and
how many fall, the hash of the text.
"""
FORMAT = 1
WORD = 4
LOW = 0xFFFF_FFFF
PHYSICAL = 0x7FFF_FFFF
"""Bits of an address of the image that its physical one has too, but for a multiple of 2 GiB."""
BEFORE = 1 << 24
"""How far before the image a kernel may refer to: where it would be linked to if it was linked to no offset."""
ALIGNED = 1 << 21
"""Bytes that a kernel is moved by are a multiple of these (CONFIG_PHYSICAL_ALIGN)."""
BYTES_EACH, LEAST = 8, 1 << 12
"""So many bytes of text may have one field, and some beside. A kernel that lies low has one in 16, others one in 90."""
PER_CPU = "__per_cpu_start", "__per_cpu_end"
LONGEST_BRANCH = 6
TRIED = 4
"""Earlier texts that this one is compared with: the kernel patches itself by the processor's features."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Offsets in the text, ascending, and what is there."""

    offsets: array[int]
    values: array[int]

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, at: int, value: int) -> None:
        self.offsets.append(at)
        self.values.append(value)


@dataclass(frozen=True, slots=True)
class EarlierText:
    """The text of a boot, by its hash, and its fields that address randomization may have made.

    proven: each field is an operand, and no branch's.
    """

    base: int
    digest: bytes
    rising: Fields
    falling: Fields
    proven: bool = False

    @classmethod
    def of(cls, text: bytes, base: int, image: tuple[int, int], per_cpu: int) -> EarlierText:
        """Take the `text` at `base`. image: its bounds. per_cpu: bytes of a CPU's own data. Raises OverBudget."""
        rising = _fields(text, base, _rising(text, base, *image))
        falling = _fields(text, base, _falling(text, base, per_cpu))
        return cls(base, sha256(text).digest(), rising, falling)

    def moved_back(self, text: bytes, base: int) -> tuple[bytes, EarlierText] | None:
        """Return the `text` at `base` as it was in that boot, with the fields that are known to move; None where it is
        another one.
        """
        slide = base - self.base
        if self.proven and slide and (whole := self._moved_whole(text, slide)) is not None:
            return whole, self
        found, size, word, pack = bytearray(text), len(text), Struct("<I").unpack_from, Struct("<I").pack_into
        known = list[Fields]()
        for fields, by in ((self.rising, slide), (self.falling, -slide)) if slide else ():
            if fields.offsets and max(fields.offsets) > size - WORD:
                return None
            known.append(Fields(array("I"), array("I")))
            take = known[-1].append
            for at, value in zip(fields.offsets, fields.values, strict=True):  # of tens of thousands
                moved = value + by & LOW
                if word(found, at)[0] != moved:
                    continue
                if _may_move(at, value, size, self.base) and _may_move(at, moved, size, base):
                    pack(found, at, value)
                    take(at, value)
        if sha256(found).digest() != self.digest:
            return None
        return bytes(found), replace(self, rising=known[0], falling=known[1]) if known else self

    def _moved_whole(self, text: bytes, slide: int) -> bytes | None:
        """Return the text, moved by `slide`, as it was in that boot, where all fields have moved with it; None where
        one has not, or may not, or it is another text.
        """
        found, size, pack = bytearray(text), len(text), Struct("<I").pack_into
        for fields, by in (self.rising, slide), (self.falling, -slide):
            offsets, values = fields.offsets, fields.values  # of tens of thousands
            moved = array("I", [value + by & LOW for value in values])
            # Of one behind the text there is nothing.
            if Struct(f"<{len(moved)}I").pack(*moved) != b"".join([text[at : at + WORD] for at in offsets]):
                return None
            for some, base in (values, self.base), (moved, self.base + slide):
                leading_in = [row for row in zip(offsets, some, strict=True) if (row[0] + WORD + row[1] & LOW) < size]
                if not all(_may_move(at, value, size, base) for at, value in leading_in):
                    return None
            for at, value in zip(offsets, values, strict=True):
                pack(found, at, value)
        return bytes(found) if sha256(found).digest() == self.digest else None

    def pack(self) -> bytes:
        columns = (self.rising.offsets, self.rising.values, self.falling.offsets, self.falling.values)
        header = HEADER.pack(FORMAT, self.proven, self.base, len(self.rising), len(self.falling), self.digest)
        return header + b"".join(column.tobytes() for column in columns)

    @classmethod
    def unpack(cls, data: bytes, size: int) -> EarlierText | None:
        """Decode what `pack` made, of a text of `size` bytes; None where it is damaged or of another format."""
        if len(data) < HEADER.size:
            return None
        number, proven, base, rising, falling, digest = HEADER.unpack_from(data)
        if number != FORMAT or rising + falling > _most(size):
            return None
        words = data[HEADER.size :]
        if len(words) != 2 * WORD * (rising + falling):
            return None
        first = _columns(words, 0, rising)
        second = _columns(words, 2 * WORD * rising, falling)
        return cls(base, digest, Fields(*first), Fields(*second), bool(proven))


def in_earlier_boot(
    text: bytes, base: int, kernel: Kernel, shelf: Shelf, decode: Decode, say: Callable[[str], None]
) -> tuple[bytes, int]:
    """Return the `text` at `base` as an earlier boot had it, and where; as it is in the first one, which is kept."""
    for name, data in shelf.latest(KIND, TRIED):
        known = EarlierText.unpack(data, len(text))
        found = known.moved_back(text, base) if known is not None else None
        if known is None or found is None:
            continue
        earlier, moved = found
        if base != known.base and not known.proven:
            say("finding out what address randomization moves in the kernel's text, once for each kernel")
            if not _are_operands(text, base, moved, kernel, decode):
                continue
            shelf.store(name, replace(moved, proven=True).pack())
        shelf.use(name)
        return earlier, known.base
    try:
        known = EarlierText.of(text, base, kernel.range("_text", "_end"), _per_cpu(kernel))
    except OverBudget:
        return text, base  # it is found again in this boot alone
    shelf.store(_name(known), known.pack())
    return text, base


def _per_cpu(kernel: Kernel) -> int:
    """Return the bytes of a CPU's own data; 0 where they are linked like others, as of 6.15: their addresses rise."""
    start, end = kernel.range(*PER_CPU)
    return end if start == 0 else 0


# --- the proof -------------------------------------------------------------------------------------------------------

_BRANCHES = re.compile(rb"[\xe8\xe9]|\x0f[\x80-\x8f]|\xc7\xf8|\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]")
"""What is before a displacement of four bytes: of a branch, or of `lea` (mid_function_entries.py)."""


def _are_operands(text: bytes, base: int, moved: EarlierText, kernel: Kernel, decode: Decode) -> bool:
    """Return whether each field that has moved is an operand of an instruction of the `text`, and no branch's."""
    insns, places = dict[int, Insn](), list[int]()
    decoded = end = 0
    for at in sorted([*moved.rising.offsets, *moved.falling.offsets]):
        if base + at >= end:
            bounds = kernel.symbols.function_bounds(base + at)
            start, end = bounds or (base + at, base + at + WORD)
            insns = {insn.address: insn for insn in decode(text[start - base : end - base], start)} if bounds else {}
            places = list(insns)
            decoded = insns[places[-1]].end if places else start
        if base + at < decoded:
            if not _is_operand(insns[places[bisect_right(places, base + at) - 1]], base + at):
                return False
        elif _may_branch(text, at):
            return False
    return True


def _may_branch(text: bytes, at: int) -> bool:
    """Return whether the four bytes at this offset overlap what may be a branch into the text."""
    for match in _BRANCHES.finditer(text, max(0, at - LONGEST_BRANCH + 1), at + WORD):
        where = match.end()
        if where + WORD <= len(text) and not _leads_off(where, unpack_from("<I", text, where)[0], len(text)):
            return True
    return False


def _is_operand(insn: Insn, at: int) -> bool:
    """Return whether the four bytes `at` are a displacement of memory or an immediate of `insn`, which is no branch."""
    offset = at - insn.address
    if insn.target is not None or at + WORD > insn.end:
        return False
    parts = shape(insn.data)
    return (offset == parts.disp and parts.disp_size == WORD) or (offset == parts.imm and parts.imm_size >= WORD)


def _name(known: EarlierText) -> str:
    return f"{KIND}-{known.digest.hex()}"


def _most(size: int) -> int:
    return size // BYTES_EACH + LEAST


def _columns(words: bytes, start: int, rows: int) -> tuple[array[int], array[int]]:
    middle, end = start + WORD * rows, start + 2 * WORD * rows
    return array("I", words[start:middle]), array("I", words[middle:end])


def _leads_off(at: int, value: int, size: int) -> bool:
    """Return whether `value`, as a branch's displacement at the offset `at`, leads out of the text."""
    return (at + WORD + value & LOW) >= size


def _may_move(at: int, value: int, size: int, base: int) -> bool:
    """Return whether `value` may be an address in a text at `base`: what would be a displacement into it is a branch's.

    The kernel's own offset is one at any rate. Where it lies low, the text is longer than that.
    """
    return (at + WORD + value & LOW) >= size or value == (base & PHYSICAL & -ALIGNED) - BEFORE  # `_leads_off`, inline


def _fields(text: bytes, base: int, found: Iterator[tuple[int, int]]) -> Fields:
    fields, most = Fields(array("I"), array("I")), _most(len(text)) // 2
    for at, value in found:
        if not _may_move(at, value, len(text), base):
            continue
        if len(fields) == most:
            raise OverBudget("the kernel's text", most, "places that may hold an address")
        fields.append(at, value)
    return fields


def _rising(text: bytes, base: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offset of what may be an address of the image, and it."""
    if not start <= base < end:
        return
    low, span = start - BEFORE & PHYSICAL, end - start + BEFORE
    tops = {low + step >> 24 & 0x7F for step in (*range(0, span, 1 << 24), span)}
    for at, value in _words(text, tops | {top | 0x80 for top in tops}):
        if (value - low) & PHYSICAL <= span:
            yield at, value


def _falling(text: bytes, base: int, per_cpu: int) -> Iterator[tuple[int, int]]:
    """Yield the offset of what may lead from its end to a per-CPU offset, and it."""
    if not per_cpu:
        return
    # What the offset is added to: where the instruction ends, maybe behind an immediate.
    first, last = -base - len(text) - 2 * WORD, per_cpu - base
    for at, value in _words(text, {top & 0xFF for top in range(first >> 24, (last >> 24) + 1)}):
        if (value + base + at + WORD & LOW) < per_cpu:
            yield at, value


def _words(text: bytes, tops: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the offset and the value of each four bytes, at whatever offset, with one of `tops` as the highest."""
    high = b"".join(re.escape(bytes([top])) for top in sorted(tops))
    for match in re.finditer(rb"(?=...[" + high + rb"])", text, re.DOTALL):
        at = match.start()
        yield at, unpack_from("<I", text, at)[0]
