"""Parse tokens to a tree: expressions of C, without assignments and calls.

By precedence climbing, ISO C17 6.5. `(x) * y` is a cast if x is a type, else a product: `is_type` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ctype import QUALIFIERS, TAGGED, WORDS, spelling
from gdb_optprobe.handlers.lexer import Kind, Token, tokens
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.handlers.syntax import (
    Binary,
    Cast,
    Character,
    Conditional,
    Dollar,
    Expression,
    Index,
    Member,
    Name,
    Number,
    PerCpu,
    SizeOf,
    Str,
    String,
    TypeName,
    Unary,
    inner,
)

IsType = Callable[[str], bool]

DEEPEST = 100
MOST_POINTERS = 12  # declarators that C asks for, 5.2.4.1
BINARY = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
"""Operators with two operands, those that bind weakest first."""
UNARY = ("+", "-", "!", "~", "*", "&")
FUNCTIONS = {
    "str": ("str(p)", "the string at `p`, up to its 0 byte: a key, a value of a record, or compared with a literal"),
    "$percpu": ("$percpu(x)", "this CPU's copy of the per-CPU variable `x`"),
}
"""By their names, how each is written and what it means."""
_PRECEDENCE = {op: level for level, ops in enumerate(BINARY) for op in ops}
_CHANGES = ("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--")
_OPERANDS = (Kind.NAME, Kind.DOLLAR, Kind.NUMBER, Kind.CHARACTER, Kind.STRING)


def parse_expression(part: Fragment, is_type: IsType) -> Expression:
    """Parse all of `part`. Raises OptprobeError, pointing."""
    parser = Parser(part, is_type)
    found = parser.expression()
    parser.end()
    return found


def parse_type_or_expression(part: Fragment, is_type: IsType) -> TypeName | Expression:
    """Parse a type, as in a cast, or an expression. Raises OptprobeError, pointing."""
    parser = Parser(part, is_type)
    found = parser.type_name() if parser.sees_type() else parser.expression()
    parser.end()
    return found


class Parser:
    """The tokens of a fragment, and the position of the next one."""

    def __init__(self, part: Fragment, is_type: IsType) -> None:
        self.tokens = tokens(part)
        self.at = 0
        self.next = self.tokens[0]
        self._is_type = is_type
        self._depth = 0

    def sees(self, text: str, ahead: int = 0) -> bool:
        """Return whether `text`, a punctuator or a word, is the next token, or so many after that."""
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return token.kind in (Kind.PUNCTUATOR, Kind.NAME) and token.text == text

    def take(self) -> Token:
        """Take the next token."""
        token = self.next
        self.at += token.kind is not Kind.END
        self.next = self.tokens[self.at]
        return token

    def expect(self, text: str, opened: Fragment) -> Fragment:
        """Take `text`, which closes or continues what `opened` began."""
        if self.sees(text):
            return self.take().where
        if self.next.kind is Kind.END and text in ")]":
            raise fault(f"'{opened.text}' is never closed", opened)
        raise self.unexpected(f"'{text}' is missing before {self.next}")

    def end(self, hint: str = "an operator may be missing before it") -> None:
        """Check that nothing follows."""
        if self.next.kind is not Kind.END:
            raise self.unexpected(f"{self.next} is not expected here", hint)

    def expression(self) -> Expression:
        """Parse `e` or `c ? a : b`."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _too_deep(self.next.where)
        found = self._binary(0)
        if self.sees("?"):
            question = self.take().where
            yes = self.expression()
            self.expect(":", question)
            no = self.expression()
            found = Conditional(_from(found.where, no.where), found, yes, no)
        self._depth -= 1
        if not self._depth:
            _check_depth(found)
        return found

    def unexpected(self, message: str, hint: str = "") -> OptprobeError:
        """Return an error at the next token, with a better message for what C has and this language has not."""
        token = self.next
        if token.kind is Kind.PUNCTUATOR:
            if token.text == "=":
                return fault("an expression assigns nothing", token.where, "did you mean '=='?")
            if token.text in _CHANGES:
                return fault(f"an expression changes nothing: '{token.text}'", token.where)
            if token.text == "{":
                return fault("'{TYPE} ADDRESS' is not supported", token.where, "write *(TYPE *)ADDRESS")
            if token.text == "@":
                return fault("'@' is not supported", token.where, "record(a[0], a[1]) takes several")
        return fault(message, token.where, hint)

    def _binary(self, level: int) -> Expression:
        left = self._unary()
        while self.next.kind is Kind.PUNCTUATOR and (found := _PRECEDENCE.get(self.next.text, -1)) >= level:
            sign = self.take()
            right = self._binary(found + 1)
            left = Binary(_from(left.where, right.where), sign.text, left, right, sign.where)
        return left

    def _unary(self) -> Expression:
        self._depth += 1
        if self._depth > DEEPEST:
            raise _too_deep(self.next.where)
        start = self.next.where
        found: Expression
        if self.next.kind is Kind.PUNCTUATOR and self.next.text in UNARY:
            op = self.take().text
            value = self._unary()
            found = Unary(_from(start, value.where), op, value)
        elif self.sees("sizeof"):
            self.take()
            if self.sees("(") and self._type_follows(1):
                opened = self.take().where
                type_ = self.type_name()
                found = SizeOf(_from(start, self.expect(")", opened)), type_)
            else:
                value = self._unary()
                found = SizeOf(_from(start, value.where), value)
        elif self.sees("(") and self._type_follows(1):
            opened = self.take().where
            type_ = self.type_name()
            self.expect(")", opened)
            value = self._unary()
            found = Cast(_from(start, value.where), type_, value)
        else:
            found = self._postfix()
        self._depth -= 1
        return found

    def _postfix(self) -> Expression:
        found = self._primary()
        while True:
            if self.sees("[") and self.next.kind is Kind.PUNCTUATOR:
                opened = self.take().where
                index = self.expression()
                found = Index(_from(found.where, self.expect("]", opened)), found, index)
            elif self.sees("->") or self.sees("."):
                arrow = self.take().text == "->"
                if self.next.kind is not Kind.NAME:
                    raise self.unexpected(f"a member's name is missing before {self.next}")
                name = self.take().where
                found = Member(_from(found.where, name), found, name, arrow)
            elif self.sees("("):
                raise fault("functions cannot be called", found.where, "str(p) and $percpu(x) are the only ones")
            else:
                return found

    def _primary(self) -> Expression:
        token = self.next
        if token.kind is Kind.PUNCTUATOR and token.text == "(":
            opened = self.take().where
            found = self.expression()
            return replace(found, where=_from(opened, self.expect(")", opened)))
        if token.kind not in _OPERANDS:
            raise self.unexpected(f"an expression is missing before {token}")
        self.take()
        where = token.where
        match token.kind:
            case Kind.NUMBER:
                return Number(where, token.value, token.suffix, token.decimal)
            case Kind.CHARACTER:
                return Character(where, token.value)
            case Kind.STRING:
                return String(where, token.data)
        if token.text in FUNCTIONS and self.sees("("):
            opened = self.take().where
            thing = self.expression()
            whole = _from(where, self.expect(")", opened))
            return Str(whole, thing) if token.kind is Kind.NAME else PerCpu(whole, thing)
        if token.kind is Kind.DOLLAR:
            return Dollar(where, token.text[1:])
        if token.text in WORDS or token.text in TAGGED:
            raise fault(f"the type '{token.text}' is not expected here", where, f"a cast is written ({token.text} …)x")
        return Name(where, token.text)

    def _type_follows(self, ahead: int) -> bool:
        """Return whether a type follows a parenthesis: its first word, or a name that can be nothing else."""
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        if token.kind is not Kind.NAME or token.text == "sizeof":
            return False
        if token.text in WORDS or token.text in TAGGED or token.text in QUALIFIERS or self._is_type(token.text):
            return True
        stars = 0
        while self.sees("*", ahead + 1 + stars):
            stars += 1
        if not self.sees(")", ahead + 1 + stars):
            return False
        behind = self.tokens[min(self.at + ahead + 2 + stars, len(self.tokens) - 1)]
        is_by = behind.kind is Kind.NAME and behind.text == "by"
        return bool(stars) or (behind.kind in _OPERANDS and not is_by)

    def sees_type(self) -> bool:
        """Return whether a type is next."""
        text, named = self.next.text, self.next.kind is Kind.NAME
        return named and (text in WORDS or text in TAGGED or text in QUALIFIERS or self._is_type(text))

    def type_name(self) -> TypeName:
        """Parse a type, without parentheses around it."""
        start = self.next.where
        words: list[str] = []
        keyword = name = ""
        while self.next.kind is Kind.NAME:
            text = self.next.text
            if text in TAGGED and not words and not name:
                keyword = self.take().text
                if self.next.kind is not Kind.NAME:
                    raise self.unexpected(f"a name is missing after '{keyword}'")
                name = self.take().text
            elif text in WORDS and not name:
                words.append(self.take().text)
            elif text in QUALIFIERS:
                self.take()
            elif not words and not name:
                name = self.take().text
            else:
                raise self.unexpected(f"{self.next} is not expected in a type")
        where = _from(start, self.tokens[self.at - 1].where)
        if words:
            name = spelling(words, where)
        if not name:
            raise self.unexpected(f"a type is missing before {self.next}")
        pointers = 0
        while self.sees("*") or self.next.text in QUALIFIERS:
            pointers += self.sees("*")
            if pointers > MOST_POINTERS:
                raise fault("too many pointers to pointers", self.next.where, f"at most {MOST_POINTERS}")
            self.take()
        if self.sees("(") or self.sees("["):
            raise fault("types of arrays and functions are not supported", self.next.where, "use a pointer: (void *)")
        return TypeName(_from(start, self.tokens[self.at - 1].where), keyword, name, pointers)


def _from(first: Fragment, last: Fragment) -> Fragment:
    return Fragment(first.line, first.start, last.end)


def _check_depth(found: Expression) -> None:
    """Refuse a tree that is too deep for later passes, which recurse: `a + a + a …` is as deep as it is long."""
    level: tuple[Expression, ...] = (found,)
    for _ in range(DEEPEST):
        level = tuple(below for node in level for below in inner(node))
        if not level:
            return
    raise _too_deep(level[0].where)


def _too_deep(where: Fragment) -> OptprobeError:
    return fault("the program is too large", where, f"at most {DEEPEST} operations on top of each other")
