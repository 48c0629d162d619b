"""At least 1,500 optimized probes at arbitrary addresses at once from 64 KiB, beside eight kprobes of the guest's own.

Half of the addresses are drawn from all core text, the others from functions that the work below runs through, so that
many are hit; the latter with their next neighbours, which must agree (see near_area.py). The eight are in functions
that nothing calls but the work: their counts and ours agree to the last hit. That each of the others counts too is told
by its code as the guest has it: it adds one to this probe's counter.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import MARK, Workload, batch, keep
from tests.booted.conftest import FULL, Boot

HELPERS = [Path(__file__).with_name(name) for name in ("hot_code.py", "near_area.py")]
TRACING, KPROBES = "/sys/kernel/tracing", "/sys/kernel/debug/kprobes/list"
SEED = int(os.environ.get("OPTPROBE_SEED", "1"))
WANTED, AREA, SMALLEST = 1_500, 64 << 10, 28
ROUNDS = 5 if FULL else 2
BYTES, FILES = (5_000, 50) if FULL else (1_000, 8)

# Where the work goes, as the guest's own function tracer tells it.
HOT = (
    "vfs_read vfs_write ksys_read ksys_write path_openat do_filp_open link_path_walk.part.0.constprop.0 "
    "walk_component lookup_fast path_init path_lookupat filename_lookup inode_permission generic_permission dput "
    "mntput_no_expire __fput filp_close do_sys_openat2 getname_flags.part.0 vfs_statx handle_mm_fault "
    "__handle_mm_fault ___do_page_fault find_vma do_wp_page wp_page_copy copy_page_range unmap_page_range "
    "release_pages kmem_cache_alloc kmem_cache_free kfree __slab_free get_page_from_freelist __alloc_pages "
    "rmqueue_bulk free_unref_page_list shmem_get_folio_gfp lru_add_fn __filemap_get_folio vm_area_dup anon_vma_fork "
    "anon_vma_clone unlink_anon_vmas do_set_pte finish_fault __schedule try_to_wake_up enqueue_task_fair "
    "dequeue_task_fair enqueue_entity dequeue_entity update_curr pick_next_task_fair select_task_rq_fair load_balance "
    "find_busiest_group update_blocked_averages rebalance_domains task_tick_fair scheduler_tick place_entity "
    "psi_group_change psi_task_switch hrtimer_interrupt __hrtimer_run_queues menu_select tick_nohz_next_event "
    "get_next_timer_interrupt timekeeping_advance run_timer_softirq call_timer_fn call_rcu rcu_core "
    "rcu_sched_clock_irq note_gp_changes copy_process kernel_clone do_exit release_task wait_consider_task do_wait"
)
# What each turn of the work calls once, or for each byte.
EIGHT = {"read_zero": BYTES, "write_null": BYTES}
EIGHT |= dict.fromkeys(("do_mkdirat", "do_rmdir", "do_symlinkat", "do_linkat", "do_renameat2"), FILES)
EIGHT |= {"do_unlinkat": 3 * FILES}

FILE = "mkdir d; echo $i > d/a; ln -s a d/b; ln d/a d/c; mv d/a d/e; cat d/c > e; rm d/b; rm d/c; rm d/e; rmdir d"
WORK = f"cd /tmp; dd if=/dev/zero of=/dev/null bs=1 count={BYTES} 2> said;"
WORK += f" i=0; while [ $i -lt {FILES} ]; do {FILE}; i=$((i+1)); done"
LAST = "sys_sync"  # rarely called, and by the work as often as it says


def own_round(places: list[str]) -> Workload:
    """Switch the guest's own on, wait until all are optimized, work, read their counts, switch them off again."""
    arm = "; ".join(f"echo 'p:e{number} {place}' >> kprobe_events" for number, place in enumerate(places))
    # The kernel has one of its own, on the trampoline of its return probes.
    optimized = f"grep OPTIMIZED {KPROBES} | grep -cE '{'|'.join(EIGHT)}'"
    wait = f"n=0; while [ $({optimized}) -lt {len(places)} -a $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done; {optimized}"
    profile = f"cat {TRACING}/kprobe_profile; cd {TRACING}; echo 0 > events/kprobes/enable; echo > kprobe_events"
    return Workload(f"cd {TRACING}; {arm}; echo 1 > events/kprobes/enable; {wait}; {WORK}; {profile}", 240)


def say(name: str, command: str) -> str:
    return f'python print("{MARK}{name}"); gdb.execute("{command}")'


@pytest.fixture
def guest(boot: Boot) -> Guest:
    """Of its own: what the arena held is left in its memory."""
    return boot(arch="ppc64le")


@pytest.mark.skipif(not FULL, reason="test_ppc64le.py has hundreds; OPTPROBE_FULL=1")
def test_1500_at_any_address_from_64_kib_beside_eight_of_the_guest_s(guest: Guest, tmp_path: Path) -> None:
    sources = [f"source {helper}" for helper in HELPERS]
    pairs = batch(guest, [*sources, say("own", f"near-own {' '.join(EIGHT)}")]).json("own")
    theirs, ours = [pair["theirs"] for pair in pairs], [pair["ours"] for pair in pairs]

    script: list[str | Workload] = [*sources, f"keep-text {tmp_path / 'text'}", say("arena", "near-arena")]
    script += [f"optprobe add *{at:#x}" for at in ours] + [say("filled", f"near-fill {SEED} {HOT}")]
    script += [f"optprobe add {LAST}", keep("last", "optprobe list"), say("wrong", "near-detours")]
    script += [own_round(theirs) for _ in range(ROUNDS)]
    script += [Workload(f"sync; sync; {WORK}"), "stop-idle", keep("list", "optprobe list"), say("lines", "near-lines")]
    script += ["optprobe check", say("still wrong", "near-detours"), "optprobe delete", "optprobe check"]
    script += [say("text", f"near-text {tmp_path / 'text'}"), Workload(WORK)]
    finished = batch(guest, script, timeout=600)
    assert finished.status == 0, finished.output
    arena, filled, last = finished.json("arena"), finished.json("filled"), finished.json("last")[-1]
    assert arena["code"][1] - arena["code"][0] == AREA

    probes = {int(probe["address"], 16): probe for probe in finished.json("list")}
    optimized = [probe for probe in probes.values() if probe["tier"] == "optimized"]
    detours = [(int(probe["detour"]["address"], 16), probe["detour"]["size"]) for probe in optimized]
    print(f"{len(optimized)} optimized in {filled['seconds']:.1f} s, {sum(size for _, size in detours):,} bytes")
    print(f"{filled['free']} bytes left; no memory for {filled['full']}; refused: {filled['refused']}")
    reached = [probe["hits"] for probe in optimized if probe["hits"]]
    print(f"{len(reached)} were hit, {sum(reached):,} times")
    assert len(optimized) == filled["optimized"] + len(EIGHT) >= WANTED
    assert all(arena["code"][0] <= at and at + size <= arena["code"][1] for at, size in detours)

    # The arena's end is told, and what does not fit works otherwise.
    assert filled["free"] < SMALLEST and {key.split()[0] for key in filled["full"]} == {"ARENA_FULL"}
    assert last["tier"] != "optimized" and last["reason"]["code"] == "ARENA_FULL"
    assert "the memory for detours is full" in last["reason"]["text"]
    assert probes[int(last["address"], 16)]["hits"] == 2

    # All count: what is hit as often as it must be, the rest by its code.
    assert finished.json("wrong") == finished.json("still wrong") == {"optimized": len(optimized), "wrong": []}
    times = ROUNDS + 1  # the last time without the guest's own
    assert [probes[at]["hits"] for at in ours] == [times * count for count in EIGHT.values()]
    for printed in finished.workloads[:ROUNDS]:
        armed, *profile = printed.splitlines()
        assert armed == str(len(EIGHT)), f"the guest optimizes all of its own: {printed}"
        rows = {name: (int(hits), int(missed)) for name, hits, missed in map(str.split, profile)}
        assert rows == {f"e{number}": (count, 0) for number, count in enumerate(EIGHT.values())}
    assert len(reached) >= 300
    lines = finished.json("lines")
    hit = [line for line in lines if max(line) > 0]
    print(f"{len(hit)} straight lines with several probes were run through")
    assert len(hit) >= 50 and all(len(set(line)) == 1 for line in lines), Counter(map(tuple, lines))

    assert finished.output.count("holds what we wrote") == 2
    assert finished.json("text") == []
    assert guest.problems() == []
