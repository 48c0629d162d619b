"""Programs of the guest's, found from outside, and bytes of ours in them: in their processes alone, never in the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.guest import answer
from tests.guest.batch import Workload, batch

USER = f"source {Path(__file__).with_name('guest_user.py')}"
WAITING = 3
AT_ONCE = 8


@pytest.mark.parametrize("bits", [64, 32])
def test_every_process_now_and_later_and_never_the_file(linux: Guest, tmp_path: Path, bits: int) -> None:
    path = f"/tmp/answer{bits}"
    program = answer.build(tmp_path, bits)
    answer.put(linux, program, path)
    before = linux.check(f"md5sum {path}")
    for _ in range(WAITING):
        linux.check(f"(sleep 300 | {path} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    try:
        value = f"answer+{answer.VALUE[bits]}"
        found = batch(linux, [USER, f"user-find {path} {value}", f"user-spaces {path}"])
        (at,) = re.findall(rf"^place {re.escape(value)} (0x[0-9a-f]+) answer{bits}:answer\+\S+ 07", found.output, re.M)
        assert len(re.findall(rf"^space answer{bits} \(\d+\)$", found.output, re.M)) == WAITING, found.output
        ask = f"{path}; echo said $?"
        several = f"for i in $(seq {AT_ONCE}); do ({path}; echo said $?) & done; wait"
        found = batch(
            linux,
            [
                USER,
                f"user-arm {path} {at}=09",
                "user-check",
                Workload(f"{ask}; cat {path} | md5sum"),
                Workload(several),
                Workload(f"killall sleep; while [ $(grep -c said /tmp/said) -lt {WAITING} ]; do sleep 0.1; done"),
                f"user-disarm {path} {at}",
                Workload(ask),
                "user-leave",
                "optprobe commit -timeout 20",
            ],
        )
    finally:
        linux.run("killall sleep; sleep 0.2")
        said = linux.check("cat /tmp/said; rm -f /tmp/said")
    assert found.status == 0, found.output
    armed, at_once, _, disarmed = found.workloads
    assert armed.splitlines()[0] == "said 9" and armed.split()[2] == before.split()[0]
    assert at_once.splitlines() == ["said 9"] * AT_ONCE
    assert said.splitlines() == ["said 9"] * WAITING
    assert disarmed == "said 7\n"
    assert "problem" not in found.output and "everything is settled" in found.output
    assert linux.check(f"md5sum {path}") == before
