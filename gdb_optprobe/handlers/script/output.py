"""The text that bpftrace prints, and its JSON lines: of maps, of values, of messages. Only here is either made.

Bytes of the guest become characters in guest_text.py: lines and tabs stay, other controls are escaped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.guest_text import of_literal
from gdb_optprobe.handlers.ctype import Array, Enum, Integer, Pointer, Struct
from gdb_optprobe.handlers.ir import WORD
from gdb_optprobe.handlers.script.declared import MapType
from gdb_optprobe.handlers.script.formats import shown_bytes
from gdb_optprobe.handlers.script.types import (
    Blob,
    ControlGroup,
    ErrorText,
    Ethernet,
    Folded,
    Internet,
    Nothing,
    Stack,
    Symbol,
    Text,
    Time,
    Tuple,
    Type,
    UserName,
    bytes_in_c,
    bytes_of,
    is_word,
)
from gdb_optprobe.handlers.script.values import is_characters
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import (
    Average,
    Count,
    Greatest,
    Least,
    Linear,
    LogLinear,
    Powers,
    Stats,
    Sum,
    initial,
    number,
)

BAR = 52
_SUFFIXES = " KMGTPE"
_KILO, _MEGA = 1 << 10, 1 << 20
_RUN_ON = (Stack, Symbol, Internet)
"""Values of maps behind which bpftrace begins no new line."""
_QUOTED = (Blob, ControlGroup, Internet, Stack, Symbol, Nothing, ErrorText, Text, Time, UserName)

Histogram = Powers | LogLinear | Linear


class Names(Protocol):
    """What numbers of the guest are called."""

    def kernel_symbol(self, address: int) -> str: ...

    def user_symbol(self, address: int, pid: int) -> str: ...

    def user(self, number: int) -> str: ...

    def stack(self, words: Sequence[int], stack: Stack, indent: int) -> str: ...

    def time(self, nanoseconds: int, time: Time) -> str: ...

    def error(self, number: int) -> str: ...

    def control_group(self, number: int) -> str: ...

    def address(self, family: int, data: bytes) -> str: ...


@dataclass(frozen=True, slots=True)
class Contents:
    """What a map has: its keys' bytes, and the words of each."""

    name: str
    type: MapType
    words: Mapping[bytes, Sequence[int]]


class Output:
    """What is printed. trailer: behind a text that may have been longer."""

    def __init__(self, names: Names) -> None:
        self._names = names

    # what differs

    def message(self, kind: str, text: str) -> str:
        """Return what printf, time, cat, join or a command of the shell has said."""
        raise NotImplementedError

    def joined(self, text: str) -> str:
        """Return what `join` prints."""
        return self.message("join", text)

    def attached(self, probes: int) -> str:
        raise NotImplementedError

    def lost(self, events: int) -> str:
        raise NotImplementedError

    def before_maps(self) -> str:
        """Return what is printed before the maps at the end."""
        return ""

    def shown(self, type_: Type, data: bytes) -> str:
        """Return what `print(value)` prints."""
        raise NotImplementedError

    def map(self, contents: Contents, top: int = 0, divisor: int = 1) -> str:
        """Return a map. top: how many of the greatest, 0 for all. divisor: of each value."""
        raise NotImplementedError

    def _special(self, text: str, type_: Type, key: bool) -> str:
        raise NotImplementedError

    def _pointer(self, value: int) -> str:
        raise NotImplementedError

    def _tuple(self, parts: Sequence[str], key: bool) -> str:
        raise NotImplementedError

    def _member(self, name: str, value: str) -> str:
        raise NotImplementedError

    def _histogram(self, histogram: Histogram, counts: Sequence[int], divisor: int) -> str:
        raise NotImplementedError

    def _statistics(self, count: int, average: int, total: int) -> str:
        raise NotImplementedError

    def _enumerator(self, type_: Enum, value: int) -> str:
        raise NotImplementedError

    # values

    def value(self, type_: Type, data: bytes, key: bool = False, divisor: int = 1) -> str:
        """Return a value. data: as many bytes as its type takes. key: it is in the brackets of a map."""
        match type_:
            case Integer(size=size, signed=signed):
                exact = int.from_bytes(data[:size], "little", signed=signed)
                return str(_divided(exact, divisor))
            case Enum(size=size, signed=signed):
                exact = int.from_bytes(data[:size], "little", signed=signed)
                return self._enumerator(type_, exact) if divisor == 1 else str(_divided(exact, divisor))
            case Pointer():
                return self._pointer(int.from_bytes(data[:WORD], "little"))
            case Tuple(parts):
                return self._tuple(self._parts(parts, data, key), key=False)
            case Array(element, count):
                if is_characters(type_):
                    return self._special(of_literal(data[:count].partition(b"\0")[0]), Text(count), key)
                size = bytes_in_c(element)
                items = (self.value(element, data[size * at : size * (at + 1)], key) for at in range(count))
                return f"[{','.join(items)}]"
            case Struct():
                return f"{{ {', '.join(self._members(type_, data, key))} }}"
            case Stack() if key:
                return self._special(self._names.stack(_words(data), type_, 4), type_, key)
        return self._special(self.text(type_, data), type_, key)

    def text(self, type_: Type, data: bytes) -> str:
        """Return a value that is shown as a text, as `%s` shows it."""
        words = [int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD)]
        match type_:
            case Text(size):
                return of_literal(data[:size].partition(b"\0")[0])
            case Blob():
                return of_literal(shown_bytes(data[WORD : WORD + words[0]]))
            case Symbol(user):
                names = self._names
                return names.user_symbol(words[0], words[1]) if user else names.kernel_symbol(words[0])
            case Stack():
                return self._names.stack(words, type_, 8)
            case Internet():
                return self._names.address(words[0], data[WORD : 3 * WORD])
            case Ethernet():
                return data[:6].hex(":").upper()
            case Time():
                return self._names.time(words[0], type_)
            case UserName():
                return self._names.user(words[0])
            case ErrorText():
                return self._names.error(words[0])
            case ControlGroup():
                return self._names.control_group(words[0])
            case Enum(size=size, signed=signed, enumerators=enumerators):
                exact = int.from_bytes(data[:size], "little", signed=signed)
                return enumerators().get(exact, str(exact))
        return ""

    def _parts(self, parts: Sequence[Type], data: bytes, key: bool) -> list[str]:
        found, at = [], 0
        for part in parts:
            found.append(self.value(part, data[at : at + bytes_of(part)], key and not isinstance(part, Tuple)))
            at += bytes_of(part)
        return found

    def _members(self, struct: Struct, data: bytes, key: bool) -> list[str]:
        found = []
        for name in struct.names():
            member = struct.lookup(name)
            if member is None:
                continue
            if member.bit_size and isinstance(member.type, Integer | Enum):
                bits = int.from_bytes(data[member.offset : member.offset + WORD], "little") >> member.bit_offset
                bits &= (1 << member.bit_size) - 1
                found.append(self._member(name, str(bits)))
            else:
                value = data[member.offset : member.offset + bytes_in_c(member.type)]
                found.append(self._member(name, self.value(member.type, value, key)))
        return found

    # maps

    def key(self, contents: Contents, key: bytes) -> str:
        """Return a key as it is in the brackets of a map; "" of a map without keys."""
        return "" if isinstance(contents.type.key, Nothing | None) else self._key(contents, key)

    def _key(self, contents: Contents, key: bytes) -> str:
        type_ = contents.type.key
        assert type_ is not None
        if isinstance(type_, Tuple):
            return self._tuple(self._parts(type_.parts, key, True), key=True)
        return self.value(type_, key, key=True)

    def _map_value(self, type_: Type, words: Sequence[int], divisor: int) -> str:
        if not isinstance(type_, Folded):
            return self.value(type_, aggregate.encode(tuple(words)), divisor=divisor)
        found = type_.aggregate
        match found:
            case Powers() | LogLinear() | Linear():
                return self._histogram(found, words, divisor)
            case Stats() | Average():
                average = _divided(amount(type_, words), divisor)
                total = number(words[1], True)
                return self._statistics(words[0], average, total) if isinstance(found, Stats) else str(average)
        return str(_divided(amount(type_, words), divisor))

    def _ordered(self, contents: Contents, top: int) -> list[tuple[bytes, Sequence[int]]]:
        """Return keys and words in bpftrace's order: by value, ascending, or by key; equal values by key."""
        type_, rows = contents.type.value, [*contents.words.items()]
        key_type = contents.type.key or Nothing()
        rows.sort(key=lambda row: _order(key_type, row[0]))
        if isinstance(type_, Folded):
            rows.sort(key=lambda row: amount(type_, row[1]))
        elif isinstance(type_, Integer | Enum):
            rows.sort(key=lambda row: number(row[1][0], type_.signed))
        if top and not (isinstance(type_, Folded) and isinstance(type_.aggregate, Stats)):
            rows = rows[-top:]
        return rows


class TextOutput(Output):
    """bpftrace's text."""

    def message(self, kind: str, text: str) -> str:
        return text

    def joined(self, text: str) -> str:
        return f"{text}\n"

    def attached(self, probes: int) -> str:
        return f"Attaching {probes} probe{'' if probes == 1 else 's'}...\n"

    def lost(self, events: int) -> str:
        return f"Lost {events} events\n"

    def before_maps(self) -> str:
        return "\n\n"

    def shown(self, type_: Type, data: bytes) -> str:
        return f"{self.value(type_, data)}\n"

    def map(self, contents: Contents, top: int = 0, divisor: int = 1) -> str:
        type_ = contents.type.value
        histogram = isinstance(type_, Folded) and isinstance(type_.aggregate, Powers | LogLinear | Linear)
        averages = isinstance(type_, Folded) and isinstance(type_.aggregate, Average | Stats)
        rows, behind = [], "\n" if histogram else " "
        for key, words in self._ordered(contents, top):
            name = contents.name
            if not isinstance(contents.type.key, Nothing | None):
                name = f"{name}[{self._key(contents, key)}]"
            rows.append(f"{name}:{behind}{self._map_value(type_, words, divisor)}")
        between = "" if isinstance(type_, _RUN_ON) else "\n"
        return between.join(rows) + ("\n\n" if averages else "\n")

    def _special(self, text: str, type_: Type, key: bool) -> str:
        return text

    def _pointer(self, value: int) -> str:
        return f"{value:#x}"

    def _tuple(self, parts: Sequence[str], key: bool) -> str:
        return ", ".join(parts) if key else f"({', '.join(parts)})"

    def _member(self, name: str, value: str) -> str:
        return f".{name} = {value}"

    def _enumerator(self, type_: Enum, value: int) -> str:
        return type_.enumerators().get(value, str(value))

    def _histogram(self, histogram: Histogram, counts: Sequence[int], divisor: int) -> str:
        shown = _trimmed(counts)
        greatest = max(counts, default=0)
        lines = []
        for at in shown:
            label = _label(histogram, at)
            bar = "@" * int(_single(counts[at] / greatest) * BAR)
            count = counts[at] if isinstance(histogram, Linear) else counts[at] // divisor
            lines.append(f"{label:<16}{count:>8} |{bar:<{BAR}}|\n")
        return "".join(lines)

    def _statistics(self, count: int, average: int, total: int) -> str:
        return f"count {count}, average {average}, total {total}"


class JsonOutput(Output):
    """bpftrace's lines of JSON."""

    def message(self, kind: str, text: str) -> str:
        return f'{{"type": "{kind}", "data": {_quoted(text)}}}\n'

    def attached(self, probes: int) -> str:
        return f'{{"type": "attached_probes", "data": {{"probes": {probes}}}}}\n'

    def lost(self, events: int) -> str:
        return f'{{"type": "lost_events", "data": {{"events": {events}}}}}\n'

    def shown(self, type_: Type, data: bytes) -> str:
        return f'{{"type": "value", "data": {self.value(type_, data)}}}\n'

    def map(self, contents: Contents, top: int = 0, divisor: int = 1) -> str:
        rows = self._ordered(contents, top)
        if not rows:
            return ""
        type_, kind = contents.type.value, "map"
        if isinstance(type_, Folded):
            match type_.aggregate:
                case Powers() | LogLinear() | Linear():
                    kind = "hist"
                case Average() | Stats():
                    kind = "stats"
        values = [self._map_value(type_, words, divisor) for _, words in rows]
        if isinstance(contents.type.key, Nothing | None):
            data = values[0]
        else:
            keys = (_quoted(self._key(contents, key)) for key, _ in rows)
            data = f"{{{', '.join(f'{key}: {value}' for key, value in zip(keys, values, strict=True))}}}"
        return f'{{"type": "{kind}", "data": {{{_quoted(contents.name)}: {data}}}}}\n'

    def _special(self, text: str, type_: Type, key: bool) -> str:
        if key:
            return text
        return _quoted(text) if isinstance(type_, _QUOTED) else text

    def _pointer(self, value: int) -> str:
        return str(value)

    def _tuple(self, parts: Sequence[str], key: bool) -> str:
        return ",".join(parts) if key else f"[{','.join(parts)}]"

    def _member(self, name: str, value: str) -> str:
        return f"{_quoted(name)}: {value}"

    def _enumerator(self, type_: Enum, value: int) -> str:
        return str(value)

    def _histogram(self, histogram: Histogram, counts: Sequence[int], divisor: int) -> str:
        parts = []
        bounds = aggregate.buckets(histogram, tuple(counts))
        for at in _trimmed(counts):
            low, high = bounds[at].low, bounds[at].high
            fields = [f'"min": {low}'] if low is not None else []
            fields += [f'"max": {high - 1}'] if high is not None else []
            count = counts[at] if isinstance(histogram, Linear) else counts[at] // divisor
            fields.append(f'"count": {count}')
            parts.append(f"{{{', '.join(fields)}}}")
        return f"[{', '.join(parts)}]"

    def _statistics(self, count: int, average: int, total: int) -> str:
        return f'{{"count": {count}, "average": {average}, "total": {total}}}'


def amount(type_: Folded, words: Sequence[int]) -> int:
    """Return the number by which a map's values are ordered: of a histogram how many there are, else the value."""
    match type_.aggregate:
        case Powers() | LogLinear() | Linear():
            return sum(words)
        case Count():
            return words[0]
        case Least() | Greatest() if tuple(words) == initial(type_.aggregate):
            return 0  # after `zero`
        case Sum(signed) | Least(signed) | Greatest(signed):
            return number(words[0], signed)
        case Average() | Stats():
            total, count = number(words[1], True), words[0]
            return _divided(total, count) if count else 0


def _divided(value: int, divisor: int) -> int:
    """Divide, rounding towards 0."""
    quotient = abs(value) // divisor if divisor else abs(value)
    return -quotient if value < 0 else quotient


def _order(type_: Type, data: bytes) -> tuple[int | bytes, ...]:
    """Return what keys are ordered by: numbers as unsigned ones, texts by their bytes."""
    if isinstance(type_, Tuple):
        found: list[int | bytes] = []
        at = 0
        for part in type_.parts:
            found += _order(part, data[at : at + bytes_of(part)])
            at += bytes_of(part)
        return tuple(found)
    return (int.from_bytes(data, "little"),) if is_word(type_) else (data,)


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD)]


def _trimmed(counts: Sequence[int]) -> range:
    """Return the places from the first count that is not 0 to the last."""
    found = [at for at, count in enumerate(counts) if count]
    return range(found[0], found[-1] + 1) if found else range(0)


def _single(value: float) -> float:
    """Return a number as C's float has it: bpftrace computes bars with it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _label(histogram: Histogram, at: int) -> str:
    if isinstance(histogram, Linear):
        low, high, step = histogram.low, histogram.high, histogram.step
        last = (high - low) // step + 1
        if at == 0:
            return f"(..., {_linear_label(low, step)})"
        if at == last:
            return f"[{_linear_label(high, step)}, ...)"
        begin, end = (_linear_label(edge * step + low, step) for edge in (at - 1, at))
        return f"[{begin}, {end})"
    bits = histogram.bits if isinstance(histogram, LogLinear) else 0
    if at == 0:
        return "(..., 0)"
    if at <= 2 << bits:
        return f"[{at - 1}]"
    return f"[{_power_label(at - 1, bits)}, {_power_label(at, bits)})"


def _power_label(index: int, bits: int) -> str:
    halves = 1 << bits
    power, part = (index >> bits) - 1, index & (halves - 1)
    decade = power // 10
    return f"{(1 << power - 10 * decade) * (halves + part)}{_SUFFIXES[decade].strip()}"


def _linear_label(edge: int, step: int) -> str:
    if step % _KILO or not edge:
        return str(edge)
    if edge % _MEGA == 0:
        return f"{edge // _MEGA}M"
    return f"{edge // _KILO}K" if edge % _KILO == 0 else str(edge)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
