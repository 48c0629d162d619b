"""A map of the session: what its memory says after operations, as a dict has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.maps.aggregate import Aggregate, Count, Least, Sum, encode
from gdb_optprobe.maps.session_map import ABSENT, HEADER, SPARE, SessionMapLayout

WORDS = SessionMapLayout(1, 1, 8)
VALUES: tuple[Aggregate | int, ...] = (1, 2, Count(), Sum(True), Least(True))


def of(layout: SessionMapLayout, number: int) -> tuple[int, ...]:
    """The words of a value."""
    return (number, 1) if isinstance(layout.value, Least) else (number,) * layout.value_words


def key(*words: int) -> bytes:
    return encode(words)


@given(
    st.sampled_from(VALUES),
    st.lists(st.tuples(st.sampled_from(("put", "delete", "get")), st.integers(0, 20), st.integers(1, 5)), max_size=60),
)
def test_operations_are_those_of_a_dict(value: Aggregate | int, steps: list[tuple[str, int, int]]) -> None:
    layout = SessionMapLayout(2, value, 8)
    data, expected, ever = bytearray(layout.initial()), dict[bytes, tuple[int, ...]](), set[bytes]()
    dropped = 0
    for what, number, n in steps:
        at, words = key(number, -number & 0xFF), of(layout, n)
        if what == "put":
            room = at in ever or len(ever) < layout.most
            assert layout.put(data, at, words) is room
            dropped += not room
            if room:
                expected[at] = words
                ever.add(at)
        elif what == "delete":
            assert layout.delete(data, at) is (expected.pop(at, None) is not None)
        else:
            assert layout.get(data, at) == expected.get(at)
    contents = layout.decode(data)
    assert contents.by_key == expected and contents.dropped == dropped
    assert layout.decode(data[: layout.read_size(data)]) == contents


def test_a_key_of_zeros_is_a_key() -> None:
    data = bytearray(WORDS.initial())
    assert WORDS.get(data, key(0)) is None
    assert WORDS.put(data, key(0), (0,)) and WORDS.get(data, key(0)) == (0,)


def test_the_word_that_says_absent_is_dropped_and_counted() -> None:
    data = bytearray(WORDS.initial())
    assert not WORDS.put(data, key(1), (ABSENT,))
    assert WORDS.decode(data).dropped == 1 and not WORDS.decode(data).by_key


def test_a_deleted_key_comes_back_to_its_entry() -> None:
    data = bytearray(WORDS.initial())
    for _ in range(3):
        assert WORDS.put(data, key(5), (7,)) and WORDS.delete(data, key(5))
    assert WORDS.decode(data).entries == 1


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_zero_keeps_keys_and_clear_does_not(value: Aggregate | int) -> None:
    layout = SessionMapLayout(1, value, 8)
    data = bytearray(layout.initial())
    for number in (1, 2):
        layout.put(data, key(number), of(layout, 9))
    layout.delete(data, key(2))
    zero = (0,) * layout.value_words if isinstance(value, int) else layout.initial_words
    assert layout.decode(layout.zeroed(data)).by_key == {key(1): zero}
    assert not layout.decode(layout.cleared(data)).by_key


def test_an_entry_without_a_place_in_the_index_has_no_value() -> None:
    """As one that a hit has taken and not yet named, or that leaked."""
    data = bytearray(WORDS.initial())
    data[:8] = encode((3,))
    data[HEADER : HEADER + 8] = key(5)
    assert WORDS.decode(data).by_key == {} and WORDS.get(data, key(5)) is None


def test_what_is_read_of_a_guest_is_bounded() -> None:
    data = bytearray(WORDS.initial())
    data[:8] = b"\xff" * 8
    assert WORDS.read_size(data) == HEADER + (8 + SPARE) * WORDS.entry_size
    assert not WORDS.decode(data).by_key


def test_a_scalar() -> None:
    for value in VALUES:
        layout = SessionMapLayout(0, value)
        data = bytearray(layout.initial())
        assert not layout.decode(data).by_key
        words = of(layout, 3)
        assert layout.put(data, b"", words) and layout.decode(data).by_key == {b"": words}
        assert layout.delete(data, b"") and not layout.decode(data).by_key


def test_of_a_map_that_is_being_written_a_key_counts_that_had_a_value_before() -> None:
    layout = SessionMapLayout(2, Count(), 8)
    before = bytearray(layout.initial())
    assert layout.put(before, key(1, 1), (5,)) and layout.put(before, key(2, 2), (6,))
    now = bytearray(before)
    assert layout.put(now, key(1, 1), (7,)) and layout.put(now, key(3, 3), (1,))
    now[HEADER + layout.entry_size :][:8] = bytes(8)
    torn = bytearray(now)
    torn[HEADER + layout.entry_size] ^= 0xFF
    assert layout.decode(now, before).by_key == {key(1, 1): (7,), key(2, 2): (6,)}
    assert layout.decode(torn, before).by_key == {key(1, 1): (7,)}
