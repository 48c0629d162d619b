"""A session without a guest, for GDB to run the real commands against (see conftest.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, reduce
from typing import Any

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.maps.aggregate import Count, Greatest, Powers, Sum, update
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.new_records import Drained
from gdb_optprobe.probes.sampler import Sample, Shown
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.views import (
    CallView,
    CodeLine,
    CollectorView,
    DetourView,
    ExplainView,
    FrameView,
    GatheredView,
    GuestTraceView,
    ObjectView,
    ProbeView,
    ReasonView,
    RecordView,
    RefusedView,
    RowView,
    SavedProbes,
    SessionMapView,
    ShowView,
)

VFS_READ = 0xFFFFFFFF8134CC50
NOP = bytes.fromhex("0f1f440000")
JUMP = bytes.fromhex("e9ab334f00")


def probe(number: int = 1, **changes: object) -> ProbeView:
    """An optimized probe of vfs_read, but for `changes`."""
    view = ProbeView(
        number=number,
        name="",
        kind="kprobe",
        location="vfs_read",
        address=VFS_READ,
        symbol="vfs_read",
        tier="optimized",
        state="armed",
        tags=("OPTIMIZED", "FTRACE"),
        enabled=True,
        needs_gdb=False,
        reason=None,
        patch_size=5,
        original_bytes=NOP,
        patched_bytes=JUMP,
        detour=DetourView(VFS_READ + 0x4F33B0, 14, 3, 3, 3, VFS_READ, 3, 3),
        condition="",
        actions=("count",),
        hits=0,
        missed=0,
        active=0,
        dropped=0,
        faults=0,
        stops=0,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


TOO_SHORT = ReasonView("TOO_SHORT", "the instruction has 1 bytes and the branch needs 5", "probe vfs_read+0x5 instead")


def boosted(number: int = 2, **changes: object) -> ProbeView:
    facts: dict[str, object] = {
        "tier": "boosted",
        "tags": (),
        "needs_gdb": True,
        "reason": TOO_SHORT,
        "patch_size": 0,
        "detour": None,
        "address": VFS_READ + 9,
        "symbol": "vfs_read+0x9",
        "location": "vfs_read+9",
        "patched_bytes": NOP,
    }
    return probe(number, **{**facts, **changes})


SHOWN = ShowView(
    probe(),
    original=(CodeLine(VFS_READ, NOP, "nop dword ptr [rax + rax]"),),
    patched=(CodeLine(VFS_READ, JUMP, "jmp 0xffffffff81840000"),),
    detour=(
        CodeLine(
            *(0xFFFFFFFF81840000, bytes.fromhex("f048ff05f9ff1f00"), "lock inc qword ptr [rip + 0x1ffff9]", "count"),
            part=("hits",),
        ),
        CodeLine(0xFFFFFFFF81840008, bytes.fromhex("e948cc b0ff"), "jmp 0xffffffff8134cc55", "back"),
    ),
)

POWERS = Powers(signed=False)
GATHERED: Mapping[str, Any] = {
    "gathers": {
        "objects": (
            ObjectView("hist(count)", POWERS, (RowView((), reduce(partial(update, POWERS), range(100), (0,) * 66)),)),
            ObjectView("count by $comm", Count(), (RowView(("dd",), (7,)), RowView(("cat",), (3,))), keys=1),
            ObjectView("sum(count) by ($comm, $pid)", Sum(False), (RowView(("dd", 12), (512,)),), keys=2),
            ObjectView("max(count)", Greatest(False), (RowView((), (0, 0)),)),
        ),
        "records": (RecordView(1, 5, ("dd", 12), "dd 12"),),
    }
}
"""What a probe of this location reports."""

GRAPH = GatheredView(
    "graph vfs_read",
    calls=(
        CallView("vfs_read", 1000, 3000, 0, 1, 0, 412, "dd", (("count", 512), ("$retval", 512))),
        CallView("rw_verify_area", 1100, 1300, 0, 0, 1, 412, "dd"),
    ),
    lost=2,
    notes=("1 call had not returned: in the file they end where their records do.",),
)
"""What `graph` leaves for export, where `optprobe graph` is said to have run."""

EXPLAINED = ExplainView(
    address=VFS_READ + 9,
    symbol="vfs_read+0x9",
    tier="boosted",
    reason=TOO_SHORT,
    displaced=(CodeLine(VFS_READ + 9, b"\x55", "push rbp"),),
    refused=(RefusedView("optimized", "TOO_SHORT", TOO_SHORT.text, TOO_SHORT.hint),),
    nearest=VFS_READ,
    nearest_symbol="vfs_read",
)


COLLECTOR = CollectorView(
    runs={"garbage": 2, "commit": 1},
    failed=1,
    slots=40,
    bytes=1024,
    longest=0.0234,
    total=0.0512,
    stacks=61,
    garbage_slots=2,
    garbage_bytes=48,
    quarantined="",
)

PRINTED = GuestTraceView(
    97,
    "sh",
    0,
    (FrameView(VFS_READ + 0x118, "vfs_read+0x118"), FrameView(VFS_READ + 0x218, "ksys_read", is_interrupted=True)),
    is_cut=True,
    left_out=1,
)
"""A trace that the guest has printed."""


@dataclass
class FakeSampler:
    """Each sample has 1000 hits more of each probe."""

    probes: Sequence[ProbeView]
    taken: int = 0

    def __post_init__(self) -> None:
        self.labels = [probe.symbol for probe in self.probes]
        self.numbers = [probe.number for probe in self.probes]

    def sample(self, memory: Any) -> Sample:
        self.taken += 1
        return Sample([1000 * self.taken] * len(self.probes), {0: 7})

    def has_more(self, place: int) -> bool:
        return self.probes[place].location in GATHERED

    def gathered(self, places: Sequence[int], memory: Any, runs: bool) -> list[Shown]:
        return [Shown(GATHERED[self.probes[place].location]["objects"], "dd 12") for place in places]

    def maps(self, memory: Any) -> Sequence[SessionMapView]:
        return (SessionMapView("@[dd]: 5", ""),)


@dataclass
class FakeSession:
    """Keeps what it is given; every call is printed, so that a test reads what a command asked for."""

    def __post_init__(self) -> None:
        self.probes: dict[int, ProbeView] = {}
        self.last_number: int | None = None
        self.gathered: GatheredView | None = None

    def _check(self, numbers: Sequence[int] | None) -> tuple[int, ...]:
        wanted = tuple(self.probes) if numbers is None else tuple(numbers)
        for number in wanted:
            if number not in self.probes:
                raise OptprobeError(f"no probe {number}", "optprobe list")
        return wanted

    def add(self, *specs: Spec) -> tuple[ProbeView, ...]:
        return tuple(view for spec in specs for view in self._add(spec))

    def _add(self, spec: Spec) -> tuple[ProbeView, ...]:
        if spec.location == "nosuch":
            raise OptprobeError("no symbol 'nosuch'", "info functions nosuch")
        if spec.condition.endswith("-overwrite"):
            raise OptprobeError("no symbol named 'overwrite'")
        if spec.location == "bug":
            raise KeyError("bug")
        self.last_number = len(self.probes) + 1
        view = probe(self.last_number, location=spec.location, name=spec.name, hits=1000)
        self.probes[view.number] = view
        return (view,)

    def reports(self, numbers: Sequence[int] | None = None) -> tuple[ProbeView, ...]:
        return tuple(replace(each, **GATHERED.get(each.location, {})) for each in self.views(numbers))

    def maps(self, numbers: Sequence[int] | None = None) -> tuple[SessionMapView, ...]:
        self._check(numbers)
        return ()

    def views(self, numbers: Sequence[int] | None = None) -> tuple[ProbeView, ...]:
        return tuple(self.probes[number] for number in self._check(numbers))

    def show(self, number: int) -> ShowView:
        self._check([number])
        return SHOWN

    def explain(self, *specs: Spec) -> tuple[ExplainView, ...]:
        return (EXPLAINED,)

    def enable(self, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
        return self._done("enable", numbers)

    def disable(self, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
        return self._done("disable", numbers)

    def delete(self, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
        done = self._done("delete", numbers)
        for number in done:
            del self.probes[number]
        return done

    def _done(self, verb: str, numbers: Sequence[int] | None) -> tuple[int, ...]:
        done = self._check(numbers)
        print(f"fake: {verb} {list(done)}")
        return done

    def clear(self, numbers: Sequence[int] | None = None) -> None:
        for number in self._check(numbers):
            self.probes[number] = replace(self.probes[number], hits=0)

    def hits(self, number: int) -> int:
        self._check([number])
        return self.probes[number].hits

    def missed(self, number: int) -> int:
        self._check([number])
        return 0

    def printed_traces(self) -> tuple[GuestTraceView, ...]:
        return (PRINTED,) if self.probes else ()

    def collector(self) -> CollectorView | None:
        return COLLECTOR if self.probes else None

    def commit(self, timeout: float, tell: Callable[[str], object]) -> tuple[str, ...]:
        tell("fake: 2 wait")
        return (f"fake: commit {timeout:g}",)

    def value_of(self, expression: str) -> tuple[str, ...]:
        return (f"value of {expression}",)

    def type_of(self, expression: str) -> tuple[str, ...]:
        return (f"type of {expression}",)

    def saved(self) -> SavedProbes:
        lines = tuple(f"optprobe add {probe.location} if count == $limit" for probe in self.probes.values())
        return SavedProbes(("# head", *lines), len(lines), (7,) if len(lines) > 1 else ())

    def check(self) -> tuple[str, ...]:
        return ("vfs_read was changed",) if self.probes else ()

    def untraced(self) -> tuple[str, ...]:
        return ()

    def run(
        self,
        seconds: float | None = None,
        until_hits: tuple[int, int] | None = None,
        timeout: float | None = None,
        guest: str = "",
        every: float | None = None,
        then: Callable[[bool], float | None] = bool,
        live: LiveMemory | None = None,
    ) -> str:
        if every is not None:
            assert then(False) is None or every
        return f"fake: run {seconds} {until_hits} {timeout}{f' {guest}' if guest else ''}"

    def follower(
        self, numbers: Sequence[int] | None, show: Callable[[Sequence[ProbeView]], object]
    ) -> Follower:
        """Each call takes all records that a report has."""

        def drain() -> Drained:
            show(self.reports(numbers))
            return Drained(2, 3)

        return Follower(drain)

    def sampler(self, pattern: str) -> Any:
        return FakeSampler([each for each in self.probes.values() if fnmatchcase(each.symbol, pattern or "*")])

    def live_memory(self) -> tuple[LiveMemory | None, str]:
        return None, "there is no guest"

    def checked(self, live: LiveMemory | None, warn: Callable[[str], object]) -> AbstractContextManager[None]:
        assert live is None
        return nullcontext()

    @property
    def stopped_memory(self) -> Any:
        return None

    def is_same_guest(self) -> bool:
        return True

    def watch(
        self,
        look: Callable[[Any, bool], bool],
        live: LiveMemory | None,
        every: float,
        seconds: float | None,
        keys: int | None,
    ) -> str:
        assert look(None, False) and look(None, False)
        return f"fake: watch {live} {every:g} {seconds} {keys}"

    def matches(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in ("vfs_read", "vfs_readv", "vfs_write") if name.startswith(prefix))

    def members(self, spec: Spec, expression: str) -> tuple[str, ...]:
        known = {("vfs_read", "file"): ("f_path", "f_flags"), ("vfs_read", "file->f_path"): ("dentry", "mnt")}
        if not expression:
            return ("file", "buf", "count")
        return known.get((spec.location, expression), ())
