"""Return probes on functions without a tracer's site: assembly, what entry text calls, and others by chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.booted.batch import Workload, batch
from tests.booted.conftest import FULL, Boot
from tests.booted.test_hot_functions import say

HELPERS = Path(__file__).with_name("probe_untraced.py")
IDLE = Path(__file__).with_name("hot_code.py")
SEEDS, BY_CHANCE = (range(2), 200) if FULL else (range(1), 10)
HOT = {
    "x86_64": "do_syscall_64 exc_page_fault sysvec_apic_timer_interrupt irqentry_enter irqentry_exit "
    "syscall_exit_to_user_mode copy_user_generic_string __memcpy __memset _find_next_bit rb_erase __get_user_8",
    "ppc64le": "syscall_exit_prepare interrupt_exit_user_prepare timer_interrupt do_page_fault arch_local_irq_restore "
    "memset memcpy __copy_tofrom_user _find_next_bit load_fp_state save_fpu timebase_read",
}
"""Each is called by `work`."""


def work() -> Workload:
    some = "dd if=/dev/zero of=/tmp/x bs=512 count=200 2>/dev/null; ls -lR /proc/self >/dev/null; cat /proc/self/maps"
    return Workload(f"for n in 1 2 3; do ({some}) >/dev/null & ({some}) >/dev/null & wait; done", 120)


@pytest.mark.parametrize("arch", sorted(HOT))
def test_every_call_is_seen(boot: Boot, arch: str) -> None:
    """Calls are those that a plain probe at the entry counts, to the last; each returned, or is known not to have.

    In a guest of its own: a thread that comes to sleep for ever in one of these functions keeps the memory in use.
    """
    guest, names = boot(arch=arch), HOT[arch].split()
    for seed in SEEDS:
        script: list[str | Workload] = [
            f"source {HELPERS}",
            f"source {IDLE}",
            "stop-idle",
            f"probe-untraced {seed} {BY_CHANCE} {' '.join(names)}",
            "optprobe commit -timeout 60",
            work(),
            "stop-idle",
            say("calls", "untraced-calls"),
            "optprobe check",
        ]
        finished = batch(guest, script, timeout=600 if FULL else 120)
        assert finished.status == 0, finished.output
        found = finished.json("calls")
        assert len(found) >= len(names) + BY_CHANCE - 2
        assert {tier for _, tier, _, _ in found} == {"optimized"}
        for name, _, hits, calls in found:
            assert calls["entries"] == hits, name
            assert hits == calls["returns"] + calls["active"] + calls["missed"] + calls["dropped"], name
        returned = {name.split("+")[0]: calls["returns"] for name, _, _, calls in found}
        assert not [name for name in names if not returned[name]], returned
        assert not [(name, calls) for name, _, _, calls in found if calls["missed"] and name != "do_syscall_64"]
        assert guest.healthy and guest.check("echo fine").strip() == "fine"
