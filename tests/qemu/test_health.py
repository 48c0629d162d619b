"""Which lines of a kernel log tell of trouble."""

from __future__ import annotations

import pytest

from qemu.health import problems


@pytest.mark.parametrize(
    "line",
    [
        "[   12.0] WARNING: CPU: 1 PID: 77 at kernel/trace/ftrace.c:2090 ftrace_bug+0x1b0/0x260",
        "[   12.0] BUG: unable to handle page fault for address: ffffffffc0000000",
        "[   12.0] Oops: 0002 [#1] PREEMPT SMP PTI",
        "[   12.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "[   12.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
        "[   12.0] ftrace failed to modify",
        "[   12.0] ------------[ ftrace bug ]------------",
        "[   12.0] general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
        "[   12.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [dd:77]",
        "[   12.0] Kernel panic - not syncing: Attempted to kill init!",
        "[   12.0] invalid opcode: 0000 [#1] PREEMPT SMP",
        "[   12.0] traps: PANIC: double fault, error_code: 0x0",
        "[   12.0] INFO: task dd:77 blocked for more than 120 seconds.",
    ],
)
def test_trouble(line: str) -> None:
    assert problems(f"[    1.0] fine\n{line}\n[   13.0] fine\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        '[    1.0] PCI: Using host bridge windows from ACPI; if necessary, use "pci=nocrs" and report a bug',
        "[    0.0] printk: debug: ignoring loglevel setting.",
        "[    0.0] NMI watchdog: Perf NMI watchdog permanently disabled",
        "[    0.0] Command line: console=ttyS0 panic_on_oops",
        "[    0.2] WARNING: nvram corruption detected: 0-length partition",
    ],
)
def test_no_trouble(line: str) -> None:
    assert problems(line) == []
