"""A call graph on the fake guest: its programs run, and its trees are what the threads did."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gdb_optprobe.detours import planner
from gdb_optprobe.detours.arena import Lack
from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.plan_request import PlanRequest, TierLimits
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.lasting_text import ShelvedText
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.text import Place
from gdb_optprobe.handlers.ir import Constant, Register
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.isa.base import Insn, Pointer
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps.call_table import FACTOR, SHIFT
from gdb_optprobe.probes import optimizer
from gdb_optprobe.probes.batch import Batches
from gdb_optprobe.probes.graph import gate, run
from gdb_optprobe.probes.graph.functions import Functions, Request
from gdb_optprobe.probes.graph.gate import Thread
from gdb_optprobe.probes.graph.run import GraphRun
from gdb_optprobe.probes.graph.trees import Call, Ending, Tree
from gdb_optprobe.probes.session import Session
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import RECORDS, START, TABLES, Body, FakeGuest, Registers

BEHIND_FIRST = START + 0x2000 + 23
"""Of the calls through pointers in the root."""
LOOP, ROOT, INNER, LEAVES = START + 0x1000, START + 0x2000, START + 0x3000, START + 0x4000
COUNT, STEP = 10, 32
THUNKS = {START + 0x5000: "rax", START + 0x5020: "rbx"}
JUMPS = "ff e0  jmp *%rax", "ff e3  jmp *%rbx"
SITE = code("0f 1f 44 00 00  nopl")
WHOLE = f"root({' '.join(f'f{number}' for number in range(COUNT - 1))} inner(f9))"
TASKS = (0x8880_0000_1040, 0x8880_0000_9040)
"""Of the threads: addresses with the upper bits left out, as the fake guest's are small too."""


def call(at: int, to: int) -> bytes:
    return b"\xe8" + (to - at - 5).to_bytes(4, "little", signed=True)


def guest() -> FakeGuest:
    """Return a guest of which the threads call `root` again and again. r15 is the task, r14 its birth, r13 its PID."""
    leaves = [LEAVES + STEP * number for number in range(COUNT)]
    root = SITE
    for to in (*leaves[:-1], INNER):
        root += call(ROOT + len(root), to)
    inner = SITE + call(INNER + len(SITE), leaves[-1]) + b"\xc3"
    leaf = SITE + code("48 ff c0  inc %rax\nc3  ret")
    bodies = (
        Body("loop", LOOP, call(LOOP, ROOT) + code("eb f9  jmp loop")),
        Body("root", ROOT, root + b"\xc3", tracer=0),
        Body("inner", INNER, inner, tracer=0),
        *(Body(f"f{number}", at, leaf, tracer=0) for number, at in enumerate(leaves)),
    )
    found = FakeGuest(bodies, names=NamesAt(Registers(), cpu=Constant(0), hertz=10**9))
    found.start_threads(LOOP)
    for number, task in enumerate(TASKS):
        put(found, number, {"r15": task, "r14": 1, "r13": 100 + number})
    return found


class WithThunks(FakeGuest):
    """A guest with retpolines."""

    def pointer(self, insn: Insn) -> Pointer | None:
        return Pointer(THUNKS[insn.target]) if insn.target in THUNKS else super().pointer(insn)


def guest_with_pointers(has_thunks: bool = True, kind: type[WithThunks] = WithThunks) -> FakeGuest:
    """Return a guest of which the root calls two functions through one register, and one through another.

    has_thunks: else by calls that are shorter than a branch.
    """
    calls = SITE
    for number, to in ((0, LEAVES), (1, LEAVES + STEP), (0, INNER)):
        calls += bytes([0xB8 | 3 * number]) + to.to_bytes(4, "little")  # mov to %eax, or to %ebx
        direct = bytes((0xFF, 0xD0 | 3 * number))
        calls += call(ROOT + len(calls), [*THUNKS][number]) if has_thunks else direct
        calls += code("0f 1f 84 00 00 00 00 00  nopl")
    leaf = SITE + code("48 ff c0  inc %rax\nc3  ret")
    bodies = (
        Body("loop", LOOP, call(LOOP, ROOT) + code("eb f9  jmp loop")),
        Body("root", ROOT, calls + b"\xc3", tracer=0),
        *(Body(f"thunk of {name}", at, code(jump)) for (at, name), jump in zip(THUNKS.items(), JUMPS, strict=True)),
        Body("inner", INNER, SITE + call(INNER + len(SITE), LEAVES + STEP) + b"\xc3", tracer=0),
        Body("f0", LEAVES, leaf, tracer=0),
        Body("f1", LEAVES + STEP, leaf, tracer=0),
    )
    found = kind(bodies, names=NamesAt(Registers(), cpu=Constant(0), hertz=10**9))
    found.start_threads(LOOP)
    for number, task in enumerate(TASKS):
        put(found, number, {"r15": task, "r14": 1, "r13": 100 + number})
    return found


def put(found: FakeGuest, number: int, values: Mapping[str, int]) -> None:
    """Set registers of a thread."""
    state = dict(zip(X86_64.registers, found.machine.threads[number], strict=True)) | values
    found.machine.threads[number] = tuple(state.values())


@pytest.fixture(autouse=True)
def thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake guest's threads are told by registers."""
    monkeypatch.setattr(Functions, "_thread", lambda self: Thread(*map(Register, ("r15", "r14", "r13", "r12"))))


def prepared(
    found: FakeGuest, condition: str = "", newest: bool = False, depth: int = 3
) -> tuple[GraphRun, list[Tree]]:
    return prepared_in(found.session(), condition, newest, depth)


def prepared_in(
    session: Session, condition: str = "", newest: bool = False, depth: int = 3
) -> tuple[GraphRun, list[Tree]]:
    trees: list[Tree] = []
    request = Request("root", depth, condition=Fragment.whole(condition) if condition else None, newest=newest)
    graph = GraphRun(session, request, trees.append)
    graph.prepare()
    return graph, trees


def calls_root(found: FakeGuest, number: int) -> None:
    """Have a thread, which is in the loop, call the root once."""
    found.run_to(number, LOOP + 5)
    found.run_to(number, LOOP)


def drained(graph: GraphRun) -> list[str]:
    """Return the trees that have ended, with the PIDs of their threads."""
    return [f"{tree.pid} {shown(graph, tree.root)} {tree.ending.name}" for tree in graph._drain()]


def told(graph: GraphRun, trees: list[Tree]) -> list[str]:
    """Return trees that were shown; early ones have an asterisk."""
    return [f"{'*' * tree.is_early}{shown(graph, tree.root)}" for tree in trees]


def look(graph: GraphRun) -> None:
    """Do what a stop of a graph's run does."""
    found = [*graph._drain()]
    graph._learn()
    graph._hand_over(found)


def shown(graph: GraphRun, one: Call) -> str:
    inside = f"({' '.join(shown(graph, each) for each in one.calls)})" if one.calls else ""
    return f"{graph.functions.by_number[one.function].name}{'?' * (one.end is None)}{inside}"


def place(task: int) -> int:
    return (task * FACTOR >> SHIFT & gate.PLACES - gate.PLACE) // gate.PLACE


def test_the_threads_differ() -> None:
    assert len(set(map(place, TASKS))) == 2


def test_trees_are_what_the_threads_did_and_nothing_is_left() -> None:
    found = guest()
    before = found.machine.read(START, TABLES - START)
    graph, _ = prepared(found)
    assert [len(block) for block in graph._blocks] == [COUNT + 1, 1]
    found.run_to(0, LEAVES + 4 * STEP + 5)
    calls_root(found, 1)
    calls_root(found, 1)
    assert drained(graph) == [f"101 {WHOLE} RETURNED"] * 2
    found.run_to(0, LOOP)
    assert drained(graph) == [f"100 {WHOLE} RETURNED"]
    assert (graph.lost, graph.missed, graph.trees.strays, graph.trees.unfollowed) == (0, 0, 0, 0)
    graph.take_out()
    assert found.machine.read(START, TABLES - START) == before and not len(graph.session.registry)
    graph.session.commit(0)
    assert graph.session.optimizer.release_arena()


def test_outside_of_the_root_nothing_is_recorded() -> None:
    found = guest()
    graph, _ = prepared(found)
    put(found, 0, {"rip": LEAVES, "rsp": dict(zip(X86_64.registers, found.machine.threads[0], strict=True))["rsp"] - 8})
    found.run_to(0, LEAVES + 8, most=40)  # its return
    assert drained(graph) == [] and graph.trees.strays == 0


@pytest.mark.parametrize("has_thunks", [True, False])
def test_calls_through_pointers_are_probed_together_and_learned(has_thunks: bool) -> None:
    """They take no function's probe out of its block. What they lead to is in the graph from the next round on."""
    found = guest_with_pointers(has_thunks)
    before = found.machine.read(START, TABLES - START)
    graph, _ = prepared(found)
    assert [len(block) for block in graph._blocks] == [2, 1, 1] and graph.unwatched == 0
    calls_root(found, 0)
    assert drained(graph) == ["100 root RETURNED"]
    assert graph._learn() == 3 and graph._learn() == 0
    assert all(len(block) == len(block.sites) for block in graph._blocks)
    for number in (0, 1):
        calls_root(found, number)
        assert drained(graph) == [f"{100 + number} root(f0 f1 inner(f1)) RETURNED"]
        assert graph._learn() == 0
    graph.take_out()
    assert found.machine.read(START, TABLES - START) == before and not len(graph.session.registry)
    session = graph.session
    again, _ = prepared_in(session)
    calls_root(found, 1)
    assert drained(again) == ["101 root(f0 f1 inner(f1)) RETURNED"]
    again.take_out()
    session.commit(0)
    assert session.optimizer.release_arena()


class KnownEarlier(WithThunks):
    """A guest of which text is kept on a shelf."""

    shelf: Shelf

    def code(self, places: Sequence[Place]) -> Sequence[bytes | None]:
        return [self.machine.read(place.start, place.end - place.start) for place in places]

    def steady(self, places: Sequence[tuple[int, int]]) -> Sequence[bytes | None]:
        return [self.machine.read(start, end - start) for start, end in places]

    def shelved_text(self) -> ShelvedText:
        return ShelvedText(START, TABLES - START, self.shelf)


def test_a_later_session_plans_no_call_through_a_pointer_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownEarlier, "shelf", Cache(tmp_path).shelf("ab" * 20, "7" * 64), raising=False)
    asked: list[int] = []

    def noted(request: PlanRequest, cfgs: CfgCache, limits: TierLimits | None = None) -> Plan:
        asked.append(request.address)
        return planner.plan(request, cfgs, limits)

    monkeypatch.setattr(optimizer, "plan", noted)
    for is_later in (False, True):
        found = guest_with_pointers(kind=KnownEarlier)
        graph, _ = prepared(found)
        sites = {*graph._pointers}
        assert len(sites) == 3 and sites.isdisjoint(asked) is is_later
        asked.clear()
        assert [len(block) for block in graph._blocks] == [2, 1, 1] and graph.unwatched == 0
        calls_root(found, 0)
        assert drained(graph) == ["100 root RETURNED"]
        assert graph._learn() == 3
        graph.take_out()


def test_outside_of_the_root_calls_through_pointers_are_not_looked_at() -> None:
    found = guest_with_pointers()
    graph, _ = prepared(found, "$r13 == 101")
    calls_root(found, 0)
    assert drained(graph) == [] and graph._learn() == 0


@pytest.mark.parametrize("has_thunks", [True, False])
def test_what_a_killed_gdb_has_put_on_pointers_is_taken_out(has_thunks: bool) -> None:
    killed = guest_with_pointers(has_thunks)
    before = killed.machine.read(START, TABLES - START)
    prepared(killed)
    found = killed.copy()
    session = found.session()
    adopt.recover(session)
    assert not len(session.registry) and found.machine.read(START, TABLES - START) == before
    session.commit(0)
    assert session.optimizer.release_arena()


def test_a_condition_chooses_among_the_roots_calls() -> None:
    found = guest()
    graph, _ = prepared(found, "$r13 == 101")
    calls_root(found, 0)
    calls_root(found, 1)
    assert drained(graph) == [f"101 {WHOLE} RETURNED"]


def test_a_thread_without_a_place_is_counted_and_not_shown() -> None:
    """The first one keeps it, and its tree is whole."""
    found = guest()
    other = next(task for task in range(TASKS[0] + 64, 1 << 48, 64) if place(task) == place(TASKS[0]))
    put(found, 1, {"r15": other})
    graph, _ = prepared(found)
    found.run_to(0, LEAVES + 4 * STEP + 5)
    calls_root(found, 1)
    found.run_to(0, LOOP)
    assert drained(graph) == [f"100 {WHOLE} RETURNED"] and graph.trees.unfollowed == 1
    calls_root(found, 1)  # the place is free again
    assert drained(graph) == [f"101 {WHOLE} RETURNED"] and graph.trees.unfollowed == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_thread_that_ends_in_the_root_gives_its_place_back(depth: int) -> None:
    """Whether the function in which it ends is in the graph or not."""
    bodies = (
        Body("loop", LOOP, call(LOOP, ROOT) + code("eb f9  jmp loop")),
        Body("root", ROOT, SITE + call(ROOT + len(SITE), INNER) + b"\xc3", tracer=0),
        Body("inner", INNER, SITE + call(INNER + len(SITE), LEAVES) + b"\xc3", tracer=0),
        Body(run.DEATH, LEAVES, SITE + code("eb fe  jmp"), tracer=0),
    )
    found = FakeGuest(bodies, names=NamesAt(Registers(), cpu=Constant(0), hertz=10**9))
    found.start_threads(LOOP)
    for number, task in enumerate(TASKS):
        put(found, number, {"r15": task, "r14": 1, "r13": 100 + number})
    graph, _ = prepared(found, depth=depth)
    found.run_to(0, LEAVES + len(SITE))
    inside = f"inner?({run.DEATH}?)" if depth == 2 else "inner?"
    assert drained(graph) == [f"100 root?({inside}) DIED"]
    assert graph._gate is not None
    owner = graph._gate.address + place(TASKS[0]) * gate.PLACE
    assert found.machine.read(owner, 8) == bytes(8)
    graph.take_out()


@pytest.mark.parametrize("together", [True, False])
def test_functions_that_never_return_are_probed_at_their_entries(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together where a call of what they share leaves the stack pointer as it is."""
    gate_at = Functions.gate
    if together:
        monkeypatch.setattr(Functions, "gate", lambda self, address: replace(gate_at(self, address), stack="r9"))
    never = [LEAVES + STEP * number for number in range(2)]
    root = SITE + call(ROOT + len(SITE), never[0]) + call(ROOT + len(SITE) + 5, never[1]) + b"\xc3"
    bodies = (
        Body("loop", LOOP, call(LOOP, ROOT) + code("eb f9  jmp loop")),
        Body("root", ROOT, root, tracer=0),
        *(Body(f"stuck{number}", at, SITE + code("eb fe  jmp"), tracer=0) for number, at in enumerate(never)),
    )
    found = FakeGuest(bodies, names=NamesAt(Registers(), cpu=Constant(0), hertz=10**9))
    before = found.machine.read(START, TABLES - START)
    found.start_threads(LOOP)
    for number, task in enumerate(TASKS):
        put(found, number, {"r15": task, "r14": 1, "r13": 100 + number})
    graph, trees = prepared(found)
    assert [len(block) for block in graph._blocks] == [1, 2][: 1 + together] and not graph.functions.left_out
    for number in (0, 1):
        found.run_to(number, ROOT + len(SITE))
        put(found, number, {"rip": ROOT + len(SITE) + 5 * number})
        found.run_to(number, never[number] + len(SITE))
    assert not drained(graph)
    graph.run(0.0, "", lambda: True)
    assert sorted(told(graph, trees)) == ["root?(stuck0?)", "root?(stuck1?)"]
    graph.take_out()
    assert found.machine.read(START, TABLES - START) == before


def test_a_dead_threads_place_goes_to_a_later_one_with_its_address() -> None:
    found = guest()
    graph, _ = prepared(found)
    state = dict(zip(X86_64.registers, found.machine.threads[0], strict=True))
    found.run_to(0, LEAVES + 2 * STEP + 5)
    put(found, 0, state | {"r14": 2, "r13": 300})
    calls_root(found, 0)
    assert drained(graph) == ["100 root?(f0 f1 f2?) DIED", f"300 {WHOLE} RETURNED"]


def test_a_full_ring_cuts_trees_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_BITS", 6)
    monkeypatch.setattr(run, "LEAST_BITS", 6)
    found = guest()
    graph, _ = prepared(found)
    of_one = 1 + 2 * (COUNT + 2)
    for _ in range(4):
        calls_root(found, 0)
    trees = drained(graph)
    assert trees[:2] == [f"100 {WHOLE} RETURNED"] * 2 and len(trees) == 3 and trees[2].endswith(Ending.LOST.name)
    assert graph.lost == 4 * of_one - 64
    calls_root(found, 0)
    assert drained(graph) == [f"100 {WHOLE} RETURNED"]


class Lender:
    """Notes what is asked for, and has so many bytes."""

    code_range = 0, 0

    def __init__(self, left: int = 1 << 20) -> None:
        self.left, self.lent = left, list[Lack]()

    def most(self, low: int, high: int) -> int:
        return self.left

    def why_not(self) -> str:
        return ""

    def lend(self, lack: Lack, more: int) -> None:
        self.lent.append(lack)


@pytest.mark.parametrize(("enough", "left", "asked"), [(1, 1 << 20, 0), (14, 1 << 20, 1), (14, 1 << 10, 0)])
def test_a_ring_that_is_too_small_is_lent_memory(
    enough: int, left: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none, the ring is as small as it is."""
    monkeypatch.setattr(run, "ENOUGH_BITS", enough)
    lender, session = Lender(left), guest().session()
    monkeypatch.setattr(session.optimizer.take_arena(), "lender", lender)
    graph, _ = prepared_in(session)
    assert graph._shared is not None
    whole = replace(graph._shared.layout, bits=run.MOST_BITS)
    assert [lack.size for lack in lender.lent] == [2 * whole.size] * asked


def test_memory_is_lent_as_often_as_some_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what lacked of data, code may lack."""
    found, lender = guest(), Lender()
    session = found.session()
    lacks = [Lack(8, 0, 1 << 64), Lack(64, 0, 1 << 64, is_code=True)]
    add_all, missing = Batches.add_all, list(lacks)

    def add(*arguments: Any, **named: Any) -> Any:
        if missing:
            raise Refused(Refusal.ARENA_FULL.because(used=1, size=1))
        return add_all(*arguments, **named)

    monkeypatch.setattr(session.optimizer.take_arena(), "lender", lender)
    monkeypatch.setattr(Batches, "add_all", add)
    monkeypatch.setattr(run, "ENOUGH_BITS", 1)
    monkeypatch.setattr(session.optimizer, "lacking", lambda: missing.pop(0))
    graph, _ = prepared_in(session)
    assert lender.lent == lacks
    calls_root(found, 0)
    assert drained(graph) == [f"100 {WHOLE} RETURNED"]


def test_early_trees_come_in_the_end_before_what_is_open_where_no_other_has_come() -> None:
    found = guest_with_pointers()
    graph, trees = prepared(found)
    calls_root(found, 0)
    look(graph)
    assert (told(graph, trees), graph.withheld) == ([], 1)
    found.run_to(0, LEAVES + 5)
    look(graph)
    graph.run(0, "", lambda: False)
    assert told(graph, trees) == ["*root", "root?(f0?)"] and graph.withheld == 0


def test_a_call_that_began_before_what_it_leads_to_was_learned_is_early() -> None:
    """The stop in which functions go in is within it: the first of them was called before."""
    found = guest_with_pointers()
    graph, trees = prepared(found)
    graph.clock = lambda: 0.0
    found.run_to(0, BEHIND_FIRST)
    look(graph)
    calls_root(found, 1)
    found.run_to(0, LOOP)
    look(graph)
    assert told(graph, trees) == [] and graph.withheld == 2
    calls_root(found, 0)
    look(graph)
    graph.run(0, "", lambda: False)
    assert told(graph, trees) == ["root(f0 f1 inner(f1))"] and graph.withheld == 2


def test_a_call_that_is_shown_a_level_too_high_is_in_a_tree_that_is_early() -> None:
    """`inner` is not followed yet, and what it calls is in the graph: it looks like a call of the root."""
    found = guest_with_pointers()
    session = found.session()
    graph, _ = prepared_in(session)
    sites = sorted(graph._pointers)
    graph.take_out()
    session.learned_calls.clear()
    session.learned_calls[sites[1]] = {LEAVES + STEP}
    graph, trees = prepared_in(session)
    calls_root(found, 0)
    look(graph)
    graph.run(0, "", lambda: False)
    assert told(graph, trees) == ["*root(f1 f1)"]


def test_when_the_time_to_learn_is_over_early_trees_are_shown_with_a_mark() -> None:
    """Each round takes longer than that, on a busy host."""
    found = guest_with_pointers()
    graph, trees = prepared(found)
    times = iter(range(0, 1000, 100))
    graph.clock = lambda: float(next(times))
    found.run_to(1, BEHIND_FIRST)
    calls_root(found, 0)
    look(graph)
    assert told(graph, trees) == []
    found.run_to(1, LOOP)
    look(graph)
    assert told(graph, trees) == ["*root(f1 inner(f1))"]


def test_a_call_without_the_function_that_leads_to_something_new_is_whole() -> None:
    """What was learned of a function tells nothing of calls in which it was not called."""
    found = guest_with_pointers()
    graph, _ = prepared(found)
    calls_root(found, 0)
    (tree,) = graph._drain()
    graph._learn()
    assert graph._marked(tree).is_early
    graph._learned_at = {INNER: tree.root.time}
    assert not graph._marked(tree).is_early
    graph._learned_at = {0: tree.root.time}
    assert graph._marked(tree).is_early, "calls of a function that is not recorded may be in any tree"


def test_what_was_learned_while_the_ring_was_full_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls through pointers record a target once: also one of which the record is dropped."""
    monkeypatch.setattr(run, "MOST_BITS", 1)
    monkeypatch.setattr(run, "LEAST_BITS", 1)
    found = guest_with_pointers()
    graph, trees = prepared(found)
    calls_root(found, 0)
    look(graph)
    assert graph.lost and graph.learned == 3
    assert trees == [] and graph.withheld == 1


def test_a_nearer_call_through_a_pointer_brings_more_below_it() -> None:
    found = guest_with_pointers()
    graph, _ = prepared(found)
    (site, (pointer, depth)), *_ = graph._pointers.items()
    graph._pointers[site] = pointer, depth + 2
    graph._extend({ROOT: 0})
    assert graph._pointers[site] == (pointer, depth)


def test_a_flight_recorder_has_the_last_calls_with_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_BITS", 6)
    monkeypatch.setattr(run, "LEAST_BITS", 6)
    found = guest()
    graph, trees = prepared(found, newest=True)
    for _ in range(4):
        calls_root(found, 0)
    found.run_to(0, LEAVES + 2 * STEP + 5)
    looks = iter((False, True))
    graph.run(None, "", lambda: next(looks))
    assert [shown(graph, tree.root) for tree in trees] == [WHOLE, WHOLE, "root?(f0 f1 f2?)"]
    assert trees[-1].ending is Ending.OPEN and graph.lost == 0


def test_a_flight_recorder_tells_calls_that_it_cannot_have() -> None:
    """It learns nothing while the guest runs, but for the next graph."""
    found = guest_with_pointers()
    session = found.session()
    for wanted in ("*root", "root(f0 f1 inner(f1))"):
        graph, trees = prepared_in(session, newest=True)
        calls_root(found, 0)
        graph.run(0, "", lambda: False)
        graph.take_out()
        assert told(graph, trees) == [wanted]


def test_what_is_not_there_is_refused_and_the_guest_is_as_it_was() -> None:
    found = guest()
    before = found.machine.read(START, TABLES - START)
    for root in ("nothing", "*0x10002005"):
        with pytest.raises(OptprobeError):
            GraphRun(found.session(), Request(root, 3), print).prepare()
    assert found.machine.read(START, TABLES - START) == before


def test_what_has_not_ended_is_handed_over_in_the_end() -> None:
    found = guest()
    graph, trees = prepared(found)
    found.run_to(0, LEAVES + 2 * STEP + 5)
    looks = iter((False, True))
    graph.run(None, "", lambda: next(looks))
    assert [(shown(graph, tree.root), tree.ending) for tree in trees] == [("root?(f0 f1 f2?)", Ending.OPEN)]


def test_the_graph_of_a_killed_gdb_is_taken_out_by_the_next_one() -> None:
    """Also while a thread is within the root: it returns there, and nothing more is recorded."""
    killed = guest()
    before = killed.machine.read(START, TABLES - START)
    prepared(killed)
    killed.run_to(0, LEAVES + 4 * STEP + 5)
    found = killed.copy()
    session = found.session()
    recovered = adopt.recover(session)
    assert not len(session.registry) and len(recovered.lost) == 2 and "are taken out" in recovered.lost[0]
    found.run_to(0, LOOP)
    calls_root(found, 1)
    assert found.machine.read(START, TABLES - START) == before
    session.commit(0)
    assert session.optimizer.release_arena()


def test_nothing_is_collected_while_a_graph_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector of cycles would look through all objects again and again while they become more."""
    collecting: list[bool] = []
    monkeypatch.setattr(GraphRun, "_prepare", lambda self: collecting.append(gc.isenabled()))
    assert gc.isenabled()
    GraphRun.prepare(object.__new__(GraphRun))
    assert collecting == [False] and gc.isenabled()


def test_a_run_that_left_a_function_out_is_freed_without_the_collector() -> None:
    """What is made while it rests may never be looked at."""
    bodies = (
        Body("root", ROOT, SITE + call(ROOT + len(SITE), LEAVES) + b"\xc3", tracer=0),
        Body("odd", LEAVES, SITE + b"\xc3", tracer=0, entry=True),
    )
    found = FakeGuest(bodies, names=NamesAt(Registers(), cpu=Constant(0), hertz=10**9))
    was = gc.isenabled()
    gc.disable()
    try:
        session = found.session()
        graph, _ = prepared_in(session)
        assert [*graph.functions.left_out] == ["odd"]
        seen = weakref.ref(graph)
        graph.take_out()
        del graph
        assert seen() is None
        found.settings = replace(found.settings, optimization=False)
        refused = GraphRun(session, Request("root", 3), print)
        with pytest.raises(OptprobeError, match="would stop"):
            refused.prepare()
        seen = weakref.ref(refused)
        del refused
        assert seen() is None
    finally:
        (gc.enable if was else gc.disable)()


class Broken(Exception):
    """An error of GDB's own, which is no OptprobeError."""


def break_text(found: FakeGuest, broken: pytest.MonkeyPatch, last: int) -> None:
    """Have so many writes to the text be done, the last of them without an answer, and no other."""
    write, into_text = found.machine.write, list[int]()

    def written(address: int, data: bytes) -> None:
        is_text = START <= address < RECORDS
        into_text.extend([address] * is_text)
        if not is_text or len(into_text) <= last:
            write(address, data)
        if is_text and len(into_text) >= last:
            raise Broken("closed")

    broken.setattr(found.machine, "write", written)


def records_into_its_own_memory(found: FakeGuest, session: Session) -> None:
    """Call the root, and compare memory that others are given meanwhile: all there is."""
    arena = session.optimizer.arena
    assert arena is not None
    session.optimizer.reclaim()
    taken = []
    while arena.data.largest >= 64:
        taken.append(slot := arena.allocate_data(arena.data.largest))
        found.machine.write(slot.address, bytes(slot.size))
    for number in range(len(found.machine.threads)):
        calls_root(found, number)
    assert not any(any(found.machine.read(slot.address, slot.size)) for slot in taken)
    for slot in taken:
        arena.free_data(slot)


def ends_with_nothing_left(found: FakeGuest, session: Session, before: bytes) -> None:
    session.delete()
    session.commit(0)
    session.commit(0)
    calls_root(found, 0)
    session.commit(0)
    assert found.machine.read(START, RECORDS - START) == before
    arena = session.optimizer.arena
    assert arena is not None
    assert not any(slot.size > 1 << 14 for slots in arena.data.slots for slot in slots.used), "the ring is given back"


def share_no_code(monkeypatch: pytest.MonkeyPatch, singly: bool) -> None:
    if singly:
        monkeypatch.setattr(Functions, "together", lambda *_: None)
        monkeypatch.setattr(Functions, "shared_root", lambda *_: None)


SINGLY = pytest.mark.parametrize("singly", [False, True], ids=["together", "singly"])


@SINGLY
def test_the_ring_stays_while_branches_lead_to_what_writes_there(
    monkeypatch: pytest.MonkeyPatch, singly: bool
) -> None:
    share_no_code(monkeypatch, singly)
    found = guest()
    session, before = found.session(), found.machine.read(START, RECORDS - START)
    graph, _ = prepared_in(session)
    calls_root(found, 0)
    with monkeypatch.context() as broken, pytest.raises((OptprobeError, Broken), match="closed"):
        break_text(found, broken, 0)
        graph.take_out()
    records_into_its_own_memory(found, session)
    ends_with_nothing_left(found, session, before)


@SINGLY
@pytest.mark.parametrize("is_back", [False, True], ids=["gone", "back"])
def test_the_ring_of_a_graph_that_fails_stays_while_branches_lead_to_what_writes_there(
    monkeypatch: pytest.MonkeyPatch, singly: bool, is_back: bool
) -> None:
    share_no_code(monkeypatch, singly)
    found = guest()
    session, before = found.session(), found.machine.read(START, RECORDS - START)
    graph = GraphRun(session, Request("root", 3), lambda tree: None)
    with monkeypatch.context() as broken:
        break_text(found, broken, 1)
        if is_back:
            take_out = GraphRun.take_out

            def connected(graph: GraphRun) -> None:
                broken.undo()
                take_out(graph)

            broken.setattr(GraphRun, "take_out", connected)
        with pytest.raises((OptprobeError, Broken), match="closed") as raised:
            graph.prepare()
    there = found.machine.read(START, RECORDS - START) != before
    assert there is (singly or not is_back), raised.value
    assert ("optprobe delete 1" in str(raised.value)) is (there and not singly)
    records_into_its_own_memory(found, session)
    ends_with_nothing_left(found, session, before)


@pytest.mark.parametrize("block", [0, 1])
def test_after_any_failed_read_a_graph_s_ring_stays_while_a_thread_is_in_its_code(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """The thread continues into the code that its block leads to, and records."""
    number, failed = 0, [0]
    while failed:
        found = guest()
        session, before = found.session(), found.machine.read(START, RECORDS - START)
        graph, _ = prepared_in(session)
        found.run_to(1, graph._blocks[block].slot(0).address)
        failed.clear()
        is_another = False
        with monkeypatch.context() as broken:
            broken.setattr(found.machine, "read", fail_at_read(number, found.machine.read, failed))
            try:
                graph.take_out()
            except OptprobeError as error:
                is_another = "is not the one that was probed" in error.message  # nothing was changed
        number += 1
        records_into_its_own_memory(found, session)
        if not is_another:
            ends_with_nothing_left(found, session, before)
    assert number > 10


def fail_at_read(number: int, read: Callable[[int, int], bytes], failed: list[int]) -> Callable[[int, int], bytes]:
    """Return `read` that fails once, after `number` reads. failed: gets the address."""
    reads = count()

    def reading(address: int, size: int) -> bytes:
        if next(reads) == number:
            failed.append(address)
            raise Unreadable(address, size)
        return read(address, size)

    return reading
