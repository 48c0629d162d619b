"""Parse the tokens of a script to a tree: the language of bpftrace 0.23, and what 0.17 wrote otherwise.

Expressions are C's, by precedence climbing; `(x) -1` is a difference unless x can only be a type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ctype import OWN, QUALIFIERS, TYPEDEFS, WORDS, spelling
from gdb_optprobe.handlers.script import tree
from gdb_optprobe.handlers.script.lexer import TAGGED, Kind, Token
from gdb_optprobe.handlers.script.place import Place, span, wrong
from gdb_optprobe.handlers.script.types import NAMED

DEEPEST = 60
MOST_POINTERS = 12
BINARY = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
"""Operators with two operands, those that bind weakest first."""
_PRECEDENCE = {op: level for level, ops in enumerate(BINARY) for op in ops}
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
_BEGINS_OPERAND = (Kind.NUMBER, Kind.STRING, Kind.NAME, Kind.VARIABLE, Kind.PARAMETER, Kind.MAP)
_JUMPS = ("break", "continue", "return")


def parse(tokens: Sequence[Token], parameters: Sequence[str], is_value: Callable[[str], bool]) -> tree.Script:
    """Return the tree of a script. Raises OptprobeError, pointing.

    parameters: the values of `$1`, … in attach points. is_value: whether a name is a built-in variable, so no type.
    """
    return _Parser(tokens, parameters, is_value).script()


class _Parser:
    def __init__(self, tokens: Sequence[Token], parameters: Sequence[str], is_value: Callable[[str], bool]) -> None:
        self._tokens = tokens
        self._parameters = parameters
        self._is_value = is_value
        self._at = self._depth = 0

    # tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _ahead(self, count: int) -> Token:
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def _sees(self, text: str, ahead: int = 0) -> bool:
        token = self._ahead(ahead) if ahead else self._next
        return token.text == text and token.kind in (Kind.PUNCTUATOR, Kind.NAME)

    def _take(self) -> Token:
        token = self._next
        self._at += token.kind is not Kind.END
        return token

    def _skip(self, text: str) -> bool:
        found = self._sees(text)
        self._at += found
        return found

    def _expect(self, text: str, opened: Place | None = None) -> Place:
        if self._sees(text):
            return self._take().where
        if self._next.kind is Kind.END and opened is not None:
            raise wrong(f"'{opened.text}' is never closed", opened)
        raise wrong(f"'{text}' is missing before {self._next}", self._next.where)

    def _name(self, what: str) -> Token:
        if self._next.kind is not Kind.NAME:
            raise wrong(f"{what} is missing before {self._next}", self._next.where)
        return self._take()

    # the script

    def script(self) -> tree.Script:
        definitions: list[tree.Definition] = []
        settings: list[tree.Setting] = []
        probes: list[tree.Probe] = []
        while self._next.kind is not Kind.END:
            token = self._next
            if self._skip(";"):
                continue
            if token.kind is Kind.NAME and token.text in TAGGED:
                definitions.append(self._definition())
            elif token.kind is Kind.NAME and token.text == "config":
                if settings or probes:
                    raise wrong("'config' must be before all probes, once", token.where)
                settings += self._config()
            elif token.kind is Kind.NAME and token.text == "fn":
                raise wrong("functions of a script are not supported", token.where, "they are bpftrace's experiment")
            elif token.kind is Kind.POINT:
                probes.append(self._probe())
            else:
                raise wrong(f"a probe is missing before {token}", token.where, "kprobe:vfs_read { … }")
        if not probes:
            raise wrong("the script has no probe", self._next.where, "BEGIN { … }, kprobe:vfs_read { … }")
        return tree.Script(tuple(definitions), tuple(settings), tuple(probes))

    def _config(self) -> list[tree.Setting]:
        self._take()
        self._expect("=")
        opened = self._expect("{")
        found = []
        while not self._sees("}"):
            name = self._name("a setting")
            self._expect("=")
            token = self._take()
            if token.kind not in (Kind.NUMBER, Kind.NAME, Kind.STRING):
                raise wrong(f"a value is missing before {token}", token.where)
            value: int | str = token.value if token.kind is Kind.NUMBER else token.text.strip('"')
            found.append(tree.Setting(span(name.where, token.where), name.text, value))
            if not self._skip(";"):
                break
        self._expect("}", opened)
        return found

    def _probe(self) -> tree.Probe:
        start = self._next.where
        points = [self._point()]
        while self._skip(","):
            points.append(self._point())
        predicate = None
        if self._next.kind is Kind.PREDICATE:
            opened = self._take().where
            predicate = self._expression()
            last = self._take()
            if last.kind is Kind.END:
                raise wrong("the predicate is never closed", opened)
            if last.kind is not Kind.PREDICATE_END:
                raise wrong(f"{last} is not expected here", last.where, "a predicate ends with '/ {'")
        if self._next.kind is Kind.END:
            raise wrong("the probe has no body", start, "kprobe:vfs_read { … }")
        return tree.Probe(span(start, points[-1].where), tuple(points), predicate, self._block())

    def _point(self) -> tree.Point:
        token = self._take()
        if token.kind is not Kind.POINT:
            hint = "kprobe:vfs_read, tracepoint:SYS:EVENT"
            raise wrong(f"an attach point is missing before {token}", token.where, hint)
        text = token.text
        for number in range(9, 0, -1):
            given = self._parameters[number - 1] if number <= len(self._parameters) else ""
            text = text.replace(f"${number}", given)
        return tree.Point(token.where, text)

    # definitions

    def _definition(self) -> tree.Definition:
        keyword = self._take()
        name = self._take().text if self._next.kind is Kind.NAME else ""
        opened = self._expect("{")
        if keyword.text == "enum":
            enumerators: list[tuple[str, int]] = []
            while not self._sees("}"):
                label = self._name("an enumerator").text
                value = enumerators[-1][1] + 1 if enumerators else 0
                if self._skip("="):
                    value = self._whole_number()
                enumerators.append((label, value))
                if not self._skip(","):
                    break
            self._expect("}", opened)
            return tree.Definition(keyword.where, "enum", name, enumerators=tuple(enumerators))
        members: list[tree.MemberDeclaration] = []
        while not self._sees("}"):
            members += self._members()
        self._expect("}", opened)
        return tree.Definition(keyword.where, keyword.text, name, tuple(members))

    def _members(self) -> list[tree.MemberDeclaration]:
        """Parse `unsigned int a:4, *b, c[2];`, or a struct within a struct."""
        inner = None
        if self._next.text in TAGGED and (self._sees("{", 1) or self._sees("{", 2)):
            where = self._next.where
            inner = self._definition()
            base = tree.TypeName(where, inner.keyword, inner.name)
        else:
            base = self._base_type()
        found = []
        while not self._sees(";") and not self._sees("}"):
            pointers = self._stars()
            label = self._name("a member's name")
            counts = []
            while self._skip("["):
                counts.append(0 if self._sees("]") else self._whole_number())
                self._expect("]")
            bits = self._whole_number() if self._skip(":") else None
            type_ = replace(base, pointers=base.pointers + pointers)
            found.append(tree.MemberDeclaration(label.where, label.text, type_, tuple(counts), bits, inner))
            if not self._skip(","):
                break
        if not found and inner is not None:
            found.append(tree.MemberDeclaration(inner.where, "", base, inner=inner))
        if not self._sees("}"):
            self._expect(";")
        return found

    def _whole_number(self) -> int:
        minus = self._skip("-")
        token = self._take()
        if token.kind is not Kind.NUMBER:
            raise wrong(f"a number is missing before {token}", token.where)
        return -token.value if minus else token.value

    # types

    def _base_type(self) -> tree.TypeName:
        """Parse a type without the stars behind it."""
        start = self._next.where
        words: list[str] = []
        keyword = name = ""
        while self._next.kind is Kind.NAME:
            text = self._next.text
            if text in TAGGED and not words and not name:
                keyword, name = self._take().text, self._name(f"a name after '{text}'").text
            elif text in QUALIFIERS:
                self._take()
            elif text in WORDS and not name:
                words.append(self._take().text)
            elif not words and not name:
                name = self._take().text
            else:
                break
        where = span(start, self._tokens[self._at - 1].where)
        if words:
            name = spelling(words, where)
        if not name:
            raise wrong(f"a type is missing before {self._next}", self._next.where)
        return tree.TypeName(where, keyword, name)

    def _stars(self) -> int:
        count = 0
        while self._sees("*") or (self._next.kind is Kind.NAME and self._next.text in QUALIFIERS):
            count += self._take().text == "*"
            if count > MOST_POINTERS:
                raise wrong("too many pointers to pointers", self._next.where, f"at most {MOST_POINTERS}")
        return count

    def _type(self) -> tree.TypeName:
        base = self._base_type()
        pointers, count = self._stars(), None
        if self._skip("["):
            count = 0 if self._sees("]") else self._whole_number()
            self._expect("]")
        return replace(base, where=span(base.where, self._tokens[self._at - 1].where), pointers=pointers, count=count)

    def _type_follows(self, ahead: int) -> bool:
        """Return whether a type in parentheses follows: its first word, or a name that can be nothing else."""
        token = self._ahead(ahead)
        if token.kind is not Kind.NAME:
            return False
        text = token.text
        if text in TAGGED or text in QUALIFIERS or text in NAMED or text in WORDS:
            return True
        if self._is_value(text):
            return False
        stars = 0
        while self._sees("*", ahead + 1 + stars):
            stars += 1
        if not self._sees(")", ahead + 1 + stars):
            return False
        behind = self._ahead(ahead + 2 + stars)
        return bool(stars) or text in TYPEDEFS or text in OWN or behind.kind in _BEGINS_OPERAND

    # statements

    def _block(self) -> tuple[tree.Statement, ...]:
        opened = self._expect("{")
        self._deeper(opened)
        found: list[tree.Statement] = []
        while not self._sees("}"):
            if self._skip(";"):
                continue
            if self._ahead(0).kind is Kind.END:
                raise self._no_semicolon(opened)
            statement = self._statement()
            found.append(statement)
            closed = isinstance(statement, tree.If | tree.While | tree.Unroll | tree.For | tree.Block)
            if not self._skip(";") and not closed and not self._sees("}"):
                raise self._no_semicolon(opened)
        self._depth -= 1
        self._expect("}", opened)
        return tuple(found)

    def _no_semicolon(self, opened: Place) -> OptprobeError:
        token = self._next
        if token.kind is Kind.END:
            return wrong("'{' is never closed", opened)
        if token.text in _ASSIGNS:
            return wrong("only a variable or a map can be assigned to", token.where, "$x = …, @m[key] = …")
        return wrong(f"{token} is not expected here", token.where, "a ';' or an operator may be missing before it")

    def _statement(self) -> tree.Statement:
        token = self._next
        if self._sees("{"):
            return tree.Block(token.where, self._block())
        if token.kind is Kind.NAME and not self._sees("(", 1) and token.text in _JUMPS:
            self._take()
            if token.text == "return" and not self._sees(";") and not self._sees("}"):
                raise wrong("a probe returns no value", self._next.where)
            return tree.Jump(token.where, token.text)
        if token.kind is Kind.NAME:
            match token.text:
                case "if":
                    return self._if()
                case "while":
                    self._take()
                    condition = self._in_parentheses()
                    return tree.While(token.where, condition, self._block())
                case "unroll":
                    self._take()
                    times = self._in_parentheses()
                    where = span(token.where, self._tokens[self._at - 1].where)
                    return tree.Unroll(where, times, self._block())
                case "for":
                    return self._for()
                case "let":
                    return self._let()
        value = self._expression()
        sign = self._next
        if sign.kind is not Kind.PUNCTUATOR or sign.text not in _ASSIGNS:
            return tree.Evaluate(value.where, value)
        self._take()
        if isinstance(value, tree.Element):
            raise wrong("the parts of a tuple cannot be changed", value.where, "assign a new tuple")
        if not isinstance(value, tree.Map | tree.Variable):
            raise wrong("only a variable or a map can be assigned to", value.where, "$x = …, @m[key] = …")
        given = self._expression()
        where = span(value.where, given.where)
        if sign.text != "=":
            given = tree.Binary(where, sign.text[:-1], value, given, sign.where)
        return tree.Assign(where, value, given)

    def _in_parentheses(self) -> tree.Expression:
        opened = self._expect("(")
        found = self._expression()
        self._expect(")", opened)
        return found

    def _if(self) -> tree.If:
        where = self._take().where
        self._deeper(where)
        condition = self._in_parentheses()
        yes = self._block()
        no: tuple[tree.Statement, ...] = ()
        if self._skip("else"):
            no = (self._if(),) if self._sees("if") else self._block()
        self._depth -= 1
        return tree.If(where, condition, yes, no)

    def _for(self) -> tree.For:
        where = self._take().where
        opened = self._expect("(")
        variable = self._variable()
        self._expect(":")
        found = self._expression()
        if self._sees(".."):
            raise wrong("a range is not supported", self._next.where, "bpftrace has it from 0.24; while ($i < n) { … }")
        self._expect(")", opened)
        if not isinstance(found, tree.Map):
            raise wrong("the loop's expression must be a map", found.where, "for ($kv : @m) { … }")
        return tree.For(where, variable, found, self._block())

    def _variable(self) -> tree.Variable:
        token = self._take()
        if token.kind is not Kind.VARIABLE:
            raise wrong(f"a variable is missing before {token}", token.where, "$x")
        return tree.Variable(token.where, token.text)

    def _let(self) -> tree.Statement:
        where = self._take().where
        variable = self._variable()
        type_ = self._type() if self._skip(":") else None
        if not self._skip("="):
            return tree.Declare(span(where, variable.where), variable, type_)
        value = self._expression()
        return tree.Assign(span(where, value.where), variable, value, True, type_)

    # expressions

    def _deeper(self, where: Place) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise wrong("the script is nested too deeply", where, f"at most {DEEPEST} levels")

    def _expression(self) -> tree.Expression:
        self._deeper(self._next.where)
        found = self._binary(0)
        if self._skip("?"):
            yes = self._expression()
            self._expect(":")
            no = self._expression()
            found = tree.Conditional(span(found.where, no.where), found, yes, no)
        self._depth -= 1
        return found

    def _binary(self, level: int) -> tree.Expression:
        left = self._unary()
        length = 0
        while self._next.kind is Kind.PUNCTUATOR and (found := _PRECEDENCE.get(self._next.text, -1)) >= level:
            sign = self._take()
            right = self._binary(found + 1)
            left = tree.Binary(span(left.where, right.where), sign.text, left, right, sign.where)
            length += 1
            if length > DEEPEST:
                raise wrong("the expression is too long", left.where, f"at most {DEEPEST} operators in a row")
        return left

    def _unary(self) -> tree.Expression:
        token = self._next
        self._deeper(token.where)
        found: tree.Expression
        if token.kind is Kind.PUNCTUATOR and token.text in ("++", "--"):
            self._take()
            target = self._postfix()
            found = self._step(token, target, span(token.where, target.where), post=False)
        elif self._sees("-") and self._ahead(1).kind is Kind.NUMBER:
            self._take()
            number = self._take()
            value = tree.Number(span(token.where, number.where), -number.value, negative=True)
            found = self._behind(value)
        elif token.kind is Kind.PUNCTUATOR and token.text in ("-", "!", "~", "*", "+", "&"):
            self._take()
            if token.text in "+&":
                raise wrong(f"'{token.text}' has no operand before it", token.where)
            value_ = self._unary()
            found = tree.Unary(span(token.where, value_.where), token.text, value_)
        elif self._sees("(") and self._type_follows(1):
            opened = self._take().where
            type_ = self._type()
            self._expect(")", opened)
            value_ = self._unary()
            found = tree.Cast(span(opened, value_.where), type_, value_)
        else:
            found = self._postfix()
        self._depth -= 1
        return found

    def _step(self, sign: Token, target: tree.Expression, where: Place, post: bool) -> tree.Step:
        if not isinstance(target, tree.Map | tree.Variable):
            raise wrong(f"'{sign.text}' takes a map or a variable", target.where, "@m++, $x--")
        return tree.Step(where, target, 1 if sign.text == "++" else -1, post)

    def _postfix(self) -> tree.Expression:
        return self._behind(self._primary())

    def _behind(self, found: tree.Expression) -> tree.Expression:
        while self._next.kind is Kind.PUNCTUATOR:
            token = self._next
            if self._skip("["):
                index = self._expression()
                found = tree.Index(span(found.where, self._expect("]", token.where)), found, index)
            elif token.text in (".", "->"):
                self._take()
                part = self._take()
                where = span(found.where, part.where)
                if part.kind is Kind.NUMBER and token.text == ".":
                    found = tree.Element(where, found, part.value)
                elif part.kind is Kind.NAME:
                    found = tree.Member(where, found, part.text, token.text == "->")
                else:
                    raise wrong(f"a member's name is missing before {part}", part.where)
            elif token.text in ("++", "--"):
                self._take()
                found = self._step(token, found, span(found.where, token.where), post=True)
            else:
                break
        return found

    def _primary(self) -> tree.Expression:
        token = self._take()
        where = token.where
        match token.kind:
            case Kind.NUMBER:
                return tree.Number(where, token.value)
            case Kind.STRING:
                return tree.String(where, token.data)
            case Kind.PARAMETER:
                return tree.Parameter(where, 0 if token.text == "$#" else self._number_of(token))
            case Kind.VARIABLE:
                return tree.Variable(where, token.text)
            case Kind.MAP:
                if not self._sees("["):
                    return tree.Map(where, token.text)
                opened = self._take().where
                keys = self._expressions()
                whole = span(where, self._expect("]", opened))
                return tree.Map(whole, token.text, keys[0] if len(keys) == 1 else tree.Tuple(whole, keys))
            case Kind.NAME:
                return self._named(token)
        if token.text == "(":
            items = self._expressions()
            closed = self._expect(")", where)
            return items[0] if len(items) == 1 else tree.Tuple(span(where, closed), items)
        raise wrong(f"an expression is missing before {token}", where)

    def _number_of(self, token: Token) -> int:
        digits = token.text[1:]
        if len(digits) > 4 or not int(digits):
            raise wrong(f"{token.text} is no parameter", token.where, "they are $1, $2, …")
        return int(digits)

    def _expressions(self) -> tuple[tree.Expression, ...]:
        found = [self._expression()]
        while self._skip(","):
            found.append(self._expression())
        return tuple(found)

    def _named(self, token: Token) -> tree.Expression:
        if token.text in ("sizeof", "offsetof") and self._sees("("):
            opened = self._take().where
            thing = self._type() if self._type_follows(0) else self._expression()
            members: list[str] = []
            if token.text == "offsetof":
                self._expect(",")
                members.append(self._name("a member's name").text)
                while self._skip("."):
                    members.append(self._name("a member's name").text)
            where = span(token.where, self._expect(")", opened))
            return tree.OffsetOf(where, thing, tuple(members)) if members else tree.SizeOf(where, thing)
        if self._sees("("):
            opened = self._take().where
            arguments = () if self._sees(")") else self._expressions()
            return tree.Call(span(token.where, self._expect(")", opened)), token.text, arguments)
        if token.text in WORDS or token.text in TAGGED:
            hint = f"a cast is written ({token.text} …)$x"
            raise wrong(f"the type '{token.text}' is not expected here", token.where, hint)
        return tree.Name(token.where, token.text)
