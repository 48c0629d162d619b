"""What is known of the stock kernel's text holds in the guest, with and without probes of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qemu.guest import Guest
from tests.booted.batch import batch

TEXT = f"source {Path(__file__).with_name('guest_text.py')}"
EVENTS = "/sys/kernel/tracing/kprobe_events"


def facts(guest: Guest) -> dict[str, Any]:
    finished = batch(guest, [TEXT, "guest-text"])
    assert finished.status == 0, finished.output
    (line,) = (line for line in finished.output.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def test_all_that_leads_into_functions_is_known_whatever_the_guest_probes(linux: Guest) -> None:
    found = facts(linux)
    assert found["compared"] > 200
    assert found["missing"] == []
    areas = {"ftrace_caller": "copied text", "relocate_kernel": "copied text", "core_restore_code": "copied text"}
    areas |= {"swap_pages": "copied text", "startup_64": "early text", "verify_cpu": "early text", "vfs_read": "text"}
    assert found["areas"] == areas
    expected = {"vfs_read": True, "copy_user_generic_string": True}
    # They begin inside an instruction of the code before them (arch/x86/lib/retpoline.S).
    expected |= {"retbleed_return_thunk": False, "srso_safe_ret": False}
    assert found["complete"] == expected
    assert found["marks"] == {"trampoline": ["STATIC_CALL"], "dispatcher": ["STATIC_CALL"]}

    # The guest's own kprobes hide the jumps they stand on. It refuses a few: of two functions with one name, say.
    linux.check("mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null; true")
    for number, source in enumerate(found["sources"]):
        linux.run(f"echo 'p:optprobe_{number} {source}' >> {EVENTS}")
    try:
        assert int(linux.check(f"wc -l < {EVENTS}")) > len(found["sources"]) // 2
        linux.check("echo 1 > /sys/kernel/tracing/events/kprobes/enable")
        assert facts(linux)["landings"] == found["landings"]
    finally:
        linux.check(f"echo 0 > /sys/kernel/tracing/events/kprobes/enable; echo > {EVENTS}")
