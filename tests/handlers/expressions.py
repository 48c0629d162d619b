"""Random expressions, as a user types them and as the judge compiles them (oracle.py)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hypothesis import strategies as st

from .oracle import BASE, MASK, SIZE, State, types

_OPERATORS = (
    ("+", "-", "*", "/", "%"),
    ("<<", ">>", "&", "|", "^"),
    ("==", "!=", "<", "<=", ">", ">=", "&&", "||"),
)
_MACROS = {"/": "QUOTIENT", "%": "REMAINDER", "<<": "LEFT", ">>": "RIGHT"}
_TYPES = (
    "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned", "long", "unsigned long",
    "long long", "_Bool", "enum level", "enum plain", "u64", "s8", "const unsigned char",
)  # fmt: skip
_MEMBERS = (
    "sc", "uc", "sh", "us", "in", "ui", "lo", "ul", "bo", "ch", "lv", "pl", "b3", "b5", "b31", "b32", "u32", "bb",
    "b7", "b9", "whole", "named.deep",
)  # fmt: skip
_ARRAYS = (
    "p->array[{}]",
    "p->name[{}]",
    "p->inner[{}].x",
    "p->inner[{}].y[{}]",
    "p->matrix[{}][{}]",
    "p->parts[{}]",
)
_FAULTY = (
    "p->next->lo",
    "*p->ip",
    "p->usp[3]",
    "p->inner[1].back->b3",
    "**p->cpp",
    "((volatile struct s *)p)->inner[n].x",
    "*(volatile long *)n",
)
_POINTERS = ("p", "p->next", "&p->in", "p->array", "p->ip", "&p->array[1]", "&p->inner[2]", "(struct s *)n", "(int *)p")
_SHAPES = (
    "({pointer} {op} (void *){other})",
    "((unsigned long)({pointer} + {number}))",
    "((long)({pointer} - {number}))",
    "((unsigned char)({number} + {pointer}))",
    "(!{pointer} || {number})",
    "({pointer} && {number})",
    "((long)({number} ? {pointer} : 0))",
    "(&p->array[n & 3] - &p->array[u & 3])",
    "(&p->inner[n & 3] - p->inner)",
    "((unsigned long)&({pointer})[{number}])",
    "((short)(unsigned long){pointer})",
    "((_Bool){pointer})",
    "(sizeof *({pointer}) + {number})",
    "((long)(&p->inner[{number}].y[2]))",
)
_PACKED = ("a", "b", "e")
# To GCC a bit field of more than 32 bits has a type of its own; to us, as to Clang and GDB, that of its declaration.
_WIDE = (
    "(unsigned long)p->b33",
    "(long)p->b40",
    "(unsigned long)((struct packed *)p)->c",
    "(long)((struct packed *)p)->d",
)
_CONSTANTS = (
    "0", "1", "2", "3", "7", "31", "32", "33", "63", "64", "65", "255", "0x7fffffff", "2147483648", "0x80000000",
    "0xffffffff", "4294967296", "0x7fffffffffffffff", "0x8000000000000000", "0xffffffffffffffff", "1u", "5ul", "-1",
    "010", "0b11", "'a'", "'\\\\0'", "'\\\\xff'", "LOW", "MIDDLE", "HIGH", "ONE", "LARGE", "sizeof(struct s)",
    "sizeof p->name", "sizeof(short)", "sizeof(p->sc + 1)", "sizeof 'a'",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One expression in both languages, in parentheses where it needs them."""

    ours: str
    theirs: str

    @staticmethod
    def same(text: str) -> Pair:
        return Pair(text, text)


def _leaf() -> st.SearchStrategy[Pair]:
    numbers = st.integers(0, 1 << 33).map(str)
    constants = st.one_of(st.sampled_from(_CONSTANTS).map(lambda text: text.replace("\\\\", "\\")), numbers)
    packed = map("((struct packed *)p)->{}".format, _PACKED)
    members = st.sampled_from([*map("p->{}".format, _MEMBERS), *packed, *_FAULTY])
    variables = st.sampled_from(("c", "h", "u", "n", "i"))
    indexes = st.sampled_from(("0", "1", "2", "3", "(n & 3)", "(u & 3)"))
    elements = st.builds(lambda text, one, other: text.format(one, other), st.sampled_from(_ARRAYS), indexes, indexes)
    texts = st.one_of(constants, members, variables, elements, st.sampled_from(_WIDE))
    return texts.map(lambda text: Pair.same(f"({text})"))


def _unary(op: str, one: Pair) -> Pair:
    return Pair(f"({op}{one.ours})", f"({op}{one.theirs})")


def _binary(op: str, one: Pair, other: Pair) -> Pair:
    ours = f"({one.ours} {op} {other.ours})"
    if op in _MACROS:
        return Pair(ours, f"{_MACROS[op]}({one.theirs}, {other.theirs})")
    return Pair(ours, f"({one.theirs} {op} {other.theirs})")


def _choice(one: Pair, other: Pair, last: Pair) -> Pair:
    shape = "({} ? {} : {})"
    return Pair(shape.format(one.ours, other.ours, last.ours), shape.format(one.theirs, other.theirs, last.theirs))


def _with_pointers(shape: str, pointer: str, other: str, op: str, number: Pair) -> Pair:
    def put(text: str) -> str:
        return shape.format(pointer=pointer, other=other, op=op, number=text)

    return Pair(put(number.ours), put(number.theirs))


@functools.cache
def expressions(depth: int = 4) -> st.SearchStrategy[Pair]:
    """Each level made once: strategies are dear to make."""
    if not depth:
        return _leaf()
    below = expressions(depth - 1)
    pointers = st.sampled_from(_POINTERS)
    comparisons = st.sampled_from(("==", "!=", "<", ">="))
    unary = st.builds(_unary, st.sampled_from(("+", "-", "~", "!", *map("({})".format, _TYPES))), below)
    binary = [st.builds(_binary, st.sampled_from(ops), below, below) for ops in _OPERATORS]
    choice = st.builds(_choice, below, below, below)
    with_pointers = st.builds(_with_pointers, st.sampled_from(_SHAPES), pointers, pointers, comparisons, below)
    return st.one_of(unary, choice, with_pointers, *binary, *[_leaf()] * (depth < 3))


_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, MASK, MASK >> 1)
_WORDS = st.one_of(st.sampled_from(_EDGES), st.integers(0, MASK), st.integers(0, 70), st.integers(MASK - 70, MASK))
_SEEDS = st.lists(st.one_of(_WORDS, st.integers(BASE, BASE + SIZE // 2)), min_size=16, max_size=64)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Memory of words like those of registers; some are pointers into it."""
    memory = b"".join(word.to_bytes(8, "little") for word in draw(_SEEDS))
    registers = {name: draw(_WORDS) for name in ("rsi", "rdx", "rcx", "r8", "r9")}
    at = draw(st.sampled_from((BASE, BASE + 8, BASE + 0x101)))
    filled = bytearray((memory * (SIZE // len(memory) + 1))[:SIZE])
    filled[at - BASE + types().btf.offset("s", "bo")] &= 1  # C leaves open what a bool of 2 is
    return State(bytes(filled), {**registers, "rdi": at})
