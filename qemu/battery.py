"""Try each facility in one guest with one GDB, and report whether it works, is refused, or is broken.

    works     the count, the value, the frame came out as the guest itself, or a workload of known size, says
    refused   the tool said that it cannot, and why, before anything was changed
    broken    anything else: a wrong count, an error in the middle, a guest that is ill, text that has changed
    untried   this guest lacks something that is needed to try it

Counts need no oracle of the guest's: `dd` of so many bytes from /dev/zero calls `read_zero` just as often, and nothing
else does. Where the guest has kprobe and uprobe events, one is at each probe and must have counted the same.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import calls
from .channel import ChannelError
from .debugger import Debugger, DebuggerError
from .guest import Guest, GuestError

__all__ = ["FACILITIES", "Battery", "Broken", "Outcome", "Refused", "State"]

ROOT = Path(__file__).resolve().parent
TRACING = "/sys/kernel/tracing"
ENTRY, CALLER, OPENS = "read_zero", "ksys_read", ("do_sys_openat2", "do_sys_open")
READS, SIZE, ODD = 1000, 7, 4321
PROGRAM, CALLS, MAY_LOSE = "/calls64", 500, 20
HEALTH = 60.0
QUESTIONS = 50
QUARANTINE = re.compile(r"^Quarantined: .*", re.M)
MAY_STAY = re.compile(r"_text_end$|^asm_exc_")
PAGE = 4096
LINE = re.compile(r"^(?:=> )?\s*(0x[0-9a-f]+)[^:]*:\s+(\S.*)$", re.M)
# Of several threads GDB says which one hit it.
HIT = re.compile(rf"\boptprobe \d+, (0x[0-9a-f]+ in )?{CALLER} ")
# Straight-line code ends at one of these (x86-64: j…, call, ret; ppc64le: b… but the bit instructions; aarch64: b…,
# cbz, tbz).
LEAVES = re.compile(r"^(j|call|ret|b(?!r[hwd]\b|permd)|[ct]bn?z|syscall|ud2)")


class Broken(Exception):
    """A result is wrong; the text has it and the expected one."""


class Refused(Exception):
    """The tool refused; `code` is that of the closed list where it gave one."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class Untried(Exception):
    """The guest lacks something that is needed to try it."""


State = str
WORKS, REFUSED, BROKEN, UNTRIED = "works", "refused", "broken", "untried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one facility in one guest.
    text: why it is refused or broken; a figure, if it works.
    """

    facility: str
    state: State
    code: str = ""
    text: str = ""


class Battery:
    """One guest and the GDB that is connected to it. A GDB that fails is replaced; a guest that fails ends the run."""

    def __init__(self, guest: Guest, program: str = "", symbols: Path | None = None) -> None:
        """Take a guest. program: the GDB; "" for this machine's own. symbols: a vmlinux for it."""
        self.guest = guest
        self._program = program
        self._symbols = symbols
        self._gdb: Debugger | None = None

    def run(self, names: Sequence[str] = ()) -> Iterator[Outcome]:
        """Try every facility, or those that are named, in their order."""
        refused = self._refused()
        for name, check in FACILITIES.items():
            if not names or name in names:
                yield self._try(name, check) if refused is None else replace(refused, facility=name)
        self.end()

    def _refused(self) -> Outcome | None:
        """Return the tool's words where it refuses the guest as a whole: a kernel without symbols, say."""
        try:
            self.ask("optprobe list")
        except Refused as error:
            return Outcome("", REFUSED, error.code, _one_line(str(error)))
        return None

    def _try(self, name: str, check: Callable[[Battery], str]) -> Outcome:
        try:
            outcome = Outcome(name, WORKS, text=check(self))
        except Refused as error:
            outcome = Outcome(name, REFUSED, error.code, _one_line(str(error)))
        except Untried as error:
            outcome = Outcome(name, UNTRIED, text=str(error))
        except (Broken, DebuggerError, ChannelError, GuestError, ValueError, LookupError) as error:
            outcome = Outcome(name, BROKEN, text=_one_line(f"{error}"))
        trouble = self._tidy(outcome.state == BROKEN)
        return Outcome(name, BROKEN, text=trouble) if trouble and outcome.state != BROKEN else outcome

    def _tidy(self, broken: bool) -> str:
        """Remove every probe. Return what the removal, or the guest's log, has against the facility; "" for nothing."""
        try:
            if broken:
                self.kill()
                with contextlib.suppress(DebuggerError):
                    self.gdb("optprobe recover -remove")
            self.gdb("optprobe delete")
            if "holds what we wrote" not in (said := self.gdb("optprobe check")) and "No probes" not in said:
                return f"after delete: {_one_line(said)}"
            self.run_in_guest("true", HEALTH)
        except (DebuggerError, ChannelError) as error:
            self.kill()
            return f"afterwards: {_one_line(str(error))}"
        problems = self.guest.problems()
        return f"the guest's log: {problems[0]}" if problems else ""

    def end(self) -> None:
        """End GDB as `quit` does; the next use starts another."""
        if self._gdb is not None:
            self._gdb.close()
            self._gdb = None

    # what the checks use ----------------------------------------------------------------------------------------

    @property
    def gdb(self) -> Debugger:
        if self._gdb is None:
            self._gdb = Debugger(self.guest.gdb_socket, self._program, self._symbols)
        return self._gdb

    def kill(self) -> None:
        """End GDB as `kill -9` does; the next use starts another."""
        if self._gdb is not None:
            self._gdb.kill()
            self._gdb = None

    def run_in_guest(self, command: str, timeout: float = 60.0) -> str:
        """Let the guest run a command and return its output."""
        return self.gdb.running(lambda: self.guest.run(command, timeout)[1], timeout + 60)

    def ask(self, line: str) -> str:
        """Give a command that the tool may refuse."""
        try:
            return self.gdb(line)
        except DebuggerError as error:
            text = str(error).partition(": ")[2]
            if "internal error" in text or "Traceback" in text or not text:
                raise
            raise Refused(text) from None

    def probe(self, clause: str) -> int:
        """Add a probe and return its number. Raises Refused also where each hit would stop the guest."""
        self.ask(f"optprobe add {clause}")
        view = self.views()[-1]
        if view["state"] == "optimizing":
            self.ask("optprobe commit")
            view = self.views()[-1]
        if view["tier"] not in ("optimized", "trapped"):
            reason = view["reason"] or {}
            raise Refused(f"{view['tier']}: {reason.get('text', '')}", str(reason.get("code", "")))
        return int(view["number"])

    def parameter(self, name: str, number: int) -> str:
        """Return a parameter's name at an entry: $argN where the kernel has no types."""
        facilities = json.loads(self.gdb("optprobe doctor -json"))["facilities"]
        typed = next(row["state"] == WORKS for row in facilities if row["name"] == "types")
        return name if typed else f"$arg{number}"

    def views(self) -> list[dict[str, Any]]:
        found = json.loads(self.gdb("optprobe list -json"))
        assert isinstance(found, list)
        return found

    def view(self, number: int) -> dict[str, Any]:
        return next(view for view in self.views() if view["number"] == number)

    def maps(self, number: int) -> dict[str, list[dict[str, Any]]]:
        """Return what the probe's actions gathered, by action."""
        lines = map(json.loads, self.gdb(f"optprobe report {number} -json").splitlines())
        return {line["action"]: line["entries"] for line in lines if line["type"] == "map"}

    def boundaries(self, function: str, count: int) -> list[int]:
        """Return the first instructions of a function, as far as they follow one another."""
        self.gdb("optprobe list")
        found = []
        for address, text in LINE.findall(self.gdb(f"x/{count}i {function}")):
            found.append(int(address, 16))
            if LEAVES.match(text):
                break
        return found

    def reads(self, count: int = READS) -> None:
        self.run_in_guest(f"dd if=/dev/zero of=/dev/null bs={SIZE} count={count} 2>/dev/null", 120)

    def event(self, kind: str, place: str) -> contextlib.AbstractContextManager[Callable[[], int | None]]:
        return _event(self, kind, place)


@contextlib.contextmanager
def _event(battery: Battery, kind: str, place: str) -> Iterator[Callable[[], int | None]]:
    """Yield a function that returns the hits of an event of the guest's own; None where this guest has no such events.
    """
    file, group = f"{TRACING}/{kind}_events", f"{kind}s"
    armed = battery.run_in_guest(
        f"[ -e {file} ] && echo 'p:matrix {place}' > {file} && echo 1 > {TRACING}/events/{group}/enable && echo armed"
    )
    if "armed" not in armed:
        yield lambda: None
        return
    try:
        yield lambda: int(battery.run_in_guest(f"cat {TRACING}/{kind}_profile").split()[-2 if kind == "kprobe" else -1])
    finally:
        battery.run_in_guest(f"echo 0 > {TRACING}/events/{group}/enable; echo > {file}; echo > {TRACING}/trace")
        # The guest's optimizer removes its jump a little later.
        battery.run_in_guest("sleep 1")


def same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Broken(f"{what}: {found}, not {wanted}")


# the facilities ------------------------------------------------------------------------------------------------------


def doctor(battery: Battery) -> str:
    """Check that doctor answers for each facility, and for none with an internal error."""
    told = json.loads(battery.gdb("optprobe doctor -json"))
    refused = [row for row in told["facilities"] if row["state"] != WORKS]
    for row in refused:
        if not row["reason"] or "internal error" in row["reason"]:
            raise Broken(f"doctor: {row['name']} {row['state']} without a reason: {row['reason']}")
    return "; ".join(f"{row['name']}: {row['reason']}" for row in refused)


def entry(battery: Battery) -> str:
    number = battery.probe(ENTRY)
    # Behind the probe, which is on the tracer's site: the guest's own event would need that site too.
    address = int(battery.view(number)["address"], 0)
    behind = next(place for place in battery.boundaries(ENTRY, 8) if place > address)
    with battery.event("kprobe", f"{behind:#x}") as hits:
        battery.reads()
        same(f"hits of {ENTRY}", battery.view(number)["hits"], READS)
        if (theirs := hits()) is not None:
            same("the guest's own event", theirs, READS)
    view = battery.view(number)
    if view["tier"] != "optimized":
        raise Refused(f"{view['tier']}: {view['reason']['text']}", view["reason"]["code"])
    return "beside the guest's event" if theirs is not None else "by the workload"


def middle(battery: Battery) -> str:
    """Probe behind the entry, instruction by instruction; one of them beyond an event of the guest's own."""
    places = battery.boundaries(ENTRY, 12)
    inside = places[1:6]
    if not inside:
        raise Refused(f"{ENTRY} has no second instruction before its first branch")
    with battery.event("kprobe", f"{inside[0]:#x}"):
        # The guest's optimizer works every 5 jiffies.
        battery.reads(1)
        time.sleep(0.3)
        numbers = {}
        for place in inside[1:]:
            with contextlib.suppress(Refused):
                numbers[place] = battery.probe(f"*{place:#x}")
        battery.reads()
        for place, number in numbers.items():
            same(f"hits of {ENTRY}+{place - places[0]:#x}", battery.view(number)["hits"], READS)
        battery.gdb("optprobe delete")
    numbers = {place: battery.probe(f"*{place:#x}") for place in inside}
    battery.reads()
    for place, number in numbers.items():
        same(f"hits of {ENTRY}+{place - places[0]:#x}", battery.view(number)["hits"], READS)
    return f"{len(numbers)} instructions"


def glob(battery: Battery) -> str:
    battery.ask("optprobe add vfs_*")
    battery.reads()
    views = battery.views()
    # A probe at an entry is behind the function's landing pad.
    hits = next(view["hits"] for view in views if view["symbol"].partition("+")[0] == "vfs_read")
    if hits < READS:
        raise Broken(f"hits of vfs_read: {hits}, not at least {READS}")
    fast = sum(view["tier"] == "optimized" for view in views)
    if fast * 2 < len(views):
        reason = next(view["reason"] for view in views if view["tier"] != "optimized")
        raise Refused(f"{fast} of {len(views)} optimized: {reason['text']}", reason["code"])
    return f"{fast} of {len(views)} optimized"


def whole(battery: Battery) -> str:
    """Probe every function at once: the guest runs, and one with a known number of calls has counted each."""
    said = battery.ask("optprobe add -glob *")
    battery.reads()
    lines = map(json.loads, battery.gdb("optprobe report -top 300 -json").splitlines())
    counted = {line["symbol"].partition("+")[0]: line["hits"] for line in lines if line["type"] == "probe"}
    if ENTRY not in counted and (left := re.search(r"left out: .*no room", said)):
        raise Refused(_one_line(said[left.start() :]), "ARENA_FULL")
    same(f"hits of {ENTRY}", counted.get(ENTRY), READS)
    if (found := re.search(r"([\d,]+) addresses, ([\d,]+) optimized", said)) is None:
        raise Broken(f"what add says: {_one_line(said)}")
    return f"{found[2]} of {found[1]} optimized"


def handler(battery: Battery) -> str:
    size = battery.parameter("count", 3)
    number = battery.probe(f"{CALLER} if {size} == {SIZE} do count by $comm, hist({size})")
    battery.reads()
    maps = battery.maps(number)
    same("count by $comm", maps["count by $comm"], [{"key": ["dd"], "value": READS}])
    rows = [(row["low"], row["count"]) for row in maps[f"hist({size})"][0]["value"]]
    same(f"hist({size})", rows, [(4, READS)])
    return f"by {size}"


def text(battery: Battery) -> str:
    name, told, name_of_file = "/tmp/optprobe-matrix", "", battery.parameter("filename", 2)
    for function in OPENS:
        try:
            number = battery.probe(f"{function} do count by str({name_of_file})")
            break
        except Refused as error:
            told = told or str(error)
    else:
        raise Refused(told)
    battery.run_in_guest(f"for i in 1 2 3; do cat {name} 2>/dev/null; done")
    found = {row["key"][0]: row["value"] for row in battery.maps(number)[f"count by str({name_of_file})"]}
    same(f"opens of {name}", found.get(name), 3)
    return f"by {name_of_file}"


def script(battery: Battery) -> str:
    """Run a script in bpftrace's language, of functions and of a system call, and as one of its tools prints."""
    size = f"arg2 == {SIZE}"
    probes = {
        f"kprobe:{CALLER} /comm == \"dd\" && {size}/": "@entries[comm, arg2] = count(); @began[tid] = 1;",
        f"kretprobe:{CALLER} /@began[tid]/": "@returned = hist(retval); delete(@began[tid]);",
        "tracepoint:syscalls:sys_enter_openat /comm == \"cat\"/": 'printf("%s %s\\n", comm, str(args.filename));',
    }
    program = " ".join(f"{probe} {{ {body} }}" for probe, body in probes.items())
    work = f"dd if=/dev/zero of=/dev/null bs={SIZE} count={READS} 2>/dev/null; cat /tmp/none 2>/dev/null"
    lines = battery.ask(f"optprobe script -json -guest '{work}' -e '{program}'").splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    maps = {name: value for line in said if line["type"] in ("map", "hist") for name, value in line["data"].items()}
    same("@entries", maps["@entries"], {f"dd,{SIZE}": READS})
    same("@returned", [(row["min"], row["count"]) for row in maps["@returned"]], [(4, READS)])
    same("printf", [line["data"] for line in said if line["type"] == "printf"], ["cat /tmp/none\n"])
    return "kprobe, kretprobe, syscalls:"


def returns(battery: Battery) -> str:
    number = battery.probe(f"{ENTRY} -return do latency, sum($retval)")
    battery.reads()
    view, maps = battery.view(number), battery.maps(number)
    same("returns", (view["hits"], view["missed"]), (READS, 0))
    same("sum($retval)", maps["sum($retval)"][0]["value"], READS * SIZE)
    same("latencies", sum(row["count"] for row in maps["latency"][0]["value"]), READS)
    return ""


def stops(battery: Battery) -> str:
    """Try a conditional breakpoint on each vCPU in turn, `bt` and `finish`; no other thread stops."""
    gdb, size = battery.gdb, battery.parameter("count", 3)
    for cpu in range(battery.guest.options.processors):
        battery.ask(f"optprobe break {CALLER} if {size} == {ODD}")
        work = battery.guest.spawn(f"taskset {1 << cpu:x} dd if=/dev/zero of=/dev/null bs={ODD} count=2 2>&1")
        with contextlib.closing(work):
            said = gdb("continue")
            if HIT.search(said) is None:
                raise Broken(f"continue: {_one_line(said)}")
            frames = re.findall(r"^#\d+\s+(?:0x[0-9a-f]+ in )?(\S+)", gdb("bt"), re.M)
            if frames[0] != CALLER or len(frames) < 3 or any(name in ("0x0", "??") for name in frames):
                raise Broken(f"bt: {' '.join(frames)}")
            said = gdb("finish")
            # With debug information callers may be inlined in the one that `finish` comes to.
            if not any(name in said for name in frames[1:4]):
                raise Broken(f"finish: {_one_line(said)}")
            if HIT.search(said := gdb("continue")) is None:
                raise Broken(f"continue, the second time: {_one_line(said)}")
            gdb("optprobe delete")
            gdb.running(lambda: work.wait(60))  # noqa: B023
    return f"{battery.guest.options.processors} vCPUs, {len(frames)} frames"


def user(battery: Battery) -> str:
    arch = battery.guest.options.arch
    data = calls.program(64, arch)
    calls.put(battery.run_in_guest, data, PROGRAM)
    battery.run_in_guest(f"{PROGRAM} 1")
    # Behind the first instruction: another place than ours.
    behind = calls.offset_of(data, arch) + (1 if arch == "x86_64" else 4)
    number = battery.probe(f"-user {PROGRAM}:test do count by $comm")
    with battery.event("uprobe", f"{PROGRAM}:{behind:#x}") as hits:
        battery.run_in_guest(f"{PROGRAM} {CALLS} & {PROGRAM} {CALLS} & wait", 120)
        same("hits in the program", battery.view(number)["hits"], 2 * CALLS)
        if (theirs := hits()) is not None and not _may_lack(battery, 2 * CALLS - theirs):
            same("the guest's own uprobe", theirs, 2 * CALLS)
    battery.gdb("optprobe delete")
    number = battery.probe(f"-user {PROGRAM}:test -return do latency")
    battery.run_in_guest(f"{PROGRAM} {CALLS}", 120)
    same("returns in the program", battery.view(number)["hits"], CALLS)
    return "beside the guest's event" if theirs is not None else "by the workload"


def module(battery: Battery) -> str:
    """Check a probe that waits for its module, and counts from the first call."""
    if "dummy" not in battery.guest.options.modules:
        raise Untried("no module dummy is kept of this kernel")
    battery.ask("optprobe add dummy_xmit -pending")
    said = battery.run_in_guest("insmod /lib/modules/dummy.ko && echo loaded")
    if "loaded" not in said:
        raise Broken(f"insmod: {_one_line(said)}")
    (view,) = battery.views()
    if view["state"] == "pending":
        if not view["reason"]["text"].endswith("is not there yet"):
            raise Refused(view["reason"]["text"], view["reason"]["code"])
        raise Broken(f"the module is loaded, and the probe waits on: {view['reason']['text']}")
    sends = "ip addr add 10.9.9.1/24 dev dummy0; ip link set dummy0 up; ping -c 2 -W 1 10.9.9.2 >/dev/null"
    told = battery.run_in_guest(
        f"{sends}; ip link set dummy0 down; cat /sys/class/net/dummy0/statistics/tx_packets", 120
    )
    packets = int(told.split()[-1])
    if not packets:
        raise Broken("dummy0 has sent nothing")
    (view,) = battery.views()
    same("hits of dummy_xmit", view["hits"], packets)
    battery.gdb("optprobe delete")
    battery.run_in_guest("rmmod dummy")
    return f"{view['tier']}, {packets} packets"


def _may_lack(battery: Battery, lost: int) -> bool:
    """Return whether the guest's own count may lack so many: by `nhit++`, before 6.12, two CPUs may lose one."""
    major, minor, *_ = map(int, re.findall(r"\d+", battery.run_in_guest("uname -r")))
    return (major, minor) < (6, 12) and 0 < lost <= MAY_LOSE


def agreement(battery: Battery) -> str:
    """Compare `explain` of random places with `add`."""
    # The questions about programs are about busybox: its pages must be in the guest's memory.
    battery.run_in_guest("busybox true")
    battery.gdb(f"python agree_seed, agree_count = {battery.guest.options.processors}, {QUESTIONS}")
    told = json.loads(battery.gdb(f"source {ROOT}/agree.py", 600).splitlines()[-1])
    if told["disagreements"]:
        raise Broken(f"{len(told['disagreements'])} of {told['asked']}: {told['disagreements'][0]}")
    return f"{told['asked']} places, {told['refused']} refused"


def recovery(battery: Battery) -> str:
    """Kill GDB; check that the guest runs and counts, and that the next GDB adopts the probes."""
    battery.probe(ENTRY)
    battery.probe(f"{CALLER} if $arg3 == {SIZE} do count by $pid")
    battery.reads()
    battery.kill()
    # No GDB is connected: the guest itself must run.
    battery.guest.run(f"dd if=/dev/zero of=/dev/null bs={SIZE} count={READS} 2>/dev/null", 120)
    battery.ask("optprobe recover")
    hits = [view["hits"] for view in battery.views()]
    same("hits over a kill", hits[0], 2 * READS)
    battery.reads()
    same("hits after it", battery.views()[0]["hits"], 3 * READS)
    return ""


def removal(battery: Battery) -> str:
    """Check that text is as before when GDB has left: branches, traps, and the padding that detours were in."""
    with tempfile.TemporaryDirectory() as folder:
        before = _text(battery, Path(folder, "before"))
        for location in (ENTRY, CALLER, "vfs_*", f"{CALLER} -return", f"{CALLER} -tier trapped"):
            with contextlib.suppress(Refused):
                battery.ask(f"optprobe add {location}")
        battery.reads()
        battery.gdb("optprobe delete")
        battery.gdb("optprobe commit -timeout 20")
        listed = battery.gdb("optprobe list")
        after = _text(battery, Path(folder, "after"))
    if before != after:
        changed = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        pages = {at & -PAGE: at for at in changed}.values()
        names = {battery.gdb(f"info symbol (char *) _stext + {at}").split("+")[0].strip() for at in pages}
        # Where no thread can be proven to have left, detours in the filler stay, and the way from traps to them.
        if (kept := QUARANTINE.search(listed)) and all(MAY_STAY.search(name) for name in names):
            raise Refused(kept[0])
        raise Broken(f"{len(changed)} bytes of text differ after delete, in {', '.join(sorted(names))}")
    return f"{len(before) >> 10} KiB of text"


def _text(battery: Battery, file: Path) -> bytes:
    """Return the kernel's text as the next GDB finds it."""
    battery.end()
    battery.gdb(f"source {ROOT}/text_dump.py")
    battery.gdb("optprobe list")
    battery.gdb(f"optprobe-text {file}")
    return file.read_bytes()


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip() and set(line.strip()) - set("^~")]
    return "; ".join(lines[:6])[:400]


FACILITIES: dict[str, Callable[[Battery], str]] = {
    "doctor": doctor,
    "entry": entry,
    "middle": middle,
    "glob": glob,
    "all": whole,
    "if/do": handler,
    "str()": text,
    "script": script,
    "return": returns,
    "break": stops,
    "user": user,
    "module": module,
    "explain": agreement,
    "recover": recovery,
    "removal": removal,
}
"""The checks by facility. The text that one returns is printed if the facility works."""
