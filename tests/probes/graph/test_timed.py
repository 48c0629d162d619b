"""Trees as calls with exact times: nested whatever the guest's memory held, the newest where there are many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from gdb_optprobe.handlers.ctype import Integer, Pointer
from gdb_optprobe.probes.graph.functions import Traced
from gdb_optprobe.probes.graph.timed import KeptTrees
from gdb_optprobe.probes.graph.trees import Call, Ending, Tree
from gdb_optprobe.probes.views import CallView

INT, LONG = Integer("int", 4, True), Integer("unsigned long", 8, False)
READ = Traced("vfs_read", 0, 0, (("file", Pointer(INT), 0), ("count", LONG, 1), ("flags", INT, 2)), result=INT)
FUNCTIONS = {0: READ, 1: Traced("rw_verify_area", 16, 16), 2: Traced("schedule", 32, 32)}


def tree(root: Call, pid: int = 412) -> Tree:
    return Tree(root, pid, b"dd\0\0\0\0\0\0", Ending.RETURNED)


def timed(*trees: Tree, depth: int = 9, most: int = 1 << 17) -> tuple[tuple[CallView, ...], int, int]:
    kept = KeptTrees(depth, most)
    for each in trees:
        kept.add(each)
    calls, unreturned = kept.timed(FUNCTIONS, lambda ticks: 2 * ticks)
    return calls, unreturned, kept.dropped


def test_calls_have_their_times_cpus_and_values() -> None:
    inner = Call(1, 0, 110, 0, end=(0, 130, 0), is_interrupt=True)
    root = Call(0, 0, 100, 0, (0xFFFF_8880_0000_0000, 512, 0xFFFF_FFFF), [inner], (1, 300, 0xFFFF_FFEA))
    calls, unreturned, dropped = timed(tree(root))
    assert calls == (
        CallView("vfs_read", 200, 600, 0, 1, 0, 412, "dd", (
            ("file", "0xffff888000000000"), ("count", 512), ("flags", -1), ("$retval", -22),
        )),
        CallView("rw_verify_area", 220, 260, 0, 0, 1, 412, "dd", (("interrupt", "yes"),)),
    )  # fmt: skip
    assert (unreturned, dropped) == (0, 0)


def test_what_has_not_returned_ends_with_the_last_record_within_it() -> None:
    wait = Call(2, 1, 140, 0)
    root = Call(0, 0, 100, 0, calls=[Call(1, 0, 110, 0, calls=[], end=(0, 130, 0)), wait])
    calls, unreturned, _ = timed(tree(root))
    assert [(each.function, each.begin, each.end, each.cpu) for each in calls] == [
        ("vfs_read", 200, 280, 1), ("rw_verify_area", 220, 260, 0), ("schedule", 280, 280, 1),
    ]  # fmt: skip
    assert unreturned == 2 and calls[0].values[-1] == ("returned", "no")


def test_deeper_calls_are_left_out_and_older_trees_dropped() -> None:
    trees = [
        tree(Call(0, 0, at, 0, calls=[Call(1, 0, at, 0, end=(0, at + 5, 0))], end=(0, at + 9, 0))) for at in range(4)
    ]
    calls, _, dropped = timed(*trees, most=5)
    assert dropped == 2 and [each.depth for each in calls] == [0, 1, 0, 1]
    calls, _, dropped = timed(*trees, depth=0)
    assert dropped == 0 and [each.function for each in calls] == ["vfs_read"] * 4


TIMES = some.integers(0, 1 << 64)
LEAVES = some.builds(
    Call, some.sampled_from([*FUNCTIONS]), some.integers(0, 3), TIMES, some.just(0),
    end=some.none() | some.tuples(some.integers(0, 3), TIMES, TIMES),
)  # fmt: skip


def around(inside: some.SearchStrategy[Call]) -> some.SearchStrategy[Call]:
    def put(calls: list[Call], call: Call) -> Call:
        call.calls = calls
        return call

    return some.builds(put, some.lists(inside, max_size=3), LEAVES)


@given(some.lists(some.recursive(LEAVES, around, max_leaves=12), max_size=3))
def test_any_times_nest(roots: list[Call]) -> None:
    calls, _, _ = timed(*map(tree, roots))
    open: list[CallView] = []
    before = 0
    for call in calls:
        ended = open[call.depth :]
        del open[call.depth :]
        assert len(open) == call.depth
        before = max([before, *(each.end for each in ended)])
        assert before <= call.begin <= call.end < 1 << 63 and all(call.end <= each.end for each in open)
        before = call.begin
        open.append(call)


def test_a_chain_of_any_depth_is_no_error() -> None:
    root = inner = Call(0, 0, 0, 0)
    for at in range(1, 5000):
        inner.calls = [Call(1, 0, at, 0)]
        (inner,) = inner.calls
    calls, unreturned, _ = timed(tree(root), depth=1 << 30)
    assert unreturned == 5000 and calls[0].end == 2 * 4999
