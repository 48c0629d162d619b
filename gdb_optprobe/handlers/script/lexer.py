"""Split a script into tokens, by bpftrace's rules.

    #!/usr/bin/env bpftrace            skipped
    config = { … }                     words and punctuators
    struct foo { int x; };             words and punctuators
    kprobe:vfs_*, kprobe:MOD:fn        POINT: the text of one attach point
    /pid == $1/                        between "/" and PREDICATE_END
    { @[comm] = count(); }             words and punctuators

Braces tell the top level: a word there that opens no definition begins an attach point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gdb_optprobe.handlers.script.place import Place, wrong

MOST_TOKENS = 1 << 16
DEEPEST_MACRO = 16
TAGGED = ("struct", "union", "enum")
_DEFINITIONS = (*TAGGED, "config", "fn")

_SPACE = re.compile(r"\s+")
_SUFFIX = re.compile(r"[uU]?[lL]{0,2}(?!\w)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORD = re.compile(
    r"(?P<NUMBER>0[xX][0-9a-fA-F]+|[0-9][0-9_]*(?:[eE][0-9][0-9_]*)?)"
    r"|(?P<VARIABLE>\$[A-Za-z_]\w*)|(?P<PARAMETER>\$(?:#|\d+))|(?P<MAP>@(?:[A-Za-z_]\w*)?)|(?P<NAME>[A-Za-z_]\w*)"
    r"|(?P<PUNCTUATOR><<=|>>=|->|\.\.|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:.,;()\[\]{}])",
    re.ASCII,
)
"""The names of its groups are those of Kind."""
_POINT = re.compile(r"""(?:"[^"]*"|\$\d+|[^\s,{/:"$]+|:(?:"[^"]*"|\$\d+|[^\s,{:"$]+)*)+""")
_ESCAPE = re.compile(r"\\(?:([ntr\"\\])|([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2}))")
_SIMPLE = {"n": 10, "t": 9, "r": 13, '"': 34, "\\": 92}


class Kind(Enum):
    """The kinds of tokens."""

    NUMBER = "number"
    STRING = "string"
    NAME = "name"
    VARIABLE = "$name"
    PARAMETER = "$1"
    MAP = "@name"
    POINT = "attach point"
    PUNCTUATOR = "punctuator"
    PREDICATE = "/"
    PREDICATE_END = "/ of a predicate's end"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """text: as typed; of a macro, its replacement. value: of a number. data: of a string."""

    kind: Kind
    where: Place
    text: str
    value: int = 0
    data: bytes = b""

    def __str__(self) -> str:
        return "the end" if self.kind is Kind.END else f"'{self.text}'"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that the preprocessor has left. number: from 1; 0 in a script of one line."""

    text: str
    number: int


def tokens(lines: Sequence[Line], macros: Mapping[str, str]) -> tuple[Token, ...]:
    """Return the tokens of a script, and an END behind them. Raises OptprobeError, pointing."""
    return _Lexer(lines, macros).all()


class _Lexer:
    def __init__(self, lines: Sequence[Line], macros: Mapping[str, str]) -> None:
        self._lines = lines or (Line("", 0),)
        self._macros = macros
        self._row = self._at = self._depth = 0
        self._found: list[Token] = []
        self._boundary, self._predicate = True, False

    def all(self) -> tuple[Token, ...]:
        while self._skip():
            self._found += self._macro(self._token())
            if len(self._found) > MOST_TOKENS:
                raise wrong("the script is too large", self._found[-1].where, f"at most {MOST_TOKENS} words and signs")
        line = next((line for line in reversed(self._lines) if line.text.strip()), self._lines[-1])
        end = len(line.text.rstrip())
        return (*self._found, Token(Kind.END, Place(line.text, end, end + 1, line.number), ""))

    @property
    def _text(self) -> str:
        return self._lines[self._row].text

    def _place(self, start: int, end: int) -> Place:
        return Place(self._text, start, end, self._lines[self._row].number)

    def _skip(self) -> bool:
        """Skip spaces and comments. Return whether something is left."""
        opened: Place | None = None
        while self._row < len(self._lines):
            text = self._text
            first = text[self._at : self._at + 1]
            if opened is None and first and first != "/" and not first.isspace():
                return True
            if opened is not None:
                end = text.find("*/", self._at)
                if end < 0:
                    self._row, self._at = self._row + 1, 0
                    continue
                opened, self._at = None, end + 2
            elif self._at >= len(text) or text.startswith("//", self._at):
                self._row, self._at = self._row + 1, 0
            elif text.startswith("/*", self._at):
                opened = self._place(self._at, self._at + 2)
                self._at += 2
            elif space := _SPACE.match(text, self._at):
                self._at = space.end()
            else:
                return True
        if opened is not None:
            raise wrong("the comment is never closed", opened)
        return False

    def _token(self) -> Token:
        text, at = self._text, self._at
        if self._depth == 0 and self._boundary and not self._predicate:
            return self._at_top()
        if text[at] == "/" and self._predicate and self._ends_predicate():
            self._predicate = False
            return self._take(Kind.PREDICATE_END, at + 1)
        if text[at] == '"':
            return self._string()
        found = _WORD.match(text, at)
        if found is None or found.lastgroup is None:
            raise wrong(f"'{text[at]}' means nothing here", self._place(at, at + 1))
        kind = Kind[found.lastgroup]
        return self._number(found.end()) if kind is Kind.NUMBER else self._take(kind, found.end())

    def _at_top(self) -> Token:
        """Return the next token where a probe or a definition may begin."""
        text, at = self._text, self._at
        if text[at] in ",;" or text[at] == "/":
            if text[at] == "/":
                self._predicate = True
                return self._take(Kind.PREDICATE, at + 1)
            return self._take(Kind.PUNCTUATOR, at + 1)
        word = _NAME.match(text, at)
        if word and word[0] in _DEFINITIONS and text[word.end() : word.end() + 1] != ":":
            self._boundary = False
            return self._take(Kind.NAME, word.end())
        if text[at] == "{" or not (found := _POINT.match(text, at)):
            return self._take(Kind.PUNCTUATOR, at + 1)
        return self._take(Kind.POINT, found.end())

    def _take(self, kind: Kind, end: int) -> Token:
        token = Token(kind, self._place(self._at, end), self._text[self._at : end])
        self._at = end
        if kind is Kind.PUNCTUATOR and token.text in "{}":
            self._depth = max(0, self._depth + (1 if token.text == "{" else -1))
            self._boundary = token.text == "}" and self._depth == 0
        return token

    def _ends_predicate(self) -> bool:
        """Return whether the next sign that is no space is a brace or a slash: bpftrace's rule."""
        row, at = self._row, self._at + 1
        while row < len(self._lines):
            rest = self._lines[row].text[at:].lstrip()
            if rest:
                return rest[0] in "{/"
            row, at = row + 1, 0
        return False

    def _number(self, end: int) -> Token:
        text = self._text[self._at : end]
        suffix = _SUFFIX.match(self._text, end)
        if suffix is None:
            raise wrong(f"'{text}' has no such suffix", self._place(self._at, end + 1), "U, L, UL, LL or ULL")
        digits, _, power = text.replace("_", "").lower().partition("e") if text[:2].lower() != "0x" else (text, "", "")
        where = self._place(self._at, suffix.end())
        if len(digits) > 24 or len(power) > 2 or (power and int(power) > 16):
            raise wrong("the number does not fit into 64 bits", where)
        octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0" and not power
        if octal and set(digits) - set("01234567"):
            raise wrong(f"'{text}' is no octal number", where, "a number that begins with 0 is octal")
        value = int(digits, 16 if digits[:2].lower() == "0x" else 8 if octal else 10) * 10 ** int(power or 0)
        if value >> 64:
            raise wrong("the number does not fit into 64 bits", where)
        return replace(self._take(Kind.NUMBER, suffix.end()), value=value)

    def _string(self) -> Token:
        text, at = self._text, self._at + 1
        data = bytearray()
        while at < len(text) and text[at] != '"':
            if text[at] != "\\":
                data += text[at].encode("utf-8", "surrogateescape")
                at += 1
                continue
            found = _ESCAPE.match(text, at)
            value = -1 if found is None else _escaped(found)
            if found is None or value > 255:
                hint = r"\n, \t, \r, \", \\, \x7f"
                raise wrong(f"'{text[at : at + 2]}' is no character", self._place(at, at + 2), hint)
            data.append(value)
            at = found.end()
        if at >= len(text):
            raise wrong("the string is never closed", self._place(self._at, self._at + 1))
        return replace(self._take(Kind.STRING, at + 1), data=bytes(data))

    def _macro(self, token: Token, depth: int = 0) -> list[Token]:
        """Return the tokens that replace one: itself, unless it is the name of a macro."""
        if token.kind is not Kind.NAME or token.text not in self._macros or self._macros[token.text] == token.text:
            return [token]
        if depth == DEEPEST_MACRO:
            raise wrong(f"the macro '{token.text}' is defined by itself", token.where)
        inner = _Lexer((Line(self._macros[token.text], 0),), {})
        inner._boundary = False
        expanded = (replace(each, where=token.where) for each in inner.all()[:-1])
        return [part for each in expanded for part in self._macro(each, depth + 1)]


def _escaped(found: re.Match[str]) -> int:
    simple, octal, digits = found.groups()
    return _SIMPLE[simple] if simple else int(octal, 8) if octal else int(digits, 16)
