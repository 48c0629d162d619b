"""offcpu, profile, latency and calls beside what the guest is known to do, one after the other in one session."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import batch
from tests.booted.conftest import ARM, EVERY_ISA, FULL
from tests.exports.test_profiles import profile_class

READS = 5000
DD = f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null"
NAP = 300_000_000
TYPED = (
    f"optprobe calls vfs_read -json -guest '{DD}'",
    f"optprobe calls vfs_read -top 1 -guest '{DD}'",
    f"optprobe latency vfs_read -json -every 0.5 -guest '{DD}'",
    "optprobe offcpu -by stack -json -guest 'sleep 0.3'",
    "optprobe offcpu -guest 'sleep 0.3'",
    "optprobe profile -json -guest 'dd if=/dev/zero of=/dev/null bs=1 count=60000 2>/dev/null'",
    "optprobe export pprof {folder}/pprof",
    "optprobe export speedscope {folder}/speedscope -last",
    "optprobe profile -for 0.2 -o {folder}/folded",
    "optprobe list -json",
)


@pytest.mark.parametrize("each_linux", ["linux", *["ppc_guest"] * FULL, *[ARM] * EVERY_ISA], indirect=True)
def test_all_four(each_linux: Guest, tmp_path: Any) -> None:
    finished = batch(each_linux, [line.format(folder=tmp_path) for line in TYPED])
    assert finished.status == 0, finished.output
    rows = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"type"')]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["type"], []).append(row)
    (calls,) = [row for row in kinds["calls"] if row["comm"] == "dd"]
    assert calls["count"] >= READS and calls["frames"][0] == "ksys_read"
    assert "Calls Share Thread Called from\n" in finished.output
    (total,) = kinds["latency_total"]
    assert total["count"] == sum(row["count"] for row in kinds["latency"]) >= READS
    assert total["count"] == sum(one["count"] for one in total["buckets"])
    naps = [row for row in kinds["offcpu"] if row["comm"] == "sleep" and "do_nanosleep" in row["frames"]]
    assert sum(row["nanoseconds"] for row in naps) >= NAP, kinds["offcpu"]
    samples = [row for row in kinds["profile"] if row["comm"] == "dd"]
    assert samples and all(row["user_frames"] or row["kernel_frames"] for row in samples)
    for line in (tmp_path / "folded").read_text().splitlines():
        assert int(line.rpartition(" ")[2]) > 0 and ";" in line
    kept = profile_class().FromString(gzip.decompress((tmp_path / "pprof").read_bytes()))
    assert sum(one.value[0] for one in kept.sample) == sum(row["samples"] for row in kinds["profile"])
    (stacks,) = json.loads((tmp_path / "speedscope").read_text())["profiles"]
    assert sum(stacks["weights"]) == stacks["endValue"] == sum(row["samples"] for row in kinds["profile"])
    assert "\n[]\n" in finished.output, "no probe is left"
