"""Run a script in a guest: attach its probes, carry out what they ask while the guest runs, end it.

    BEGIN ─► probes installed ─► guest runs ⇄ records; short stops: intervals ─► probes removed ─► END ─► maps
      └───────────────────────── the host runs BEGIN, END and intervals ─────────────────────────┘
Maps are in this process before the probes are installed and after they are removed, else in guest memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest.guest import WalkedCode
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.handlers.interpreter import Hit, MapContents, run
from gdb_optprobe.handlers.ir import Emit, Program
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script import requests
from gdb_optprobe.handlers.script.compile import Attached, Script
from gdb_optprobe.handlers.script.output import Output
from gdb_optprobe.handlers.script.place import wrong
from gdb_optprobe.handlers.script.runtime import Host, Runtime, contents_of
from gdb_optprobe.handlers.stack_walk import CODE, FRAMES, WANTED
from gdb_optprobe.maps.host_map import HostMap
from gdb_optprobe.probes.event_probes import kind_of
from gdb_optprobe.probes.follower import LONGEST, SHORTEST, Pause
from gdb_optprobe.probes.kprobes import WOULD_STOP, stops_unasked
from gdb_optprobe.probes.new_records import RecordReader
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Row
from gdb_optprobe.probes.script_kernel import PROBED, RETURNS
from gdb_optprobe.probes.script_programs import PROGRAMS
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.session_maps import Contents
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.target import Command, Ticks

SECOND = 10**9
_SHOWN = ("{ … }",)
"""The action that listings show of a script's probe."""
_LEAST = 0.001
"""Seconds that the guest runs at least between two stops."""
_NEED_NO_STOP = (requests.Printf, requests.PrintValue, requests.Join, requests.ShowTime, requests.Exit)
"""What can be carried out while the guest runs, unless a name in it is asked of the guest."""


def _no_live_memory() -> None:
    """Return None: the guest is read at stops alone."""


class ScriptMaps(Mapping[str, MapContents]):
    """The maps of a script by name without at-sign: those of the session that are in the guest, else ours."""

    def __init__(self, script: Script, session: Session) -> None:
        self._ours: dict[str, HostMap] = {
            name[1:]: HostMap(script.settings.max_map_keys) for name in script.maps
        }
        kept = (FRAMES, CODE)
        self._ours |= {each.name: HostMap(each.most) for each in script.program_maps if each in kept}
        self._session = session
        self._placed: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> MapContents:
        return self._session.kprobes.maps.by_name()[name] if name in self._placed else self._ours[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ours)

    def __len__(self) -> int:
        return len(self._ours)

    def contents(self) -> Mapping[str, Contents]:
        """Return what the maps have that are here: those in the guest begin with it."""
        return {name: contents_of(map_) for name, map_ in self._ours.items()}

    def placed(self) -> None:
        """Use the maps in the guest that the script's probes have there now."""
        self._placed = frozenset(self._session.kprobes.maps.by_name().keys() & self._ours.keys())

    def take_back(self) -> Mapping[str, int]:
        """Move the contents here, before the probes are removed. Return how many values found no room, by map."""
        there, dropped = self._session.kprobes.maps.by_name(), dict[str, int]()
        for name in sorted(self._placed):
            found = there[name].contents()
            dropped |= {name: found.dropped} if found.dropped else {}
            for key, words in found.by_key.items():
                self._ours[name].put(key, words)
        self._placed = frozenset()
        return dropped


@dataclass
class ScriptRun:
    """A script in a guest. write: gets the text as it comes. warn: gets what is left out.

    now: the guest's time in nanoseconds since its start, at a stop. clock: of the host, in seconds.
    quiet: nothing is said of the probes that are attached.
    live: returns, at a stop, what reads the guest's memory while it runs; None where only stops can.
    """

    session: Session
    script: Script
    output: Output
    host: Host
    write: Callable[[str], object]
    warn: Callable[[str], object]
    now: Callable[[], int | Missing]
    clock: Callable[[], float] = time.monotonic
    quiet: bool = False
    live: Callable[[], LiveMemory | None] = _no_live_memory
    lost: int = 0
    _numbers: list[int] = field(default_factory=list)
    _pause: Pause = field(default_factory=Pause)
    _live: LiveMemory | None = None
    _stopped_at: float = -math.inf
    _left_out: int = 0
    _learned: dict[int, WalkedCode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = RecordReader(self.session.target.guest.machine)
        self.maps = ScriptMaps(self.script, self.session)
        self.runtime = Runtime(self.script, self.output, self.host, self.maps)

    @property
    def is_over(self) -> bool:
        """Return whether `exit` was called."""
        return self.runtime.status is not None

    def run(self, seconds: float | None, guest: str = "", keep: bool = False) -> int:
        """Attach, let the guest run at most so long or until `exit`, detach, print the maps. Return the status.

        guest: a command in the guest; the script ends with it. keep: the probes stay; without a time or a command, the
        guest does not run. Raises OptprobeError.
        """
        self._check_maps(keep)
        attached = self._attachable()
        self._announce()
        self._on_host(self.script.of("BEGIN"))
        stays = False
        try:
            if not self.is_over:
                self._attach(attached, keep)
                if not keep or guest or seconds is not None:
                    self._run_guest(seconds, guest)
                stays = keep
        finally:
            if not stays:
                self._detach()
        if stays:
            return 0
        self._on_host(self.script.of("END"))
        self.write(self.output.before_maps() + self.runtime.at_end())
        return self.runtime.status or 0

    def attach_only(self) -> int:
        """Attach the probes and detach them: nothing of the script runs on the host. Return 0. Raises OptprobeError."""
        self._check_maps(False)
        attached = self._attachable()
        self._announce()
        try:
            self._attach(attached, False)
        finally:
            self._detach()
        return 0

    def _announce(self) -> None:
        if not self.quiet:
            self.write(self.output.attached(len(self.script.probes) - self._left_out))

    def _run_guest(self, seconds: float | None, guest: str) -> None:
        command = self.session.target.debugger.begin(guest) if guest else None
        try:
            # What leads from modules' code to its callers is looked up at stops.
            self._live = live = self.live() if self._numbers and CODE.name not in self.maps else None
            with self.session.checked(live, self.warn):
                self._let_run(seconds, command)
        finally:
            self._live = None
            if command is not None:
                command.close()

    def _check_maps(self, keep: bool) -> None:
        """Raise OptprobeError where a map, or a probe, cannot be what the script wants."""
        there = self.session.kprobes.maps.by_name()
        if not keep:
            if taken := sorted(name for name in self.maps if name in there):
                why = f"@{taken[0]} is a map of other probes, which would go with the script"
                raise OptprobeError(why, "optprobe delete them, or use another name, or -keep this script's probes too")
            return
        for probe in self.script.probes:
            if probe.point.provider not in (*PROBED, "BEGIN", "END"):
                why = f"{probe.point.provider} probes fire while a script runs, so they cannot be kept"
                raise wrong(why, probe.point.where, "without -keep")

    def _attachable(self) -> list[Attached]:
        """Return the probes that will be attached: a wildcard leaves out functions that cannot be probed, and those at
        which each hit would stop the guest.

        The guest is as it was. Raises OptprobeError where another one cannot be.
        """
        found = []
        for each in (each for each in self.script.probes if each.point.provider in PROBED):
            try:
                self._try(each)
            except (Unreadable, Unreachable):
                raise
            except OptprobeError as error:
                if not each.point.has_wildcard:
                    raise
                self._left_out += 1
                self.warn(f"could not attach probe {each.name}, skipping: {error.message}")
                continue
            found.append(each)
        # The guest runs while a handler is registered on a tracepoint, and while pages of a program are copied: the
        # kernel's other probes are attached after that.
        return sorted(found, key=_order)

    def _try(self, each: Attached) -> None:
        """Plan and lower a probe, without touching the guest. Raises OptprobeError."""
        kprobes, spec = self.session.kprobes, _spec(each)
        if spec.in_program:
            self.session.uprobes.check(spec)
            return
        if spec.kind is Kind.TRACEPOINT:
            return  # `add` plans it where its handler would be, before the kernel is asked to call that
        plan = kprobes.plan_at(each.address, spec)
        assert plan is not None, "no glob leaves anything out"
        handler = kprobes.compile(spec, plan, self.session.settings())
        if each.point.has_wildcard and stops_unasked(spec, plan, handler):
            raise WOULD_STOP
        kprobes.lower(Probe(0, spec, plan.address, handler), plan)

    def _attach(self, probes: Sequence[Attached], keep: bool) -> None:
        maps, known = self.session.kprobes.maps, self.session.optimizer.scripts.known
        maps.first = self.maps.contents()
        if keep:
            known.maps.update(self.script.maps)
            for name in maps.first.keys() & maps.by_name().keys():
                for key, words in maps.first[name].items():
                    maps.by_name()[name].put(key, words)
        try:
            for together in _rounds(probes):
                self._numbers += [view.number for view in self.session.add(*map(_spec, together))]
        finally:
            maps.first = {}
            self.maps.placed()

    def _detach(self) -> None:
        if not self._numbers:
            return
        try:
            self._drain()
            for name, values in self.maps.take_back().items():
                self.warn(f"@{name} was full: {values:,} values found no room; config = {{ max_map_keys = N }}")
        finally:
            numbers, self._numbers = self._numbers, []
            self.session.delete(numbers)

    def _let_run(self, seconds: float | None, command: Command | None) -> None:
        begun, intervals = self.clock(), self.script.of("interval")
        due = [begun + _period(probe) for probe in intervals]
        end = None if seconds is None else begun + seconds
        while (self._numbers or intervals or command is not None) and not self.is_over:
            now = self.clock()
            if (end is not None and now >= end) or (command is not None and command.outcome()):
                return
            ticks = Ticks(self._pause.seconds, self._tick) if self._live is not None else None
            ends = [*due, *([end] if end is not None else []), *([now + self._pause.seconds] if ticks is None else [])]
            left = max(min(ends) - now, _LEAST) if ends else None
            reason = self.session.target.debugger.run(left, command, ticks)
            self._drain()
            self._stopped_at = self.clock()
            for number, probe in enumerate(intervals):
                if not self.is_over and self.clock() >= due[number]:
                    self._on_host([probe])
                    # What the guest or the host was too slow for is left out, as a timer does it.
                    due[number] = max(due[number] + _period(probe), self.clock())
            if reason is not None:
                return

    def _tick(self) -> float | None:
        """Carry out what the rings have while the guest runs. Return the seconds until the next time; None to stop it.
        """
        assert self._live is not None
        try:
            with self.session.target.guest.machine.reading(self._live):
                self._drain()
                self._check_maps_have_room()
        except NeedsStop:
            return None
        except Unreadable:
            self._live = None
            return None
        return None if self.is_over else self._pause.seconds

    def _check_maps_have_room(self) -> None:
        """Raise NeedsStop where keys without a value may have to go, unless they have been looked for just now."""
        there = self.session.kprobes.maps.by_name()
        if self.clock() - self._stopped_at >= LONGEST and any(
            there[name].is_half_full for name in self.maps if name in there
        ):
            raise NeedsStop("a map is half full")

    def _on_host(self, probes: Sequence[Attached]) -> None:
        """Run programs here, at a stop."""
        for probe in probes:
            for kind, data in self._asked(probe.program):
                self.write(self.runtime.take(kind, data))

    def _asked(self, program: Program) -> Iterator[tuple[int, bytes]]:
        memory = self.session.target.guest.machine
        now = self.now()
        clock = None if isinstance(now, Missing) else now
        outcome = run(program, Hit({}, memory.read, clock=clock, maps=self.maps))
        for done in outcome.done:
            assert isinstance(done.action, Emit) and done.action.target.kind is not None
            yield done.action.target.kind, done.data

    def _drain(self) -> None:
        """Carry out what the rings have, in the order of time, and empty them, or while the guest runs read on.

        Raises NeedsStop where the guest runs, and something of it needs a stop: nothing of it is done then.
        """
        if not self._numbers:
            return
        machine = self.session.target.guest.machine
        found = self._reader.read(self.session.registry.probes(self._numbers))
        texts = self._texts(sorted(found.rows, key=lambda row: row.time or 0))
        for text in [*texts] if machine.runs else texts:
            self.write(text)
        found.take(machine)
        drained = found.drained
        if drained.lost and not self.is_over:
            self.lost += drained.lost
            self.write(self.output.lost(drained.lost))
        self._pause.look(drained.fullness, machine.runs)
        if machine.runs:
            return
        self.session.reclaim_maps(self.maps)
        if self._learn():
            self._pause.seconds = SHORTEST  # what a hit wants next is one frame further up

    def _texts(self, rows: Sequence[Row]) -> Iterator[str]:
        """Carry out records, and yield what each prints, until `exit`. Raises NeedsStop, see above."""
        if self.session.target.guest.machine.runs:
            for row in rows:
                if not isinstance(self.script.requests[row.kind], _NEED_NO_STOP):
                    raise NeedsStop("a record asks for maps, or files")
        for row in rows:
            if self.is_over:
                return
            yield self.runtime.take(row.kind, row.fields)

    def _learn(self) -> bool:
        """Tell hits what leads from modules' code that they came to, to its callers; forget it of modules that went.

        Return whether there was any.
        """
        learned = False
        if (code := self.maps.get(CODE.name)) is None:
            return learned
        for key, words in contents_of(code).items():
            address = int.from_bytes(key, "little")
            found = self.session.target.guest.walked_code(address)
            if found is None:
                if self._learned.pop(address, None) is not None:
                    code.delete(key)
            elif words[0] == WANTED or found != self._learned.get(address):
                self._learned[address] = found
                code.put(key, (found.entry,))
                learned = True
        return learned


def _rounds(probes: Sequence[Attached]) -> Iterator[list[Attached]]:
    """Yield probes that are added together: `add` has one probe at an address of the kernel."""
    left = [*probes]
    while left:
        first: dict[int | str, Attached] = {}
        for each in left:
            first.setdefault(_place(each), each)
        yield [*first.values()]
        taken = {id(each) for each in first.values()}
        left = [each for each in left if id(each) not in taken]


def _place(probe: Attached) -> int | str:
    """Return what tells where a probe is: a program's address is one of a file, a handler's is not known yet."""
    location = probe.location or probe.name
    return location if probe.point.provider in PROGRAMS or kind_of(location) is Kind.TRACEPOINT else probe.address


def _spec(attached: Attached) -> Spec:
    provider, program = attached.point.provider, attached.program
    if provider in PROGRAMS:
        return Spec(attached.name.partition(":")[2], Kind(provider), actions=_SHOWN, program=program)
    location = attached.location or attached.name
    if (of_event := kind_of(location)) is not None:
        return Spec(location, of_event, actions=_SHOWN, program=program)
    kind = Kind.KRETPROBE if provider in RETURNS else Kind.KPROBE
    return Spec(f"*{attached.address:#x}", kind, actions=_SHOWN, program=program)


def _order(probe: Attached) -> int:
    if kind_of(probe.location or probe.name) is Kind.TRACEPOINT:
        return 0
    return 1 if probe.point.provider in PROGRAMS else 2


def _period(probe: Attached) -> float:
    return probe.point.period / SECOND
