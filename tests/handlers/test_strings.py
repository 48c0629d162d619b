"""Strings in memory, and how they are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.handlers.ctype import INT, OWN, Array, Pointer, Void
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import Constant, Load, Register, StringLoad, nodes
from gdb_optprobe.handlers.scope import Lvalue, Meaning, Rvalue
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.strings import StringValue, characters, equals

X = Register("x")
CHAR, BYTE = OWN["char"], OWN["unsigned char"]


@pytest.mark.parametrize(
    ("meaning", "expected"),
    [
        (Lvalue(X, Array(CHAR, 16), mapped=True), StringValue(X, 16, mapped=True)),
        (Lvalue(X, Array(BYTE, 16)), StringValue(X, 16, mapped=False)),
        (Lvalue(X, Array(CHAR, 0), mapped=True), StringValue(X, None, mapped=False)),
        (Lvalue(X, Array(CHAR, 16), per_cpu=True), None),
        (Lvalue(X, Array(INT, 16)), None),
        (Lvalue(X, CHAR), None),
        (Rvalue(X, Pointer(CHAR), mapped=True), StringValue(X, None, mapped=False)),
        (Rvalue(X, Pointer(Void())), None),
        (Rvalue(X, INT), None),
    ],
)
def test_what_is_a_string(meaning: Meaning, expected: StringValue | None) -> None:
    assert characters(meaning) == expected


def test_as_a_part_of_a_key() -> None:
    assert StringValue(X, 16, mapped=True).operand(64) == StringLoad(X, 16, mapped=True, whole=True)
    assert StringValue(X, None, mapped=False).operand(64) == StringLoad(X, 64, mapped=False, whole=False)


@given(st.integers(1, 40), st.data())
def test_an_array_equals_what_it_holds_and_nothing_beyond_it_is_read(size: int, data: st.DataObject) -> None:
    letters = st.binary(max_size=size).map(lambda text: text.replace(b"\0", b"x"))
    literal, held = data.draw(letters), data.draw(letters)
    for content in (literal, held):
        memory = content.ljust(size, b"\0") if len(content) == size else (content + b"\0").ljust(size, b"?")

        def read(address: int, count: int, memory: bytes = memory) -> bytes:
            assert 0 <= address <= address + count <= len(memory)
            return memory[address : address + count]

        found = equals(StringValue(Constant(0), size, mapped=False), literal, Fragment.whole("x"))
        assert evaluate(found, Hit({}, read)) == (content == literal)


@pytest.mark.parametrize(
    ("size", "literal", "loads"),
    [
        (16, b"dd", [4]),
        (16, b"d", [2]),
        (16, b"", [1]),
        (16, b"0123456", [8]),
        (16, b"01234567", [8, 1]),
        (16, b"0123456789", [8, 4]),
        (11, b"0123456789", [8, 2, 1]),
        (3, b"dd", [2, 1]),
        (2, b"dd", [2]),
    ],
)
def test_few_loads(size: int, literal: bytes, loads: list[int]) -> None:
    found = equals(StringValue(X, size, mapped=False), literal, Fragment.whole("x"))
    assert [node.size for node in nodes(found) if isinstance(node, Load)] == loads
