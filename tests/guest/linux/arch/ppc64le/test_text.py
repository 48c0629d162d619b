"""Entries of functions that a branch may displace, found in bulk: as the planner finds each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import pack
from types import MappingProxyType

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.plan_request import PlanRequest
from gdb_optprobe.detours.planner import plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.lasting_text import LastingText
from gdb_optprobe.guest.linux.arch.ppc64le.arch import LINUX_PPC64LE
from gdb_optprobe.guest.linux.arch.ppc64le.ftrace import ENTERED, SITE
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.isa.ppc64le import PPC64LE
from tests.guest.linux.arch.ppc64le.test_arch import BASE, TEXT, toc_setup, words
from tests.guest.linux.fake_kernel import Pages, kernel

FIRST, STEP = TEXT + 0x100, 0x40
PLAIN, NO_TOC, UNTRACED, BRANCHED, KNOWN, EARLY, TRACED, FAULTING = (FIRST + STEP * number for number in range(8))
LABEL = UNTRACED + 8
NAMED = {EARLY: "hcall_real_mode"}
TABLES = TEXT + 0x20000
NOP, BLR = words(0x60000000), words(0x4E800020)
BRANCH = words(0x48000000 | PLAIN - BRANCHED & 0x03FF_FFFC)  # leads somewhere in a function
WITH_TOC = (PLAIN, BRANCHED, KNOWN, EARLY, TRACED, FAULTING)
FUNCTIONS = (PLAIN, NO_TOC, UNTRACED, BRANCHED, KNOWN, EARLY, TRACED, FAULTING)


def entry(function: int) -> int:
    return function + 8 if function in WITH_TOC else function


ENTRIES = [entry(function) for function in FUNCTIONS]


def text_of(functions: dict[int, bytes], bugs: int = 12, shelf: Shelf | None = None) -> PowerText:
    """Return a kernel's text: `functions` with the site that each has behind its first instruction.

    The bug table has one row, of the entry of KNOWN; the exception table that of FAULTING; the table of jump labels
    that of a word of UNTRACED. bugs: bytes of the first.
    """
    memory = Pages()
    memory.put(FIRST, NOP * (STEP // 4 * (len(functions) + 1)))
    sites = []
    for at, body in functions.items():
        memory.put(at, (toc_setup(at) if at in WITH_TOC else b"") + body + BLR)
        if body[4:8] == NOP or body[7:8] == b"\x4b":
            sites.append(entry(at) + 4)
    records = TABLES + 0x1000
    memory.put_words(TABLES, TABLES + 0x100)
    memory.put_words(TABLES + 0x100, 0, records, len(sites))
    for number, site in enumerate(sites):
        memory.put_words(records + SITE.record.size * number, site, 0, 0)
    bug, fault = TABLES + 0x2000, TABLES + 0x2100
    memory.put(bug, pack("<iiHH", entry(KNOWN) - bug, 0, 0, 0))
    memory.put(fault, pack("<ii", entry(FAULTING) - fault, PLAIN - fault - 4))
    label = TABLES + 0x2200
    memory.put(label, pack("<iiq", LABEL - label, UNTRACED - label - 4, 0))
    memory.put(BASE, bytes(TEXT - BASE))
    memory.put(TEXT, NOP * ((FIRST - TEXT) // 4))
    memory.put(FIRST + STEP * (len(functions) + 1), bytes(TEXT + 0x10000 - FIRST - STEP * (len(functions) + 1)))
    names = {
        "_stext": BASE, "start_text": TEXT, "d__etext": TEXT + 0x10000, "ftrace_pages_start": TABLES,
        "__start___bug_table": bug, "__stop___bug_table": bug + bugs,
        "__start___ex_table": fault, "__stop___ex_table": fault + 8,
        "__start___jump_table": label, "__stop___jump_table": label + 16,
    }  # fmt: skip
    names |= {NAMED.get(at, f"f{number}"): at for number, at in enumerate(functions)}
    return PowerText(kernel(memory, names | {"tail": FIRST + STEP * len(functions)}), shelf=shelf)


def some() -> PowerText:
    traced = ENTERED + NOP
    bodies = dict.fromkeys(FUNCTIONS, traced)
    bodies[UNTRACED] = ENTERED
    bodies[BRANCHED] = BRANCH + NOP
    bodies[TRACED] = ENTERED + words(0x4BFFF001)  # bl: a tracer is there
    return text_of(bodies)


def test_functions_are_entered_before_the_tracer_s_site() -> None:
    text = some()
    found = text.idle_sites(ENTRIES[::-1])
    assert (found.addresses, found.idle) == ([entry(at) for at in (PLAIN, NO_TOC, TRACED)], ENTERED)
    assert not text.idle_sites([PLAIN, PLAIN + 4, entry(PLAIN) + 8, BASE, 0])


def test_in_a_kernel_with_sites_at_entries_they_are_that() -> None:
    text = some()
    sites = [at for at in text.ftrace.addresses if at != entry(TRACED) + 4]
    assert text.idle_sites(sites).addresses[:2] == [entry(PLAIN) + 4, NO_TOC + 4]


@pytest.mark.parametrize("at", ENTRIES)
def test_the_planner_agrees_with_each(at: int) -> None:
    text = some()
    found = text.idle_sites([at])
    try:
        planned = plan(PlanRequest(at), CfgCache(PPC64LE, text))
    except Refused:
        assert not found
        return
    traced = bool(text.ftrace.within(at + 4, at + 5))
    same = planned.tier is Tier.OPTIMIZED and planned.original == ENTERED and traced
    assert bool(found) is same, planned
    if found:
        dead = PPC64LE.dead_at_entry()
        assert planned.ftrace is None and dead.registers <= planned.dead.registers and planned.dead.flags


def test_nothing_is_idle_where_any_instruction_may_be_known_by_its_address() -> None:
    assert not text_of(dict.fromkeys(FUNCTIONS, ENTERED + NOP), bugs=13).idle_sites(ENTRIES)


def test_what_the_guest_rewrites_or_knows_by_its_address_is_not_steady() -> None:
    text = some()
    odd = {entry(KNOWN), entry(FAULTING), LABEL, entry(EARLY), entry(PLAIN) + 4}
    plain = {entry(PLAIN) + 8, UNTRACED + 4, entry(TRACED), BRANCHED}
    places = [(at, at + 4) for at in sorted(odd | plain)]
    found = dict(zip(places, text.steady(places), strict=True))
    assert {at for (at, _), data in found.items() if data is not None} == plain
    assert found[entry(PLAIN) + 8, entry(PLAIN) + 12] == BLR


def test_entries_by_the_first_bytes_are_those_by_the_text() -> None:
    text = some()
    for at in FUNCTIONS:
        head = text.originals.read(at, at + 8)
        assert LINUX_PPC64LE.entry_by_head(at, head) == LINUX_PPC64LE.entry(at, text) == entry(at)
    assert LINUX_PPC64LE.entry_by_head(NO_TOC, ENTERED + words(0x4BFFF001)) == NO_TOC, "a tracer is there"
    assert LINUX_PPC64LE.entry_by_head(PLAIN, words(0x3C4C00C2) + BRANCH) is None, "a patch amid the two"


# what is kept for later boots ---------------------------------------------------------------------------------------

B_TO_UNTRACED = words(0x48000000 | UNTRACED - LABEL & 0x03FF_FFFC)
BODIES = dict.fromkeys(FUNCTIONS, ENTERED + NOP) | {UNTRACED: ENTERED + NOP[:3] + b"\x61" + NOP}


def lasting(folder: Path, others: Mapping[int, bytes] = MappingProxyType({})) -> LastingText:
    """Return the text of `BODIES` but for `others`."""
    found = text_of({**BODIES, **others}, shelf=Shelf(folder)).lasting()
    assert found is not None
    return found


def test_what_the_kernel_rewrites_is_the_same_text(tmp_path: Path) -> None:
    key = lasting(tmp_path).key
    assert lasting(tmp_path, {PLAIN: ENTERED + words(0x4BFFF001)}).key == key, "a tracer"
    label = BODIES[UNTRACED][:8] + B_TO_UNTRACED
    assert lasting(tmp_path, {UNTRACED: label}).key == key, "a jump label"


def test_any_other_patch_and_other_symbols_make_another_text(tmp_path: Path) -> None:
    key = lasting(tmp_path).key
    assert lasting(tmp_path, {UNTRACED: BODIES[UNTRACED][:8] + words(0x48000008)}).key != key, "a jump elsewhere"
    assert lasting(tmp_path, {UNTRACED: words(0x48000008) + BODIES[UNTRACED][4:]}).key != key
    assert lasting(tmp_path / "others").key != key


def test_what_lasts_is_a_function_that_nothing_rewrites(tmp_path: Path) -> None:
    found = lasting(tmp_path)
    assert found.read(UNTRACED, UNTRACED + 4) == ENTERED
    assert {*found.covers([UNTRACED, PLAIN, BASE + 0x100])} == {UNTRACED, PLAIN}, "not a vector"
    traced = lasting(tmp_path, {PLAIN: ENTERED + words(0x4BFFF001)})
    assert {*traced.covers([UNTRACED, PLAIN])} == {UNTRACED}, "a tracer is there now"


def test_nothing_lasts_without_a_cache() -> None:
    assert text_of(BODIES).lasting() is None
