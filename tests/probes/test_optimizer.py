"""A session on the fake guest: each tier works and counts; sites move up and down, and the reason is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from gdb_optprobe.detours.planner import plan
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.text import Fact, Mark
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes import branch_patch
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.site import Site, SiteState
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import teardown
from tests.fake_guest import CODE, DATA, FILL, MEETING, PLAIN, SHORT, THREADS, TRACED, FakeGuest, program
from tests.trace_add import Trace

ROUNDS = 5
OFF = {"optimization": False, "trap": False, "boost": False, "emulation": False}


def run(guest: FakeGuest, session: Session) -> None:
    """Let each thread call every function some times, from MEETING to MEETING. The guest stops once on the way."""
    for number in range(THREADS):
        guest.run_to(number, MEETING)
    session.optimizer.on_stop()


def counted(guest: FakeGuest, session: Session, number: int) -> int:
    """Return how often probe `number` counts in ROUNDS calls by each thread."""
    run(guest, session)
    before = session.hits(number)
    for _ in range(ROUNDS):
        run(guest, session)
    return session.hits(number) - before


def view_of(session: Session, number: int) -> tuple[str, str]:
    (view,) = session.views([number])
    return view.tier, view.reason.code if view.reason is not None else ""


@pytest.mark.parametrize(
    ("address", "settings", "tier"),
    [
        (PLAIN, {}, "optimized"),
        (TRACED, {}, "optimized"),
        (SHORT, {}, "trapped"),
        (PLAIN, {"optimization": False, "trap": False}, "emulated"),
        (PLAIN + 1, {"optimization": False, "trap": False}, "boosted"),
        (PLAIN + 1, {"optimization": False, "trap": False, "boost": False}, "breakpoint"),
        (PLAIN, OFF, "breakpoint"),
    ],
)
@pytest.mark.parametrize("specs", ["count", "program"])
def test_each_tier_counts_every_hit(address: int, settings: Mapping[str, bool], tier: str, specs: str) -> None:
    guest = program()
    guest.settings = replace(guest.settings, **settings)
    session = guest.session()
    spec = Spec(f"*{address:#x}")
    session.add(spec if specs == "count" else replace(spec, condition="$rsp != 0", actions=("count", "hist($rax)")))
    if tier != "breakpoint":
        assert counted(guest, session, 1) == THREADS * ROUNDS
    assert view_of(session, 1)[0] == tier and session.check() == ()
    session.delete()
    run(guest, session)
    session.commit(0)
    assert session.optimizer.release_arena() and guest.read_text() == program().read_text()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def test_settings_move_sites_down_and_up_again() -> None:
    guest, session = program(), None
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}"))
    usual, text = guest.settings, program().machine.read(PLAIN, 16)
    tiers = []
    for off in ((), ("optimization",), ("optimization", "trap"), ("optimization", "trap", "emulation")):
        guest.settings = replace(usual, **dict.fromkeys(off, False))
        session.resettle()
        tiers.append(view_of(session, 1)[0])
        assert counted(guest, session, 1) == THREADS * ROUNDS and session.check() == ()
        assert (guest.machine.read(PLAIN, 16) == text) == (tiers[-1] not in ("optimized", "trapped"))
    assert tiers == ["optimized", "trapped", "emulated", "boosted"]
    guest.settings = usual
    session.resettle()
    assert view_of(session, 1)[0] == "optimized"


def test_a_site_whose_breakpoint_may_miss_hits_works_on_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is missing `add` is refused for that; of what is there, no site is left without any tier."""
    guest, full = program(), Refusal.ARENA_FULL.because(used=1, size=1)
    guest.settings = replace(guest.settings, **OFF)
    session = guest.session()
    for address in (PLAIN + 1, TRACED):
        session.add(Spec(f"*{address:#x}"))

    def install(*_: object) -> None:
        raise Refused(full)

    monkeypatch.setattr(branch_patch, "install", install)
    monkeypatch.setattr(type(X86_64), "step_runs_on", lambda isa, insn, behind: insn.address == PLAIN + 1)
    guest.settings = replace(guest.settings, optimization=True)
    session.resettle()
    assert [view_of(session, number) for number in (1, 2)] == [
        ("breakpoint", "ARENA_FULL"),
        ("breakpoint", "ARENA_FULL"),
    ]
    reasons = [str(session.views([number])[0].reason) for number in (1, 2)]
    assert ["and miss hits meanwhile" in reason for reason in reasons] == [True, False]
    assert all(site.state is SiteState.BREAKPOINT for site in session.registry.sites())
    with pytest.raises(Refused) as refused:
        session.optimizer.plan_without_detour(PLAIN + 1, (), full)
    assert refused.value.reason is full
    session.delete()
    with pytest.raises(Refused) as refused:
        session.add(Spec(f"*{PLAIN + 1:#x}"))
    assert refused.value.reason is full and not len(session.registry)


def test_what_rules_out_the_better_tiers_is_told_where_a_breakpoint_may_miss_hits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guest = program()
    guest.settings = replace(guest.settings, **OFF)
    monkeypatch.setattr(type(X86_64), "step_runs_on", lambda isa, insn, behind: True)
    with pytest.raises(Refused) as refused:
        guest.session().add(Spec(f"*{PLAIN + 1:#x}"))
    reason = refused.value.reason
    assert reason.code == "STEP_RUNS_ON" and reason.hint == "set optprobe optimization on"
    assert reason.text.startswith("optimization is switched off, and GDB's step over ")


def test_a_site_waits_while_a_thread_is_inside_and_counts_meanwhile() -> None:
    guest = program()
    session = guest.session()
    guest.run_to(1, PLAIN + 1)
    session.add(Spec(f"*{PLAIN:#x}"))
    assert view_of(session, 1) == ("breakpoint", "NOT_QUIESCENT")
    with pytest.raises(OptprobeError, match="thread 1 is inside the bytes"):
        session.commit(0)
    guest.run_to(0, PLAIN)
    guest.run_to(1, MEETING)
    session.optimizer.on_stop()
    assert view_of(session, 1)[0] == "optimized"
    session.commit(0)
    assert counted(guest, session, 1) == THREADS * ROUNDS


def test_a_breakpoint_of_the_users_moves_the_site_down_while_it_is_there() -> None:
    guest = program()
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}"))
    guest.breakpoints = frozenset((PLAIN,))
    session.settle_around(guest.breakpoints)
    assert view_of(session, 1)[1] == "USER_BREAKPOINT"
    assert guest.machine.read(PLAIN, 5) == guest.bodies[1].data[:5]
    gone, guest.breakpoints = guest.breakpoints, frozenset()
    session.settle_around(gone)
    assert view_of(session, 1)[0] == "optimized"


def test_python_handlers_hold_a_site_down() -> None:
    guest = program()
    session = guest.session()
    seen: list[int] = []
    session.add(Spec(f"*{PLAIN + 1:#x}", pre_handler=lambda hit: seen.append(hit.regs["rax"])))
    session.add(Spec(f"*{TRACED + 5:#x}", post_handler=lambda hit: None))
    assert [view_of(session, number) for number in (1, 2)] == [
        ("boosted", "PYTHON_HANDLER"),
        ("breakpoint", "PYTHON_HANDLER"),
    ]
    assert counted(guest, session, 1) == THREADS * ROUNDS and len(seen) >= THREADS * ROUNDS


def test_probes_that_share_a_branch_come_and_go_one_by_one() -> None:
    guest = program()
    session = guest.session()
    addresses = [insn.address for insn in guest.isa.decode(guest.bodies[1].data, PLAIN)][:4]
    for address in addresses:
        session.add(Spec(f"*{address:#x}"))
    assert len(list(session.registry.branches())) < len(addresses)
    session.disable([2])
    assert counted(guest, session, 2) == 0 and counted(guest, session, 3) == THREADS * ROUNDS
    session.enable([2])
    session.delete([1])
    assert counted(guest, session, 2) == counted(guest, session, 4) == THREADS * ROUNDS
    assert [probe.number for probe in session.registry.probes()] == [2, 3, 4]
    assert session.registry.site(addresses[0]) is None
    with pytest.raises(OptprobeError, match="no probe number 1"):
        session.views([1])


def test_a_branch_that_is_overwritten_is_found_and_left_alone() -> None:
    guest = program()
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}"))
    guest.machine.write(PLAIN, b"\xcc")
    (problem,) = session.check()
    assert f"{PLAIN:#x}" in problem
    with pytest.raises(OptprobeError, match="1 of 1 probes are left in the guest") as raised:
        session.delete()
    assert "undo what else has changed these bytes, then optprobe commit" in raised.value.hint
    assert guest.machine.read(PLAIN, 1) == b"\xcc"
    (problem,) = session.check()
    assert "is there still, under bytes of something else" in problem
    with pytest.raises(OptprobeError):
        session.add(Spec(f"*{PLAIN:#x}"))


def test_a_kprobe_of_the_guest_s_own_on_a_branch_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = program()
    session, before = guest.session(), guest.machine.read(PLAIN, 5)
    session.add(Spec(f"*{PLAIN:#x}"))
    held = guest.machine.read(PLAIN, 1)
    guest.machine.write(PLAIN, b"\xcc")
    with monkeypatch.context() as there:
        there.setattr(guest.text, "marks", lambda start, end: [Mark(Fact.KPROBE_BREAKPOINT, start, 1)])
        with pytest.raises(OptprobeError, match="under the guest's own kprobe at 0x10001000: remove that kprobe"):
            session.delete()
        (problem,) = session.check()
    assert "under the guest's own kprobe" in problem and "then optprobe commit takes it out" in problem
    guest.machine.write(PLAIN, held)
    (problem,) = session.check()
    assert "as it could not be taken out; optprobe commit takes it out" in problem
    session.commit(0)
    assert guest.machine.read(PLAIN, 5) == before and session.check() == ()


def lose_and_recover(guest: FakeGuest, session: Session, change: Callable[[], object], said: str) -> None:
    """Have the guest write over the branch at PLAIN while that is taken out, and undo it before the next stop."""
    held = guest.machine.read(PLAIN, 1)
    guest.machine.write(PLAIN, b"\xcc")
    with pytest.raises(OptprobeError, match=said):
        change()
    guest.machine.write(PLAIN, held)
    session.commit(0)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(f"*{PLAIN:#x}", actions=("hist($rcx)",)),
        Spec(f"*{PLAIN:#x}", actions=("stop",)),
        Spec(f"*{PLAIN:#x}", kind=Kind.KRETPROBE),
        Spec(f"*{PLAIN:#x}", kind=Kind.KRETPROBE, actions=("hist($rax)",)),
    ],
)
def test_a_lost_branch_gives_all_back_once_it_is_out(monkeypatch: pytest.MonkeyPatch, spec: Spec) -> None:
    """The counter, the pad of a program that stops, the table of a function's calls and their trampoline."""
    guest = program()
    monkeypatch.setattr(guest.stops, "stop_at_probe", lambda stop: guest.stops.set(0, lambda hit: None))
    session = guest.session()
    session.add(spec)
    lose_and_recover(guest, session, session.delete, "probes are left in the guest")
    assert session.check() == () and session.optimizer.rethooks.known == []
    assert session.optimizer.release_arena(), "nothing is in use"


def test_a_disabled_probe_s_table_is_given_back_with_its_lost_branch() -> None:
    guest = program()
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}", kind=Kind.KRETPROBE))
    lose_and_recover(guest, session, session.disable, "holds cc")
    assert session.optimizer.rethooks.known == []
    session.delete()
    assert session.optimizer.release_arena(), "nothing is in use"


@pytest.mark.parametrize("address", [PLAIN, TRACED, SHORT])
def test_return_probes_see_every_call_return(address: int) -> None:
    guest = program()
    session = guest.session()
    session.add(Spec(f"*{address:#x}", kind=Kind.KRETPROBE, condition="$rax != 0", actions=("count", "sum($rax)")))
    assert counted(guest, session, 1) == THREADS * ROUNDS
    assert session.missed(1) == 0
    (view,) = session.reports([1])
    assert view.active == 0 and session.check() == ()
    guest.run_to(0, address)
    for _ in range(60):
        guest.step(0)
    session.delete()
    run(guest, session)
    session.commit(0)
    assert session.optimizer.release_arena() and guest.read_text() == program().read_text()


def test_return_probes_of_a_function_that_nothing_calls_where_it_starts() -> None:
    session = program().session()
    with pytest.raises(OptprobeError, match="0x"):
        session.add(Spec(f"*{PLAIN + 1:#x}", kind=Kind.KRETPROBE))
    assert not session.registry.probes()


@pytest.mark.parametrize("leave_by", ["leave", "delete"])
def test_leaving_while_a_thread_is_in_a_detour(leave_by: str) -> None:
    guest = program()
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}", actions=("hist($rax)",)))
    (branch,) = session.registry.branches()
    guest.run_to(0, PLAIN)
    guest.step(0)
    guest.step(0)
    with pytest.raises(OptprobeError) as stays:
        if leave_by == "leave":
            teardown.teardown(session)
        else:
            session.delete()
            session.commit(0)
    assert "thread 0" in stays.value.message
    assert guest.machine.read(PLAIN, 5) == guest.bodies[1].data[:5], "the text is the guest's at once"
    assert guest.machine.read(branch.detour.address, branch.detour.size) != bytes([FILL]) * branch.detour.size
    guest.run_to(0, MEETING)
    teardown.teardown(session)
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL} and guest.read_text() == program().read_text()


def test_explain_says_what_add_does() -> None:
    for address in (PLAIN, PLAIN + 9, TRACED, SHORT, MEETING):
        guest = program()
        session, spec = guest.session(), Spec(f"*{address:#x}")
        before = bytes(guest.machine.memory)
        (told,) = session.explain(spec)
        assert bytes(guest.machine.memory) == before
        (view,) = session.add(spec)
        assert told.tier == view.tier


@pytest.mark.parametrize(
    "spec",
    [
        Spec(f"*{PLAIN:#x}", condition="$rax > 3", actions=("hist($rcx)",)),
        Spec(f"*{SHORT:#x}", condition="$rax > 3", actions=("sum($rcx) by $rax",)),
        Spec(f"*{PLAIN:#x}", condition="$rax > 3", tier="breakpoint"),
    ],
)
def test_one_add_plans_and_lowers_once(spec: Spec) -> None:
    guest, trace = program(), Trace()
    session = guest.session()
    trace.run(lambda: session.add(spec))
    assert (trace.calls[plan.__code__], trace.calls[lower.__code__]) == (1, 1)


def test_a_neighbour_that_joins_a_branch_in_the_same_stop_is_lowered_alone() -> None:
    guest, trace = program(), Trace()
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}", condition="$rax > 3"))
    trace.run(lambda: session.add(Spec(f"*{PLAIN + 1:#x}", condition="$rax > 3")))
    assert len({site.branch for site in session.registry.sites()}) == 1
    assert trace.calls[lower.__code__] == 1


def test_a_plan_expires_when_the_guest_runs() -> None:
    guest, trace = program(), Trace()
    optimizer = guest.session().optimizer
    specs = [Spec(f"*{PLAIN:#x}")]
    optimizer.plan(PLAIN, specs)
    trace.run(lambda: optimizer.plan(PLAIN, specs))
    assert plan.__code__ not in trace.calls
    guest.step(0)
    trace.run(lambda: optimizer.plan(PLAIN, specs))
    assert trace.calls[plan.__code__] == 1


@pytest.mark.parametrize("change", ["a setting", "a breakpoint", "a neighbour"])
def test_a_plan_expires_when_what_it_was_made_for_changes(change: str) -> None:
    guest, trace = program(), Trace()
    session = guest.session()
    specs = [Spec(f"*{PLAIN:#x}")]
    before = session.optimizer.plan(PLAIN, specs)
    if change == "a setting":
        guest.settings = replace(guest.settings, optimization=False)
    elif change == "a breakpoint":
        guest.breakpoints = frozenset((before.displaced[-1].address,))
    else:
        probe = Probe(1, Spec("", post_handler=print), before.displaced[-1].address)
        session.registry.add(probe, Site(probe.address, before))
    trace.run(lambda: session.optimizer.plan(PLAIN, specs))
    assert trace.calls[plan.__code__] == 1


def test_commit_without_probes_changes_nothing() -> None:
    guest = program()
    session = guest.session()
    assert session.commit() == ("everything is settled",)
    assert session.optimizer.arena is None and guest.machine.writes == []
    session.add(Spec("plain"))
    run(guest, session)
    session.delete()
    assert session.commit() == ("everything is settled",)
    assert guest.machine.read(PLAIN, 16) == program().machine.read(PLAIN, 16)
