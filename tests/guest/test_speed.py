"""What a user waits for. The limits are those of a quiet machine with two cores; `SLACK` is for a busy one."""

from __future__ import annotations

from pathlib import Path

from qemu.guest import Guest
from tests.guest.batch import batch, timed

SLACK = 2.0
FIRST, INSIDE, EACH, MANY, LIST = 3.0, 7.0, 0.010, 3.0, 0.2


def test_first_probe_further_probes_many_and_a_listing(linux: Guest, tmp_path: Path) -> None:
    several = ["vfs_write", "ksys_read", "ksys_write", "vfs_open", "do_sys_openat2"]
    script = [timed("first", "optprobe add vfs_read"), timed("inside", "optprobe explain *vfs_read+98")]
    script += [timed(name, f"optprobe add {name}") for name in several]
    script += [timed("many", "optprobe add __x64_sys_[a-m]*"), timed("many more", "optprobe add ext4_a*")]
    script += [timed("list", "optprobe list"), "optprobe delete"]
    cold = batch(linux, script, OPTPROBE_CACHE=str(tmp_path))
    warm = batch(linux, script, OPTPROBE_CACHE=str(tmp_path))
    for finished in (cold, warm):
        assert finished.status == 0, finished.output
        assert finished.json("first") <= FIRST * SLACK
        each = sorted(finished.json(name) for name in several)
        assert each[len(each) // 2] <= EACH * SLACK
        assert finished.json("many") <= MANY * SLACK
        assert finished.json("list") <= LIST * SLACK
        assert finished.json("inside") <= INSIDE * SLACK
    assert warm.json("first") < cold.json("first")
    for name in ("first", "inside"):
        print(f"{name}: {cold.json(name):.2f} s, from the cache {warm.json(name):.2f} s")
