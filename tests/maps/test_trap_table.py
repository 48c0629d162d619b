from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.maps.trap_table import SLOT, TrapTableLayout, slot

KEYS = st.integers(1, (1 << 64) - 1)


@given(st.dictionaries(KEYS, st.integers(0, (1 << 64) - 1), max_size=TrapTableLayout(32).room))
def test_every_key_is_found_where_it_was_put(detours: dict[int, int]) -> None:
    layout = TrapTableLayout(32)
    data = layout.encode(detours)
    assert len(data) == layout.size
    for key, detour in detours.items():
        at = layout.place(data, key)
        assert data[at : at + SLOT] == slot(key, detour)


@given(st.sets(KEYS, min_size=9, max_size=9))
def test_a_key_that_is_not_there_gets_a_free_slot(keys: set[int]) -> None:
    layout = TrapTableLayout(16)
    *some, other = sorted(keys)
    data = layout.encode(dict.fromkeys(some, 1))
    at = layout.place(data, other)
    assert data[at : at + SLOT] == bytes(SLOT)


def test_keys_that_follow_one_another_have_homes_of_their_own() -> None:
    """Probes on neighbouring instructions: a search ends soon."""
    layout = TrapTableLayout(512)
    keys = range(0xFFFF_FFFF_8134_CC51, 0xFFFF_FFFF_8134_CC51 + 64)
    assert len({layout.home(key) for key in keys}) >= 48


@given(st.dictionaries(KEYS, st.integers(0, (1 << 64) - 1), max_size=TrapTableLayout(32).room))
def test_what_another_session_left_is_read_and_keeps_its_places(detours: dict[int, int]) -> None:
    layout = TrapTableLayout(32)
    data = layout.encode(detours)
    places = {key: layout.place(data, key) for key in detours}
    assert layout.decode(data) == detours
    gone = layout.changed(bytearray(data), dict.fromkeys(detours, 0))
    assert {key: layout.place(gone, key) for key in detours} == places and not any((layout.decode(gone) or {}).values())


@given(st.lists(KEYS | st.just(0), min_size=16, max_size=16))
def test_a_table_that_a_guest_wrote_is_one_or_none(keys: list[int]) -> None:
    layout = TrapTableLayout(16)
    known = layout.decode(b"".join(slot(key, 1) for key in keys))
    assert known is None or (known.keys() == {*keys} - {0} and len(known) <= layout.room)
