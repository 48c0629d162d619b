"""Probes between a load that reserves memory and its store: the load counts for them, and the loops end."""

from __future__ import annotations

from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import ARM
from tests.booted.test_hot_functions import HELPERS, left

PLACES = Path(__file__).with_name("load_places.py")
on_other_isas = pytest.mark.parametrize("each_linux", ["ppc_guest", ARM], indirect=True)
FUNCTIONS = (
    "fput fget_task dput filp_close vfs_open path_openat do_dentry_open kmem_cache_alloc kmem_cache_free alloc_file"
    " __fput lockref_get lockref_put_return _raw_spin_lock refcount_dec_and_lock get_page_from_freelist mntput mntget"
    " path_put path_get exit_files filemap_read try_to_wake_up do_exit kill_pid_info __wake_up_parent"
)
WORK = Workload(
    "i=0; while [ $i -lt 60 ]; do (/bin/busybox stat / > /tmp/a) & /bin/busybox stat / > /tmp/b; i=$((i+1)); done", 300
)


@on_other_isas
def test_what_is_behind_a_load_is_counted_at_it(each_linux: Guest, tmp_path: Path) -> None:
    """As often as what follows the store, by a probe of its own: the loops come round again where a store fails."""
    text = tmp_path / "text"
    finished = batch(
        each_linux,
        [
            f"source {HELPERS}",
            f"source {PLACES}",
            f"keep-text {text}",
            'python print("@@places")',
            f"probe-behind-loads {FUNCTIONS}",
            WORK,
            "stop-idle",
            keep("list", "optprobe list"),
            "optprobe check",
            "set optprobe on-exit remove",
        ],
        timeout=600,
    )
    assert finished.status == 0, finished.output
    hits = {probe["number"]: probe["hits"] for probe in finished.json("list")}
    counted = [[hits[number] for number in place] for place in finished.json("places")]
    assert len(counted) >= 5 and sum(map(sum, counted)) > 1_000, counted
    assert all(len(set(place)) == 1 for place in counted), counted
    assert left(each_linux, text) == []
    assert each_linux.problems() == []


@on_other_isas
def test_what_depends_on_the_place_is_refused_there(each_linux: Guest) -> None:
    finished = batch(
        each_linux,
        [f"source {PLACES}", 'python print("@@said")', f"try-behind-load {FUNCTIONS}", "set optprobe on-exit remove"],
    )
    assert finished.status == 0, finished.output
    said = finished.json("said")
    why = "is between a load that reserves memory and its store"
    for what in ("condition", "pc", "key", "stop"):
        assert why in said[what] and f"a probe at the load, {said['load']}" in said[what]
    for told in (said["explain"], said["added"]):
        assert f"the probe is at {said['load']}" in told and "which runs as often" in told and why in told
