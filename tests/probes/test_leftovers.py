"""A journal of which one value is another one: it is read_records whole, or it is one error; the guest is only read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.arena_contents import ArenaContents, Bounds, decode
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Room
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.maps.user_call_table import UserCallTableLayout
from gdb_optprobe.probes import arena_record
from gdb_optprobe.probes.journal_records import ProbeRecord
from gdb_optprobe.probes.leftovers import read_records
from tests.examples import some

KERNEL = 0xFFFF_FFFF_8100_0000
TEXT, CODE = (KERNEL, KERNEL + 0x10000), (KERNEL + 0x20000, KERNEL + 0x30000)
DATA = (KERNEL + 0x40000, KERNEL + 0x80000)
CALLS, FILL = DATA[0] + 0x10000, 0xCC
BOUNDS = Bounds(TEXT, (CODE,), DATA, FILL)
RECOVERED = cast(Any, SimpleNamespace(build="b", text=TEXT))
PLACE = Room((CODE,), DATA, FILL, journal=(0, 0))
PROBE = {
    "at": TEXT[0],
    "location": "vfs_read",
    "kind": "kretprobe",
    "if": "$retval > 0",
    "do": ["count", "hist($retval)"],
    "tier": "optimized",
    "name": "five",
    "glob": True,
    "entry if": "count > 5",
    "entry do": ["count"],
    "maxactive": 7,
    "overwrite": True,
    "pending": True,
    "off": True,
    "python": True,
    "data": DATA[0],
    "program": 77,
    "sizes": {"table_keys": 512, "ring_records": 64, "string_length": 64, "stack_size": 512},
    "since": [9, 3, 4],
    "seen": [1, 2],
}
STATE: dict[str, Any] = {
    "room 0": ["b", TEXT[0], [*CODE], [*DATA], [[0x5000, [0xCC, 4096], "00" * 4096, False]]],
    f"text {TEXT[0]:x}": ["0f1f440000", True],
    f"code {CODE[0]:x}": [16, 13, TEXT[0], [[0, 0], [8, 5]], [[8, "e900000000"]]],
    f"code {CODE[0] + 32:x}": [16, 13, CODE[0] + 32, [], []],
    f"pads {CODE[0] + 0x1000:x}": 4096,
    f"data {DATA[0]:x}": 64,
    f"data {DATA[0] + 0x1000:x}": 0x9000,
    f"data {CALLS:x}": UserCallTableLayout(1024).size,
    f"point {DATA[0] + 0x1000:x}": [TEXT[0], 512, 3],
    f"calls {DATA[0] + 0x1000:x}": [1, 2, 3, 4],
    "table 5": CALLS,
    f"uses {CODE[0]:x}": [32, DATA[0] - CODE[0]],
    "probe 1": PROBE,
    "probe 2": {"at": 0x1000, "location": "/bin/x:main", "kind": "uprobe", "file": "/tmp/x", "pid": 3},
    "probe 3": {"at": TEXT[0], "location": "m:f", "home": "m:f+5", "waits": True},
    "user 1": ["/bin/x", 1 << 63, 5, 8, 4096, 1 << 63, 0x1000, "55", CALLS],
}
"""Of every kind, with every field."""
NASTY: tuple[Any, ...] = (
    *(-(1 << 80), -7, -1, 0, 1, 3, 1 << 31, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 80, 0.5, 1e308),
    *(True, False, None, "", "bogus", "x\nshell y", "\ud800", "\x1b", "00", [], [1], [[]], {}, {"nosuch": 1}),
)


class Guest:
    """Memory that is read, and nothing else."""

    def read(self, address: int, size: int) -> bytes:
        return bytes.fromhex("0f1f440000")[:size] if address == TEXT[0] else bytes([FILL]) * size


def looked_at(state: dict[str, Any]) -> tuple[ArenaContents, list[ProbeRecord]]:
    """Raises OptprobeError."""
    arena_record._decode_room(state, PLACE, RECOVERED)
    left = decode(state, BOUNDS, cast(Any, Guest()), X86_64)
    return left, read_records(left)[0]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Of all values in it, the dictionary or list that each is in, and its key there."""
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def test_a_whole_journal_is_believed() -> None:
    left, found = looked_at(STATE)
    assert [one.number for one in found] == [1, 2, 3] and len(left.detours) == 2
    assert found[0].sizes == PROBE["sizes"] and found[0].since.pending == (3, 4)


def test_any_single_value_that_is_another_one_ends_in_a_value_or_one_error() -> None:
    tried, refused = some(range(len(list(places(STATE))))), 0
    for number in tried:
        for nasty in NASTY:
            state = copy.deepcopy(STATE)
            where, key = list(places(state))[number]
            where[key] = nasty
            try:
                looked_at(json.loads(json.dumps(state)))
            except OptprobeError as error:
                assert error.message.isprintable() and len(error.message) < 300
                refused += 1
    assert refused > len(tried) * len(NASTY) / 2


def test_any_key_that_is_another_one_or_gone_ends_in_a_value_or_one_error() -> None:
    for name in STATE:
        others = ("", "probe", "probe -1", f"{name}0", f" {name}", name.replace(" ", "\n"), "no 1", "code " + "f" * 17)
        for other in others:
            state = {other if key == name else key: value for key, value in STATE.items()}
            try:
                looked_at(state)
            except OptprobeError as error:
                assert error.message.isprintable()
            else:
                assert other == f"{name}0" and name.startswith(("probe", "user")), "a number is as good as another"


@pytest.mark.parametrize(
    "field",
    [
        {"tier": "bogus"},
        {"sizes": {"nosuch": 1}},
        {"sizes": {"table-keys": 512}},
        {"sizes": {"ring_records": 3}},
        {"sizes": {"ring_records": 1 << 30}},
        {"maxactive": -7},
        {"at": 1 << 80},
        {"at": 0x1000},
        {"at": CODE[0]},
        {"at": float(1 << 62)},
        {"kind": ["kprobe"]},
        {"do": "count"},
        {"do": []},
        {"data": DATA[0] + 8},
        {"data": DATA[0] + 0x1000},
        {"off": 1},
        {"since": []},
        {"unknown": 1},
    ],
)
def test_a_field_of_a_probe_that_cannot_be(field: dict[str, Any]) -> None:
    with pytest.raises(Damaged):
        looked_at({**STATE, "probe 1": PROBE | field})


def test_many_pieces_that_overlap_are_not_read() -> None:
    codes = {f"code {CODE[0] + 8 * at:x}": [0x8000, 0x8000, TEXT[0], [], []] for at in range(0x800)}
    with pytest.raises(Damaged, match="overlap"):
        decode(codes, BOUNDS, cast(Any, None), X86_64)
