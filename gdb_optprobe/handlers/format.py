"""Formats of `print`, as in GDB's dprintf: their conversions, and their output. ISO C17 7.21.6.1, but no floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest_text import printable
from gdb_optprobe.handlers.arithmetic import extend
from gdb_optprobe.handlers.ctype import CType, describe, size_of
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.maps.aggregate import number

_CONVERSION = re.compile(r"%([-+ #0]*)(\d*)(?:\.(\d*))?(hh|h|ll|l|j|z|t)?(.?)", re.DOTALL)
_BITS = {"hh": 8, "h": 16, "": 32}
_WIDEST = 1000
KNOWN = "%d %u %x %o %c %s %p, with hh, h, l, ll or z; %% for one %"


@dataclass(frozen=True, slots=True)
class Conversion:
    """One `%…` of a format. kind: its letter. bits: how many of the value it shows. start, end: its place."""

    start: int
    end: int
    flags: str
    width: int
    precision: int | None
    bits: int
    kind: str

    @property
    def text(self) -> bool:
        return self.kind == "s"


def conversions(format: str, where: Fragment) -> tuple[Conversion, ...]:
    """Return the conversions of a format. where: the literal with its quotes. Raises OptprobeError, pointing."""
    found = []
    for order, match in enumerate(_CONVERSION.finditer(format)):
        flags, width, precision, length, kind = match.groups()
        place = _place(where, order)
        if kind == "%" and match[0] == "%%":
            continue
        if kind in "aAeEfFgG" and kind:
            raise fault("floating point is not supported", place, "the kernel has integers only")
        if not kind or kind not in "diuxXocsp" or (kind in "csp" and length):
            raise fault(f"'{match[0]}' is no format", place, KNOWN)
        if any(len(number.lstrip("0")) > 4 or int(number or 0) > _WIDEST for number in (width, precision or "")):
            raise fault(f"'{match[0]}' is too wide", place, f"at most {_WIDEST}")
        bits = 64 if kind in "ps" else 8 if kind == "c" else _BITS.get(length or "", 64)
        exact = None if precision is None else int(precision or 0)
        found.append(Conversion(*match.span(), flags, int(width or 0), exact, bits, kind))
    return tuple(found)


def check_fit(conversion: Conversion, type_: CType, format: Fragment, order: int, where: Fragment) -> None:
    """Refuse a conversion that would show only a part of a number. order: its number in the format."""
    size = size_of(type_) or 0
    if size == 8 and conversion.bits == 32:
        place = _place(format, order)
        wanted = f"{place.text[:-1]}l{place.text[-1:]}" if place != format else "%ld"
        raise fault(f"'{where.text}' has 64 bits: '{describe(type_)}'", place, f"write {wanted}")


def render(format: str, values: Sequence[int | bytes]) -> str:
    """Return what C would print. values: words, and texts for %s."""
    waiting = iter(values)

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        (conversion,) = conversions(match[0], Fragment.whole(match[0]))
        return _rendered(conversion, next(waiting))

    return _CONVERSION.sub(one, format)


def _rendered(conversion: Conversion, value: int | bytes) -> str:
    flags, precision = conversion.flags, conversion.precision
    if isinstance(value, bytes):
        return _text(value[:precision], conversion)
    if conversion.kind == "c":
        return _text(bytes([value & 0xFF]), conversion)
    signed = conversion.kind in "di"
    exact = number(extend(value, conversion.bits, signed), signed)
    base = {"x": "x", "X": "X", "o": "o", "p": "x"}.get(conversion.kind, "d")
    digits = f"{abs(exact):{base}}"
    digits = "" if precision == 0 and not exact else digits.rjust(precision or 0, "0")
    if conversion.kind == "o" and "#" in flags and not digits.startswith("0"):
        digits = f"0{digits}"
    prefix = "-" if exact < 0 else "+" if signed and "+" in flags else " " if signed and " " in flags else ""
    if conversion.kind == "p" or (base in "xX" and "#" in flags and exact):
        prefix = "0X" if base == "X" else "0x"
    return _padded(prefix, digits, conversion, zeros="0" in flags and precision is None)


def _text(data: bytes, conversion: Conversion) -> str:
    """Pad a text. Width and precision count bytes, as in C."""
    room = " " * (conversion.width - len(data))
    return printable(data) + room if "-" in conversion.flags else room + printable(data)


def _padded(prefix: str, digits: str, conversion: Conversion, zeros: bool) -> str:
    if "-" in conversion.flags:
        return (prefix + digits).ljust(conversion.width)
    if zeros:
        return prefix + digits.rjust(conversion.width - len(prefix), "0")
    return (prefix + digits).rjust(conversion.width)


def _place(where: Fragment, order: int) -> Fragment:
    """Return where the conversion is in the literal as typed; all of the literal if escapes hide that."""
    found = list(_CONVERSION.finditer(where.line, where.start, where.end - 1))
    if order >= len(found):
        return where
    return Fragment(where.line, found[order].start(), max(found[order].end(), found[order].start() + 1))
