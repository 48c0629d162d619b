"""What a hit costs at an address of several probes: for one of them, and for all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.views import DetourView
from tests.fake_guest import PLAIN, program

COUNT = Spec(f"*{PLAIN:#x}")
SUM = Spec(f"*{PLAIN:#x}", actions=("sum($rax)",))
ONLY_IF = Spec(f"*{PLAIN:#x}", condition="$rcx == 1")
RETURNS = Spec(f"*{PLAIN:#x}", Kind.KRETPROBE)


def costs(session: Session) -> list[DetourView]:
    found = [view.detour for view in session.views()]
    return [detour for detour in found if detour is not None]


@pytest.mark.parametrize("specs", [(COUNT, SUM), (ONLY_IF, ONLY_IF), (COUNT, SUM, ONLY_IF), (COUNT, RETURNS)])
def test_the_cost_of_its_own_is_that_of_a_probe_alone(specs: tuple[Spec, ...]) -> None:
    alone = []
    for spec in specs:
        session = program().session()
        session.add(spec)
        (cost,) = costs(session)
        assert (cost.own, cost.own_least) == (cost.added, cost.least)
        alone.append(cost)
    session = program().session()
    for spec in specs:
        session.add(spec)
    together = costs(session)
    assert len({(cost.added, cost.least) for cost in together}) == 1
    for cost, before in zip(together, alone, strict=True):
        assert (cost.own, cost.own_least) == (before.added, before.least)
        assert cost.own < cost.added and cost.own_least < cost.least
    session.disable([1])
    assert {cost.own for cost in costs(session)[1:]} == {before.added for before in alone[1:]}


def test_two_return_probes_share_the_entry_of_a_call() -> None:
    session = program().session()
    session.add(RETURNS)
    session.add(RETURNS)
    assert all((cost.own, cost.own_least) == (cost.added, cost.least) for cost in costs(session))


def test_show_says_what_each_instruction_of_a_program_is_for() -> None:
    session = program().session()
    session.add(Spec(f"*{PLAIN:#x}", condition="$rcx == 1", actions=("sum($rax) by ($rcx, $rdx)",)))
    view = session.show(1)
    parts = [line.part for line in view.detour]
    back = next(index for index, line in enumerate(view.detour) if line.note.startswith("replaces"))
    assert all(parts[:back]) and not any(parts[back:])
    action = "sum($rax) by ($rcx, $rdx)"
    assert {("condition",), ("hits",), (action, "lookup"), (action, "update"), ("restored",)} <= set(parts)


def test_show_says_nothing_of_code_that_the_guest_does_not_have() -> None:
    guest = program()
    session = guest.session()
    session.add(SUM)
    first = session.show(1).detour[0]
    assert first.part
    guest.machine.write(first.address, b"\x90")
    assert not any(line.part for line in session.show(1).detour)


def test_show_heads_the_program_of_each_probe_at_the_address() -> None:
    session = program().session()
    for spec in (COUNT, SUM, RETURNS):
        session.add(spec)
    heads = [line.note.partition(": ")[2] for line in session.show(2).detour if "program" in line.note]
    assert heads == ["count", "sum($rax)", "the entry of a call with a probed return"]


def test_show_has_what_a_call_returns_to() -> None:
    session = program().session()
    session.add(replace(RETURNS, actions=("max($rax)",)))
    session.add(replace(RETURNS, actions=("hist($rax)",)))
    code = session.show(1).trampoline
    heads = ["find its slot", "probe 1: max($rax)", "probe 2: hist($rax)", "return address"]
    assert all(note.endswith(head) for note, head in zip((one.note for one in code if one.note), heads, strict=True))
    assert {("hits",), ("max($rax)",), ("hist($rax)",)} <= {one.part for one in code}
    session.add(COUNT)
    assert session.show(3).trampoline == code, "the site is theirs too"
    session.delete([1, 2])
    assert not session.show(3).trampoline


@pytest.mark.parametrize(
    "spec",
    [
        *(COUNT, SUM, ONLY_IF, replace(ONLY_IF, actions=("sum($rax) by ($rcx, $rdx)",))),
        *(RETURNS, replace(RETURNS, condition="$rax < 0", actions=("max($rax)", "hist($rax)"))),
    ],
)
def test_explain_tells_the_cost_that_add_then_has(spec: Spec) -> None:
    session = program().session()
    (explained,) = session.explain(spec)
    session.add(spec)
    (cost,) = costs(session)
    assert (explained.instructions, explained.least) == (cost.own, cost.own_least)
