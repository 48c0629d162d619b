"""Statements: what a hit does to its variables, its buffers and the maps of the session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers.interpreter import Hit, Outcome, run
from gdb_optprobe.handlers.ir import (
    MASK,
    Assign,
    Binary,
    Break,
    Buffer,
    BytesLoad,
    Column,
    Constant,
    ContainsText,
    Continue,
    Copy,
    Cut,
    Delete,
    Each,
    Emit,
    Expr,
    Form,
    Get,
    Has,
    If,
    Length,
    Literal,
    Load,
    Loop,
    Map,
    Modify,
    Op,
    Part,
    Program,
    Records,
    Register,
    Return,
    SameText,
    Set,
    Slice,
    Statement,
    StringEquals,
    StringLoad,
    Update,
    Variable,
)
from gdb_optprobe.maps.aggregate import Aggregate, Average, Count, Least, LogLinear, Stats, Sum
from gdb_optprobe.maps.host_map import HostMap

X, Y = Variable("$x"), Variable("$y")
KEY = (Column("tid", Form.UNSIGNED),)
STARTS = Map("start", KEY, (Column("nsecs", Form.UNSIGNED),))
TEXT = 0x1000
WORDS = Records("printf", (Column("", Form.SIGNED),), kind=3)


def hit(**maps: HostMap) -> Hit:
    memory = b"/etc/passwd\0rest".ljust(64, b"\x80")

    def read(address: int, size: int) -> bytes:
        if not TEXT <= address <= TEXT + 64 - size:
            raise Unreadable(address, size)
        return memory[address - TEXT :][:size]

    return Hit({"rdi": TEXT, "rsi": 7}, read, clock=5, maps=maps)


def shown(*statements: Statement, quiet: bool = True, **maps: HostMap) -> list[int]:
    """Return the words of the records that statements emit."""
    return words(run(Program(None, statements, quiet), hit(**maps)))


def words(outcome: Outcome) -> list[int]:
    return [int.from_bytes(each.data, "little") for each in outcome.done]


def show(value: Expr) -> Emit:
    return Emit(WORDS, (value,))


def add(variable: Variable, number: int) -> Assign:
    return Assign(variable, Binary(Op.ADD, variable, Constant(number), 64, False))


def less(left: Expr, number: int) -> Expr:
    return Binary(Op.LT, left, Constant(number), 64, False)


@pytest.mark.parametrize(
    ("op", "left", "right", "result"),
    [
        (Op.UDIV, -7, 2, 9223372036854775804),
        (Op.UMOD, -7, 2, 1),
        (Op.UDIV, 5, 0, 0),
        (Op.UMOD, 5, 0, 5),
        (Op.LSHL, 1, 65, 2),
        (Op.LSHR, -1, 64, MASK),
        (Op.LSHR, -1, 60, 15),
        (Op.UMULH, -1, -1, MASK - 1),
        (Op.UMULH, 1 << 40, 1 << 30, 1 << 6),
    ],
)
def test_the_integers_of_scripts(op: Op, left: int, right: int, result: int) -> None:
    """As bpftrace computes them."""
    value = Binary(op, Register("rsi"), Constant(right & MASK), 64, True)
    program = Program(None, (show(value),), quiet=True)
    assert words(run(program, replace(hit(), registers={"rsi": left & MASK}))) == [result]


def test_a_variable_is_0_until_it_is_assigned() -> None:
    assert shown(show(X), Assign(X, Constant(3)), add(X, 4), show(X)) == [0, 7]


def test_a_branch() -> None:
    branch = If(less(Register("rsi"), 8), (show(Constant(1)),), (show(Constant(2)),))
    assert shown(
        branch, replace(branch, condition=Constant(0)), replace(branch, condition=Constant(0), otherwise=())
    ) == [
        1,
        2,
    ]


def test_a_loop_with_continue_and_break() -> None:
    odd = Binary(Op.AND, X, Constant(1), 64, False)
    body = (If(odd, (Continue(),)), show(X))
    end = If(Binary(Op.GE, X, Constant(6), 64, False), (Break(),))
    assert shown(Loop((end, *body), step=(add(X, 1),)), show(X)) == [0, 2, 4, 6]


def test_a_return_ends_the_hit_from_within_loops() -> None:
    inner = Loop((show(X), If(Binary(Op.EQ, X, Constant(2), 64, False), (Return(),)), add(X, 1)))
    assert shown(Loop((inner,)), show(Constant(99))) == [0, 1, 2]


def test_a_loop_beyond_its_bound_ends_the_hit_and_is_counted() -> None:
    outcome = run(Program(None, (Loop((show(X), add(X, 1)), most=3), show(Constant(99))), quiet=True), hit())
    assert words(outcome) == [0, 1, 2] and outcome.faults == 1


def test_a_loop_that_ends_at_its_bound_is_whole() -> None:
    loop = Loop((add(X, 1), If(Binary(Op.EQ, X, Constant(3), 64, False), (Break(),))), most=3)
    outcome = run(Program(None, (loop, show(X)), quiet=True), hit())
    assert words(outcome) == [3] and outcome.faults == 0


def test_a_missing_key_reads_0_and_is_not_created() -> None:
    start = HostMap()
    by = (Register("rsi"),)
    assert shown(Get(STARTS, by, X), show(X), Has(STARTS, by, X), show(X), start=start) == [0, 0]
    assert not start.words


def test_latency() -> None:
    start = HostMap()
    by = (Register("rsi"),)
    entry, back = (Set(STARTS, by, (Constant(100),)),), (Get(STARTS, by, X), Delete(STARTS, by, Y), show(X), show(Y))
    assert shown(*entry, start=start) == [] and len(start.words) == 1
    assert shown(*back, start=start) == [100, 1] and not start.words
    assert shown(*back, start=start) == [0, 0]


def test_increments_give_the_old_or_the_new_value() -> None:
    n = Map("n", (), (Column("", Form.SIGNED),))
    post = Modify(n, (), Op.ADD, Constant(1), old=X)
    pre = Modify(n, (), Op.ADD, Constant(1), new=Y)
    found = HostMap()
    assert shown(post, show(X), pre, show(Y), n=found) == [0, 2] and found.words == {b"": (2,)}


def test_a_full_map_drops_and_counts_but_variables_get_their_values() -> None:
    n = HostMap(most=1)
    target = Map("n", KEY, (Column("", Form.SIGNED),), most=1)
    fill = [Modify(target, (Constant(key),), Op.ADD, Constant(1), new=X) for key in (1, 2, 1)]
    assert shown(*(each for step in fill for each in (step, show(X))), n=n) == [1, 1, 2]
    assert n.words == {(1).to_bytes(8, "little"): (2,)} and n.dropped == 1


@pytest.mark.parametrize(
    ("kind", "values", "result"),
    [(Count(), (1, 1), 2), (Sum(True), (-2, -3), -5 & MASK), (Least(True), (-4, 9), -4 & MASK),
     (Average(True), (-3, -4), -3 & MASK), (Stats(True), (3, 4), 3)],
)  # fmt: skip
def test_an_aggregate_as_a_number(kind: Aggregate, values: tuple[int, ...], result: int) -> None:
    target = Map("a", KEY, kind)
    adds = [Update(target, Constant(value & MASK), (Constant(1),)) for value in values]
    assert shown(*adds, Get(target, (Constant(1),), X), show(X), a=HostMap()) == [result]


def test_the_keys_of_a_map() -> None:
    found = Buffer("k", 8)
    each = Each(STARTS, Slice.whole(found), X, (show(Part(found, 0)), show(X)))
    start = HostMap(words={key.to_bytes(8, "little"): (10 * key,) for key in (3, 4)})
    assert shown(each, Length(STARTS, Y), show(Y), start=start) == [3, 30, 4, 40, 2]


def test_strings() -> None:
    name, other = Buffer("name", 16), Buffer("other", 16)
    read = Copy(Slice.whole(name), StringLoad(Register("rdi"), 16, False, False))
    at = Slice.whole(name)
    passwd, etc = Literal.text(b"/etc/passwd", 16), Literal.text(b"/etc/shadow", 16)
    same = [SameText(at, passwd), SameText(at, etc), SameText(at, etc, 5), ContainsText(at, Literal.text(b"tc/p", 8))]
    cut = (Copy(Slice.whole(other), at), Cut(Slice.whole(other), Constant(4)))
    later = (
        SameText(Slice.whole(other), Literal.text(b"/etc", 8)),
        Part(other, 1, 1, index=Constant(2)),
        Part(other, 8, index=Constant(1)),
    )
    assert shown(read, *map(show, same), *cut, *map(show, later)) == [1, 0, 1, 1, 1, ord("c"), 0]


def test_bytes_of_a_length() -> None:
    some = Buffer("some", 16)
    read = Copy(Slice.whole(some), BytesLoad(Register("rdi"), 16, length=Register("rsi")))
    assert shown(read, show(Part(some, 0)), show(Part(some, 8))) == [int.from_bytes(b"/etc/pa", "little"), 0]


def test_faults_of_scripts_are_zeros() -> None:
    name = Buffer("name", 8)
    copy = Copy(Slice.whole(name), StringLoad(Constant(8), 8, False, False))
    values = (
        Load(Constant(8), 4, True),
        StringEquals(Constant(8), b"\0", False),
        StringEquals(Constant(8), b"a\0", False),
    )
    statements = (copy, *map(show, (*values, Part(name, 0))))
    outcome = run(Program(None, statements, quiet=True), hit())
    assert words(outcome) == [0, 1, 0, 0] and not outcome.faults


def test_faults_of_the_short_form_end_one_statement() -> None:
    outcome = run(Program(None, (Assign(X, Load(Constant(8), 4, True)), show(Constant(1)))), hit())
    assert words(outcome) == [1] and outcome.faults == 1


def test_buckets_of_divided_powers() -> None:
    kind = LogLinear(2, True)
    target = Map("h", (), kind)
    numbers = (-1, 0, 3, 4, 5, 7, 8, 9, 10, 1 << 62)
    found = HostMap()
    shown(*(Update(target, Constant(number & MASK)) for number in numbers), h=found)
    (counts,) = found.words.values()
    assert len(counts) == kind.words
    assert [at for at, count in enumerate(counts) for _ in range(count)] == [0, 1, 4, 5, 6, 8, 9, 9, 10, 245]
