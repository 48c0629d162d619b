"""Aggregates of many values: words in guest memory, 8 bytes each, little endian, aligned to 8.

    Count        count                        Sum       sum, of 64 bits, wraps round
    Least        value, seen (0 or 1)         Greatest  value, seen
    Average      count, sum                      Stats     count, sum
    Powers       below 0 │ 0 │ 1 │ 2-3 │ 4-7 │ … │ 2**62 … │ 2**63 …              66 words
    LogLinear    below 0 │ 0 │ … │ 2**bits - 1 │ 2**bits buckets from each power of two up to the next
    Linear       below low │ low … │ low + step … │ … │ high and above             (high - low) / step + 2 words

`update` is the rule for one more value; the native code does the same, word by word, each atomically. For `Least` and
`Greatest` that is a compare-and-swap of value, which begins at the worst possible one; seen is stored after it, so that
a value that was seen is never the initial one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

ALIGNMENT = 8
MASK = (1 << 64) - 1
SIGN = 1 << 63


@dataclass(frozen=True, slots=True)
class Count:
    """How many values there were."""

    @property
    def words(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of all values."""

    signed: bool

    @property
    def words(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Least:
    """The least value."""

    signed: bool

    @property
    def words(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class Greatest:
    """The greatest value."""

    signed: bool

    @property
    def words(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class Average:
    """The number of values and their sum."""

    signed: bool

    @property
    def words(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class Stats:
    """The number of values and their sum, shown with the average."""

    signed: bool

    @property
    def words(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class Powers:
    """Buckets of powers of two, and one for all negative numbers."""

    signed: bool

    @property
    def words(self) -> int:
        return 66


@dataclass(frozen=True, slots=True)
class LogLinear:
    """Buckets of powers of two, each divided into 2**bits of one size, and one for all negative numbers.

    bits: at least 1; numbers below 2**bits have a bucket each. With 0 it would be `Powers`.
    """

    bits: int
    signed: bool

    @property
    def words(self) -> int:
        return 1 + (65 - self.bits << self.bits)

    def lows(self) -> list[int]:
        """Return the least number of each bucket but the first."""
        halves = range(1 << self.bits, 2 << self.bits)
        return [*range(1 << self.bits), *(half << power for power in range(64 - self.bits) for half in halves)]


@dataclass(frozen=True, slots=True)
class Linear:
    """Buckets of `step` from `low` up to `high`; their distance is a multiple of `step`."""

    low: int
    high: int
    step: int
    signed: bool

    @property
    def words(self) -> int:
        return (self.high - self.low) // self.step + 2


Histogram = Powers | LogLinear | Linear
Aggregate = Count | Sum | Least | Greatest | Average | Stats | Histogram


def size(aggregate: Aggregate) -> int:
    """Return how many bytes of guest memory it takes."""
    return 8 * aggregate.words


def initial(aggregate: Aggregate) -> tuple[int, ...]:
    """Return the words before the first value."""
    match aggregate:
        case Least(signed):
            return (SIGN - 1 if signed else MASK, 0)
        case Greatest(signed):
            return (SIGN if signed else 0, 0)
        case _:
            return (0,) * aggregate.words


def number(word: int, signed: bool) -> int:
    """Return the number that a word encodes."""
    return word - (1 << 64) if signed and word & SIGN else word


def bucket(histogram: Histogram, word: int) -> int:
    """Return the index of the word of a histogram that counts a value."""
    value = number(word, histogram.signed)
    if isinstance(histogram, Powers):
        return 0 if value < 0 else 1 + value.bit_length()
    if isinstance(histogram, LogLinear):
        power = max(value.bit_length() - 1 - histogram.bits, 0)
        return 0 if value < 0 else 1 + (power << histogram.bits) + (value >> power)
    if value < histogram.low:
        return 0
    return min((value - histogram.low) // histogram.step, histogram.words - 2) + 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many values are in [low, high). None is no bound."""

    low: int | None
    high: int | None
    count: int


def buckets(histogram: Histogram, words: Sequence[int]) -> tuple[Bucket, ...]:
    """Return all buckets, ascending."""
    if isinstance(histogram, Powers):
        lows = [0, 1, *(1 << power for power in range(1, 64))]
        bounds: list[tuple[int | None, int | None]] = [(None, 0)]
        bounds += list(zip(lows, [*lows[1:], 1 << 64], strict=True))
    elif isinstance(histogram, LogLinear):
        lows = histogram.lows()
        bounds = [(None, 0), *zip(lows, [*lows[1:], 1 << 64], strict=True)]
    else:
        edges = list(range(histogram.low, histogram.high + 1, histogram.step))
        bounds = [(None, edges[0]), *pairwise(edges), (edges[-1], None)]
    return tuple(Bucket(*bound, count) for bound, count in zip(bounds, words, strict=True))


def value(aggregate: Aggregate, words: Sequence[int]) -> int | tuple[Bucket, ...] | None:
    """Return a number, None where there was no value, or the buckets that are not empty."""
    match aggregate:
        case Count():
            return words[0]
        case Sum(signed):
            return number(words[0], signed)
        case Least(signed) | Greatest(signed):
            return number(words[0], signed) if words[1] else None
        case Average(signed) | Stats(signed):
            return _average(words, signed)
        case Powers() | LogLinear() | Linear():
            return tuple(one for one in buckets(aggregate, words) if one.count)


def _average(words: Sequence[int], signed: bool) -> int | None:
    """Return the average, rounded towards zero as C divides."""
    count, total = words[0], number(words[1], signed)
    if not count:
        return None
    return abs(total) // count * (-1 if total < 0 else 1)


def quantile(found: Sequence[Bucket], percent: float) -> Bucket | None:
    """Return the lowest bucket that at least `percent` of the values are in or below; None of no values."""
    total = sum(one.count for one in found)
    counts = accumulate(one.count for one in found)
    enough = (100 * count >= percent * total for count in counts)
    return next((one for one, last in zip(found, enough, strict=True) if last), None) if total else None


def update(aggregate: Aggregate, words: Sequence[int], value: int) -> tuple[int, ...]:
    """Return the words after one more value, itself a word; of a count, any."""
    match aggregate:
        case Count():
            return (words[0] + 1 & MASK,)
        case Sum():
            return (words[0] + value & MASK,)
        case Least(signed):
            return (value if number(value, signed) < number(words[0], signed) else words[0], 1)
        case Greatest(signed):
            return (value if number(value, signed) > number(words[0], signed) else words[0], 1)
        case Average() | Stats():
            return (words[0] + 1 & MASK, words[1] + value & MASK)
        case Powers() | LogLinear() | Linear():
            at = bucket(aggregate, value)
            return (*words[:at], words[at] + 1 & MASK, *words[at + 1 :])


def merged(aggregate: Aggregate, one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Return the words of one aggregate of the values of both."""
    if isinstance(aggregate, Least | Greatest):
        best = min if isinstance(aggregate, Least) else max
        return (best(one[0], other[0], key=lambda word: number(word, aggregate.signed)), one[1] | other[1])
    return tuple(a + b & MASK for a, b in zip(one, other, strict=True))


def encode(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


def decode(data: bytes | bytearray) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 8}Q", data)
