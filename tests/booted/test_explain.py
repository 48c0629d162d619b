"""`optprobe explain` is a dry run of `add`: random questions, each answered by both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import answer, calls
from tests.booted.batch import ROOT, batch
from tests.booted.conftest import on_every_isa

QUESTIONS = 50
PROGRAM = "/tmp/explained"
PRICED = (
    "vfs_read",
    "vfs_read do hist($arg3)",
    "vfs_read if $arg3 > 3 do count by $comm",
    "vfs_read do hist($arg3) by ($comm, $pid)",
    "vfs_write if *(char *)$arg2 == 0x7f do max($arg3), record($arg1)",
    "vfs_read if $arg3 > 3 do stop",
    "vfs_read -tier trapped do sum($arg3) by $cpu",
    "vfs_read -return",
    "vfs_read -return do latency by $comm",
    "vfs_read -return if $retval < 0 do stop",
    "vfs_read -return entry if $arg3 > 3 do save n = $arg3 if $retval < $saved.n do hist($retval)",
)
OF_PROGRAMS = (f"-user {PROGRAM}:test do count by $pid", f"-user {PROGRAM}:test -return do latency")
ABOUT = 4
"""Instructions by which these may differ: on ppc64le an address takes as many as it has parts."""


@on_every_isa
@pytest.mark.parametrize("seed", [1])
def test_explain_says_what_add_does(each_linux: Guest, seed: int, tmp_path: Path) -> None:
    asking = [f"python agree_seed, agree_count = {seed}, {QUESTIONS}", f"source {ROOT}/qemu/agree.py"]
    answer.put(each_linux, calls.build(tmp_path, 1, each_linux.options.arch), PROGRAM)
    asked = (*PRICED, *OF_PROGRAMS)
    priced = [line for one in asked for line in (f"optprobe explain {one}", f"optprobe add {one}", "optprobe delete")]
    finished = batch(each_linux, ["set optprobe on-exit remove", *asking, *priced, "optprobe check", "optprobe list"])
    assert finished.status == 0, finished.output
    found = json.loads(next(line for line in finished.output.splitlines() if line.startswith('{"seed"')))
    assert found["disagreements"] == []
    assert found["asked"] == QUESTIONS and 5 < found["refused"] < QUESTIONS - 5, "both kinds were seen"
    assert "No probes." in finished.output
    told = [line.partition("a hit costs ")[2] for line in finished.output.splitlines() if "a hit costs " in line]
    assert len(told) == 2 * len(asked)
    would, has = told[::2], told[1::2]
    assert would[: len(PRICED)] == has[: len(PRICED)]
    for one, other in zip(would[len(PRICED) :], has[len(PRICED) :], strict=True):
        numbers = [int(re.sub(r"\D", "", text)) for text in (one, other)]
        assert re.sub(r"\d+", "N", one) == re.sub(r"\d+", "N", other) and abs(numbers[0] - numbers[1]) <= ABOUT
