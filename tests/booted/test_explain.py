"""`optprobe explain` is a dry run of `add`: random questions, each answered by both."""

from __future__ import annotations

import json

import pytest

from qemu.guest import Guest
from tests.booted.batch import ROOT, batch

QUESTIONS = 50
PRICED = (
    "vfs_read",
    "vfs_read do hist($arg3)",
    "vfs_read if $arg3 > 3 do count by $comm",
    "vfs_read do hist($arg3) by ($comm, $pid)",
    "vfs_write if *(char *)$arg2 == 0x7f do max($arg3), record($arg1)",
    "vfs_read if $arg3 > 3 do stop",
    "vfs_read -tier trapped do sum($arg3) by $cpu",
)


@pytest.mark.parametrize("seed", [1])
def test_explain_says_what_add_does(each_linux: Guest, seed: int) -> None:
    asking = [f"python agree_seed, agree_count = {seed}, {QUESTIONS}", f"source {ROOT}/qemu/agree.py"]
    priced = [line for one in PRICED for line in (f"optprobe explain {one}", f"optprobe add {one}", "optprobe delete")]
    finished = batch(each_linux, ["set optprobe on-exit remove", *asking, *priced, "optprobe check", "optprobe list"])
    assert finished.status == 0, finished.output
    found = json.loads(next(line for line in finished.output.splitlines() if line.startswith('{"seed"')))
    assert found["disagreements"] == []
    assert found["asked"] == QUESTIONS and 5 < found["refused"] < QUESTIONS - 5, "both kinds were seen"
    assert "No probes." in finished.output
    told = [line.partition("a hit costs ")[2] for line in finished.output.splitlines() if "a hit costs " in line]
    assert told[::2] == told[1::2] and len(told) == 2 * len(PRICED)
