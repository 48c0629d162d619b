"""A GDB is killed behind any of its writes; the guest runs on, and the next GDB takes over or takes out what is there.

    commands ──► writes w1 … wn      for each n: a guest that holds w1 … wn ──► threads run on, as without probes
                                                                     └──► recover ──► check ──► threads ──► delete
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import adopt
from tests.examples import examples, some
from tests.fake_guest import (
    CODE,
    DATA,
    FILL,
    LOOP,
    MEETING,
    PLAIN,
    SHORT,
    THREADS,
    TRACED,
    Body,
    FakeGuest,
    program,
)

ROUNDS = 2
"""How often each thread comes to MEETING before it is believed to compute what it did."""
SPECS: Sequence[Callable[[str], Spec]] = (
    Spec,
    lambda here: Spec(here, condition="$rax > 3", actions=("count", "hist($rcx)")),
    lambda here: Spec(here, tier="boosted"),
    lambda here: Spec(here, kind=Kind.KRETPROBE, actions=("count", "sum($rax)")),
)
PLACES = {body.address: body for body in program().bodies if body.address in (PLAIN, TRACED, SHORT, LOOP)}
ADDRESSES = [insn.address for body in PLACES.values() for insn in FakeGuest.isa.decode(body.data, body.address)]


@dataclass
class Killed:
    """A guest with a session, and what the threads do in the same guest without one."""

    guest: FakeGuest = field(default_factory=program)
    alone: FakeGuest = field(default_factory=program)

    def __post_init__(self) -> None:
        self.session = self.guest.session()

    def command(self, what: str, where: int, kind: int) -> None:
        probes = self.session.registry.probes()
        if what == "add":
            returns = SPECS[kind](f"*{LOOP:#x}").is_return
            places = (PLAIN, TRACED, SHORT) if returns else ADDRESSES
            try:
                self.session.add(SPECS[kind](f"*{places[where % len(places)]:#x}"))
            except OptprobeError as refused:
                assert refused.message
        elif what == "commit":
            try:
                self.session.commit(0)
            except OptprobeError as waits:
                assert "waits" in waits.message or "in use" in waits.message or "wait:" in waits.message
        elif probes:
            getattr(self.session, what)([probes[where % len(probes)].number])

    def run(self, steps: int) -> None:
        """Let each thread run some instructions, which is less in the guest than without probes."""
        for number in range(THREADS):
            for _ in range(steps):
                self.guest.step(number)
        self.session.optimizer.on_stop()


def meetings(guest: FakeGuest) -> list[list[tuple[int, ...]]]:
    """Run each thread to MEETING a few times; return what it has computed there."""
    found = [[guest.run_to(number, MEETING) for _ in range(ROUNDS)] for number in range(THREADS)]
    return [[(at["rax"], at["rcx"], at["rsp"]) for at in each] for each in found]


def check_continues(guest: FakeGuest, alone: FakeGuest) -> None:
    """Each thread goes through states that it goes through without probes, one behind the other."""
    for number, found in enumerate(meetings(guest)):
        expected = [_state(alone, number) for _ in range(ROUNDS)]
        while found[0] not in expected and len(expected) < 400:
            expected.append(_state(alone, number))
        assert found[0] in expected, f"thread {number} computes something else"
        first = expected.index(found[0])
        expected += [_state(alone, number) for _ in range(ROUNDS)]
        assert expected[first : first + ROUNDS] == found


def _state(alone: FakeGuest, number: int) -> tuple[int, ...]:
    at = alone.run_to(number, MEETING)
    return at["rax"], at["rcx"], at["rsp"]


def leave_detours(guest: FakeGuest, session: Session) -> None:
    """Bring the threads to MEETING, where nothing of a probe can be on a stack, and free all."""
    for number in range(THREADS):
        guest.run_to(number, MEETING)
    session.commit(0)


def after_each_write(before: FakeGuest, writes: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, FakeGuest]]:
    for number in some(range(len(writes), -1, -1)):
        yield number, before.after(writes[:number])


def check_killed(guest: FakeGuest, alone: FakeGuest, text: bytes) -> tuple[str, ...]:
    """Raises AssertionError where what a killed GDB has left in `guest` cannot be lived with; what was lost."""
    check_continues(guest.copy(), alone.copy())
    session = guest.session()
    try:
        lost = adopt.recover(session).lost
    except OptprobeError as none:
        assert none.message == "no probes of an earlier GDB are in this guest"
        session.add(Spec(f"*{PLAIN:#x}"))
        lost = ()
    assert session.check() == ()
    check_continues(guest, alone.copy())
    session.optimizer.on_stop()
    assert session.check() == ()
    session.delete()
    leave_detours(guest, session)
    check_continues(guest.copy(), alone.copy())
    assert session.optimizer.release_arena()
    assert guest.read_text() == text
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}
    return lost


COMMANDS = ("add", "add", "delete", "disable", "enable", "commit")
STEPS = st.tuples(
    st.sampled_from(COMMANDS), st.integers(0, len(ADDRESSES)), st.integers(0, len(SPECS) - 1), st.integers(0, 60)
)


@example([("add", ADDRESSES.index(PLAIN), 0, 9), ("add", ADDRESSES.index(PLAIN) + 1, 1, 9), ("delete", 0, 0, 3)])
@example([("add", 0, 3, 30), ("add", 2, 3, 30), ("delete", 1, 0, 20), ("disable", 0, 0, 20), ("enable", 0, 0, 9)])
@example([("add", ADDRESSES.index(SHORT), 0, 30), ("add", ADDRESSES.index(TRACED), 1, 30), ("delete", 0, 0, 20)])
@settings(max_examples=examples(10), deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=6))
def test_a_gdb_may_be_killed_behind_any_write(orders: list[tuple[str, int, int, int]]) -> None:
    world = Killed()
    text = world.alone.read_text()
    for what, where, kind, steps in orders:
        before = world.guest.copy()
        world.guest.machine.writes.clear()
        world.command(what, where, kind)
        assert world.session.check() == ()
        for number, left in after_each_write(before, world.guest.machine.writes):
            try:
                check_killed(left, program(), text)
            except BaseException as error:
                error.add_note(f"{what}: killed behind write {number} of {len(world.guest.machine.writes)}")
                raise
        world.run(steps)


POWER = bytes.fromhex(
    "a602087c"  # mflr r0
    "100001f8"  # std r0,16(r1)
    "e1ff21f8"  # stdu r1,-32(r1)
    "0100232c"  # cmpdi r3,1
    "08008241"  # beq L
    "0a006338"  # addi r3,r3,10
    "782b837c"  # L: or r3,r4,r5
    "20002138"  # addi r1,r1,32
    "100001e8"  # ld r0,16(r1)
    "a603087c"  # mtlr r0
    "2000804e"  # blr
)
"""A function of ppc64le."""


def power_guest() -> FakeGuest:
    return FakeGuest((Body("plain", PLAIN, POWER),), PPC64LE)


def _power_specs() -> Iterator[Spec]:
    yield from (Spec(f"*{PLAIN + 4 * number:#x}") for number in range(3))
    yield Spec(f"*{PLAIN + 8:#x}", condition="$r3 > 3", actions=("count", "hist($r4)"))
    yield Spec(f"*{PLAIN:#x}", kind=Kind.KRETPROBE)


def test_a_gdb_may_be_killed_behind_any_write_on_ppc64le() -> None:
    """No thread runs there; text that is not the original is a branch into a detour of that place."""
    guest, original = power_guest(), power_guest()
    session = guest.session()
    actions: list[Callable[[], object]] = [partial(session.add, spec) for spec in _power_specs()]
    actions += [partial(session.disable, [2]), partial(session.delete, [1]), partial(session.enable, [2])]
    for action in (*actions, session.delete):
        before = guest.copy()
        guest.machine.writes.clear()
        action()
        for _, left in after_each_write(before, guest.machine.writes):
            _check_taken_over(left, original)


def _check_taken_over(guest: FakeGuest, original: FakeGuest) -> None:
    heads = dict(_changed(guest, original))
    session = guest.session()
    left = guest.arena_source.left()
    if left is None:
        assert not heads
        session.add(Spec(f"*{PLAIN:#x}"))
    else:
        assert {insn.target for insn in heads.values()} <= {slot.address for slot in left.detours}
        assert adopt.recover(session).lost == ()
    assert all(view.tier == "optimized" for view in session.views())
    assert session.check() == ()
    session.delete()
    session.commit(0)
    assert session.optimizer.release_arena() and guest.read_text() == original.read_text()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def _changed(guest: FakeGuest, original: FakeGuest) -> Iterator[tuple[int, Insn]]:
    for at in range(PLAIN, PLAIN + len(POWER), 4):
        if guest.machine.read(at, 4) != original.machine.read(at, 4):
            (insn,) = PPC64LE.decode(guest.machine.read(at, 4), at)
            assert insn.flow is Flow.JUMP
            yield at, insn
