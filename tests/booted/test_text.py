"""What is known of the stock kernel's text holds in the guest, with and without probes of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import batch
from tests.booted.test_bad_input import attempt

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


@pytest.mark.parametrize("way", ["set", "restore"])
def test_what_the_user_writes_into_the_text_is_planned_with(each_linux: Guest, way: str, tmp_path: Path) -> None:
    """In the same stop in which the text was read before."""
    is_x86 = each_linux.options.arch == "x86_64"
    name, offset, trap = ("vfs_read", 5, b"\xcc") if is_x86 else ("vfs_write", 0x40, b"\x08\x00\xe0\x7f")
    place, at, type_ = f"{name}+{offset}", f"(unsigned long) &{name} + {offset}", "char" if is_x86 else "int"
    file = tmp_path / "trap"
    file.write_bytes(trap)
    value = int.from_bytes(trap, "little")
    write = f"set {{unsigned {type_}}}$at = {value:#x}" if way == "set" else f"restore {file} binary $at"
    script = ["set optprobe exit-on-error off", f"set $at = {at}", f"set $old = {{unsigned {type_}}}$at"]
    script += [f"optprobe explain {place}"]
    script += [write, "echo AFTER\\n", attempt(f"optprobe add {place}"), f"set {{unsigned {type_}}}$at = $old"]
    script += [f"optprobe add {place}", "optprobe check", "optprobe delete"]
    finished = batch(each_linux, script)
    refused = finished.output.split("AFTER")[1]
    assert "holds a breakpoint instruction that is not optprobe's" in refused, refused
    assert "The guest's memory holds what we wrote." in refused
