"""Split text into tokens: C's numbers, characters, strings, names and punctuators, and GDB's `$name`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, fault

MOST_TOKENS = 1024

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DOLLAR = re.compile(r"\$\w*", re.ASCII)
# All that looks like one number. `0x1e+2` is a sum, as in GDB.
_NUMBER = re.compile(r"0[xX]\w*|(?:[eE][+-]|[\w.])+", re.ASCII)
_FLOAT = re.compile(r"(\d+\.\d*|\.\d+)([eE][+-]?\d+)?[fFlL]?|\d+[eE][+-]?\d+[fFlL]?")
_INTEGER = re.compile(r"(0[xX][\da-fA-F]+|0[bB][01]+|0(?![xXbB])[0-7]*|[1-9]\d*)([a-zA-Z]*)")
_SUFFIXES = ("", "u", "l", "ul", "lu", "ll", "ull", "llu")
_PUNCTUATORS = re.compile(
    r"<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:.,()\[\]{}@#;]"
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[\da-fA-F]+|[abfnrtve\\'\"?])")
_SIMPLE = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "e": 27}


class Kind(Enum):
    """The kinds of tokens."""

    NUMBER = "number"
    CHARACTER = "character"
    STRING = "string"
    NAME = "name"
    DOLLAR = "$name"
    PUNCTUATOR = "punctuator"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """value: of a number or a character. data: of a string. suffix: of a number: "u", "l", "ul" or ""."""

    kind: Kind
    where: Fragment
    value: int = 0
    data: bytes = b""
    suffix: str = ""
    decimal: bool = False

    @property
    def text(self) -> str:
        return self.where.text

    def __str__(self) -> str:
        return "the end" if self.kind is Kind.END else f"'{self.text}'"


def tokens(part: Fragment) -> tuple[Token, ...]:
    """Return the tokens of `part`, and an END behind them. Raises OptprobeError, pointing, at what C does not have."""
    found: list[Token] = []
    at = part.start
    while True:
        while at < part.end and part.line[at].isspace():
            at += 1
        if at >= part.end:
            end = part.start + len(part.text.rstrip())
            return (*found, Token(Kind.END, Fragment(part.line, end, end + 1)))
        token = _token(part.line, at, part.end)
        if len(found) == MOST_TOKENS:
            raise fault("the program is too large", token.where, f"at most {MOST_TOKENS} words and signs")
        found.append(token)
        at = token.where.end


def _token(line: str, at: int, end: int) -> Token:
    character = line[at]
    if character.isascii() and (character.isdigit() or (character == "." and line[at + 1 : at + 2].isdigit())):
        number = _NUMBER.match(line, at, end)
        assert number
        return _number(Fragment(line, at, number.end()))
    if character == "'":
        return _character(line, at, end)
    if character == '"':
        data, stop = _quoted(line, at, end)
        return Token(Kind.STRING, Fragment(line, at, stop), data=data)
    for kind, pattern in ((Kind.NAME, _NAME), (Kind.DOLLAR, _DOLLAR), (Kind.PUNCTUATOR, _PUNCTUATORS)):
        if found := pattern.match(line, at, end):
            return Token(kind, Fragment(line, at, found.end()))
    raise fault(f"'{character}' means nothing in an expression", Fragment(line, at, at + 1))


def _number(where: Fragment) -> Token:
    text = where.text
    if _FLOAT.fullmatch(text):
        raise fault("floating point is not supported", where, "the kernel has integers only")
    found = _INTEGER.fullmatch(text)
    if found is None:
        raise fault(f"'{text}' is not a number", where, "as in C: 10, 0x1f, 017, 0b101")
    digits, suffix = found[1].lower(), found[2]
    if suffix.lower() not in _SUFFIXES or "lL" in suffix or "Ll" in suffix:
        at = where.start + len(digits)
        raise fault(f"no suffix '{suffix}'", Fragment(where.line, at, where.end), "the suffixes are U, L and UL")
    base = 16 if digits.startswith("0x") else 2 if digits.startswith("0b") else 8 if digits.startswith("0") else 10
    significant = (digits[2:] if base in (2, 16) else digits).lstrip("0") or "0"
    # No number of 64 bits has more than 64 digits, and Python converts none of some thousand.
    value = int(significant, base) if len(significant) <= 64 else 1 << 64
    if value >> 64:
        raise fault("the number does not fit into 64 bits", where, "the largest is 0xffffffffffffffff")
    kept = ("u" if "u" in suffix.lower() else "") + ("l" if "l" in suffix.lower() else "")
    return Token(Kind.NUMBER, where, value, suffix=kept, decimal=base == 10)


def _character(line: str, at: int, end: int) -> Token:
    data, stop = _quoted(line, at, end)
    where = Fragment(line, at, stop)
    if len(data) != 1:
        raise fault(f"{len(data)} characters between the quotes", where, 'a string needs "double quotes"')
    return Token(Kind.CHARACTER, where, data[0])


def _quoted(line: str, start: int, end: int) -> tuple[bytes, int]:
    """Return the bytes between two quotes, and where they end."""
    data = bytearray()
    at = start + 1
    while at < end and line[at] != line[start]:
        if line[at] != "\\":
            data += _encoded(Fragment(line, at, at + 1))
            at += 1
            continue
        found = _ESCAPE.match(line, at, end)
        value = -1 if found is None else _escaped(found[1])
        if found is None or not 0 <= value < 256:
            raise _no_escape(Fragment(line, at, found.end() if found else min(at + 2, end)))
        data.append(value)
        at = found.end()
    if at >= end:
        raise fault(f"{line[start]} is never closed", Fragment(line, start, start + 1))
    return bytes(data), at + 1


def _encoded(character: Fragment) -> bytes:
    try:
        return character.text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise fault("half of a character means nothing", character, r"write its bytes: \xNN") from None


def _escaped(text: str) -> int:
    if text[0] in "01234567":
        return int(text, 8)
    return int(text[1:], 16) if text[0] == "x" else _SIMPLE.get(text, ord(text[0]))


def _no_escape(where: Fragment) -> OptprobeError:
    return fault(f"'{where.text}' is no character", where, r"as in C: \n, \t, \0, \x7f, \\, \", \'")
