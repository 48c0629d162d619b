"""Boot a stock Linux guest, probe it from GDB, and show what a hit costs.

--gdb SOCKET probes a guest that runs already; then the workload is its own.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from .bench_target import BENCH_TARGETS, FUNCTION
from .cache import guests_directory, say
from .channel import ChannelError
from .checkout import program
from .costs.table import aligned, number
from .debian import FetchError
from .debugger import Debugger, DebuggerError, gdb_program, line_to_start, lines_to_start
from .guest import Guest, GuestError, Options
from .processes import ending_on_signals
from .reads import Reads
from .rsp_proxy import RspProxy

ENTRY, MIDDLE, RARE = FUNCTION, "vfs_write", "ksys_sync"
MANY, FEW = 100_000, 60
NOISY = "too noisy to tell"
# As far behind a function's entry a probe's address is looked for, and how many instructions.
NOT_BEFORE, TRIES = 16, 40
READS = "dd if=/dev/zero of=/dev/null bs=1 count=100000"
WORKLOAD = "dd if=/dev/zero of=/dev/null bs=1 count=100000 2>/dev/null; sync; sync; sync"
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Probing:
    """A guest with GDB attached: `reads` is None where no command can be run in it."""

    socket: str
    debugger: Debugger
    reads: Reads | None


def main(words: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status. words: None for those of the command line."""
    arguments = parser().parse_args(words)
    ending_on_signals()
    try:
        with ExitStack() as stack:
            return demo(arguments, stack)
    except (GuestError, ChannelError, FetchError, DebuggerError, ValueError, OSError) as error:
        say(str(error))
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=program("demo"), description=__doc__)
    option = top.add_argument
    option("-i", "--interactive", action="store_true", help="stay in GDB, with the guest up")
    option("--gdb", metavar="SOCKET", help="a guest of your own: what GDB's `target remote` takes")
    option("--arch", default="x86_64", choices=tuple(BENCH_TARGETS), help="architecture of the guest (default: x86_64)")
    option("--kernel", metavar="FILE", help="boot a kernel of your own")
    option("--initrd", metavar="FILE", help="an initramfs of your own")
    return top


def demo(arguments: argparse.Namespace, stack: ExitStack) -> int:
    guest = None if arguments.gdb else stack.enter_context(boot(arguments))
    socket = arguments.gdb or str(guest.gdb_socket if guest else "")
    with ExitStack() as attached:
        probing = attach(guest, socket, attached)
        if probing.reads is not None:
            say("measuring what a hit costs, about half a minute")
            print("\n".join(costs(probing.debugger, probing.reads, arguments.arch)), flush=True)
        show(probing)
    if guest is not None and guest.problems():
        raise GuestError("the guest is ill:\n" + "\n".join(guest.problems()))
    if arguments.interactive:
        return interactive(socket, is_ours=probing.reads is not None)
    print(farewell(arguments.gdb, arguments.arch))
    return 0


def boot(arguments: argparse.Namespace) -> Guest:
    """Boot a guest. With an initramfs of the user's it may lack our init: then there is no workload."""
    say("booting a guest, a few seconds")
    options = Options(arch=arguments.arch, kernel=arguments.kernel, initrd=arguments.initrd)
    if not arguments.initrd:
        return Guest.start(options)
    guest = Guest.start(options, wait=False)
    try:
        guest.wait_ready(60)
    except GuestError:
        if not guest.running:
            raise
        say("this initramfs does not run qemu/init: no commands in the guest")
    except BaseException:
        guest.stop()
        raise
    return guest


def attach(guest: Guest | None, socket: str, stack: ExitStack) -> Probing:
    if guest is None or "optprobe-guest: ready" not in guest.log():
        return Probing(socket, stack.enter_context(Debugger(socket)), None)
    proxy = stack.enter_context(RspProxy(guest.gdb_socket))
    debugger = stack.enter_context(Debugger(proxy.path))
    return Probing(socket, debugger, Reads(guest, debugger, proxy))


# the table -----------------------------------------------------------------------------------------------------------


def costs(debugger: Debugger, reads: Reads, arch: str) -> list[str]:
    """Return a table of the time of a read of one byte in the guest, by the host's wall clock."""
    own = BENCH_TARGETS[arch]
    # QEMU translates the code in the first run, which the others then find translated.
    reads.measure(MANY)
    rows = [
        ("no probe", MANY, (), ()),
        ("optprobe, optimized", MANY, (f"optprobe add {ENTRY}",), ("optprobe delete",)),
        ("optprobe, boosted", FEW, (f"optprobe add {ENTRY} -tier boosted",), ("optprobe delete",)),
        ("GDB's break … if", FEW, (f"break *{own.entry} if {own.size} == 4321",), ("delete",)),
    ]
    took = [(name, count, wall(debugger, reads, count, before, after)) for name, count, before, after in rows]
    return ["", *aligned([("a read of one byte", "reads", "µs each", "ratio"), *rows_of(took)]), ""]


def rows_of(took: Sequence[tuple[str, int, float | None]]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of seconds, the first of them the unit; on a busy host some may lack a time."""
    unprobed = took[0][2]
    for name, count, each in took:
        if each is None:
            yield name, f"{count:,}", NOISY, "-"
        else:
            yield name, f"{count:,}", number(each * 1e6), number(each / unprobed) if unprobed is not None else "-"


def wall(debugger: Debugger, reads: Reads, count: int, before: Sequence[str], after: Sequence[str]) -> float | None:
    for line in before:
        debugger(line)
    took = reads.wall(count, 3)
    for line in after:
        debugger(line)
    return took


# the probes ----------------------------------------------------------------------------------------------------------


def show(probing: Probing) -> None:
    """Show probes at an entry and in the middle of a function, and one that stops the guest rarely."""
    gdb = probing.debugger
    for line in (f"optprobe add {ENTRY}", f"optprobe add {middle(gdb)}", f"optprobe add {RARE} -tier boosted"):
        print(f"(gdb) {line}")
        print(gdb(line), end="", flush=True)
    if probing.reads is not None:
        say("a workload in the guest, a few seconds")
        probing.reads.guest(WORKLOAD)
    else:
        say(f"letting the guest run for {SECONDS:g} seconds")
        gdb(f"optprobe run -for {SECONDS:g}")
    print("(gdb) optprobe report")
    print(gdb("optprobe report"), end="", flush=True)


def middle(gdb: Debugger) -> str:
    """Return a place within a function that can be optimized without waiting for a thread to leave it."""
    offset = 0
    for _ in range(TRIES):
        place = f"{MIDDLE}+{offset:#x}" if offset else MIDDLE
        found = json.loads(gdb(f"optprobe explain {place} -json"))
        if found["tier"] == "optimized" and offset >= NOT_BEFORE and len(found["displaced"]) == 1:
            return place
        offset += len(found["displaced"][0]["bytes"].split())
    return MIDDLE


# a session of one's own ----------------------------------------------------------------------------------------------


def interactive(socket: str, is_ours: bool) -> int:
    """Run GDB at the terminal until the user leaves it. is_ours: whether commands can be run in the guest."""
    run = f"optprobe run -guest '{READS}'" if is_ours else "optprobe run -for 2"
    print(f"\nThis is GDB, the guest is up; try: optprobe add {ENTRY}, {run}, optprobe report")
    sys.stdout.flush()
    words = [word for line in lines_to_start(socket) for word in ("-ex", line)]
    # At the terminal Ctrl-C belongs to GDB.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.call([gdb_program(), "-q", *words], preexec_fn=lambda: signal.signal(signal.SIGINT, before))
    finally:
        signal.signal(signal.SIGINT, before)


def farewell(socket: str | None, arch: str) -> str:
    chosen = "" if arch == Options().arch else f" --arch {arch}"
    start = "" if socket else f"{program('guest')} start{chosen} && "
    line = line_to_start(socket or guests_directory() / "default" / "gdb.sock")
    return f"\nFor a session of your own, type:\n    {start}{line}"


if __name__ == "__main__":
    begun = time.monotonic()
    status = main()
    if status == 0:
        say(f"took {time.monotonic() - begun:.0f} s")
    sys.exit(status)
