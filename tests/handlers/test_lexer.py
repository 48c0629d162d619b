from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.lexer import MOST_TOKENS, Kind, tokens
from gdb_optprobe.handlers.source import Fragment


def lexed(text: str) -> list[str]:
    return [token.text for token in tokens(Fragment.whole(text)) if token.kind is not Kind.END]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a->b.c[3]", "a -> b . c [ 3 ]"),
        ("a<<=b>>c<=d<e", "a <<= b >> c <= d < e"),
        ("a&&b&c||d|e^f", "a && b & c || d | e ^ f"),
        ("$rdi==$arg1+$", "$rdi == $arg1 + $"),
        ("0x1e+2-1", "0x1e + 2 - 1"),
        ("x--y", "x -- y"),
        ("!~a?b:c", "! ~ a ? b : c"),
        ("", ""),
    ],
)
def test_pieces(text: str, expected: str) -> None:
    assert lexed(text) == expected.split()


@pytest.mark.parametrize(
    ("text", "value", "suffix", "decimal"),
    [
        ("0", 0, "", False),
        ("4096", 4096, "", True),
        ("0x1F", 31, "", False),
        ("017", 15, "", False),
        ("0b101", 5, "", False),
        ("1U", 1, "u", True),
        ("1ul", 1, "ul", True),
        ("1LU", 1, "ul", True),
        ("1LLU", 1, "ul", True),
        ("1ll", 1, "l", True),
        ("0xffffffffffffffffUL", (1 << 64) - 1, "ul", False),
    ],
)
def test_numbers(text: str, value: int, suffix: str, decimal: bool) -> None:
    token, _ = tokens(Fragment.whole(text))
    assert (token.kind, token.value, token.suffix, token.decimal) == (Kind.NUMBER, value, suffix, decimal)


@pytest.mark.parametrize(
    ("text", "value"),
    [("'a'", 97), (r"'\n'", 10), (r"'\0'", 0), (r"'\377'", 255), (r"'\x7f'", 127), (r"'\''", 39), ("'\"'", 34)],
)
def test_characters(text: str, value: int) -> None:
    token, _ = tokens(Fragment.whole(text))
    assert (token.kind, token.value) == (Kind.CHARACTER, value)


def test_strings() -> None:
    token, _ = tokens(Fragment.whole(r'"a\tb\"ü\\"'))
    assert (token.kind, token.data) == (Kind.STRING, b'a\tb"\xc3\xbc\\')


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("1 + 08", "'08' is not a number", "08"),
        ("12ab", "no suffix 'ab'", "ab"),
        ("1lL", "no suffix 'lL'", "lL"),
        ("0xg", "'0xg' is not a number", "0xg"),
        ("1.5", "floating point is not supported", "1.5"),
        (".5f", "floating point is not supported", ".5f"),
        ("1e+3", "floating point is not supported", "1e+3"),
        ("0x10000000000000000", "the number does not fit into 64 bits", "0x10000000000000000"),
        ("a ` b", "'`' means nothing in an expression", "`"),
        ("x == '", "' is never closed", "'"),
        ('x == "ab', '" is never closed', '"'),
        ("''", "0 characters between the quotes", "''"),
        ("'ab'", "2 characters between the quotes", "'ab'"),
        (r"'\q'", r"'\q' is no character", r"\q"),
        (r"'\400'", r"'\400' is no character", r"\400"),
        ("²", "'²' means nothing", "²"),
    ],
)
def test_what_is_no_token_is_pointed_at(text: str, message: str, marked: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        tokens(Fragment.whole(text))
    first, line, carets = caught.value.message.split("\n")
    assert first.startswith(message)
    assert line[carets.index("^") :][: len(carets.strip())] == marked


def test_a_flood_ends() -> None:
    assert len(tokens(Fragment.whole("1 " * MOST_TOKENS))) == MOST_TOKENS + 1
    with pytest.raises(OptprobeError, match="too large"):
        tokens(Fragment.whole("1 " * (MOST_TOKENS + 1)))


def test_a_part_ends_where_it_ends() -> None:
    line = 'f if "a" == x do count'
    assert [token.text for token in tokens(Fragment(line, 5, 13))[:-1]] == ['"a"', "==", "x"]
    with pytest.raises(OptprobeError, match="never closed"):
        tokens(Fragment(line, 5, 7))
