"""Which of bpftrace's own tools run here: scripts/tools.

    a guest with bpftrace ── bpftrace TOOL, first and last ─┐
             │                                              ├─ a workload ── the same events?
             └────────────── optprobe script TOOL ──────────┘
      in turns:  bpftrace TOOL ── a workload;  optprobe script TOOL ── the same workload ── the same events?
A tool runs if it prints at least one event that its workload makes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from . import bpftrace_guest
from .bpftrace_guest import TIMEOUT, running_bpftrace
from .cache import say
from .channel import ChannelError
from .debian import FetchError
from .debugger import Debugger, DebuggerError
from .guest import Guest, GuestError, Options

__all__ = ["Outcome", "main", "measure"]

RUNS, NOTHING, REFUSED, BROKEN = "runs", "nothing to see", "refused", "broken"
KERNEL, NEWER = "6.1 cloud", "6.12 cloud"
BOOTS = 4
"""Tries: in QEMU 7.2, 6.12 now and then has a double fault behind a `cmpxchg16b` while it boots, with no debugger."""


class How(Enum):
    """How a tool is compared with bpftrace's run of it."""

    BESIDE = "both at the same time, so PIDs and ports are the same too"
    TURNS = "one after the other, on a workload that makes the same events each time"
    NOT = "not: the events are those of all that runs, or of the time that things take"


@dataclass(frozen=True, slots=True)
class Tool:
    """What makes events for a tool.

    work: a command of the guest's, behind `before`, which makes none.
    event: of a line that an event prints; its groups are what bpftrace prints too. `count`: so many events.
    kernel: of scripts/matrix, where the usual one has not what the tool probes.
    how: in turns for what programs do: a uprobe of the guest's at an instruction that has ours is not put in.
    """

    work: str
    event: str
    before: str = ":"
    how: How = How.BESIDE
    kernel: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool did.

    why: of a refusal, or what is not there to see. events: printed. same: by bpftrace too; how: it was compared.
    """

    tool: str
    state: str
    why: str = ""
    events: int = 0
    same: bool | None = None
    how: str = ""


NET = "ip addr add 10.9.9.1/24 dev lo 2>/dev/null"
SERVE = f"{NET}; (nc -l -p 99 </dev/null >/dev/null & sleep 0.3; echo hello | nc 10.9.9.1 99; wait)"
LOST = "[ -e /sys/class/net/dummy0 ] || insmod /lib/modules/dummy.ko; ip link set dummy0 up; "
LOST += "ip link set dummy0 arp off; ip addr add 10.8.8.1/24 dev dummy0 2>/dev/null || true"
"""A device that loses what is sent."""
SWAP = "insmod /lib/modules/brd.ko rd_nr=1 rd_size=65536; mkswap /dev/ram0; swapon /dev/ram0; mkdir -p /tmp/cg; "
SWAP += "mount -t cgroup2 none /tmp/cg; echo +memory > /tmp/cg/cgroup.subtree_control; mkdir -p /tmp/cg/t"
KEY = "-psk 1a2b3c4d -tls1_2"
TLS = f"(PATH=$PATH:/usr/bin; openssl s_server {KEY} -nocert -accept 443 -quiet >/dev/null 2>&1 & S=$!; sleep 2; "
TLS += f"(sleep 2; echo hello; sleep 1) | openssl s_client {KEY} -connect 127.0.0.1:443 -quiet >/dev/null 2>&1; "
TLS += "kill $S)"
UNIX = TLS.replace("-accept 443", "-unix /tmp/socket").replace("-connect 127.0.0.1:443", "-unix /tmp/socket")
DISK = "dd if=/dev/nvme0n1 of=/dev/null bs=64k count=30 2>/dev/null; echo 3 > /proc/sys/vm/drop_caches"
BASH = r"printf 'echo one\necho two words\nexit\n' | bash --norc -i"
READ = "dd if=/dev/zero of=/dev/null bs=1 count=3000 2>/dev/null"
TIME = r"\d\d:\d\d:\d\d"
BARS = r"\[.*[])] +(?P<count>\d+) \|"
"""Of a histogram of times: how many there are, in any bar."""

TOOLS = {
    "bashreadline": Tool(BASH, rf"{TIME} +\d+ +(\S.*)", how=How.TURNS),
    "biolatency": Tool(DISK, BARS, kernel=NEWER),
    "biolatency-kp": Tool(DISK, BARS, how=How.TURNS, kernel=NEWER),
    "biosnoop": Tool(DISK, r"^\d+ +\S+ +(?:\d+ +)?(dd) +(\d+)", kernel=NEWER),
    "biostacks": Tool(DISK, BARS, kernel=NEWER),
    "bitesize": Tool(DISK, r"(\[.*\)) +(?P<count>\d+) \|"),
    "capable": Tool("touch /tmp/f; chown 7 /tmp/f", r"(\d+) +(\d+) +(chown) +(\d+) +(CAP_CHOWN) +(\d+)"),
    "cpuwalk": Tool("dd if=/dev/zero of=/dev/null bs=1M count=3000", r"\[.*\) +\d+ \|", how=How.NOT),
    "dcsnoop": Tool("cat /tmp/nosuch 2>/dev/null", r"(\d+) +(cat) +([RM]) (\S+)"),
    "execsnoop": Tool("/bin/busybox true; /bin/busybox echo word", r"\d+ +(\d+) +(\S*busybox .*)"),
    "gethostlatency": Tool("/usr/bin/getent ahosts localhost", rf"{TIME} +\d+ +(getent) +[\d.]+ (localhost)",
                           "mkdir -p /etc; echo 127.0.0.1 localhost > /etc/hosts", how=How.TURNS),
    "killsnoop": Tool("sleep 100 & kill -7 $!; sleep 0.1", r"(\d+) +(sh) +(7) +(\d+) +(\d+)"),
    "loads": Tool("sleep 3", r"load averages: [\d.]+ [\d.]+ [\d.]+", how=How.NOT),
    "mdflush": Tool("sleep 1", r"md\d"),
    "naptime": Tool("calls", rf"{TIME} (\d+) +(\S+) +(\d+) +(calls) +([\d.]+)$"),
    "oomkill": Tool("sleep 300 & echo 1000 > /proc/$!/oom_score_adj; sleep 0.5; echo f > /proc/sysrq-trigger; sleep 1",
                    r"OOM kill of PID (\d+) \(\"(.*?)\"\)"),
    "opensnoop": Tool("cat /proc/version > /dev/null", r"(\d+) +(cat) +(\d+) +(\d+) (\S+)"),
    "pidpersec": Tool("for i in 1 2 3 4 5; do for j in 1 2 3 4; do /bin/busybox true; done; sleep 0.5; done",
                      r"PIDs/sec: @: \d+", how=How.NOT),
    "runqlat": Tool("for i in 1 2 3; do dd if=/dev/zero of=/dev/null bs=1M count=300 & done; wait",
                    r"\[.*\) +\d+ \|", how=How.NOT),
    "runqlen": Tool("for i in 1 2 3 4; do dd if=/dev/zero of=/dev/null bs=1M count=1500 & done; wait",
                    r"\[.*\) +\d+ \|", how=How.NOT),
    "setuids": Tool("calls", rf"{TIME} (\d+) +(calls) +(\d+) +(setuid) +uid=(1000) \((0)\)"),
    "ssllatency": Tool(TLS, r"@(statF?)\[.*\]: count (?P<count>\d+)", how=How.TURNS),
    "sslsnoop": Tool(TLS, r"\d+ +(openssl) +\d+ +(\d+) ", how=How.TURNS),
    "statsnoop": Tool("stat /tmp/some-file; stat -f /tmp", r"(\d+) +(stat) +(\d+) (\S+)"),
    "swapin": Tool("(echo 0 > /tmp/cg/t/cgroup.procs; x=$(head -c 4000000 /dev/zero | tr '\\0' a); "
                   "echo 16M > /tmp/cg/t/memory.reclaim 2>/dev/null; echo ${#x} >/dev/null; sleep 2)",
                   r"@\[(\S+), (\d+)\]: (\d+)", SWAP, how=How.NOT),
    "syncsnoop": Tool("sync", r"(\d+) +(sync) +(tracepoint:syscalls:\S+)"),
    "syscount": Tool(READ, r"@process\[(dd)\]: (?P<count>\d+)", how=How.TURNS),
    "tcpaccept": Tool(SERVE, rf"{TIME} (\d+) +(nc) +(\S+) +(\d+) +(\S+) +(\d+) +(\S+)"),
    "tcpconnect": Tool(SERVE, rf"{TIME} (\d+) +(nc) +(\S+) +(\d+) +(\S+) +(\d+)"),
    "tcpdrop": Tool("timeout 5 nc 10.8.8.2 97", r"(10\.8\.8\.1:\d+) +(10\.8\.8\.2:97) +(\S+)",
                    f"{LOST}; ip link set dummy0 arp on"),
    "tcplife": Tool(SERVE, r"(\d+) +(\S+) +(10\.\S+) +(\d+) +(10\.\S+) +(\d+) +(\d+) +(\d+) \d+"),
    "tcpretrans": Tool("timeout 3 nc 10.8.8.2 97", rf"{TIME} (\d+) +(\S+):(\d+) +(\S+):(\d+) +(\S+)", LOST),
    "tcpsynbl": Tool(SERVE, r"(\[.*[])]) +(?P<count>\d+) \|"),
    "threadsnoop": Tool("/usr/bin/zstd -q -T2 -c /bin/busybox >/dev/null", r"\d+ +\d+ +(zstd) ", how=How.TURNS),
    "undump": Tool(UNIX, r"(openssl) +(\d+) +(\d+)"),
    "vfscount": Tool(READ, r"@\[(vfs_\w+)\]: \d+", how=How.NOT),
    "vfsstat": Tool(f"{READ}; sleep 2", r"@\[\w+\]: \d+", how=How.NOT),
    "writeback": Tool("(dd if=/dev/zero bs=4k count=50; sync; sleep 1) > /dev/nvme0n1 2> /dev/null",
                      rf"{TIME} +(\S+) +(-?\d+) +(\S+) +[\d.]+"),
    "xfsdist": Tool("sleep 1", r"\[.*\) +\d+ \|"),
}  # fmt: skip


def measure(suite: str, kernel: str = "", names: Sequence[str] = (), beside: bool = False) -> Iterator[Outcome]:
    """Yield what each tool of a suite does, or those named. beside: bpftrace runs it too.

    kernel: of scripts/matrix; "" for the one that each needs.
    Raises FetchError, GuestError.
    """
    there = bpftrace_guest.tools(suite)
    wanted = [name for name in there if not names or name in names]
    wanted.sort(key=lambda name: kernel or TOOLS[name].kernel)
    while wanted:
        booted = kernel or TOOLS[wanted[0]].kernel
        options = bpftrace_guest.options(suite, booted or KERNEL)
        with _booted(options) as guest:
            while wanted and booted == (kernel or TOOLS[wanted[0]].kernel):
                name = wanted.pop(0)
                try:
                    yield _tried(guest, name, there[name], TOOLS[name], TOOLS[name].how if beside else How.NOT)
                except (GuestError, ChannelError) as error:
                    yield Outcome(name, BROKEN, str(error).partition("\n")[0])
                    break  # the others have a guest that answers


def _booted(options: Options) -> Guest:
    for left in reversed(range(BOOTS)):
        try:
            return Guest.start(options, timeout=TIMEOUT)
        except GuestError as error:
            if not left:
                raise
            say(str(error).partition("\n")[0])
    raise AssertionError


def _tried(guest: Guest, name: str, path: Path, tool: Tool, how: How) -> Outcome:
    guest.check(tool.before, timeout=TIMEOUT)
    with ExitStack() as stack:
        # bpftrace's first line tells how many probes it attaches; the tool's own comes when it has attached them.
        bpftrace = running_bpftrace(guest, f"/usr/sbin/{name}.bt", 2)
        theirs = stack.enter_context(bpftrace) if how is not How.NOT else None
        if theirs is not None and how is How.TURNS:
            guest.check(f"({tool.work})", timeout=TIMEOUT)
            theirs()
        try:
            with Debugger(guest.gdb_socket) as gdb:
                said = gdb(f"optprobe script -guest {_quoted(tool.work)} {path}", TIMEOUT)
        except DebuggerError as error:
            text = str(error).removeprefix(f"script -guest {_quoted(tool.work)} {path}: ")
            return Outcome(name, REFUSED if "GDB" not in text else BROKEN, _first(text))
        ours = _events(tool, said)
        seen = _events(tool, theirs()) if theirs is not None else Counter()
        same = ours == seen if seen else None
        if same is False and theirs is not None:
            say(f"{name} here:\n{said}\nand by bpftrace:\n{theirs()}")
    if not ours:
        return Outcome(name, NOTHING, _why(said))
    alone = "bpftrace sees none" if theirs is not None and not seen else ""
    return Outcome(name, RUNS, alone, ours.total(), same, "" if same is None else how.name.lower())


def _events(tool: Tool, said: str) -> Counter[tuple[str, ...]]:
    """Return how often each event is in what a tool said."""
    pattern = re.compile(tool.event)
    count = pattern.groupindex.get("count")
    found = Counter[tuple[str, ...]]()
    for line in said.splitlines():
        if event := pattern.search(line):
            what = tuple(text for group, text in enumerate(event.groups(), 1) if group != count)
            found[what] += int(event["count"]) if count else 1
    return found


def _first(text: str) -> str:
    """Return the message of an error, without the line that it shows."""
    return text.strip().partition("\n")[0].partition(": line ")[2].partition(": ")[2] or text.strip().partition("\n")[0]


def _why(said: str) -> str:
    """Return what was warned of."""
    return "; ".join(line.removeprefix("WARNING: ") for line in said.splitlines() if line.startswith("WARNING: "))


def _quoted(command: str) -> str:
    return '"' + command.replace("\\", "\\\\").replace('"', '\\"') + '"'


def table(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [f"{'tool':16} {'':14} {'events':>6}  beside bpftrace"]
    for one in outcomes:
        same = {None: "", True: "the same", False: "differs"}[one.same] + (", in turns" if one.how == "turns" else "")
        lines.append(f"{one.tool:16} {one.state:14} {one.events or '':>6}  {same}{one.why}".rstrip())
    runs = [one for one in outcomes if one.state == RUNS]
    compared = [one for one in runs if one.same is not None]
    lines.append(f"{len(runs)} of {len(outcomes)} tools run")
    if compared:
        lines.append(f"{sum(one.same is True for one in compared)} of {len(compared)} print what bpftrace prints")
    return lines


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="scripts/tools", description=(__doc__ or "").partition("\n")[0])
    made.add_argument("tools", nargs="*", metavar="TOOL", help="without .bt; all of them without any")
    suites = "of Debian's: bookworm (0.17) or trixie (0.23)"
    made.add_argument("--suite", default="bookworm", choices=("bookworm", "trixie"), help=suites)
    made.add_argument("--kernel", default="", help=f"of scripts/matrix (default: {KERNEL}, or what a tool needs)")
    made.add_argument("--beside", action="store_true", help="have bpftrace run each too, and compare")
    made.add_argument("--json", action="store_true", help="print a list of objects")
    return made


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    unknown = [name for name in arguments.tools if name not in TOOLS]
    if unknown:
        say(f"{unknown[0]} is no tool of bpftrace's; there are: {' '.join(TOOLS)}")
        return 2
    outcomes = []
    failed = False
    try:
        for outcome in measure(arguments.suite, arguments.kernel, arguments.tools, arguments.beside):
            say(f"{outcome.tool}: {outcome.state}")
            outcomes.append(outcome)
    except (FetchError, GuestError) as error:
        say(str(error))
        failed = True
    print(json.dumps([asdict(one) for one in outcomes]) if arguments.json else "\n".join(table(outcomes)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
