from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import proc_files
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.fake_kernel import Pages, kernel

LOADS, CPUS, OFFSETS, STATISTICS = 0x10000, 0x11000, 0x12000, 0x20000
SECOND = 10**9


def fake() -> Kernel:
    memory = Pages()
    memory.put_words(LOADS, 2048, 3 * 1024, 41)
    memory.put_words(CPUS, 2)
    memory.put_words(OFFSETS, 0, 0x1000)
    memory.put_words(STATISTICS, 1, 2, 3, 4, 5, 90 * SECOND)
    memory.put_words(STATISTICS + 0x1000, 1, 2, 3, 4, 5, 30 * SECOND + 129_999_999)
    names = {"avenrun": LOADS, "nr_cpu_ids": CPUS, "__per_cpu_offset": OFFSETS, "kernel_cpustat": STATISTICS}
    return kernel(memory, {f"d_{name}": at for name, at in names.items()}, {})


def test_loads_are_rounded_to_hundredths() -> None:
    assert proc_files.text("/proc/loadavg", fake(), None, {}.get) == "1.00 1.50 0.02\n"


def test_the_time_since_the_start_and_that_of_idle_cpus() -> None:
    idle = {"CPUTIME_IDLE": 5}.get
    assert proc_files.text("/proc/uptime", fake(), 61 * SECOND + 70_000_000, idle) == "61.07 120.12\n"
    assert proc_files.text("/proc/uptime", fake(), None, idle) is None
    assert proc_files.text("/proc/version", fake(), 1, idle) is None


def test_what_is_not_known_is_an_error() -> None:
    with pytest.raises(OptprobeError, match="CPUTIME_IDLE is not known"):
        proc_files.text("/proc/uptime", fake(), 1, {}.get)
