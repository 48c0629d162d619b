"""Events of a graph become trees: nested by thread, cut where records are lost, apart from what is in interrupts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from gdb_optprobe.commands.graph_text import GraphText
from gdb_optprobe.maps.ring import Record
from gdb_optprobe.probes.graph.records import (
    BEGAN,
    DIED,
    ENTERED,
    KINDS,
    LED,
    NUMBER,
    RETURNED,
    STATE,
    Began,
    Died,
    Entered,
    Event,
    Led,
    Returned,
    State,
    events,
)
from gdb_optprobe.probes.graph.trees import DEEPEST, STACK, Call, Ending, Tree, Trees

DD, CAT = 0xFFFF_8880_0000_1000, 0xFFFF_8880_0000_2000
TOP = 0xFFFF_C900_0000_4000
INTERRUPT = 0xFFFF_FE00_0000_8000


def history(text: str, task: int = DD, top: int = TOP, state: int = State.FREE) -> Iterator[Event]:
    """Yield the events of `a b . .`: names are entered, numbered by their letter, each point is a return of the last.

    `!a` is entered on an interrupt's stack, and `^a` as a tail call.
    """
    open_calls: list[tuple[int, int]] = []
    yield Began(task, 100, b"dd\0\0\0\0\0\0", state)
    for time, word in enumerate(text.split()):
        if word == ".":
            function, _ = open_calls.pop()
            yield Returned(0, time, task, function, bool(open_calls) or state == State.FREE)
        else:
            above = open_calls[-1][1] if open_calls else top
            stack = INTERRUPT if word[0] == "!" else above if word[0] == "^" else above - 64
            open_calls.append((ord(word[-1]) - ord("a"), stack))
            yield Entered(0, time, task, *open_calls[-1])


def on_stack(text: str) -> Iterator[Event]:
    """Yield the events of `a-0 b-64 .b`: names are entered with the stack pointer so far down, `.b` is a return."""
    yield Began(DD, 100, b"dd\0\0\0\0\0\0", State.FREE)
    for time, word in enumerate(text.split()):
        if word[0] == ".":
            yield Returned(0, time, DD, ord(word[1]) - ord("a"), True)
        else:
            yield Entered(0, time, DD, ord(word[0]) - ord("a"), TOP - int(word[1:]))


def shown(call: Call) -> str:
    """Return a call as `a(b c)`: `!` before an interrupt's, `!!` before its first, `?` behind what never returned."""
    inside = f"({' '.join(map(shown, call.calls))})" if call.calls else ""
    return f"{'!' * (call.is_interrupt + call.begins)}{chr(ord('a') + call.function)}{'?' * (call.end is None)}{inside}"


def trees(found: Sequence[Event]) -> list[str]:
    return [f"{shown(tree.root)} {tree.ending.name}" for tree in Trees().take(found)]


def test_calls_nest() -> None:
    assert trees([*history("a b . c d . . .")]) == ["a(b c(d)) RETURNED"]


def test_an_interrupt_is_in_the_call_that_its_time_is_in() -> None:
    """It may come when a call's time has been read, and its record has no place in the ring yet."""
    a, b, c = 0, 1, 2

    def entered(time: int, function: int, stack: int, cpu: int = 0) -> Event:
        return Entered(cpu, time, DD, function, stack)

    def returned(time: int, function: int) -> Event:
        return Returned(0, time, DD, function, True)

    began = Began(DD, 100, b"dd\0\0\0\0\0\0", State.FREE)
    interrupt = [entered(5, c, INTERRUPT), returned(6, c)]
    at_entry = [began, entered(1, a, TOP), *interrupt, entered(4, b, TOP - 64), returned(8, b), returned(9, a)]
    assert trees(at_entry) == ["a(b(!c)) RETURNED"]
    before = [began, entered(1, a, TOP), *interrupt, entered(7, b, TOP - 64), returned(8, b), returned(9, a)]
    assert trees(before) == ["a(!c b) RETURNED"]
    at_end = [began, entered(1, a, TOP), entered(2, b, TOP - 64), *interrupt, returned(4, b), returned(9, a)]
    assert trees(at_end) == ["a(b !c) RETURNED"]
    at_end_of_root = [began, entered(1, a, TOP), entered(2, b, TOP - 64), returned(3, b), *interrupt, returned(4, a)]
    assert trees(at_end_of_root) == ["a(b) RETURNED"]
    at_end_with_open = [began, entered(1, a, TOP), entered(2, b, TOP - 64), entered(3, 3, TOP - 128), *interrupt]
    assert trees([*at_end_with_open, returned(4, b), returned(9, a)]) == ["a(b(d?) !c) RETURNED"]
    elsewhere = [entered(5, c, INTERRUPT, cpu=1), *interrupt[1:]]  # another CPU's clock may be ahead
    assert trees([began, entered(1, a, TOP), *elsewhere, returned(4, a)]) == ["a(!c) RETURNED"]


def test_recursion_and_calls_one_after_the_other() -> None:
    assert trees([*history("a a . ."), *history("a .")]) == ["a(a) RETURNED", "a RETURNED"]


def test_a_tail_call_is_within_its_caller() -> None:
    assert trees([*history("a b ^c . . .")]) == ["a(b(c)) RETURNED"]


def test_threads_are_apart_whatever_their_order() -> None:
    pairs = zip(history("a b . ."), history("a c . .", CAT, TOP + STACK), strict=True)
    mixed = [each for pair in pairs for each in pair]
    assert trees(mixed) == ["a(b) RETURNED", "a(c) RETURNED"]


def test_what_runs_on_an_interrupts_stack_is_marked() -> None:
    assert trees([*history("a b !c d . . . .")]) == ["a(b(!c(d))) RETURNED"]


def test_a_frame_that_is_gone_ends_its_call() -> None:
    """b never returns: the next call has its place on the stack."""
    lost = [*history("a b c")][:-1]
    found = [*lost, Entered(0, 9, DD, 3, TOP - 64 - 32), Returned(0, 10, DD, 3, True), Returned(0, 11, DD, 0, True)]
    assert trees(found) == ["a(b? d) RETURNED"]


def test_an_interrupt_of_which_the_end_is_not_seen_ends_with_the_next_call() -> None:
    before = [*history("a b !c")]
    found = [*before, Entered(0, 8, DD, 3, TOP - 192), *[Returned(0, 9, DD, each, True) for each in (3, 1, 0)]]
    assert trees(found) == ["a(b(!c? d)) RETURNED"]


def test_a_root_that_never_returns_stays_open_until_its_thread_dies() -> None:
    one = Trees()
    assert [*one.take(history("a b . c"))] == []
    (tree,) = one.take([Died(DD)])
    assert (shown(tree.root), tree.ending, tree.pid) == ("a?(b c?)", Ending.DIED, 100)
    assert [*one.cut(Ending.OPEN)] == []


def test_a_thread_with_a_dead_ones_address_is_another_one() -> None:
    assert trees([*history("a b"), *history("a .")]) == ["a?(b?) DIED", "a RETURNED"]


def test_a_root_within_the_root_begins_no_tree() -> None:
    inner = Began(DD, 100, b"dd\0\0\0\0\0\0", State.OWN)
    first, *rest = history("a b a . . .")
    assert trees([first, *rest[:2], inner, *rest[2:]]) == ["a(b(a)) RETURNED"]


def test_calls_of_which_another_thread_has_the_place_are_counted_and_not_shown() -> None:
    one = Trees()
    assert [*one.take(history("a .", state=State.TAKEN))] == []
    assert one.unfollowed == 1


def test_a_place_that_was_lost_within_the_call_is_no_tree_either() -> None:
    """Two threads have found it free at once: the one that came second has it."""
    one = Trees()
    *before, _ = history("a b . .")
    assert [*one.take([*before, Returned(0, 9, DD, 0, False)])] == []
    assert one.unfollowed == 1


def test_events_outside_of_a_tree_are_counted() -> None:
    one = Trees()
    assert [*one.take([Entered(0, 1, DD, 1, TOP), Returned(0, 2, DD, 1, True)])] == []
    assert one.strays == 2


def test_entries_that_no_probe_makes_are_counted_and_not_shown() -> None:
    """A guest may write anything into the ring: no number may be unknown to who shows a tree."""
    one = Trees({0, 1})
    (tree,) = one.take(history("a b z . . ."))
    assert (shown(tree.root), one.senseless) == ("a(b)", 1)


@pytest.mark.parametrize("word", ["b", "^b", "!b"])
def test_no_thread_is_in_more_calls_than_a_stack_holds(word: str) -> None:
    one = Trees()
    assert [*one.take(history(" ".join(["a", *[word] * 2000])))] == []
    (tree,) = one.cut(Ending.OPEN)
    depth, call = 1, tree.root
    while call.calls:
        depth, call = depth + 1, call.calls[-1]
    assert depth <= DEEPEST
    text = GraphText(str, int, 1)
    assert len([*text.lines(tree)]) > 1


def test_what_is_cut_is_told_and_forgotten() -> None:
    one = Trees()
    assert [*one.take(history("a b"))] == []
    assert [(shown(tree.root), tree.ending) for tree in one.cut(Ending.LOST)] == [("a?(b?)", Ending.LOST)]
    assert [*one.cut(Ending.OPEN)] == []


def test_records_say_what_happened() -> None:
    def record(kind: int, *words: int) -> Record:
        return Record(0, 77, kind, 1, b"".join(word.to_bytes(8, "little") for word in words))

    comm = int.from_bytes(b"dd\0\0\0\0\0\0", "little")
    low = (1 << 48) - 1
    found = [
        record(BEGAN, DD, State.TAKEN << STATE | 100, comm),
        record(DIED, DD, 0, 0),
        record(ENTERED, DD, (TOP & low) << NUMBER | 40_000, 5),
        record(ENTERED, DD, (TOP & low) << NUMBER, 5, 6),
        record(RETURNED, DD, (DD & low) << NUMBER | 3, 8, 0),
        record(RETURNED, DD, (CAT & low) << NUMBER | 3, 8, 0),
        record(LED, DD, 7, TOP),
    ]
    assert [*dict.fromkeys(each.kind for each in found)] == [*KINDS]
    assert [*events(found)] == [
        Began(DD, 100, b"dd\0\0\0\0\0\0", State.TAKEN),
        Died(DD),
        Entered(1, 77, DD, 40_000, TOP & low, (5,)),
        Entered(1, 77, DD, 0, TOP & low, (5, 6)),
        Returned(1, 77, DD, 3, True, 8),
        Returned(1, 77, DD, 3, False, 8),
        Led(7, TOP),
    ]


def test_a_tree_knows_its_thread() -> None:
    (tree,) = Trees().take(history("a ."))
    assert isinstance(tree, Tree) and (tree.pid, tree.comm[:3]) == (100, b"dd\0")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        # x: a handler's first call, y: its last one. What is called between them is not the thread's.
        ("a0 b64 x900 .x c900 d964 .d .c y900 .y e128 .e .b .a", "a(b(!!x !c(d) !y e))"),
        # Later calls of the thread go further down than the handler was.
        ("a0 b64 x300 .x y300 .y c200 d400 .d .c .b .a", "a(b(!!x !y c(d)))"),
        # An interrupt in an interrupt, and soft ones on a stack of their own, within the last call.
        ("a0 x300 .x c300 x900 .x d900 .d y900 .y .c y300 e-900000 .e .y b64 .b .a", "a(!!x !c(!!x !d !y) !y(!e) b)"),
        # The last call is lost: the next one that is above the handler is the thread's.
        ("a0 b64 x300 .x c300 .c e128 .e .b .a", "a(b(!!x !c e))"),
        # Two, one after the other; and one in another one, around which nothing is probed.
        ("a0 x300 .x y300 .y x300 .x y300 .y .a", "a(!!x !y !!x !y)"),
        ("a0 x300 .x x900 .x y900 .y y300 .y x300 .x .a", "a(!!x !x !y !y !!x)"),
        # The handler calls nothing that is probed.
        ("a0 x300 .x y300 .y b64 .b .a", "a(!!x !y b)"),
    ],
)
def test_interrupts_on_the_thread_s_own_stack_are_between_the_first_and_the_last_call(text: str, tree: str) -> None:
    bounds = {ord("x") - ord("a"): 1, ord("y") - ord("a"): -1}
    found = Trees(bound=lambda function: bounds.get(function, 0))
    assert [shown(one.root) for one in found.take(on_stack(text))] == [tree] and not found.strays
