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
    buckets,
    decode,
    encode,
    initial,
    number,
    quantile,
    size,
    update,
    value,
)

MASK = (1 << 64) - 1
MINUS = MASK - 6
SIGNED = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5, 5))
UNSIGNED = st.one_of(st.integers(0, MASK), st.integers(0, 5))


def after(aggregate: Aggregate, values: list[int]) -> tuple[int, ...]:
    words = initial(aggregate)
    for each in values:
        words = update(aggregate, words, each & MASK)
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


def test_the_value_of_words() -> None:
    assert value(Count(), (3,)) == 3
    assert value(Sum(True), (MINUS,)) == -7 and value(Sum(False), (MINUS,)) == MINUS
    assert value(Least(True), (MINUS, 1)) == -7
    assert value(Greatest(False), initial(Greatest(False))) is None
    assert value(Average(True), after(Average(True), [MINUS, 2])) == -2, "as C divides"
    assert value(Average(True), (0, 0)) is None


def test_buckets_hold_the_values_that_are_counted_in_them() -> None:
    for kind in (Powers(True), Powers(False), Linear(10, 50, 20, False), Linear(-20, 20, 10, True)):
        for each in (0, 1, 2, 3, 9, 10, 29, 30, 49, 50, 4096, 2**40, MINUS):
            exact = each - 2**64 if kind.signed and each == MINUS else each
            (found,) = [one for one in buckets(kind, after(kind, [each])) if one.count]
            assert found.low is None or found.low <= exact
            assert found.high is None or exact < found.high


@given(st.lists(st.integers(0, 200), min_size=1), st.floats(0.1, 100))
def test_a_quantile_is_in_the_bucket_of_a_value_that_so_many_are_not_above(values: list[int], percent: float) -> None:
    for kind in (Powers(False), Linear(10, 100, 10, False)):
        found = quantile(buckets(kind, after(kind, values)), percent)
        assert found is not None and found.count, "a bucket that a value is in"
        below = sum(found.high is None or each < found.high for each in values)
        short = sum(found.low is not None and each < found.low for each in values)
        assert 100 * below >= percent * len(values) > 100 * short
        assert quantile(buckets(kind, initial(kind)), percent) is None
