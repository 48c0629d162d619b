from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.commands.render_text import Text
from gdb_optprobe.maps.aggregate import Count
from gdb_optprobe.probes.views import (
    ActiveCallView,
    Address,
    CallsView,
    CodeLine,
    DoctorView,
    FacilityView,
    GuestView,
    LeftOutView,
    ObjectView,
    ProbeView,
    ReasonView,
    RecordView,
    RowView,
)
from tests.commands.fake_session import COLLECTOR, EXPLAINED, SHOWN, boosted, probe

CONTRACT = [
    "number",
    "kind",
    "location",
    "address",
    "symbol",
    "tier",
    "state",
    "tags",
    "enabled",
    "needs_gdb",
    "reason",
    "patch_size",
    "original_bytes",
    "patched_bytes",
    "detour",
    "condition",
    "actions",
    "hits",
    "missed",
    "active",
    "dropped",
    "faults",
    "stops",
]


def text(method: str, *arguments: object) -> list[str]:
    written: list[str] = []
    getattr(Text(written.append), method)(*arguments)
    return "".join(written).splitlines()


def values(method: str, *arguments: object) -> list[Any]:
    written: list[str] = []
    getattr(Json(written.append), method)(*arguments)
    return [json.loads(line) for line in "".join(written).splitlines()]


def test_add_says_what_a_hit_costs() -> None:
    assert text("added", [probe()]) == [
        "Probe 1 at 0xffffffff8134cc50 <vfs_read>: optimized, 5 bytes patched; a hit costs 3 instructions"
    ]


def test_a_condition_has_two_costs_and_a_loop_about_one() -> None:
    plain = probe()
    assert plain.detour is not None
    jumps = replace(plain, detour=replace(plain.detour, least=3, added=51, own_least=3, own=51))
    assert text("added", [replace(jumps, condition="x")])[0].endswith(
        "a hit costs 3 instructions where the condition is false, about 51 otherwise"
    )
    assert text("added", [jumps])[0].endswith("a hit costs about 51 instructions")
    assert "3 or ~51 instructions" in text("report", [replace(jumps, condition="x")])[1]
    assert " 0 ~51 instructions" in text("report", [jumps])[1]


def test_what_was_gathered_and_recorded_is_told_behind_the_table() -> None:
    rows = (RowView(("dd", 3), (7,), "[dd, 3]"),)
    record = RecordView(1, 12345, ("dd", 5), "dd reads 5\n")
    full = replace(probe(), objects=(ObjectView("count by ($comm, fd)", Count(), rows),), records=(record,))
    assert [line.strip() for line in text("report", [full])][-3:] == [
        "count by ($comm, fd):",
        "[dd, 3]: 7",
        "[1] 12345: dd reads 5",
    ]
    _, table, kept, _ = values("report", [full])
    assert table["entries"] == [{"key": ["dd", 3], "value": 7}] and table["lost"] == 0
    assert kept == {
        "type": "record",
        "number": 1,
        "cpu": 1,
        "time": 12345,
        "values": ["dd", 5],
        "text": "dd reads 5\n",
    }


def test_times_are_written_as_the_kernels_log_has_them() -> None:
    """Cut, not rounded, to a microsecond; where they are not known, the clock's ticks."""
    times = {15_118_717_999: "[   15.118717]", 7: "[    0.000000]", 123_456_000_001_000: "[123456.000001]"}
    kept = (RecordView(1, 12345, (5,), "n=5", since_boot=time) for time in times)
    found = [line.strip() for line in text("report", [replace(probe(), records=(*kept, RecordView(0, 9, (), "x")))])]
    assert found[-4:] == [*(f"{time} [1]: n=5" for time in times.values()), "[0] 9: x"]


def test_what_was_lost_is_told_behind_the_last_record_before_it() -> None:
    full = RecordView(1, 300, (5,), "n=5\nn=6", since_boot=3000, lost_after=1488)
    later = replace(probe(2), records=(RecordView(0, 301, (), "x", lost_after=1),))
    earlier = replace(probe(), records=(RecordView(0, 299, (), "y"), full))
    assert [line.strip() for line in text("report", [earlier])][-4:] == [
        "[0] 299: y",
        "[    0.000003] [1]: n=5",
        "| n=6",
        "1,488 lost after [    0.000003]",
    ]
    told = [re.sub(r"^\d vfs_read|^ +", "", line).strip() for line in text("timeline", [later, earlier])]
    oldest = replace(probe(), records=(replace(full, lost_before=7, lost_after=0),))
    assert [line.strip() for line in text("report", [oldest])][-3:-1] == [
        "7 lost before [    0.000003]",
        "[    0.000003] [1]: n=5",
    ]
    assert text("timeline", [oldest])[0].strip() == "7 lost before [    0.000003]"
    assert told[3:] == ["1,488 lost after [    0.000003]", "[0] 301: x", "1 lost after 301"]


def test_addresses_are_strings_in_json_wherever_they_stand() -> None:
    rows = (RowView((Address(0xFFFFFFFF81000000),), (7,), "[0xffffffff81000000]"),)
    record = RecordView(1, 12345, (Address(0x10), 5), "p=0x10, n=5")
    full = replace(probe(), objects=(ObjectView("count by p", Count(), rows),), records=(record,))
    _, table, kept, _ = values("report", [full])
    assert table["entries"][0]["key"] == ["0xffffffff81000000"] and kept["values"] == ["0x10", 5]


def test_add_says_why_not_optimized() -> None:
    assert text("added", [boosted()]) == [
        "Probe 2 at 0xffffffff8134cc59 <vfs_read+0x9>: boosted; a hit stops the guest once: "
        "why not optimized: the instruction has 1 bytes and the branch needs 5",
        "HINT: probe vfs_read+0x5 instead",
        "needs GDB: without one, the guest waits at the next hit",
    ]


def test_add_of_what_waits() -> None:
    waiting = boosted(state="optimizing", reason=None, needs_gdb=False)
    assert text("added", [waiting])[0].endswith("boosted; a hit stops the guest once until it is optimized")


def test_add_of_a_pending_probe() -> None:
    why = ReasonView("PENDING", "later is not there yet", "it comes with its module")
    waiting = probe(3, tier="", state="pending", location="later", reason=why)
    assert text("added", [waiting]) == ["Probe 3 pending: later is not there yet", "HINT: it comes with its module"]


def test_what_is_nowhere_in_the_guest_keeps_its_hits_in_the_list() -> None:
    why = ReasonView("MODULE_GONE", "the module dummy was unloaded")
    gone = probe(3, tier="", state="gone", symbol="dummy:dummy_xmit", tags=("GONE",), hits=7, reason=why)
    _, row, remark = text("probes", [gone])
    assert row.split() == ["3", "-", "7", "(gone)", "dummy:dummy_xmit", "[GONE]"]
    assert remark.strip() == "gone: the module dummy was unloaded (MODULE_GONE)"


def test_add_of_many_is_a_summary() -> None:
    many: list[ProbeView] = [probe(number) for number in range(1, 251)]
    many += [boosted(number) for number in range(251, 257)]
    lines = text("added", many)
    assert lines[0] == "Probes 1-256: 256 addresses, 250 optimized, 6 boosted"
    assert len(lines) == 7


def test_add_of_a_glob_tells_how_many_match() -> None:
    assert text("added", [probe()], True)[0] == "Probe 1: 1 address, 1 optimized"
    assert text("added", [probe(), boosted()], True)[0] == "Probes 1-2: 2 addresses, 1 optimized, 1 boosted"
    waiting = [boosted(number, state="optimizing") for number in range(1, 21)]
    (line,) = text("added", waiting)
    assert line == "Probes 1-20: 20 addresses, 20 boosted; 20 of them wait to be optimized: optprobe commit"


def test_explanation_tells_a_reason_once() -> None:
    refused = tuple(replace(EXPLAINED.refused[0], tier=tier) for tier in ("optimized", "trapped"))
    told = [line for line in text("explanation", [replace(EXPLAINED, refused=refused)]) if "TOO_SHORT" in line]
    assert len(told) == 1 and told[0].strip().startswith("not optimized or trapped: ")
    impossible = replace(EXPLAINED, tier="", refused=refused, displaced=(), nearest=None)
    assert text("explanation", [impossible])[:2] == [
        "0xffffffff8134cc59 <vfs_read+0x9>: cannot be probed",
        "        the instruction has 1 bytes and the branch needs 5 (TOO_SHORT)",
    ]


def test_explanation_does_not_say_of_what_a_glob_leaves_out_that_it_cannot_be_probed() -> None:
    why = "a glob leaves it out: a hit would stop the guest"
    left_out = replace(EXPLAINED, tier="", reason=None, refused=(), displaced=(), nearest=None, note=why)
    assert text("explanation", [left_out]) == [
        "0xffffffff8134cc59 <vfs_read+0x9>: would be left out",
        f"        NOTE: {why}",
    ]


def test_what_the_kernel_goes_round_is_noted() -> None:
    why = "the kernel calls it only on Sundays"
    assert f"        NOTE: {why}" in text("explanation", [replace(EXPLAINED, note=why)])
    assert f"NOTE: {why}" in text("added", [replace(probe(), note=why)])
    (explained,) = values("explanation", [replace(EXPLAINED, note=why)])
    ((added,),) = values("added", [replace(probe(), note=why)])
    assert explained["note"] == added["note"] == why
    assert "note" not in values("explanation", [EXPLAINED])[0], "as before, where there is none"


def test_list_fits_100_columns() -> None:
    long = boosted(12, name="n", location="x" * 30, symbol="a_rather_long_name_of_a_function+0x123", hits=10**9)
    rows = text("probes", [probe(), long, boosted(13, condition="c" * 20 + " > 4096 && " + "d" * 40, missed=3)])
    assert max(map(len, rows)) <= 100
    assert [row.split()[0] for row in rows if not row.startswith("     ")] == ["Num", "1", "12", "13"]
    assert any("not optimized: the instruction has 1 bytes" in row for row in rows)
    assert any(row.strip() == "3 missed" for row in rows)


def at_width(width: int, method: str, *arguments: object) -> list[str]:
    written: list[str] = []
    getattr(Text(written.append, width=width), method)(*arguments)
    return "".join(written).splitlines()


@pytest.mark.parametrize("width", [60, 80, 132])
def test_tables_have_the_terminals_width(width: int) -> None:
    probes = [probe(), boosted(12, name="n", symbol="a_name+0x123", condition="c" * 9 + " > 4096 && " + "d " * 40)]
    for method in ("probes", "report"):
        rows = at_width(width, method, probes)
        assert width - 20 < max(map(len, rows)) <= width, rows
    assert max(map(len, at_width(width, "explanation", [EXPLAINED]))) <= 80 or width > 80


def test_a_sentence_is_broken_between_words_at_a_terminal_alone() -> None:
    costly = probe(condition="count > 4096", actions=("hist(count)",))
    (whole,) = at_width(0, "added", [costly])
    first, *more = at_width(80, "added", [costly])
    assert len(whole) > 80 >= len(first) and " ".join([first, *(line.strip() for line in more)]) == whole
    assert all(line.startswith("    ") for line in more)
    assert at_width(80, "show", [SHOWN])[1] == "    costs 3 instructions"


def test_a_narrow_report_has_no_columns_of_zeros() -> None:
    titles, row = at_width(80, "report", [probe(hits=7, faults=2)])
    assert titles.split() == ["Num", "Hits", "Faults", "Cost", "of", "a", "hit", "Where"]
    assert row.split() == ["1", "7", "2", "3", "instructions", "vfs_read"]
    assert "Missed" in at_width(0, "report", [probe()])[0]


def test_list_of_nothing() -> None:
    assert text("probes", []) == ["No probes."]
    assert values("probes", []) == [[]]


def test_json_has_the_keys_of_the_contract_in_its_order() -> None:
    ((listed, other),) = values("probes", [probe(), boosted()])
    assert list(listed) == list(other) == CONTRACT
    assert listed["address"] == "0xffffffff8134cc50"
    assert listed["original_bytes"] == "0f 1f 44 00 00"
    assert listed["detour"] == {"address": "0xffffffff81840000", "size": 14, "instructions": 3}
    assert listed["reason"] is None
    assert other["detour"] is None
    assert list(other["reason"]) == ["code", "text"]


def test_explanation_tells_the_cost_as_add_does() -> None:
    costly = replace(EXPLAINED, tier="optimized", instructions=51, least=3)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "about 51 instructions"),
        ({"least": 51}, "51 instructions"),
        ({"condition": "x"}, "3 instructions where the condition is false, about 51 otherwise"),
        ({"actions": ("stop",)}, "a stop of the guest"),
    )
    for changes, cost in cases:
        told = text("explanation", [replace(costly, **changes)])[0]
        assert told.endswith(f"a hit costs {cost}"), told
    trapped = replace(costly, tier="trapped", condition="x")
    assert text("explanation", [trapped])[0].endswith("about 51 otherwise and a trap")


def test_explanation_as_json() -> None:
    (value,) = values("explanation", [EXPLAINED])
    assert list(value) == ["address", "symbol", "tier", "reason", "displaced", "refused"]
    assert value["displaced"] == [{"address": "0xffffffff8134cc59", "bytes": "55", "text": "push rbp"}]
    assert len(values("explanation", [EXPLAINED, EXPLAINED])[0]) == 2


def test_explanation_as_text() -> None:
    lines = text("explanation", [EXPLAINED])
    assert lines[0] == "0xffffffff8134cc59 <vfs_read+0x9>: would be boosted; a hit stops the guest once"
    assert lines[1].strip().startswith("not optimized: the instruction has 1 bytes")


def test_report_is_a_line_for_each_probe() -> None:
    first, cost, second, stopping = values("report", [probe(hits=5), boosted(stops=7)])
    assert (first["type"], first["number"], first["hits"]) == ("probe", 1, 5)
    assert second["stops"] == 7
    assert cost["type"] == stopping["type"] == "cost" and cost["number"] == 1
    assert cost["stops"] == cost["traps"] == 0 and cost["instructions"] >= cost["least"] > 0
    assert (stopping["instructions"], stopping["stops"]) == (None, 1)


def test_what_the_collector_did_and_what_it_may_never_free() -> None:
    assert text("collector", COLLECTOR) == [
        "",
        "Collector: 3 runs (2 for garbage, 1 for commit); 40 slots of 1,024 bytes freed",
        "        the guest was held for 23.4 ms at most, 51.2 ms in all; the last run looked through 61",
        "          stacks",
        "        1 of the runs freed nothing: not all stacks were known then",
        "        2 slots of 48 bytes still to be collected",
    ]
    assert text("quarantine", COLLECTOR) == []
    kept = replace(COLLECTOR, runs={}, failed=0, quarantined="no threads are known")
    told = ["Quarantined: 2 slots of 48 bytes, in which a thread may still be: no threads are known"]
    assert text("quarantine", kept) == told
    assert text("collector", kept) == ["", *told]
    (line,) = values("collector", COLLECTOR)
    assert (line["type"], line["number"]) == ("collector", None)
    assert line["held_seconds"] == {"longest": 0.0234, "total": 0.0512} and line["runs"] == COLLECTOR.runs
    assert values("quarantine", kept) == [], "a listing is one value"


def test_show_has_its_three_parts() -> None:
    lines = text("show", [SHOWN])
    assert [line for line in lines if line.endswith(":")] == ["original:", "patched:", "detour:"]
    assert "    0xffffffff8134cc50  e9 ab 33 4f 00  jmp 0xffffffff81840000" in lines
    (value,) = values("show", [SHOWN])
    assert list(value) == ["probe", "original", "patched", "detour"]


def test_show_heads_each_part_of_a_program() -> None:
    parts = [(), ("saved",), ("count", "key"), ("count", "key"), ("count",), ("count", "lookup", "hash"), ("hits",), ()]
    code = [CodeLine(at, b"\x90", "nop", "the program" if not at else "", part) for at, part in enumerate(parts)]
    lines = text("show", [replace(SHOWN, detour=tuple(code))])
    heads = [line for line in lines[lines.index("detour:") :] if line.strip().startswith(";")]
    assert [line.removeprefix("    ;") for line in heads] == [
        *(" the program", " saved", " count", "   key", " count", "   lookup", "     hash", " hits")
    ]


def test_colour_touches_the_assembler_text_only() -> None:
    written: list[str] = []
    Text(written.append, lambda code: f"<{code}>").show([SHOWN])
    assert "    0xffffffff8134cc50  e9 ab 33 4f 00  <jmp 0xffffffff81840000>" in "".join(written)


def under_way(*threads: tuple[int, str]) -> CallsView:
    out = tuple(ActiveCallView(f"thread {pid} ({comm})", pid, comm) for pid, comm in threads)
    nobody = (
        ActiveCallView("an interrupt on CPU 1", None, ""), ActiveCallView("", None, ""), ActiveCallView("", None, "")
    )
    return CallsView(30, 13, len(threads) + 3, 1, 2, (*out, *nobody))


def test_threads_with_calls_under_way_are_told_by_name() -> None:
    calls = under_way((7, "cat"), *((pid, "sleep") for pid in range(100, 112)), (100, "sleep"))
    lines: list[str] = []
    Text(lines.append).probes([probe(kind="kretprobe", active=17, calls=calls)])
    told = " ".join("".join(lines).split())
    assert (
        "17 calls under way: cat (7), sleep (100, 101, 102, 103, 104, 105, 106, 107 and 4 more), "
        "an interrupt on CPU 1, 2 of a thread that cannot be identified now" in told
    )


def test_what_a_return_probe_does_at_the_entry_is_told_as_typed() -> None:
    lines: list[str] = []
    view = probe(kind="kretprobe", entry="entry if count > 4 do save n = count", actions=("sum($saved.n)",))
    Text(lines.append).probes([view])
    Json(lines.append).probes([view])
    told = " ".join("".join(lines[:-1]).split())
    assert "vfs_read (kretprobe) entry if count > 4 do save n = count do sum($saved.n)" in told, told
    (row,) = json.loads(lines[-1])
    assert row["entry"] == view.entry


def test_calls_of_a_deleted_probe_have_a_row_without_a_number() -> None:
    lines: list[str] = []
    Text(lines.append).probes([probe(0, kind="kretprobe", tier="", state="deleted", calls=under_way((7, "cat")))])
    assert "".join(lines).splitlines()[1].split()[:4] == ["-", "-", "0", "(deleted)"]


def test_json_tells_each_call_that_is_under_way() -> None:
    lines: list[str] = []
    Json(lines.append).probes([probe(kind="kretprobe", active=4, calls=under_way((7, "cat")))])
    ((row,),) = map(json.loads, lines)
    assert row["active"] == row["calls"]["active"] == len(row["calls"]["out"]) == 4
    assert row["calls"]["out"][0] == {"who": "thread 7 (cat)", "pid": 7, "comm": "cat"}


NO_ARENA = ReasonView("ARENA_MISSING", "there is no memory for detours: none", "set optprobe arena code=… data=…")
EXAMINED = DoctorView(
    "0.1",
    "13.1",
    "3.11.2",
    "7.2.22",
    GuestView("i386:x86-64", 2, "Linux version 6.1"),
    (
        FacilityView("symbols", "87,182, found in the guest's memory"),
        FacilityView("code_memory", "", NO_ARENA),
        FacilityView("data_memory", "", NO_ARENA),
        FacilityView("gdb", "capstone 5.0, keystone 0.9"),
    ),
)


def test_what_the_doctor_says() -> None:
    """A contract: reports of problems begin with it."""
    assert text("doctor", EXAMINED) == [
        "optprobe 0.1, GDB 13.1 with Python 3.11.2, QEMU 7.2.22; i386:x86-64, 2 vCPUs, Linux version 6.1",
        "symbols         works: 87,182, found in the guest's memory",
        "code memory     refused: there is no memory for detours: none (ARENA_MISSING)",
        "                HINT: set optprobe arena code=… data=…",
        "data memory     refused: as code memory (ARENA_MISSING)",
        "this GDB        works: capstone 5.0, keystone 0.9",
    ]


def test_what_the_doctor_says_for_programs() -> None:
    refused = {
        "state": "refused",
        "detail": "",
        "code": "ARENA_MISSING",
        "reason": "there is no memory for detours: none",
        "hint": "set optprobe arena code=… data=…",
    }
    works = {"state": "works", "code": "", "reason": "", "hint": ""}
    (found,) = values("doctor", EXAMINED)
    assert list(found) == ["version", "gdb", "python", "qemu", "guest", "facilities"]
    assert found == {
        "version": "0.1",
        "gdb": "13.1",
        "python": "3.11.2",
        "qemu": "7.2.22",
        "guest": {"architecture": "i386:x86-64", "vcpus": 2, "banner": "Linux version 6.1"},
        "facilities": [
            {"name": "symbols", "detail": "87,182, found in the guest's memory", **works},
            {"name": "code_memory", **refused},
            {"name": "data_memory", **refused},
            {"name": "gdb", "detail": "capstone 5.0, keystone 0.9", **works},
        ],
    }
    assert list(found["facilities"][0]) == ["name", "state", "detail", "code", "reason", "hint"]


def test_the_doctor_of_what_has_no_monitor_and_no_kernel() -> None:
    alone = replace(EXAMINED, qemu="", guest=GuestView(), facilities=())
    assert text("doctor", alone) == [
        "optprobe 0.1, GDB 13.1 with Python 3.11.2, a target without a QEMU version; no guest"
    ]


def test_what_a_glob_leaves_out_is_told_once_for_each_reason() -> None:
    names = [f"vfs_{number}" for number in range(10)]
    left_out = tuple(LeftOutView(16 + at, name, "no 'count' here\n  if count\n") for at, name in enumerate(names))
    first = replace(probe(), left_out=(LeftOutView(9, "", "another"), *left_out))
    told = text("added", [first, replace(probe(), number=2)], True)
    assert told[1:3] == [
        "NOTE: left out: 0x9: another",
        f"NOTE: left out: {', '.join(names[:8])} and 2 more: no 'count' here",
    ]
    (value,) = values("added", [first], True)
    assert value[0]["left_out"][0] == {"address": "0x9", "symbol": "", "text": "another"}


def test_a_note_of_many_probes_is_told_once() -> None:
    probes = [replace(probe(), number=1, note="see"), *(replace(probe(), number=number) for number in range(2, 20))]
    assert text("added", probes, True)[1:] == ["NOTE: see"]


def test_a_hit_at_an_address_of_several_probes_has_a_cost_of_its_own_and_one_of_all() -> None:
    shared = replace(probe(), detour=replace(probe().detour, added=51, least=9))
    assert "3 instructions (site: ~51)" in text("report", [shared])[1]
    assert text("added", [shared])[0].endswith("a hit costs 3 instructions; with the other probes there ~51")
    (cost,) = (line for line in values("report", [shared]) if line["type"] == "cost")
    assert (cost["instructions"], cost["least"], cost["own"], cost["own_least"]) == (51, 9, 3, 3)
