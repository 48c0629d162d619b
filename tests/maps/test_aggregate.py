"""What many values become, against the values themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.maps.aggregate import (
    Aggregate,
    Average,
    Count,
    Greatest,
    Least,
    Linear,
    Powers,
    Sum,
    bucket,
    decode,
    encode,
    initial,
    number,
    size,
    update,
)

MASK = (1 << 64) - 1
SIGNED = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5, 5))
UNSIGNED = st.one_of(st.integers(0, MASK), st.integers(0, 5))


def after(aggregate: Aggregate, values: list[int]) -> tuple[int, ...]:
    words = initial(aggregate)
    for value in values:
        words = update(aggregate, words, value & MASK)
    return words


@given(st.one_of(st.tuples(st.just(True), st.lists(SIGNED)), st.tuples(st.just(False), st.lists(UNSIGNED))))
def test_values(case: tuple[bool, list[int]]) -> None:
    signed, values = case
    assert after(Count(), values) == (len(values),)
    assert after(Sum(signed), values) == (sum(values) & MASK,)
    assert after(Average(signed), values) == (len(values), sum(values) & MASK)
    least, seen = after(Least(signed), values)
    greatest, _ = after(Greatest(signed), values)
    assert seen == bool(values)
    if values:
        assert (number(least, signed), number(greatest, signed)) == (min(values), max(values))


@pytest.mark.parametrize(
    ("value", "signed", "expected"),
    [
        (-1 & MASK, True, 0),
        (1 << 63, True, 0),
        (0, True, 1),
        (1, True, 2),
        (2, True, 3),
        (3, True, 3),
        (4, True, 4),
        ((1 << 62) - 1, True, 63),
        (1 << 62, True, 64),
        (1 << 63, False, 65),
        (MASK, False, 65),
    ],
)
def test_powers(value: int, signed: bool, expected: int) -> None:
    assert bucket(Powers(signed), value) == expected
    assert after(Powers(signed), [value, value])[expected] == 2


@pytest.mark.parametrize(
    ("value", "expected"), [(-11, 0), (-10, 1), (-1, 1), (0, 2), (9, 2), (10, 3), (29, 4), (30, 5), (1 << 62, 5)]
)
def test_linear(value: int, expected: int) -> None:
    histogram = Linear(-10, 30, 10, signed=True)
    assert histogram.words == 6
    assert bucket(histogram, value & MASK) == expected


@pytest.mark.parametrize(
    "aggregate", [Count(), Sum(True), Least(True), Greatest(False), Average(True), Powers(True), Linear(0, 9, 3, False)]
)
def test_words_in_memory(aggregate: Aggregate) -> None:
    words = initial(aggregate)
    assert len(words) == aggregate.words
    data = encode(words)
    assert len(data) == size(aggregate) and decode(data) == words
