"""The table of traps: every key is found where a search from its home comes first, of one word and of two."""

from __future__ import annotations

import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gdb_optprobe.maps.trap_table import KERNEL_KEY, USER_KEY, Key, TrapTableLayout, layout_of

WORDS = st.integers(1, (1 << 64) - 1)
LAYOUT = {words: TrapTableLayout(32, words) for words in (KERNEL_KEY, USER_KEY)}
# Few offsets and inodes, so that keys share their homes and words of them.
KEYS: dict[int, st.SearchStrategy[Key]] = {
    KERNEL_KEY: st.tuples(WORDS), USER_KEY: st.tuples(st.integers(0, 16), st.integers(1, 4))
}
TABLES = [
    st.tuples(st.just(layout), st.dictionaries(KEYS[words], WORDS | st.just(0), max_size=layout.room))
    for words, layout in LAYOUT.items()
]


@given(st.one_of(TABLES))
def test_every_key_is_found_where_it_was_put(table: tuple[TrapTableLayout, dict[Key, int]]) -> None:
    layout, values = table
    data = layout.encode(values)
    assert len(data) == layout.size
    for key, value in values.items():
        at = layout.place(data, key)
        assert struct.unpack_from(f"<{len(key) + 1}Q", data, at) == (*key, value)
    free = layout.place(data, (1 << 30,) * layout.key_words)
    assert data[free : free + layout.slot_size] == bytes(layout.slot_size)


def test_bytes_of_a_slot() -> None:
    """What this version leaves in guests."""
    kernel, user = TrapTableLayout(2, KERNEL_KEY), TrapTableLayout(2, USER_KEY)
    assert kernel.encode({(0x1_0010,): 2}) == struct.pack("<4Q", 0, 0, 0x1_0010, 2)
    assert user.encode({(0x1_0020, 5): 7}) == struct.pack("<8Q", 0, 0, 0, 0, 0x1_0020, 5, 7, 0)


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8, unique=True))
def test_a_table_of_a_former_version_is_taken_where_each_key_is_found(keys: list[int]) -> None:
    """Its homes were others. One that is not taken is replaced."""
    layout = LAYOUT[USER_KEY]
    data = bytearray(layout.size)
    for key in keys:
        at = (key * 0x61C8_8647 >> 16 & layout.slots - 1) * layout.slot_size
        while any(data[at : at + layout.slot_size]):
            at = (at + layout.slot_size) % layout.size
        struct.pack_into("<3Q", data, at, key, 5, key + 1)
    known = layout.decode(data)
    found = {key: struct.unpack_from("<3Q", data, layout.place(data, (key, 5))) for key in keys}
    is_whole = all(found[key] == (key, 5, key + 1) for key in keys)
    assert known == ({(key, 5): key + 1 for key in keys} if is_whole else None)


def test_keys_that_follow_one_another_have_homes_of_their_own() -> None:
    """Probes on neighbouring instructions: a search ends soon."""
    layout = TrapTableLayout(512, KERNEL_KEY)
    keys = range(0xFFFF_FFFF_8134_CC51, 0xFFFF_FFFF_8134_CC51 + 64)
    assert len({layout.home((key,)) for key in keys}) >= 48


@given(st.one_of(TABLES))
def test_what_another_session_left_is_read_and_keeps_its_places(table: tuple[TrapTableLayout, dict[Key, int]]) -> None:
    layout, values = table
    data = layout.encode(values)
    places = {key: layout.place(data, key) for key in values}
    assert layout.decode(data) == values
    changed = bytearray(data)
    layout.update(changed, dict.fromkeys(values, 5))
    assert {key: layout.place(changed, key) for key in values} == places
    assert layout.decode(changed) == dict.fromkeys(values, 5)


@given(st.one_of(TABLES), st.data())
def test_a_key_is_complete_with_its_last_write_alone(
    table: tuple[TrapTableLayout, dict[Key, int]], chosen: st.DataObject
) -> None:
    """GDB may be killed between two writes of one word each, and the guest may run."""
    layout, values = table
    assume(len(values) < layout.room)
    key, value = chosen.draw(KEYS[layout.key_words]), chosen.draw(WORDS)
    data = layout.encode(values)
    memory = bytearray(data)
    *first, last = layout.put(data, key, value)
    for offset, word in first:
        memory[offset : offset + 8] = word
        assert layout.decode(memory) == values
    memory[last[0] : last[0] + 8] = last[1]
    assert memory == data and layout.decode(memory) == values | {key: value}


@pytest.mark.parametrize("words", [KERNEL_KEY, USER_KEY])
@given(st.lists(st.integers(0, 1 << 30), min_size=32, max_size=32))
def test_a_table_that_a_guest_wrote_is_one_or_none(words: int, keys: list[int]) -> None:
    layout = LAYOUT[words]
    rows = [struct.pack(f"<{words + 1}Q", *(key,) * words, 1).ljust(layout.slot_size, b"\0") for key in keys]
    known = layout.decode(b"".join(rows))
    assert known is None or (known.keys() == {(key,) * words for key in keys if key} and len(known) <= layout.room)


def test_sizes_of_tables() -> None:
    assert layout_of(512 * 16, KERNEL_KEY) == TrapTableLayout(512, KERNEL_KEY)
    assert layout_of(512 * 32, USER_KEY) == TrapTableLayout(512, USER_KEY)
    assert layout_of(16, KERNEL_KEY) is layout_of(48, KERNEL_KEY) is layout_of(32, USER_KEY) is None
