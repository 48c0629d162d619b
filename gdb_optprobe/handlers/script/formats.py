"""Formats of printf, cat and system: their conversions, what fits to which value, and what they print.

C's conversions without floats; `%r` shows a buffer, `%rx` and `%rh` in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest_text import of_literal
from gdb_optprobe.handlers.arithmetic import extend
from gdb_optprobe.handlers.ctype import Array, Enum, Integer, Pointer, Struct
from gdb_optprobe.handlers.script.types import (
    Blob,
    ControlGroup,
    ErrorText,
    Ethernet,
    Internet,
    Stack,
    Symbol,
    Text,
    Time,
    Tuple,
    Type,
    UserName,
    spelled,
)
from gdb_optprobe.maps.aggregate import number

_CONVERSION = re.compile(
    r"%([-+ #0]*)(\d*)(?:\.(\d*))?(?:(hh|h|ll|l|j|z|t)?([duoxXp])|(rx|rh|[rsc])|([a-zA-Z]+|$)|(%)|)"
)
_BITS = {"hh": 8, "h": 16, "": 32}
_WIDEST = 1000
_AS_TEXT = (Symbol, UserName, Stack, Internet, Time, Ethernet, ControlGroup, ErrorText)


@dataclass(frozen=True, slots=True)
class Conversion:
    """One `%…`. kind: its letter; "r", "rx", "rh" of buffers. bits: how many of a number it shows."""

    flags: str
    width: int
    precision: int | None
    bits: int
    kind: str
    known: bool = True


def conversions(format: str) -> tuple[Conversion, ...]:
    """Return the conversions of a format, in order; `%%` is none."""
    return tuple(_conversion(match) for match in _CONVERSION.finditer(format) if match[8] is None)


def _conversion(match: re.Match[str]) -> Conversion:
    flags, width, precision, length, letter, special, unknown, _ = match.groups()
    kind = letter or special or unknown or ""
    sizes = [_size(digits) for digits in (width, precision or "")]
    bits = 64 if kind == "p" else 8 if kind == "c" else _BITS.get(length or "", 64)
    known = (letter or special) is not None and max(sizes) <= _WIDEST
    return Conversion(flags, sizes[0], None if precision is None else sizes[1], bits, kind, known)


def _size(digits: str) -> int:
    return int(digits or 0) if len(digits) < 8 else _WIDEST + 1


def check(function: str, format: str, given: Sequence[Type]) -> str:
    """Return what is wrong with the values given to a format; "" if nothing is."""
    wanted = conversions(format)
    if len(given) != len(wanted):
        many = "Not enough" if len(given) < len(wanted) else "Too many"
        counts = f"({len(given)} supplied, {len(wanted)} expected)"
        return f"{function}: {many} arguments for format string {counts}"
    for conversion, type_ in zip(wanted, given, strict=True):
        if not conversion.known:
            return f"{function}: Unknown format string token: %{conversion.kind}"
        takes = "string" if conversion.kind == "s" else "buffer" if conversion.kind[0] == "r" else "integer"
        is_ = _kinds(type_)
        if takes not in is_:
            specifier = f"%{conversion.kind} specifier expects a value of type {takes}"
            return f"{function}: {specifier} ({','.join(is_)} supplied)"
    return ""


def _kinds(type_: Type) -> tuple[str, ...]:
    """Return what conversions may show a value as."""
    match type_:
        case Enum():
            return ("string", "integer")
        case Integer() | Pointer():
            return ("integer",)
        case Text():
            return ("string",)
        case Blob():
            return ("buffer",)
        case Tuple():
            return ("tuple",)
        case Array():
            return ("array",)
        case Struct():
            return ("record",)
    return ("string",) if isinstance(type_, _AS_TEXT) else (spelled(type_),)


def rendered(format: str, values: Sequence[int | bytes], texts: Sequence[Callable[[], bytes]]) -> str:
    """Return what a format prints. values: words, and the bytes of buffers. texts: what `%s` shows of each."""
    waiting = iter(zip(values, texts, strict=True))

    def one(match: re.Match[str]) -> str:
        if match[8] is not None:
            return "%"
        conversion = _conversion(match)
        value, text = next(waiting)
        if conversion.kind == "s":
            return _padded(text()[: conversion.precision], conversion)
        if conversion.kind.startswith("r"):
            assert isinstance(value, bytes)
            return _padded(shown_bytes(value, conversion.kind), conversion)
        return _number(int.from_bytes(value, "little") if isinstance(value, bytes) else value, conversion)

    return _CONVERSION.sub(one, format)


def shown_bytes(data: bytes, kind: str = "r") -> bytes:
    r"""Return a buffer as `%r` shows it: printable characters as they are; `%rx` all as \x41, `%rh` as `41 42`."""
    if kind == "rh":
        return data.hex(" ").encode()
    plain = kind == "r"
    return b"".join(bytes((byte,)) if plain and 32 <= byte <= 126 else b"\\x%02x" % byte for byte in data)


def _number(value: int, conversion: Conversion) -> str:
    flags, precision = conversion.flags, conversion.precision
    if conversion.kind == "c":
        return _padded(bytes((value & 0xFF,)), conversion)
    signed = conversion.kind == "d"
    exact = number(extend(value, conversion.bits, signed), signed)
    base = {"x": "x", "X": "X", "o": "o", "p": "x"}.get(conversion.kind, "d")
    digits = f"{abs(exact):{base}}"
    digits = "" if precision == 0 and not exact else digits.rjust(precision or 0, "0")
    prefix = "-" if exact < 0 else "+" if signed and "+" in flags else " " if signed and " " in flags else ""
    if conversion.kind == "p":
        # As glibc has it.
        prefix, digits = ("0x", digits) if exact else ("", "(nil)")
    elif "#" in flags and exact:
        prefix = {"x": "0x", "X": "0X", "o": "0"}.get(base, prefix)
    if "-" in flags:
        return (prefix + digits).ljust(conversion.width)
    if "0" in flags and precision is None:
        return prefix + digits.rjust(conversion.width - len(prefix), "0")
    return (prefix + digits).rjust(conversion.width)


def _padded(text: bytes, conversion: Conversion) -> str:
    """Pad a text. Width and precision count bytes, as in C."""
    room = " " * (conversion.width - len(text))
    return of_literal(text) + room if "-" in conversion.flags else room + of_literal(text)
