"""Probes come and go by the thousand under load: nothing is freed too early, and nothing of them is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.booted.batch import Workload, batch
from tests.booted.conftest import FULL, PARALLEL, Boot
from tests.booted.test_hot_functions import HELPERS, left, tell
from tests.booted.test_patch_storm import background

ROUNDS = int(os.environ.get("OPTPROBE_ROUNDS", "1000" if FULL else "2"))
SEED = int(os.environ.get("OPTPROBE_SEED", "1"))
MACHINES = [("x86_64", smp, append) for append in ("preempt=full", "") for smp in (2, 4)]
# Debian's ppc64le kernel has no preemption in the kernel.
MACHINES += [("ppc64le", smp, "") for smp in (2, 4)]
# Nor has its aarch64 kernel.
MACHINES += [("aarch64", smp, "") for smp in (2, 4)]
FILES = "/bin/true; dd if=/dev/zero of=/tmp/x bs=4k count=20; cat /tmp/x"
LOAD = Workload(
    f"touch /tmp/rounds; {background('rounds', FILES)} {background('rounds', 'usleep 700')} "
    f"{background('rounds', 'ls /proc | cat')}"
)
QUIET = Workload("rm /tmp/rounds; sleep 1")


@pytest.mark.parametrize(("arch", "smp", "append"), MACHINES if FULL else [MACHINES[0], ("ppc64le", 2, "")])
def test_rounds(
    boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str, smp: int, append: str
) -> None:
    guest = boot(arch=arch, smp=smp, append=append, extra=PARALLEL)
    text = tmp_path / "text"
    script: list[str | Workload] = [f"source {HELPERS}", "stop-idle", f"keep-text {text}", LOAD]
    script += [f"source {Path(__file__).with_name('guest_rounds.py')}", f"guest-rounds {ROUNDS} {SEED}", QUIET]
    finished = batch(guest, script, timeout=3 * 3600 if FULL else 200)
    assert finished.status == 0, finished.output[-4000:]
    (line,) = [line for line in finished.output.splitlines() if line.startswith("{") and "collector" in line]
    told = json.loads(line)
    tell(capsys, f"\n{arch}, {smp} vCPUs, {append or 'default'}, seed {SEED}: {line}")
    assert told["rounds"] == ROUNDS and told["hits"] > 0
    counted = ("kprobe optimized", "kprobe trapped", "kretprobe optimized", "kretprobe trapped")
    assert sum(told.get(tier, 0) for tier in counted) == 32 * ROUNDS
    assert "still in use" not in finished.output, "all memory was given back"
    assert left(guest, text) == []
    assert guest.problems() == []
