"""A journal: values by key in guest memory. A kill at any instant leaves it as before or as after a change.

    region   │ half 0                                      │ half 1                                      │
    half     │ header │ snapshot │ changes │ changes │ fill …
    header   │ magic, 8 B │ version │ generation │ CRC-32 of these │
    record   │ length │ CRC-32, begun with the generation │ a JSON object, or zlib's form of one │
A record is appended head last, and fill follows the last one. If there is no room for one, a snapshot of all items
goes into the other half, the header last; the half with the greater generation counts. Generation 0: a journal was
begun, or is being removed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError

MAGIC = b"optprobe"
VERSION = 1
_HEADER = struct.Struct("<8sIII")
HEADER = _HEADER.size
_RECORD = struct.Struct("<II")
AT_ONCE = 1024
"""Bytes that one packet certainly writes."""
_COMPRESSED = 256
# Limits (budget.py). Half of the largest journal has 128 KiB.
_LARGEST = 1 << 22
"""Bytes of its records together, unpacked: 32 times as many."""
_MOST_VALUES = 1 << 19
"""Members of lists and objects in them: one in eight bytes."""

State = dict[str, Any]
Writes = tuple[tuple[int, bytes], ...]
"""(offset in the region, bytes), in order."""


class Damaged(OptprobeError):
    """A journal that cannot be trusted."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the journal of an earlier GDB's probes is damaged: {what}", "nothing was changed")


@dataclass(frozen=True, slots=True)
class Found:
    """What a region holds. generation: 0 if no probes of an earlier GDB are in the guest. half: the one that counts."""

    state: State = field(default_factory=dict)
    generation: int = 0
    half: int = 0


def header(generation: int) -> bytes:
    """Encode the header of a half."""
    body = _HEADER.pack(MAGIC, VERSION, generation, 0)[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")


class Unpacked:
    """Counts the bytes and values of the records of one half, for its reader and its writer alike."""

    def __init__(self) -> None:
        self.size = Budget(_LARGEST, "the journal of an earlier GDB's probes", "bytes")
        self.values = Budget(_MOST_VALUES, "the journal of an earlier GDB's probes", "values")

    def holds(self, body: bytes, spare: int) -> bool:
        """Return whether a record's body fits, with `spare` more bytes and values after it."""
        return len(body) + spare <= self.size.left and _values(body) + spare <= self.values.left

    def spend(self, body: bytes) -> None:
        """Count a record's body. Raises OverBudget."""
        self.size.spend(len(body))
        self.values.spend(_values(body))


def _values(body: bytes) -> int:
    return sum(map(body.count, (b"{", b"[", b",")))


def body(changes: Mapping[str, Any]) -> bytes:
    """Encode a record's body: values by key, None for those that are gone."""
    return json.dumps(changes, separators=(",", ":")).encode()


def record(data: bytes, generation: int) -> bytes:
    """Return a record with this body."""
    if len(data) > _COMPRESSED:
        data = zlib.compress(data)
    return _RECORD.pack(len(data), zlib.crc32(data, generation)) + data


def in_order(offset: int, data: bytes) -> Writes:
    """Return the writes of a record, in order: its beginning last."""
    tail = ((offset + AT_ONCE, data[AT_ONCE:]),) if len(data) > AT_ONCE else ()
    return (*tail, (offset, data[:AT_ONCE]))


def decode(region: bytes, fill: int) -> Found | None:
    """Decode a region; None if no journal was ever written. fill: the value of unused bytes. Raises Damaged."""
    size = len(region) // 2
    halves = [(_generation(region[at : at + HEADER]), number, at) for number, at in enumerate((0, size))]
    known = [(generation, number, at) for generation, number, at in halves if generation is not None]
    if not known:
        if MAGIC in (region[:8], region[size : size + 8]):
            raise Damaged("its header")
        return None
    generation, number, at = max(known)
    if not generation:
        return Found()
    return Found(_replayed(region[at + HEADER : at + size], generation, fill), generation, number)


def _generation(data: bytes) -> int | None:
    if len(data) < HEADER or data[:8] != MAGIC:
        return None
    _, version, generation, _ = _HEADER.unpack(data)
    assert isinstance(generation, int)
    if data != _HEADER.pack(MAGIC, version, generation, zlib.crc32(data[:-4])):
        return None
    if version != VERSION:
        raise OptprobeError(f"the journal of an earlier GDB's probes has version {version}, not {VERSION}")
    return generation


def _replayed(data: bytes, generation: int, fill: int) -> State:
    state: State = {}
    unpacked = Unpacked()
    at = 0
    while data[at : at + _RECORD.size] != bytes([fill]) * _RECORD.size:
        if at + _RECORD.size > len(data):
            raise Damaged("it is cut short")
        length, check = _RECORD.unpack_from(data, at)
        body = data[at + _RECORD.size : at + _RECORD.size + length]
        if len(body) != length or zlib.crc32(body, generation) != check:
            raise Damaged(f"its record at {at:#x}")
        for key, value in _changes(body, at, unpacked).items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        at += _RECORD.size + length
    return state


def _changes(body: bytes, at: int, unpacked: Unpacked) -> State:
    try:
        if body[:1] != b"{":
            unpacker = zlib.decompressobj()
            body = unpacker.decompress(body, unpacked.size.left + 1)
        unpacked.spend(body)
        found = json.loads(body)
    except (ValueError, RecursionError, zlib.error):
        raise Damaged(f"its record at {at:#x}") from None
    if not isinstance(found, dict):
        raise Damaged(f"its record at {at:#x}")
    return found
