"""The JSON of each command, byte for byte: keys, their order, and how values are spelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.maps.aggregate import Aggregate, Average, Count, Greatest, Least, Linear, Powers, Sum
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.new_records import Drained
from gdb_optprobe.probes.views import (
    ActiveCallView,
    Address,
    CallsView,
    DetourView,
    DoctorView,
    FacilityView,
    FrameView,
    GuestView,
    LeftOutView,
    ObjectView,
    ProbeView,
    ReasonView,
    RecordView,
    RowView,
    SessionMapView,
)
from tests.commands.fake_session import COLLECTOR, EXPLAINED, PRINTED, SHOWN, VFS_READ, boosted, probe
from tests.golden import golden

CALLS = CallsView(
    entries=30,
    returns=13,
    active=3,
    missed=1,
    dropped=2,
    out=(
        ActiveCallView("thread 7 (cat)", 7, "cat"),
        ActiveCallView("an interrupt on CPU 1", None, ""),
        ActiveCallView("", None, ""),
    ),
)
GONE = ReasonView("MODULE_GONE", "the module dummy was unloaded", "load it again")
BUCKETS = (0,) * 3 + (5, 0, 7) + (0,) * 60
AGGREGATES: tuple[tuple[Aggregate, tuple[int, ...]], ...] = (
    (Count(), (7,)),
    (Sum(True), (2**64 - 7,)),
    (Least(False), (3, 1)),
    (Greatest(True), (0, 0)),
    (Average(True), (2, 2**64 - 7)),
    (Powers(False), BUCKETS),
    (Linear(0, 20, 10, True), (1, 2, 0, 4)),
)
KEYED = ObjectView(
    "sum(count) by ($comm, file)", Sum(False), (RowView(("dd", Address(0xFFFF888000001000)), (7,), "[dd, …]"),), 3
)
OF_ALL = ObjectView("count by $pid", Count(), (RowView((7,), (2,), "[7]"),), None, shared=True, lost_together=5)
TIMED = ObjectView("avg($elapsed)", Average(False), (RowView((), (2, 3000)),), unit="ns")
FRAMES = (FrameView(VFS_READ + 19, "vfs_read+0x13"), FrameView(VFS_READ + 64, "", sure=False), FrameView(0, "…"))
RECORDS = (
    RecordView(1, 12345, ("dd", Address(0x10), -5), "dd reads at 0x10\n"),
    RecordView(0, None, (), "", FRAMES),
)
KPROBE = probe(name="reads", location="vfs_read", condition="count > 4096", actions=("count by $comm", "hist(count)"))
KRETPROBE = probe(3, kind="kretprobe", calls=CALLS, entry="entry if fd > 2 do save n = count", active=3)
UPROBE = probe(4, kind="uprobe", tier="trapped", address=0x401136, symbol="main", tags=(), note="called once")
URETPROBE = probe(5, kind="uretprobe", calls=replace(CALLS, out=()), state="disabled", enabled=False, tags=())
NOWHERE = probe(6, tier="", state="gone", tags=("GONE",), reason=GONE, detour=None, original_bytes=b"")
LEFT_OUT = LeftOutView(VFS_READ + 256, "vfs_poll", "$retval of type 'void' is not supported")
OF_GLOB = probe(7, location="vfs_*", left_out=(LEFT_OUT,))
SHARING = probe(8, kind="kretprobe", location="vfs_*", missed=None, missed_together=3)
ALL = (KPROBE, boosted(), KRETPROBE, UPROBE, URETPROBE, NOWHERE, OF_GLOB, SHARING)
GATHERED = replace(
    KPROBE,
    objects=(*(ObjectView("a", of, (RowView((), words),)) for of, words in AGGREGATES), KEYED, TIMED, OF_ALL),
    records=RECORDS,
)
DOCTOR = DoctorView(
    "0.1",
    "13.1",
    "3.11.2",
    "7.2.22",
    GuestView("i386:x86-64", 2, "Linux version 6.1"),
    (
        FacilityView("symbols", "87,182, found in the guest's memory"),
        FacilityView("code_memory", "", ReasonView("ARENA_MISSING", "there is no memory for detours: none", "set it")),
    ),
)


def written(command: Callable[[Json], object]) -> str:
    lines: list[str] = []
    command(Json(lines.append))
    return "".join(lines)


def listed(*probes: ProbeView) -> str:
    return written(lambda json: json.probes(probes))


def test_list() -> None:
    """Each by itself, then two together, then none."""
    assert "".join(map(listed, ALL)) + listed(*ALL[:2]) + listed() == golden("list.json")
    assert written(lambda json: json.added(ALL)) == listed(*ALL)


def test_report() -> None:
    costly: ProbeView = replace(UPROBE, detour=DetourView(0x1000, 64, 20, 17, 5, 0x401136, 9, 4))
    probes = (GATHERED, boosted(stops=7), KRETPROBE, costly, SHARING)
    maps = [SessionMapView("@a[x]: 1", '{"type": "map", "data": {"@a": {"x": 1}}}')]
    found = written(lambda json: json.report(probes)) + written(lambda json: json.maps(maps))
    found += written(lambda json: json.guest_traces([PRINTED]))
    found += written(lambda json: json.collector(COLLECTOR))
    assert found == golden("report.json")


def test_show() -> None:
    returning = replace(SHOWN, probe=KRETPROBE, trampoline=SHOWN.detour)
    found = written(lambda json: json.show([SHOWN])) + written(lambda json: json.show([returning]))
    assert found == golden("show.json")


def test_explain() -> None:
    others = (EXPLAINED, replace(EXPLAINED, note="the kernel calls it only on Sundays", reason=None))
    found = written(lambda json: json.explanation([EXPLAINED])) + written(lambda json: json.explanation(others))
    assert found == golden("explain.json")


def test_run() -> None:
    follower = Follower(Drained, records=3, lost=2)
    found = written(lambda json: json.timeline([GATHERED], more=True))
    found += written(lambda json: json.ran("ran for 2 s: 5 hits of 1 probe", follower))
    found += written(lambda json: json.ran("stopped"))
    timed = replace(GATHERED, records=(replace(RECORDS[0], since_boot=15_118_717_749, lost_after=488),))
    found += written(lambda json: json.timeline([timed]))
    newest = replace(GATHERED, records=(replace(RECORDS[0], lost_before=488),))
    assert found + written(lambda json: json.timeline([newest])) == golden("run.json")


def test_doctor() -> None:
    assert written(lambda json: json.doctor(DOCTOR)) == golden("doctor.json")
