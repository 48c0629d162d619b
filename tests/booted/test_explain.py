"""`optprobe explain` is a dry run of `add`: random questions, each answered by both."""

from __future__ import annotations

import json

import pytest

from qemu.guest import Guest
from tests.booted.batch import ROOT, batch

QUESTIONS = 50


@pytest.mark.parametrize("seed", [1])
def test_explain_says_what_add_does(each_linux: Guest, seed: int) -> None:
    asking = [f"python agree_seed, agree_count = {seed}, {QUESTIONS}", f"source {ROOT}/qemu/agree.py"]
    finished = batch(each_linux, ["set optprobe on-exit remove", *asking, "optprobe check", "optprobe list"])
    assert finished.status == 0, finished.output
    found = json.loads(next(line for line in finished.output.splitlines() if line.startswith('{"seed"')))
    assert found["disagreements"] == []
    assert found["asked"] == QUESTIONS and 5 < found["refused"] < QUESTIONS - 5, "both kinds were seen"
    assert "No probes." in finished.output
