"""Every function of a guest is probed, again and again, while four vCPUs fork, run programs, read, write and send.

    load ─► add -glob '*' ─► some of it counted ─► load ends, all idle ─┐ counts: ours and the guest's own
      ▲                                                                 ▼ work of known size, all idle again: counts
      └─ text, flags and memory are as they were ◄── delete, commit ◄── load
Every other round has `do count by $comm`: what is counted by key, and lost, are all hits then.
Adding and taking out find threads anywhere. Counts are compared where every vCPU is idle: no thread is between a
function's entry and the guest's own event, some instructions behind it, so that both have counted the same calls.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qemu.debugger import Debugger
from qemu.guest import Guest
from tests.booted.batch_kills import MARK

HERE = Path(__file__).parent
TRACING = "/sys/kernel/tracing"
SOON = 300.0
TRIES, IN_USE = 20, "memory for detours is in use"
EVENTS = 20
LEAST_LINE = 3
"""Instructions that run equally often from a function's entry on: the guest's event is on the last of so many."""
CALLED = "ksys_read ksys_write vfs_read vfs_write do_sys_openat2 path_openat do_filp_open kernel_clone copy_process "
CALLED += "wake_up_new_task do_exit begin_new_exec load_elf_binary handle_mm_fault do_mmap copy_page_range mmput "
CALLED += "exit_files do_wait kernel_wait4 read_zero write_null sock_sendmsg sock_recvmsg ip_output ip_rcv icmp_rcv "
CALLED += "__dev_queue_xmit loopback_xmit shmem_file_read_iter shmem_write_begin vfs_statx getname_flags filp_close"
BYTES, FILES, FORKS, PINGS = 3_000, 100, 40, 30


def again(command: str) -> str:
    return f"(while [ -e /tmp/load ]; do {command}; done) >/dev/null 2>&1 </dev/null &"


LOAD = "touch /tmp/load; " + " ".join(
    map(again, (
        "dd if=/dev/zero of=/tmp/some bs=512 count=40; cat /tmp/some /proc/meminfo",
        "/bin/busybox true; ls /proc | cat",
        "ping -q -c 20 -i 0.001 127.0.0.1",
        "dd if=/dev/zero of=/dev/null bs=1 count=2000; usleep 500",
    ))
)  # fmt: skip
NO_LOAD = "rm -f /tmp/load; wait"


def work() -> str:
    """Single bytes, files, packets and programs, four at once."""
    loop = "i=0; while [ $i -lt {} ]; do {}; i=$((i+1)); done"
    dd = f"dd if=/dev/zero of=/dev/null bs=1 count={BYTES} 2>/dev/null"
    files = loop.format(FILES, "echo $i > /tmp/file; read x < /tmp/file")
    forks = loop.format(FORKS, "/bin/busybox stat / >/dev/null")
    ping = f"ping -q -c {PINGS} -i 0.001 127.0.0.1 >/dev/null"
    return f"({dd}; {files}) & ({dd}; {forks}) & ({forks}; {ping}) & ({ping}; {dd}) & wait"


ZEROES = 3 * BYTES
"""That `work` reads from /dev/zero; nothing else does."""


class AllFunctions:
    """One guest and one GDB. tell: gets a line for each round."""

    def __init__(self, guest: Guest, folder: Path, tell: Callable[[str], object]) -> None:
        self.guest, self.tell = guest, tell
        self.kept = folder / "kept"
        self.events: Mapping[str, str] = {}
        self.compared = self.probes = self.waited = 0

    def run(self, rounds: int) -> None:
        with Debugger(self.guest.gdb_socket) as self.gdb:
            self("set optprobe max-probes 65536")
            for name in ("guest_batch", "hot_code", "guest_events"):
                self(f"source {HERE / name}.py")
            # What the first probe and the first load change is changed before the text is kept.
            self("optprobe add *vfs_read+5")
            self._take_out()
            self._arm()
            self._in_guest(f"{LOAD} sleep 1; {NO_LOAD}; {work()}")
            self(f"batch-keep {self.kept}")
            for number in range(1, rounds + 1):
                begun = time.monotonic()
                try:
                    self._round(is_keyed=number % 2 == 0)
                except BaseException as error:
                    error.add_note(f"in round {number}")
                    raise
                took = time.monotonic() - begun
                self.tell(
                    f"round {number}: {self.probes:,} probes, {self.compared:,} hits compared, "
                    f"{self.waited} times a thread was waited for, {took:.0f} s"
                )

    def _round(self, is_keyed: bool) -> None:
        self._in_guest(LOAD)
        self("optprobe run -for 0.05")
        self(f"optprobe add -glob *{' do count by $comm' * is_keyed}")
        self("optprobe run -for 0.2")
        assert "holds what we wrote" in (held := self("optprobe check")), held
        self._in_guest(NO_LOAD)
        before = self._counts()
        self._in_guest(work())
        after = self._counts()
        self._compare(before, after)
        if is_keyed:
            found: dict[str, int] = self._ask("counted-by-key")
            assert found["functions"] > 1000 and found["hits"] == found["by key"] + found["lost"], found
        self._in_guest(LOAD)
        self("optprobe run -for 0.1")
        self._take_out()
        assert (changed := self._changed()) == [], changed
        self._in_guest(NO_LOAD)
        assert self.guest_problems() == []

    def _changed(self) -> list[str]:
        """Return what is not as it was. Memory is not given back while a thread may be on its way through it."""
        changed: list[str] = []
        for _ in range(TRIES):
            changed = self._ask(f"batch-diff {self.kept}")
            if not any(IN_USE in one for one in changed):
                break
            self.waited += 1
            self("optprobe run -for 0.1")
        return changed

    def _arm(self) -> None:
        """Have the guest count calls of functions itself, by an event some instructions behind each entry."""
        found = dict(self._places())
        assert len(found) == EVENTS, f"functions with a straight line from their entry: {[*found]}"
        self.events = found
        events = "; ".join(f"echo 'p:e{n} {place}' >> kprobe_events" for n, place in enumerate(found.values()))
        self._in_guest(f"cd {TRACING}; {events}; echo 1 > events/kprobes/enable; cat kprobe_events; sleep 1")

    def _places(self) -> Iterator[tuple[str, str]]:
        """Yield the places of events, by the name of their function."""
        chosen = 0
        for name in CALLED.split():
            known = self(f"python print(len(kernel().symbols.lookup({name!r})))").strip() == "1"
            code: Any = json.loads(self(f"lines-of {name}")) if known and chosen < EVENTS else {"lines": ()}
            # The tracer's site is a line of its own: it is a call at times.
            line = [at for part in code["lines"][:2] for at in part]
            if len(line) >= LEAST_LINE and line[0] == code["entry"]:
                chosen += 1
                yield name, f"{name}+{line[LEAST_LINE - 1] - code['start']:#x}"

    def _counts(self) -> Mapping[str, tuple[int, int]]:
        """Return, by function, what we have counted and what the guest has, where all vCPUs are idle."""
        self("stop-idle")
        theirs = {place.partition("+")[0]: count for place, count in json.loads(self("guest-event-hits")).items()}
        wanted = [*self.events, "read_zero"]
        found: dict[str, int] = self._ask(f"hits-of {' '.join(wanted)}")
        self.probes = found.pop("probes")
        return {name: (found[name], theirs.get(name, 0)) for name in wanted}

    def _compare(self, before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> None:
        since = {name: tuple(now - then for now, then in zip(after[name], before[name], strict=True)) for name in after}
        wrong = {name: since[name] for name in self.events if since[name][0] != since[name][1]}
        assert wrong == {}, f"ours, and the guest's own: {wrong}"
        assert since["read_zero"][0] == ZEROES, since["read_zero"]
        assert sum(bool(since[name][0]) for name in self.events) == EVENTS, since
        self.compared += sum(since[name][0] for name in self.events)

    def _take_out(self) -> None:
        self("optprobe delete")
        self("optprobe commit -timeout 60")

    def guest_problems(self) -> list[str]:
        return self.gdb.running(self.guest.problems)

    def _in_guest(self, command: str) -> str:
        return self.gdb.running(lambda: self.guest.check(command, SOON))

    def _ask(self, line: str) -> Any:
        return json.loads(self(line).split(MARK)[1].splitlines()[0])

    def __call__(self, line: str) -> str:
        return self.gdb(line, SOON)
