from __future__ import annotations

import pytest

from gdb_optprobe.handlers.ctype import (
    INT,
    LONG,
    OWN,
    UNSIGNED_INT,
    UNSIGNED_LONG,
    Array,
    CType,
    Enum,
    Function,
    Incomplete,
    Integer,
    Pointer,
    Struct,
    Void,
    common,
    describe,
    fits,
    number_type,
    promoted,
    size_of,
)

BOOL, UCHAR, SHORT = (OWN[name] for name in ("_Bool", "unsigned char", "short"))
LEVEL = Enum("level", 4, signed=False)


def field(bits: int, signed: bool, size: int = 4) -> Integer:
    return Integer("f", size, signed, bits=bits)


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (BOOL, INT),
        (UCHAR, INT),
        (SHORT, INT),
        (INT, INT),
        (UNSIGNED_INT, UNSIGNED_INT),
        (LONG, LONG),
        (UNSIGNED_LONG, UNSIGNED_LONG),
        (LEVEL, UNSIGNED_INT),
        (field(31, False), INT),
        (field(32, False), UNSIGNED_INT),
        (field(32, True), INT),
        (field(20, False, 8), INT),
        (field(33, False, 8), UNSIGNED_LONG),
        (field(40, True, 8), LONG),
    ],
)
def test_promotions(type_: Integer | Enum, expected: Integer) -> None:
    assert promoted(type_) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (UCHAR, SHORT, INT),
        (INT, UNSIGNED_INT, UNSIGNED_INT),
        (LONG, UNSIGNED_INT, LONG),
        (LONG, UNSIGNED_LONG, UNSIGNED_LONG),
        (INT, UNSIGNED_LONG, UNSIGNED_LONG),
        (BOOL, LONG, LONG),
    ],
)
def test_usual_conversions(left: Integer, right: Integer, expected: Integer) -> None:
    assert common(left, right) == common(right, left) == expected


@pytest.mark.parametrize(
    ("value", "suffix", "decimal", "expected"),
    [
        (0x7FFFFFFF, "", True, INT),
        (0x80000000, "", True, LONG),
        (0x80000000, "", False, UNSIGNED_INT),
        (1 << 32, "", False, LONG),
        (1 << 63, "", False, UNSIGNED_LONG),
        (1 << 63, "", True, UNSIGNED_LONG),
        (1, "u", True, UNSIGNED_INT),
        (1 << 32, "u", True, UNSIGNED_LONG),
        (1, "l", True, LONG),
        (1, "ul", True, UNSIGNED_LONG),
    ],
)
def test_constants(value: int, suffix: str, decimal: bool, expected: Integer) -> None:
    assert number_type(value, suffix, decimal) == expected


@pytest.mark.parametrize(
    ("type_", "size", "text"),
    [
        (Void(), 1, "void"),
        (Pointer(Struct("file", 256)), 8, "struct file *"),
        (Pointer(Pointer(OWN["char"])), 8, "char **"),
        (Array(OWN["char"], 16), 16, "char [16]"),
        (Array(Array(SHORT, 4), 2), 16, "short [2][4]"),
        (Array(OWN["char"], 0), None, "char []"),
        (Struct("", 24, union=True), 24, "union"),
        (Incomplete("struct secret"), None, "struct secret"),
        (Pointer(Function()), 8, "a pointer to a function"),
        (LEVEL, 4, "enum level"),
        (OWN["double"], 8, "double"),
        (OWN["unsigned long long"], 8, "unsigned long long"),
    ],
)
def test_sizes_and_spelling(type_: CType, size: int | None, text: str) -> None:
    assert (size_of(type_), describe(type_)) == (size, text)


def test_what_fits() -> None:
    assert fits(UCHAR, INT) and fits(BOOL, UCHAR) and fits(INT, LONG) and fits(INT, UNSIGNED_LONG)
    assert not fits(INT, UNSIGNED_INT) and not fits(UNSIGNED_INT, INT) and not fits(LONG, INT)
    assert not fits(Pointer(Void()), UNSIGNED_INT) and fits(Pointer(Void()), UNSIGNED_LONG)
