"""Probes come and go at random, and GDB is killed again and again, beside a model of what must be in the guest.

    a new GDB ─► recover, recover -remove ─► some commands ─► kill -9, at any instant ─► the guardian frees the guest ─┐
        ▲                                    after each: everything is compared with the model                       │
        └────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
The guest works all the while. What it does is of known size where probes are counted exactly: WORK reads and writes as
often as it says, with sizes that nothing else uses, and a program calls its function as often. Text and memory are read
from the guest's RAM, which is a file, so that neither GDB nor the guest has a part in it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from qemu.calls import program, put
from qemu.debugger import Debugger, DebuggerError
from qemu.guest import Guest
from tests.booted import answer, calls
from tests.booted.gdb import TRACING, release
from tests.booted.test_guardian import lives, running

HELPERS = Path(__file__).with_name("guest_soak.py")
MARK = "@@soak "
SOON = 120.0
"""Seconds within which the guest must run after a kill."""
PROGRAM = "/tmp/soaked"
SIZE, STOPS = 4321, 4322
"""Bytes of each read of the workload, and of one that stops the guest."""
WORK = "dd if=/dev/zero of=/dev/null bs={size} count={count} 2>/tmp/said; " + PROGRAM + " {count}"
LOAD = (
    "touch /tmp/load; dd if=/dev/urandom of=/tmp/some bs=1k count=16 2>/tmp/load; "
    "(while [ -e /tmp/load ]; do dd if=/tmp/some of=/tmp/other bs=512 2>/tmp/load; cat /proc/uptime > /tmp/load; "
    "(/bin/true; usleep 3000) & usleep 60000; wait; done) & "
    "(while [ -e /tmp/load ]; do {forks} x; [ $? = {ends} ] || echo died >> /tmp/died; usleep 150000; done) & "
    "(while [ -e /tmp/load ]; do usleep 100000; done) & (while [ -e /tmp/load ]; do sleep 3; done) & "
    "sleep 1000000 & (sleep 1000000 | cat) &"
)
"""Reads, writes, forks and programs, one that forks among them; and calls that do not end."""
FORKS = "/tmp/forks"
CALLS = 500
EVENTS = ("vfs_read", "kernel_clone")
"""What the guest's own events count too."""
EXACT = ("read_zero", "write_null")
"""What nothing calls but the workload."""
STOPPING = ("breakpoint", "boosted", "emulated")
PAGE = 4096
RAM_AT = {"aarch64": 0x4000_0000}
"""The physical address at which RAM begins, where that is not 0."""


@dataclass(frozen=True)
class Kind:
    """What is given to `add`, or to `break`. exact: what of the workload hits it; "" where only the guest knows.

    event: the guest's own event that counts the same.
    """

    line: str
    exact: str = ""
    event: str = ""
    weight: int = 2


def kinds(modules: bool, places: dict[str, list[int]]) -> list[Kind]:
    inside = [(name, at) for name in EXACT for at in places[name][:4]]
    return [
        Kind("vfs_read", event="vfs_read"),
        Kind("kernel_clone", event="kernel_clone"),
        Kind("vfs_read -return", event="vfs_read"),
        Kind(f"vfs_read if $arg3 == {SIZE}", "read"),
        Kind(f"vfs_write if $arg3 == {SIZE} do count by $comm", "read"),
        Kind(f"ksys_read if $arg3 == {SIZE} do hist($arg3), max($arg3) by $pid", "read"),
        Kind(f"vfs_read -return if $retval == {SIZE} do latency", "read"),
        Kind(f"ksys_write -return entry if $arg3 == {SIZE} do save n = $arg3 if $retval == $saved.n", "read"),
        Kind("read_zero", "read"),
        Kind("write_null -return", "read"),
        Kind("write_null do record($arg3)", "read"),
        Kind("read_zero,write_null", "read"),
        Kind("read_zero -tier trapped", "read"),
        Kind("write_null -tier boosted", "read"),
        Kind("write_null -tier breakpoint", "read", weight=1),
        Kind("__schedule -return", weight=3),
        Kind("do_wait -return", weight=3),
        Kind("do_nanosleep -return do latency"),
        Kind("__schedule do count by $comm"),
        Kind("handle_mm_fault -return do hist($elapsed)"),
        Kind("path_openat do stack"),
        Kind("do_exit"),
        Kind("kfree do count by $comm"),
        Kind("kmem_cache_alloc -return", weight=1),
        Kind("begin_new_exec -return do record($retval)"),
        Kind(f"-user {PROGRAM}:test", "call"),
        Kind(f"-user {PROGRAM}:test do count by $pid", "call"),
        Kind(f"-user {PROGRAM}:test -return", "call"),
        Kind(f"-user {PROGRAM}:test -return do latency", "call", weight=1),
        Kind(f"-user {FORKS}:test do count by $pid", weight=1),
        Kind(f"-user {FORKS}:test -return", weight=1),
        Kind(f"-user {FORKS}:inner", weight=1),
        *([Kind("dummy:dummy_setup -pending", weight=1)] if modules else []),
        *(Kind(f"*{at:#x}", "read", weight=1) for _, at in inside),
    ]


BREAKS = (f"read_zero if $arg3 == {STOPS}", f"vfs_write -return if $retval == {STOPS}")
FILLING = ("kfree", "vfs_write", "ksys_write", "ksys_read", "dput", "path_openat", "vfs_read", "do_exit")


@dataclass
class Probe:
    """What the model knows of one. least, most: what it has counted."""

    number: int
    kind: Kind
    location: str
    enabled: bool = True
    least: int = 0
    most: int = 0
    tier: str = ""
    state: str = ""
    stops: int = 0
    behind: int | None = None  # what the guest's event counted before

    @property
    def is_native(self) -> bool:
        """Whether it counts without GDB."""
        return self.state == "armed" and self.tier not in STOPPING

    def hit(self, count: int, sure: bool) -> None:
        self.most += count
        self.least += count if sure else 0

    def doubt(self) -> None:
        """GDB died: what stopped the guest may not have been noted."""
        if not self.is_native or self.stops:
            self.least = 0
            self.behind = None


class Soak:
    """One guest, driven."""

    def __init__(self, guest: Guest, ram: Path, seed: int, tell: Callable[[str], object], without: str = "") -> None:
        """without: a pattern of lines that are not tried."""
        self.guest, self.ram, self.seed, self.tell = guest, ram, seed, tell
        self.chance = Random(seed)
        self.gdb: Debugger | None = None
        self.probes: dict[int, Probe] = {}
        self.gone: set[str] = set()
        self.done: list[str] = []
        self.told: Counter[str] = Counter()
        self.step = 0
        self.without = re.compile(without) if without else None
        self.last: dict[str, Any] = {}
        self.stopped = False  # at a `break`
        self.work: Any = None
        self.functions: list[str] = []
        self._prepare()

    # the guest -------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        bits = 64
        put(self.guest.check, program(bits, self.guest.options.arch), PROGRAM)
        answer.put(self.guest, calls.build(self.ram.parent, CALLS, self.guest.options.arch), FORKS)
        self.guest.check(LOAD.format(forks=FORKS, ends=self.guest.run(f"{FORKS} x")[0]))
        self._do_work(3)
        with Debugger(self.guest.gdb_socket) as gdb:
            gdb(f"source {HELPERS}")
            self.lines = ask(gdb, f"soak-map {' '.join((*EXACT, *EVENTS))}")["lines"]
        self._arm_events()
        with Debugger(self.guest.gdb_socket) as gdb:
            gdb(f"source {HELPERS}")
            gdb("optprobe add read_zero")
            found = ask(gdb, "soak-map")
        self.areas, self.fill = found["areas"], found["fill"]
        self.kinds = kinds(bool(self.guest.options.modules), self.lines)
        # What the guest changes itself, it has changed by now.
        self.guest.check("sleep 1")
        self.text = self._read("text")
        assert {*self._read("room")} == {self.fill}, "memory for detours is as it was"

    def _arm_events(self) -> None:
        # Behind what a branch at the entry covers.
        places = {}
        for name in EVENTS:
            entry, *rest = self.lines[name]
            places[name] = next((at for at in rest if at >= entry + 5), None)
        lines = [f"echo 'p:soak_{name} {at:#x}' >> kprobe_events" for name, at in places.items() if at is not None]
        self.guest.check(f"cd {TRACING}; {'; '.join(lines)}; echo 1 > events/kprobes/enable; sleep 1")

    def _read(self, area: str) -> bytes:
        found, start = b"", RAM_AT.get(self.guest.options.arch, 0)
        with self.ram.open("rb") as file:
            for _, place, size in self.areas[area]:
                found += (piece := os.pread(file.fileno(), size, place - start))
                assert len(piece) == size, f"{area} at {place:#x} is not in the guest's RAM"
        return found

    def _do_work(self, count: int) -> None:
        self.guest.check(WORK.format(size=SIZE, count=count), timeout=SOON)

    def changed(self) -> Iterator[int]:
        """Addresses of text that is not what it was."""
        now = self._read("text")
        ((start, place, _),) = self.areas["text"]
        # Some of the memory for detours is padding within the text, which data are mapped elsewhere of.
        rooms = [area for name in ("room", "data", "tables") for area in self.areas[name]]
        ours = {page for _, at, size in rooms for page in range((at - place) // PAGE, -(-(at + size - place) // PAGE))}
        for page in range(-(-len(now) // PAGE)):
            base = page * PAGE
            if now[base : base + PAGE] != self.text[base : base + PAGE] and page not in ours:
                end = min(base + PAGE, len(now))
                yield from (start + at for at in range(base, end) if now[at] != self.text[at])

    def guardians(self) -> list[int]:
        """Processes that would free this guest."""
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = place.read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"recovery/guardian.py") for word in words) and any(
                word.endswith(str(self.guest.gdb_socket).encode()) for word in words
            ):
                found.append(int(place.parent.name))
        return [each for each in found if lives(each)]

    # steps -----------------------------------------------------------------------------------------------------------

    def run(self, kills: int) -> None:
        begun = time.monotonic()
        try:
            self._connect()
            for kill in range(kills):
                for _ in range(self.chance.randint(1, 4)):
                    self._step()
                while not self._kill():
                    self._step()
                self._come_back()
                self.told["kills"] += 1
                if (kill + 1) % 10 == 0:
                    each = (time.monotonic() - begun) / (kill + 1)
                    self.tell(f"{self._where()}: {kill + 1} kills, {each:.1f} s each, {dict(self.told)}")
            self._leave()
        except BaseException as error:
            error.add_note(f"{self._where()}; since the guest was last without probes:\n  " + "\n  ".join(self.done))
            error.add_note(f"last state: {json.dumps(self.last)}")
            error.add_note(f"model: {[*self.probes.values()]}")
            raise
        finally:
            if self.gdb is not None:
                self.gdb.kill()

    def _where(self) -> str:
        return f"{self.guest.options.arch}, OPTPROBE_SEED={self.seed}, step {self.step}"

    def _note(self, line: str) -> None:
        self.step += 1
        self.done.append(f"{self.step}: {line}")

    def __call__(self, line: str) -> str:
        assert self.gdb is not None
        return self.gdb(line, SOON)

    def _is_left_out(self, what: str) -> bool:
        return self.without is not None and self.without.search(what) is not None

    def _connect(self) -> None:
        self.gdb = Debugger(self.guest.gdb_socket)
        self(f"source {HELPERS}")

    def _step(self) -> None:
        does: list[tuple[Callable[[], object], int]] = [
            (self._add, 10 if len(self.probes) < 8 else 3),
            (self._work, 6),
            (self._delete, 3),
            (self._switch, 2),
            (self._commit, 3),
            (self._run_for, 2),
            (self._report, 1),
            (self._save, 1),
            (self._fill, 1),
            (self._clear, 1),
            (self._empty, 1),
            (self._module, 1),
            (self._quit, 1),
        ]
        do = self.chance.choices([each for each, _ in does], [weight for _, weight in does])[0]
        do()
        self.look()

    def _command(self) -> str:
        """A line in which GDB is to be killed."""
        numbers = [*self.probes]
        if numbers and self.chance.random() < 0.5:
            some = self.chance.sample(numbers, self.chance.randint(1, len(numbers)))
            word = self.chance.choice(("delete", "disable", "enable"))
            return f"optprobe {word} {' '.join(map(str, sorted(some)))}"
        return self.chance.choice((f"optprobe add {self._kind().line}", "optprobe commit -timeout 0.5"))

    def _kind(self) -> Kind:
        some = [kind for kind in self.kinds if not self._is_left_out(kind.line)]
        return self.chance.choices(some, [kind.weight for kind in some])[0]

    def _add(self) -> None:
        if self.chance.random() < 0.1:
            return self._break()
        return self._put(self._kind(), "add")

    def _break(self) -> None:
        """A probe that stops the guest once. It goes on, or waits for the kill."""
        line = self.chance.choice(BREAKS)
        if self._is_left_out(line):
            return
        self._put(Kind(line), "break")

    def _put(self, kind: Kind, word: str) -> None:
        line = f"optprobe {word} {kind.line}"
        self._note(line)
        try:
            self(line)
        except DebuggerError as error:
            self.told["refused"] += 1
            self.done[-1] += f"  # {str(error)[:200]}"
            self._is_refused_well(str(error))
            return
        state = self._state()
        new = {row["number"]: row for row in state["probes"] if row["number"] and row["number"] not in self.probes}
        assert len(new) == kind.line.split(" ")[0].count(",") + 1, f"{len(new)} probes came of {line}"
        for number, row in new.items():
            assert row["hits"] == 0 or not row["stops"], row
            self.probes[number] = Probe(number, kind, row["location"])
            self._behind(self.probes[number], row, state)

    def _is_refused_well(self, why: str) -> None:
        known = ("is full", "does not fit", "free in one piece", "for data", "a program", "just now", "is running")
        known += ("continue", "is inside", "still", "are there")
        assert any(each in why for each in known), f"refused: {why}"

    def _behind(self, probe: Probe, row: dict[str, Any], state: dict[str, Any]) -> None:
        """Where the guest's own event stands for what a probe has counted."""
        if probe.kind.event and state["events"] is not None:
            total = sum(row["calls"][:1] if row["calls"] else [row["hits"]])
            probe.behind = self._event(probe.kind.event, state) - total

    def _event(self, name: str, state: dict[str, Any]) -> int:
        return int(sum(count for place, count in state["events"].items() if place.split("+")[0] == name))

    def _work(self) -> None:
        count = self.chance.randint(1, 12)
        self._note(f"run, with work of {count}")
        assert self.gdb is not None
        self.gdb.running(lambda: self._do_work(count), SOON)
        self._expect(count, with_gdb=True)

    def _expect(self, count: int, with_gdb: bool) -> None:
        for probe in self.probes.values():
            if probe.enabled and probe.kind.exact:
                probe.hit(count, with_gdb or probe.is_native)
            if probe.enabled and not (with_gdb or probe.is_native):
                probe.behind = None

    def _delete(self) -> None:
        if not self.probes:
            return
        some = self.chance.sample([*self.probes], self.chance.randint(1, min(3, len(self.probes))))
        self._note(f"optprobe delete {' '.join(map(str, sorted(some)))}")
        self(self.done[-1].partition(": ")[2])
        for number in some:
            del self.probes[number]

    def _switch(self) -> None:
        if not self.probes:
            return
        word = self.chance.choice(("enable", "disable"))
        some = self.chance.sample([*self.probes], self.chance.randint(1, len(self.probes)))
        self._note(f"optprobe {word} {' '.join(map(str, sorted(some)))}")
        self(self.done[-1].partition(": ")[2])
        for number in some:
            probe = self.probes[number]
            if probe.enabled != (word == "enable"):
                probe.enabled, probe.behind = word == "enable", None

    def _commit(self) -> None:
        self._note("optprobe commit -timeout 20")
        said = self("optprobe commit -timeout 20")
        assert "settled" in said, said
        state = self._state()
        if not self._is_left_out("over"):
            assert state["memory"]["over"] == [], f"tables that no call needs: {state['memory']['over']}"

    def _run_for(self) -> None:
        self._note("optprobe run -for 0.1")
        self("optprobe run -for 0.1")

    def _report(self) -> None:
        self._note("optprobe report")
        self("optprobe report")

    def _save(self) -> None:
        if not self.probes:
            return
        name = self.ram.with_name("saved")
        self._note("optprobe save")
        self(f"optprobe save {name}")
        saved = name.read_text()
        for probe in self.probes.values():
            assert probe.location.lstrip("*") in saved or probe.location.startswith("*"), saved

    def _clear(self) -> None:
        self._note("optprobe report -clear")
        self("optprobe report -clear")
        for probe in self.probes.values():
            probe.least = probe.most = 0
            probe.behind = None

    def _fill(self) -> None:
        """Records until memory for data is as good as full."""
        if self._is_left_out("fill"):
            return
        size, names = 16384, [*FILLING]
        self._note("fill the memory with records")
        while size >= 8 and names:
            self(f"set optprobe ring-records {size}")
            name = names[0]
            try:
                self(f"optprobe add {name} do record($arg1)")
            except DebuggerError as error:
                assert "full" in str(error), error
                size //= 2
                continue
            names.pop(0)
            number = max(row["number"] for row in self._state()["probes"])
            self.probes[number] = Probe(number, Kind(f"{name} do record($arg1)"), name)
        self("set optprobe ring-records 512")

    def _empty(self) -> None:
        """All is deleted and collected: nothing is left but what is told."""
        self._note("optprobe delete; optprobe commit")
        self("optprobe delete")
        self.probes.clear()
        self._commit()
        self._is_empty(self._state())

    def _is_empty(self, state: dict[str, Any]) -> None:
        told = [row for row in state["probes"] if row["state"] == "deleted"]
        memory = state["memory"]
        assert memory["dirty"] == 0 or told, memory
        assert len(memory["tables"]) <= len(told), f"{memory['tables']} but {told}"
        if not told:
            assert not memory["tables"] and not memory["unowned"], memory
            self.done = self.done[-1:]

    def _module(self) -> None:
        if not self.guest.options.modules:
            return
        self._note("load and unload a module")
        assert self.gdb is not None
        self.gdb.running(lambda: self.guest.check("insmod /lib/modules/dummy.ko; rmmod dummy"), SOON)

    # looking ---------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        assert self.gdb is not None
        self.last = ask(self.gdb, "soak-state")
        return self.last

    def look(self) -> None:
        """Everything is as the model says; the guest is stopped and GDB is there."""
        state = self._state()
        rows = {row["number"]: row for row in state["probes"] if row["number"]}
        assert rows.keys() == self.probes.keys(), f"{sorted(rows)} are there, {sorted(self.probes)} should be"
        for number, row in rows.items():
            self._compare(self.probes[number], row, state)
        assert state["problems"] == [], state["problems"]
        self._compare_text(state)
        assert state["memory"]["unowned"] == [], f"leaked: {state['memory']}"
        guardians = self.guardians()
        assert len(guardians) <= 1 and (guardians or not rows), f"{len(guardians)} guardians, {len(rows)} probes"
        self._is_well()

    def _is_well(self) -> None:
        assert self.guest.problems() == []

    def _compare(self, probe: Probe, row: dict[str, Any], state: dict[str, Any]) -> None:
        assert row["enabled"] == probe.enabled, f"{probe} is {row}"
        assert row["location"] == probe.location, f"{probe} is {row}"
        if probe.kind.exact:
            hits = row["hits"]
            assert probe.least <= hits <= probe.most, f"{hits} hits of {probe}: {row}"
            probe.least = probe.most = hits
        if row["calls"] and probe.kind.exact:
            assert row["calls"][3] == 0, f"calls found no room: {row}"
        if probe.enabled and probe.kind.event and state["events"] is not None:
            total = sum(row["calls"][:1] if row["calls"] else [row["hits"]])
            event = self._event(probe.kind.event, state)
            if probe.behind is None:
                probe.behind = event - total
            most = self.guest.options.processors
            assert abs(event - total - probe.behind) <= most, f"{total} counted, {event} by the guest: {probe}"
        assert row["faults"] == 0, row
        probe.tier, probe.state, probe.stops = row["tier"], row["state"], row["stops"]

    def _compare_text(self, state: dict[str, Any]) -> None:
        patches = [(at, at + size) for at, size in state["patches"]]
        foreign = [at for at in self.changed() if not any(start <= at < end for start, end in patches)]
        assert not foreign, f"text is not what it was: {[hex(at) for at in foreign[:40]]}"

    # the kill --------------------------------------------------------------------------------------------------------

    def _kill(self) -> bool:
        """Whether there was a probe with which GDB could be killed."""
        assert self.gdb is not None
        if not self.probes:
            self._put(self._kind(), "add")
            self.look()
        if not self.probes:
            return False
        how = self.chance.choice(("at the prompt", "running", "running", "command", "command", "command", "stopped"))
        self.told[how] += 1
        count = self.chance.randint(1, 12)
        line = ""
        guardians = self.guardians()
        assert len(guardians) == 1, guardians
        if how == "running":
            self._note(f"kill while it runs, with work of {count}")
            self.gdb.begin("continue")
            self.work = self.guest.spawn(WORK.format(size=SIZE, count=count))
            time.sleep(self.chance.uniform(0, 0.4))
        elif how == "command":
            line = self._command()
            after = self.chance.choice((0.02, 0.1, 0.4))
            self._note(f"kill at {line}")
            self.gdb.begin(line)
            time.sleep(self.chance.uniform(0, after))
        elif how == "stopped":
            line = f"optprobe break read_zero if $arg3 == {STOPS}"
            self._note(f"{line}, stop there and kill")
            if "is full" in self._try(line):
                line = ""
            self.gdb.begin("continue")
            self.work = self.guest.spawn(WORK.format(size=STOPS, count=1).replace(PROGRAM, "true"))
            time.sleep(self.chance.uniform(0, 0.6))
        else:
            self._note("kill at the prompt")
        self.gdb.kill()
        self.gdb = None
        self._is_freed(guardians[0])
        if self.work is not None:
            status, said = self.work.wait(SOON)
            assert status == 0, said
            if how == "running":
                self._expect(count, with_gdb=False)
        lifted: set[int] = set()
        if how == "stopped":
            # A branch is out of the text while a vCPU stands there, and stays out.
            lifted = {number for number, probe in self.probes.items() if self._is_at(probe, "read_zero")}
            for number, probe in self.probes.items():
                if probe.enabled and probe.kind.exact == "read" and str(SIZE) not in probe.kind.line:
                    # What runs behind a stop is counted by the GDB that dies.
                    behind = number in lifted and any(other < number for other in self._breaks())
                    probe.hit(1, probe.is_native and not behind)
                    # It may be on its way from its pad to there.
                    probe.most += number in lifted
        self.work = None
        self._forget_what_stopped()
        self.pending = line
        if self.chance.random() < 0.7:
            count = self.chance.randint(1, 12)
            self._note(f"no GDB, work of {count}")
            before = {number: (probe.least, probe.most) for number, probe in self.probes.items()}
            self._do_work(count)
            touched = self._touched(line) | self._lowered(line) | lifted
            for number, probe in self.probes.items():
                if probe.enabled and probe.kind.exact:
                    probe.hit(count, probe.is_native and number not in touched)
                elif number in touched and probe.kind.exact:
                    probe.most = before[number][1] + count
        assert self.guest.run("cat /tmp/died")[0] != 0, "every process ends as it does unprobed"
        self._is_well()
        return True

    def _breaks(self) -> list[int]:
        """Probes that stop the guest at a read of the workload's."""
        return [number for number, probe in self.probes.items() if probe.kind.line == BREAKS[0]]

    def _is_at(self, probe: Probe, name: str) -> bool:
        return probe.location.startswith(name) or probe.location in {f"*{at:#x}" for at in self.lines[name]}

    def _try(self, line: str) -> str:
        try:
            return self(line)
        except DebuggerError as error:
            return str(error)

    def _touched(self, line: str) -> set[int]:
        """Probes that a command that was killed may have switched."""
        words = line.split()
        return {int(word) for word in words[2:] if word.isdigit()} if words[1:2] != ["add"] else set()

    def _lowered(self, line: str) -> set[int]:
        """Probes that a command that was killed may have brought to a tier that needs GDB: it adds one beside them."""
        if not any(f"-tier {tier}" in line for tier in STOPPING):
            return set()
        return {number for number, probe in self.probes.items() if self._is_at(probe, line.split()[2])}

    def _forget_what_stopped(self) -> None:
        for probe in self.probes.values():
            probe.doubt()

    def _is_freed(self, guardian: int) -> None:
        deadline = time.monotonic() + SOON
        while lives(guardian) or not running(self.guest):
            assert time.monotonic() < deadline, "the guest does not run"
            time.sleep(0.01)

    def _come_back(self) -> None:
        """A new GDB finds what there is."""
        self._connect()
        line = self.pending
        touched, killed = self._touched(line), line.split()[1:2]
        if self.last["memory"]["free"] is None:
            # Nothing of these probes was in the guest, no journal either: they stopped it, or waited for a module.
            touched, killed = {*self.probes}, ["delete"]
        way = self.chance.choices(("recover", "recover -remove", "add"), (7, 2, 1))[0]
        if way == "add":
            self._note("optprobe add, before anything is recovered")
            said = self._try("optprobe add vfs_write")
            if re.search(r"^Probe \d+ at ", said, re.MULTILINE):
                assert killed == ["delete"] and touched >= self.probes.keys(), said
                self("optprobe delete")
            way = "recover"
        self._note(f"optprobe {way}")
        said = self._try(f"optprobe {way}")
        if "then try again" in said:
            # On a busy host the guest hardly runs while the recovery lets it.
            self._note(said)
            self("optprobe run -for 2")
            said = self._try(f"optprobe {way}")
        assert not said.startswith("optprobe recover") or "no probes of an earlier GDB" in said, said
        self.told[way] += 1
        if "no probes of an earlier GDB" in said:
            assert killed == ["delete"] and touched >= self.probes.keys(), said
            self.probes.clear()
        elif way == "recover -remove":
            assert re.search(r"\d+ probes? of an earlier GDB removed", said), said
            self.probes.clear()
            self.look()
            self._empty()
        else:
            if self._is_left_out("fill"):
                for number in re.findall(r"probe (\d+), .* is not recovered: the memory for detours is full", said):
                    self.told["lost for want of memory"] += 1
                    del self.probes[int(number)]
            else:
                assert "is not recovered" not in said, said
            self._adopt(line, touched, killed)
        self.look()

    def _adopt(self, line: str, touched: set[int], killed: list[str]) -> None:
        """What a command that was killed has done, and what it has not."""
        state = self._state()
        rows = {row["number"]: row for row in state["probes"] if row["number"]}
        for number in touched:
            if killed == ["delete"] and number not in rows:
                del self.probes[number]
            elif killed == ["delete"]:
                # Its branch may have been out of the text until now.
                self.probes[number].behind = None
            elif killed in (["enable"], ["disable"]):
                probe, on = self.probes[number], rows[number]["enabled"]
                if probe.enabled != on:
                    assert on == (killed == ["enable"]), f"{probe} is {rows[number]}"
                    probe.enabled = on
                probe.behind = None
        for number, row in rows.items():
            if number not in self.probes:
                given = line.partition(" ")[2].partition(" ")[2]
                assert row["location"].lstrip("*") in given, f"{row} came from nowhere: {line}"
                kind = next((kind for kind in self.kinds if kind.line == given), Kind(given))
                self.probes[number] = Probe(number, kind, row["location"], most=row["hits"])
                self._behind(self.probes[number], row, state)

    def _quit(self) -> None:
        """GDB quits, takes all out, and another one comes: nothing is left but what calls under way need."""
        self._leave()
        self._connect()

    def _leave(self) -> None:
        assert self.gdb is not None
        self._note("quit")
        # Calls that are under way return to code of ours, and traps of programs may just be on their way.
        state = self._state()
        rows = state["probes"]
        kept = any(row["kind"].startswith("u") or (row["calls"] and row["calls"][2]) for row in rows)
        kept = kept or bool(state["patches"] and not rows)
        self.gdb.quit(SOON)
        self.gdb = None
        self.probes.clear()
        deadline = time.monotonic() + SOON
        while self.guardians() or not running(self.guest):
            assert time.monotonic() < deadline, "the guest does not run, or its guardian does"
            time.sleep(0.01)
        if not kept:
            assert not (changed := [hex(at) for at in self.changed()]), f"text is not what it was: {changed[:40]}"
        self._is_well()


def ask(gdb: Debugger, line: str) -> dict[str, Any]:
    said = gdb(line, SOON)
    return dict(json.loads(said.rpartition(MARK)[2].splitlines()[0]))


def soak(guest: Guest, ram: Path, seed: int, kills: int, tell: Callable[[str], object], without: str = "") -> Soak:
    """Raises AssertionError with the seed and what was done."""
    found = Soak(guest, ram, seed, tell, without)
    try:
        found.run(kills)
    finally:
        if guest.running:
            release(guest)
    return found


__all__: Sequence[str] = ("Soak", "soak")
