"""A plan that is kept for later boots is the one that would be made there, or none."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.plan_request import TierLimits
from gdb_optprobe.detours.planner import Plan, PlanRequest, plan
from gdb_optprobe.detours.refusal import Refusal
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.lasting_text import LastingText
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.kept_plans import KeptPlans
from tests.detours import fakes
from tests.detours.fakes import FakeText

MOVED = fakes.START + 0x1240_0000
ONE = "b8 01 00 00 00  mov $1, %eax\nc3  ret"
SEVERAL = "41 55  push %r13\n41 54  push %r12\n55  push %rbp\nb8 01 00 00 00  mov $1, %eax\nc3  ret"
SHORT = "55  push %rbp\nc3  ret"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Cache(tmp_path).shelf("ab" * 20, "7" * 64)


def kept(text: FakeText, shelf: Shelf, limits: TierLimits | None = None, key: str = "5" * 64) -> KeptPlans:
    start = text.known.start

    def read(first: int, end: int) -> bytes:
        return text.data[first - start : end - start]

    def covers(addresses: Collection[int]) -> Collection[int]:
        return [at for at in addresses if start <= at < text.known.end]

    of = LastingText(start, len(text.data), key, shelf, read, covers)
    return KeptPlans(of, limits or TierLimits(), X86_64, text)


def made(text: FakeText, limits: TierLimits | None = None) -> Plan:
    return plan(PlanRequest(text.known.start), CfgCache(X86_64, text), limits)


def found(text: FakeText, shelf: Shelf, limits: TierLimits | None = None, key: str = "5" * 64) -> list[Plan]:
    return list(kept(text, shelf, limits, key).load(frozenset([text.known.start])))


@pytest.mark.parametrize(
    ("listing", "entered", "code"),
    [(ONE, (), ""), (SEVERAL, (), ""), (SHORT, (), "FUNCTION_END"), (SEVERAL, ((9, 2),), "JUMP_INTO_REGION")],
)
def test_in_the_next_boot_it_is_the_plan_that_would_be_made(
    listing: str, entered: tuple[tuple[int, int], ...], code: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = TierLimits(trap=False, boost=False, emulation=False)
    first = FakeText(listing, jumps=entered)
    reason = made(first, limits).reason
    assert (reason.code if reason is not None else "") == code
    kept(first, shelf, limits).store([made(first, limits)])
    monkeypatch.setattr(fakes, "START", MOVED)
    later = FakeText(listing, jumps=entered)
    assert found(later, shelf, limits) == [made(later, limits)]
    assert made(later, limits).address == MOVED


def test_a_register_that_points_into_the_image_does_so_wherever_it_is(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FakeText(ONE)
    kept(text, shelf).store([replace(made(text), base=fakes.START - 0x1000)])
    monkeypatch.setattr(fakes, "START", MOVED)
    later = FakeText(ONE)
    assert found(later, shelf) == [replace(made(later), base=MOVED - 0x1000)]


def test_other_settings_and_another_text_have_plans_of_their_own(shelf: Shelf) -> None:
    text = FakeText(ONE)
    kept(text, shelf).store([made(text)])
    assert found(text, shelf) == [made(text)]
    assert found(text, shelf, TierLimits(optimization=False)) == []
    assert found(text, shelf, key="6" * 64) == []


def test_what_was_kept_stays_beside_what_comes(shelf: Shelf) -> None:
    text = FakeText(ONE + "\n" + ONE)
    other = replace(made(text), address=fakes.START + 6, displaced=text.known.run(fakes.START + 6, 5))
    kept(text, shelf).store([made(text)])
    kept(text, shelf).store([other])
    assert list(kept(text, shelf).load({fakes.START, fakes.START + 6})) == [made(text), other]


@pytest.mark.parametrize(
    "reason",
    [
        Refusal.USER_BREAKPOINT.because(breakpoint="victim"),
        Refusal.ARENA_FULL.because(used=1, size=2),
        Refusal.NOT_EMULATED.because(insn="call 0xffffffff81000100"),
    ],
)
def test_what_depends_on_more_than_the_text_is_not_kept(shelf: Shelf, reason: object) -> None:
    text = FakeText(ONE)
    lower = replace(made(text), tier=Tier.BREAKPOINT, reason=reason, refused=((Tier.OPTIMIZED, reason),))  # type: ignore[arg-type]
    kept(text, shelf).store([lower])
    assert found(text, shelf) == []


def test_instructions_that_are_not_there_are_no_plan(shelf: Shelf) -> None:
    text, other = FakeText(SEVERAL), FakeText(ONE + "\n90  nop")
    kept(text, shelf).store([made(text)])
    assert found(other, shelf) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"[",
        lambda _: b"[1,[]]",
        lambda _: b'{"rows":[]}',
        lambda data: data[:-9],
        lambda data: data.replace(b'"optimized"', b'"fastest"'),
        lambda data: data.replace(b"[0,", b"[-1,"),
        lambda data: data.replace(b"[5]", b"[900]"),
        lambda data: data.replace(b"[5]", b'["5"]'),
        lambda data: data.replace(b"[5]", b"[]"),
        lambda data: data.replace(b",null,", b",99999,"),
        lambda data: data.replace(b",null,[]", b",9999999999,[]"),
        lambda data: data.replace(b",null,[]", b',"5",[]'),
        lambda data: data.replace(b",[]]", b',[["trapped","NO_SUCH",{}]]]'),
        lambda data: data.replace(b",[]]", b',[["trapped","TOO_SHORT",[]]]]'),
        lambda data: data.replace(b",[]]", b',[["trapped","TOO_SHORT",{}]]]'),
        lambda data: data.replace(b",[]]", b",[],[]]"),
        lambda data: data.replace(b",[]]", b',[["trapped","UNDECODABLE",{"address":[Infinity]}]]]'),
        lambda data: re.sub(rb'"[a-z0-9 ]*",(?=[01],null)', b"7,", data),
    ],
)
def test_a_damaged_file_counts_as_missing_and_is_written_anew(shelf: Shelf, damage: object) -> None:
    text = FakeText(ONE)
    plans = kept(text, shelf)
    plans.store([made(text)])
    good = shelf.load(plans.name)
    assert good is not None and json.loads(good)
    damaged = damage(good)  # type: ignore[operator]
    assert damaged != good
    shelf.store(plans.name, damaged)
    assert found(text, shelf) == []
    plans.store([made(text)])
    assert found(text, shelf) == [made(text)]
