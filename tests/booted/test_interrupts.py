"""Ctrl-C at any moment: while probes come and go, while hits are handled, while the guest runs, and between.

Two probes stay: each byte that the workload reads is one hit of both. Whatever else a Ctrl-C does, it ends a run,
costs no hit, leaves no half a branch and prints no Python.
"""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from qemu.guest import Guest
from tests.booted.batch import batch
from tests.booted.conftest import FULL
from tests.booted.gdb import PROMPT, Console
from tests.booted.test_hot_functions import HELPERS, left

ROUNDS = 400 if FULL else 50
BYTES = 6 * ROUNDS
SEED = 20261
SHORT, LONG = 0.03, 0.25
"""Seconds from a command to its Ctrl-C: within the command, or within what the guest does then."""

RUNS = ("continue", "continue", "optprobe run", "finish")
OTHERS = (
    "optprobe add vfs_read -name storm",
    "optprobe add ksys_read+4 -name storm",
    "optprobe add *schedule+5 -name storm -tier breakpoint",
    "optprobe add *__schedule+8 -name storm",
    "optprobe add hrtimer_interrupt -name storm -tier emulated",
    "optprobe add vfs_w* -name storm",
    "optprobe delete storm",
    "optprobe delete storm",
    "optprobe disable storm",
    "optprobe enable storm",
    "optprobe commit -timeout 5",
    "optprobe run -for 0.1",
    "optprobe run -until-hits 1:1000000 -timeout 0.2",
    "break vfs_read",
    "delete",
    "stepi",
    "optprobe check",
)
PYTHON = re.compile(r"Traceback|KeyboardInterrupt|Python Exception|rror occurred in Python|internal error")


def blocks_ctrl_c(gdb: Console) -> bool:
    """Whether GDB is closed to a Ctrl-C."""
    status = Path(f"/proc/{gdb.process.pid}/status").read_text()
    (mask,) = re.findall(r"(?m)^SigBlk:\s*(\w+)", status)
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


class Storm:
    """One GDB that is interrupted all the time."""

    def __init__(self, gdb: Console, random: Random) -> None:
        self._gdb = gdb
        self._random = random
        self._number = 0

    def round(self) -> None:
        """A command that lets the guest run until its Ctrl-C, or one that may have ended before that."""
        gdb, random = self._gdb, self._random
        line, before = random.choice(RUNS if random.random() < 0.4 else OTHERS), len(gdb.transcript)
        gdb.send(line)
        for _ in range(random.choice((1, 1, 2))):
            time.sleep(random.uniform(0, random.choice((SHORT, LONG))))
            gdb.ctrl_c()
        # GDB's line editor may take a Ctrl-C while it shows the line, and forget both: there is no prompt then.
        with suppress(AssertionError):
            gdb.until(re.escape(PROMPT) + "$", 20)
        self._settle()
        said = gdb.transcript[before:]
        assert not PYTHON.search(said), f"{line}: {said}"
        assert not blocks_ctrl_c(gdb), line

    def _settle(self) -> None:
        """Wait until GDB surely waits for a command: a late Ctrl-C may take away one."""
        for _ in range(5):
            self._number += 1
            self._gdb.send(f"echo here {self._number}\\n")
            try:
                self._gdb.until(rf"(?m)^here {self._number}\n\(gdb\) $", 3)
                return
            except AssertionError:
                continue
        raise AssertionError(f"GDB does not answer:\n{self._gdb.transcript[-3000:]}")


def test_a_ctrl_c_at_any_moment(linux: Guest, tmp_path: Path) -> None:
    text = tmp_path / "text"
    # What an earlier GDB had to leave, because somebody was inside, goes first.
    assert batch(linux, ["optprobe add vfs_write", "optprobe delete", "optprobe commit"]).status == 0
    first = batch(linux, [f"source {HELPERS}", "stop-idle", f"keep-text {text}"])
    assert first.status == 0, first.output
    with Console(linux) as gdb:
        gdb("set python print-stack full")  # where it fails, it says where
        assert "optimized" in gdb("optprobe add read_zero")
        assert "breakpoint" in gdb("optprobe add *read_zero+5 -tier breakpoint")
        gdb.work = linux.spawn(f"dd if=/dev/zero of=/dev/null bs=1 count={BYTES} 2>/dev/null")
        storm = Storm(gdb, Random(SEED))
        for _ in range(ROUNDS):
            storm.round()
        assert "holds what we wrote" in gdb("optprobe check")
        gdb.finish_work()
        assert [gdb.hits(1), gdb.hits(2)] == [BYTES, BYTES]
        assert "holds what we wrote" in gdb("optprobe check")
        gdb("optprobe delete")
        gdb("optprobe commit")
        assert "No probes" in gdb("optprobe list")
    assert left(linux, text) == []
