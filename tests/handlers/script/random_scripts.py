"""Random scripts. A seed names one; nearly all compile. What fails is made smaller, statement by statement.

    statements are texts, or a head with blocks:   "$a = 1;"   Nest("if ($a)", ("@x++;",), ("@y++;",))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
EDGES = (
    *("0", "1", "2", "3", "5", "7", "-1", "-2", "-7", "10", "100", "0x7f", "0x80", "0xff", "0x7fff", "0x8000"),
    *("0xffff", "0x7fffffff", "0x80000000", "0xffffffff", "0x7fffffffffffffff", "18446744073709551615", "1e6"),
)
ARITHMETIC = ("+", "-", "*", "&", "|", "^")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "&&", "||")
TEXTS = ("abc", "abd", "xyz")
"""Of one length, for `?`: bpftrace 0.23 takes two of different ones, and then its program is not loaded."""
WORDS = ("", "a", "hello", "abcdefg", "abcdefgh", "abcdefghi")
KEYS = ("", "", "i", "i", "t", "ii", "it")
"""By letter: an integer, a text."""
AGGREGATES = ("count", "sum", "min", "max", "avg", "stats")
HISTOGRAMS = ("hist", "hist2", "lhist")
READABLE = ("count", "sum", "min", "max", "avg")
KINDS = ("int", "int", "int", "text", "tuple", *AGGREGATES, *HISTOGRAMS)
LARGE = 16
"""One script in so many is large: most failures need little, and small ones take little time."""


@dataclass(frozen=True)
class Dialect:
    """What scripts may use.

    inputs:  expressions of numbers that no compiler knows. addresses: those that lead to texts.
    defined: what bpftrace 0.23 does otherwise, or as LLVM likes it, is left out: a division by 0, a shift by more bits
        than there are, a comparison as a number (it is -1 there, or 1), arithmetic on less than 64 bits, `++` of such a
        number in a tuple (the sign is lost), `?` with sides that are more than a word (it crashes), a map whose first
        value in the text does not tell its type, and whether a histogram has a key (it looks for one without a bucket).
    ends:    `return` is there.
    """

    inputs: Sequence[str]
    addresses: Sequence[str] = ()
    defined: bool = False
    ends: bool = True


@dataclass(frozen=True)
class Nest:
    head: str
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] | None = None


Statement = str | Nest


@dataclass(frozen=True)
class Map:
    """kind: of KINDS. key: of KEYS. signed: what an aggregate takes is."""

    name: str
    kind: str
    key: str
    signed: bool


def written(statements: Sequence[Statement]) -> str:
    """Return statements as text, on one line."""
    return " ".join(map(_written, statements))


def _written(one: Statement) -> str:
    if isinstance(one, str):
        return one
    otherwise = "" if one.otherwise is None else f" else {{ {written(one.otherwise)} }}"
    return f"{one.head} {{ {written(one.body)} }}{otherwise}"


def made(seed: int, dialect: Dialect, prefix: str = "") -> tuple[Statement, ...]:
    """Return the script of a seed, as the statements of a block. prefix: of all names."""
    return tuple(_Script(random.Random(seed), dialect, prefix).all())


def smaller(
    statements: tuple[Statement, ...], fails: Callable[[tuple[Statement, ...]], bool]
) -> tuple[Statement, ...]:
    """Return statements that fail too, and of which none can be left out."""
    while found := next((each for each in _simpler(statements) if fails(each)), None):
        statements = found
    return statements


def _simpler(statements: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    for at, one in enumerate(statements):
        before, behind = statements[:at], statements[at + 1 :]
        yield before + behind
        if isinstance(one, Nest):
            yield (*before, *one.body, *behind)
            yield (*before, *(one.otherwise or ()), *behind)
            if one.otherwise is not None:
                yield (*before, replace(one, otherwise=None), *behind)
            yield from ((*before, replace(one, body=body), *behind) for body in _simpler(one.body))
            for body in _simpler(one.otherwise or ()):
                yield (*before, replace(one, otherwise=body), *behind)


@dataclass
class _Script:
    """scopes: the variables of each block, by name: their type, `text` or an integer's."""

    chosen: random.Random
    dialect: Dialect
    prefix: str
    scopes: list[dict[str, str]] = field(default_factory=lambda: [{}])
    loops: int = 0
    names: int = 0
    depth: int = 1

    def all(self) -> Iterator[Statement]:
        self.depth = 1 if self.chosen.randrange(LARGE) else 3
        self.maps = [self._map(number) for number in range(self.chosen.randrange(1, 2 + self.depth // 2))]
        if self.dialect.defined or self.chosen.random() < 0.5:
            maps, self.maps = self.maps, []
            for map_ in maps:
                yield self._put_into(map_, last=True)
                self.maps.append(map_)
        yield from self._given()
        for _ in range(self.chosen.randrange(1, 2 + self.depth)):
            yield from self._statement(self.depth)
        yield from self._shown()

    def _map(self, number: int) -> Map:
        kind = self.chosen.choice(KINDS)
        return Map(f"@{self.prefix}m{number}", kind, self.chosen.choice(KEYS), self.chosen.random() < 0.5)

    def _some(self, *parts: str) -> str:
        return self.chosen.choice(parts)

    # variables

    def _variables(self, text: bool) -> list[str]:
        return [name for scope in self.scopes for name, type_ in scope.items() if (type_ == "text") == text]

    def _type(self, name: str) -> str:
        return next(scope[name] for scope in self.scopes if name in scope)

    def _new(self, type_: str) -> str:
        name = f"${self.prefix}v{self.names}"
        self.names += 1
        self.scopes[-1][name] = type_
        return name

    def _given(self) -> Iterator[str]:
        """A number and a text, for what follows."""
        type_, value = self.chosen.choice(INTEGERS), self.number(1)
        yield f"{self._new(type_)} = ({type_}){value};"
        if self.chosen.random() < 0.5:
            value = self.text(1)
            yield f"{self._new('text')} = {value};"

    # expressions

    def number(self, depth: int) -> str:
        """Return a number of any type, in parentheses where that needs them."""
        if depth == 0 or self.chosen.random() < 0.2:
            return self._leaf()
        left, right = self.number(depth - 1), self.number(depth - 1)
        match self.chosen.randrange(14):
            case 0 | 1 | 2 | 3:
                return f"({self._whole(left)} {self._some(*ARITHMETIC)} {self._whole(right)})"
            case 4:
                return self._divided(left, right)
            case 5:
                return self._shifted(left, right)
            case 6 | 7:
                return self._decided(f"{left} {self._some(*COMPARISONS)} {right}")
            case 8:
                sign = self._some("-", "~", "!")
                return self._decided(f"!{left}") if sign == "!" else f"({sign}{self._whole(left)})"
            case 9 | 10:
                return f"(({self._some(*INTEGERS)}){left})"
            case 11:
                type_ = self._some("int64", "uint64")
                if self.dialect.defined:
                    left, right = self._plain(), self._plain()
                return f"({self.number(depth - 1)} ? ({type_}){left} : ({type_}){right})"
            case 12:
                return self._of_texts(depth - 1)
            case _:
                return self._called(left)

    def _whole(self, value: str) -> str:
        return f"(({self._some('int64', 'uint64')}){value})" if self.dialect.defined else value

    def _decided(self, condition: str) -> str:
        return f"({condition} ? 1 : 0)" if self.dialect.defined else f"({condition})"

    def _plain(self) -> str:
        return self._some(*self._variables(text=False), f"({self._some(*EDGES)})")

    def _leaf(self) -> str:
        kind = self.chosen.randrange(8)
        variables = self._variables(text=False)
        if kind < 3 and variables:
            return self._some(*variables)
        if kind == 3 and variables:
            name = self._some(*variables)
            return self._some(f"{name}++", f"{name}--", f"++{name}", f"--{name}").join("()")
        if kind in (4, 5):
            return f"({self._some(*self.dialect.inputs)})"
        if kind == 6 and (found := self._read()):
            return found
        return f"({self._some(*EDGES)})"

    def _read(self) -> str:
        """Return what a map has, as a number; "" where there is none."""
        if not self.maps:
            return ""
        map_ = self.chosen.choice(self.maps)
        place = f"{map_.name}{self._key(map_)}"
        kind = self.chosen.randrange(4)
        if kind == 0 and map_.key and self._has_whole_keys(map_):
            key = self._key(map_)[1:-1]
            return self._decided(f"has_key({map_.name}, {key})") if len(map_.key) == 1 else f"len({map_.name})"
        if map_.kind == "int":
            return self._some(f"{place}++", f"--{place}").join("()") if kind == 1 else place
        if map_.kind in READABLE:
            return f"((int64){place})"
        return f"{place}.0" if map_.kind == "tuple" else ""

    def _has_whole_keys(self, map_: Map) -> bool:
        return not self.dialect.defined or map_.kind not in HISTOGRAMS

    def _divided(self, left: str, right: str) -> str:
        right = self._whole(right)
        if self.dialect.defined:
            right = f"({right} | 1)"
        return f"({self._whole(left)} {self._some('/', '%')} {right})"

    def _shifted(self, left: str, right: str) -> str:
        if self.dialect.defined:
            left, right = self._whole(left), f"({right} & 63)"
        return f"({left} {self._some('<<', '>>')} {right})"

    def _of_texts(self, depth: int) -> str:
        left, right = self.text(depth), self.text(depth)
        variables = self._variables(text=True)
        match self.chosen.randrange(4):
            case 0:
                return f"strncmp({left}, {right}, {self.chosen.randrange(1, 9)})"
            case 1 if variables:
                # Native code searches in a text of the hit.
                return self._decided(f"strcontains({self._some(*variables)}, {right})")
            case _:
                return self._decided(f"{left} {self._some('==', '!=')} {right}")

    def _called(self, value: str) -> str:
        match self.chosen.randrange(3):
            case 0:
                return f"bswap(({self._some(*INTEGERS)}){value})"
            case 1:
                return f"({self._whole(value)}, {self.text(0)}).0"
            case _:
                return f"sizeof({self._some(*INTEGERS, value)})"

    def text(self, depth: int) -> str:
        variables = self._variables(text=True)
        texts = [map_ for map_ in self.maps if map_.kind in ("text", "tuple")]
        match self.chosen.randrange(7):
            case 0 | 1 if variables:
                return self._some(*variables)
            case 2 if texts:
                map_ = self.chosen.choice(texts)
                return f"{map_.name}{self._key(map_)}{'.1' if map_.kind == 'tuple' else ''}"
            case 3 if depth:
                left, right = self._some(*TEXTS), self._some(*TEXTS)
                return f'({self.number(depth - 1)} ? "{left}" : "{right}")'
            case 4 if self.dialect.addresses:
                address, length = self._some(*self.dialect.addresses), self._some("4", "9", "30", self.number(0))
                return self._some(f"str({address})", f"str({address}, {length})")
        return self._word()

    def _word(self) -> str:
        return f'"{self._some(*TEXTS, *WORDS)}"'

    def _key(self, map_: Map) -> str:
        """Return a key in brackets, of few values, so that they meet again."""
        if not map_.key:
            return ""
        parts = []
        for letter in map_.key:
            if letter == "t":
                parts.append(self.text(0))
            elif self.chosen.random() < 0.7:
                parts.append(str(self.chosen.randrange(4)))
            else:
                parts.append(f"(int64)({self.number(1)} & 3)")
        return f"[{', '.join(parts)}]"

    # statements

    def _statement(self, depth: int) -> Iterator[Statement]:
        kinds: list[Callable[[], Iterator[Statement]]] = [
            self._assign, self._assign, self._put, self._put, self._put, self._remove, self._print,
        ]  # fmt: skip
        if depth:
            nests = (self._if, self._if, self._while, self._unroll, self._each, self._leave)
            kinds += [lambda one=one: one(depth) for one in nests]  # type: ignore[misc]
        yield from self.chosen.choice(kinds)()

    def _block(self, depth: int) -> tuple[Statement, ...]:
        self.scopes.append({})
        found = [each for _ in range(self.chosen.randrange(1, 2 + self.depth)) for each in self._statement(depth - 1)]
        self.scopes.pop()
        return tuple(found)

    def _assign(self) -> Iterator[Statement]:
        if self.chosen.random() < 0.2:
            value = self.text(2)
            yield f"{self._new('text')} = {value};"
            return
        variables = self._variables(text=False)
        if not variables or self.chosen.random() < 0.3:
            type_, value = self.chosen.choice(INTEGERS), self.number(self.depth + 1)
            name = self._new(type_)
            yield self._some(f"{name} = ({type_}){value};", f"let {name} : {type_} = ({type_}){value};")
            return
        name = self._some(*variables)
        value = f"({self._type(name)}){self.number(self.depth + 1)}"
        kind = self.chosen.randrange(4)
        if kind == 0:
            yield self._some(f"{name}++;", f"--{name};")
        elif kind == 1:
            yield f"{name} {self._some(*ARITHMETIC)}= {value};"
        else:
            yield f"{name} = {value};"

    def _put(self) -> Iterator[Statement]:
        map_ = self.chosen.choice(self.maps)
        yield self._put_into(map_)

    def _put_into(self, map_: Map, last: bool = False) -> str:
        """Return what gives a map a value; `last`: one whose type no other map has to tell."""
        place, value = f"{map_.name}{self._key(map_)}", self.number(self.depth)
        whole = f"({'int64' if map_.signed else 'uint64'}){value}"
        match map_.kind:
            case "int":
                if not last and self.chosen.random() < 0.3:
                    return self._some(f"{place}++;", f"--{place};")
                operator = "=" if last else self._some("=", "=", "=", "+=", "-=", "|=", "&=", "^=", "*=")
                return f"{place} {operator} (int64){value};"
            case "text":
                return f"{place} = {self.text(1) if not last else self._word()};"
            case "tuple":
                return f"{place} = ((int64){value}, {self.text(1) if not last else self._word()});"
            case "count":
                return f"{place} = count();"
            case "hist2":
                return f"{place} = hist({whole}, 2);"
            case "lhist":
                return f"{place} = lhist({whole}, 0, 100, 10);"
            case kind:
                return f"{place} = {kind}({whole});"

    def _remove(self) -> Iterator[Statement]:
        map_ = self.chosen.choice(self.maps)
        if not self._has_whole_keys(map_):
            return
        if map_.key and self.chosen.random() < 0.8:
            key = self._key(map_)
            yield f"delete({map_.name}, {key[1:-1] if len(map_.key) == 1 else key[1:-1].join('()')});"
        elif map_.key:
            yield f"{self._some('clear', 'zero')}({map_.name});"
        else:
            yield f"{self._some('clear', 'delete')}({map_.name});"

    def _print(self) -> Iterator[Statement]:
        one, other, text = self.number(self.depth), self.number(1), self.text(1)
        width = self._some("", "-5", "05", "12")
        number = self._some("d", "u", "x", "ld", "lu", "lx", "lld", "hd", "hhd", "hhu")
        map_ = self.chosen.choice(self.maps)
        if map_.kind in ("int", "text", "tuple") and self.chosen.random() < 0.2:
            whole = self._whole(one)
            yield f"print({map_.name}{self._key(map_)});" if map_.key else f"print(({map_.name}, {whole}));"
            return
        yield self._some(
            f'printf("%{width}{number} %s %{self._some("d", "ld", "lx")}\\n", {one}, {text}, {other});',
            f"print(({self._whole(one)}, {text}, {self._whole(other)}));",
            f"print({one});",
            f"print({text});",
        )

    def _if(self, depth: int) -> Iterator[Statement]:
        condition = self.number(self.depth)
        otherwise = self._block(depth) if self.chosen.random() < 0.5 else None
        yield Nest(f"if ({condition})", self._block(depth), otherwise)

    def _while(self, depth: int) -> Iterator[Statement]:
        counter = f"${self.prefix}i{self.names}"
        self.names += 1
        self.loops += 1
        body = self._block(depth)
        self.loops -= 1
        yield f"{counter} = 0;"
        most = self.chosen.randrange(5)
        yield Nest(f"while ({counter} < {most})", (f"{counter}++;", *body))

    def _unroll(self, depth: int) -> Iterator[Statement]:
        times = self.chosen.randrange(1, 4)
        yield Nest(f"unroll ({times})", self._block(depth - 1) if depth > 1 else tuple(self._put()))

    def _each(self, depth: int) -> Iterator[Statement]:
        """Sum up: the order of keys is not bpftrace's, nor the interpreter's that of native code."""
        maps = [map_ for map_ in self.maps if map_.key and map_.kind in ("int", *READABLE)]
        if maps:
            total = self._new("int64")
            item = f"${self.prefix}e{self.names}"
            self.names += 1
            yield f"{total} = (int64)0;"
            yield Nest(f"for ({item} : {self.chosen.choice(maps).name})", (f"{total} += (int64){item}.1;",))

    def _leave(self, depth: int) -> Iterator[Statement]:
        kinds = [*(("break", "continue") if self.loops else ()), *(("return",) if self.dialect.ends else ())]
        if kinds:
            yield Nest(f"if ({self.number(1)})", (f"{self._some(*kinds)};",))

    def _shown(self) -> Iterator[Statement]:
        """All variables, and a value for every map."""
        names = [*self._variables(text=False), *self._variables(text=True)]
        yield f"print({', '.join(names)});" if len(names) == 1 else f"print(({', '.join(names)}));"
        for map_ in self.maps:
            yield self._put_into(map_, last=True)
