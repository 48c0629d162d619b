"""Random expressions, as a user types them and as the judge compiles them (oracle.py)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from .oracle import BASE, MASK, SIZE, State, types

_OPERATORS = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "&&", "||")
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
    index = st.integers(0, 3)
    members = st.sampled_from(_MEMBERS).map("p->{}".format)
    variables = st.sampled_from(("c", "h", "u", "n", "i"))
    elements = st.builds(lambda text, one, other: text.format(one, other), st.sampled_from(_ARRAYS), index, index)
    computed = st.sampled_from(_ARRAYS).map(lambda text: text.format("(n & 3)", "(u & 3)"))
    packed = st.sampled_from(_PACKED).map("((struct packed *)p)->{}".format)
    plain = (constants, members, variables, elements, computed, packed, st.sampled_from(_WIDE))
    texts = st.one_of(*plain, *plain, *plain, *plain, st.sampled_from(_FAULTY))
    return texts.map(lambda text: Pair.same(f"({text})"))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Pair:
    if not depth:
        return draw(_leaf())
    below = expressions(depth=depth - 1)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(_leaf())
    one = draw(below)
    if kind == 1:
        op = draw(st.sampled_from("+-~!"))
        return Pair(f"({op}{one.ours})", f"({op}{one.theirs})")
    if kind == 2:
        type_ = draw(st.sampled_from(_TYPES))
        return Pair(f"(({type_}){one.ours})", f"(({type_}){one.theirs})")
    if kind == 3:
        return draw(_with_pointers(one))
    other = draw(below)
    if kind == 4:
        last = draw(below)
        shape = "({} ? {} : {})"
        return Pair(shape.format(one.ours, other.ours, last.ours), shape.format(one.theirs, other.theirs, last.theirs))
    op = draw(st.sampled_from(_OPERATORS))
    ours = f"({one.ours} {op} {other.ours})"
    if op in _MACROS:
        return Pair(ours, f"{_MACROS[op]}({one.theirs}, {other.theirs})")
    return Pair(ours, f"({one.theirs} {op} {other.theirs})")


@st.composite
def _with_pointers(draw: st.DrawFn, number: Pair) -> Pair:
    pointer, other = draw(st.sampled_from(_POINTERS)), draw(st.sampled_from(_POINTERS))
    op = draw(st.sampled_from(("==", "!=", "<", ">=")))
    shape = draw(
        st.sampled_from(
            (
                f"({pointer} {op} (void *){other})",
                f"((unsigned long)({pointer} + {{}}))",
                f"((long)({pointer} - {{}}))",
                f"((unsigned char)({{}} + {pointer}))",
                f"(!{pointer} || {{}})",
                f"({pointer} && {{}})",
                f"((long)({{}} ? {pointer} : 0))",
                "(&p->array[n & 3] - &p->array[u & 3])",
                "(&p->inner[n & 3] - p->inner)",
                f"((unsigned long)&({pointer})[{{}}])",
                f"((short)(unsigned long){pointer})",
                f"((_Bool){pointer})",
                f"(sizeof *({pointer}) + {{}})",
                "((long)(&p->inner[{}].y[2]))",
            )
        )
    )
    return Pair(shape.format(number.ours), shape.format(number.theirs))


def words() -> st.SearchStrategy[int]:
    edges = st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, MASK, MASK >> 1))
    return st.one_of(edges, st.integers(0, MASK), st.integers(0, 70), st.integers(MASK - 70, MASK))


@st.composite
def states(draw: st.DrawFn) -> State:
    """Memory of words like those of registers; some are pointers into it."""
    seed = draw(st.lists(st.one_of(words(), st.integers(BASE, BASE + SIZE // 2)), min_size=16, max_size=64))
    memory = b"".join(word.to_bytes(8, "little") for word in seed)
    registers = {name: draw(words()) for name in ("rsi", "rdx", "rcx", "r8", "r9")}
    at = draw(st.sampled_from((BASE, BASE + 8, BASE + 0x101)))
    filled = bytearray((memory * (SIZE // len(memory) + 1))[:SIZE])
    filled[at - BASE + types().btf.offset("s", "bo")] &= 1  # C leaves open what a bool of 2 is
    return State(bytes(filled), {**registers, "rdi": at})
