"""The clock of the log in a small kernel: by a TSC that the kernel calls stable, and by one that is not."""

from __future__ import annotations

from struct import pack

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.sched_clock import log_clock
from gdb_optprobe.guest.linux.clock import LogClock
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.fake_kernel import Pages, kernel

NATIVE, HYPERVISOR = 0xFFFFFFFF81001000, 0xFFFFFFFF81002000
DATA, BASES = 0xFFFFFFFF82000000, (0xFFFF888000000000, 0xFFFF888001000000)
CYC2NS, SCD = 0x100, 0x200
NAMES = {
    "native_sched_clock": NATIVE,
    "d_nr_cpu_ids": DATA,
    "d___per_cpu_offset": DATA + 0x10,
    "d___sched_clock_stable": DATA + 0x40,
    "d___sched_clock_offset": DATA + 0x50,
    "d___gtod_offset": DATA + 0x60,
    "d_cyc2ns": CYC2NS,
    "d_sched_clock_data": SCD,
}
OFFSETS = {"sched_clock_data.tick_raw": 0, "sched_clock_data.tick_gtod": 8, "sched_clock_data.clock": 16}
CHOSEN = {"d___SCK__pv_sched_clock": DATA + 0x70}
TABLE = {"d_pv_ops": DATA + 0x68}
IN_TABLE = {"paravirt_patch_template.time.sched_clock": 8}
FACTOR, SHIFT, BEGUN = 827_180_749, 31, -592_523_941
TICKED = ((5000, 3000, 4500), (6000, 3990, 4550))
"""tick_raw, tick_gtod, clock of each CPU."""


def machine(stable: bool, ticks: tuple[tuple[int, ...], ...] = TICKED, chosen: int = NATIVE) -> Pages:
    memory = Pages()
    memory.put(DATA, pack("<I", len(BASES)))
    memory.put_words(DATA + 0x10, *BASES)
    memory.put_words(DATA + 0x40, stable)
    memory.put_words(DATA + 0x50, -17)
    memory.put_words(DATA + 0x60, 500)
    memory.put_words(DATA + 0x70, chosen)
    for base, words in zip(BASES, ticks, strict=True):
        memory.put(base + CYC2NS, pack("<IIq", FACTOR, SHIFT, BEGUN))
        memory.put_words(base + SCD, *words)
    return memory


def booted(memory: Pages) -> Kernel:
    return kernel(memory, NAMES, OFFSETS)


def test_of_a_stable_tsc_it_is_the_scheduler_clock_and_an_offset() -> None:
    assert log_clock(booted(machine(stable=True))) == LogClock(FACTOR, SHIFT, BEGUN - 17)


def test_of_another_it_begins_at_the_last_tick_of_any_cpu() -> None:
    assert log_clock(booted(machine(stable=False))) == LogClock(FACTOR, SHIFT, BEGUN + 3990 + 500 - 6000)


@pytest.mark.parametrize("words", [(6000, 4990, 4550), (6000, 3990, 4490 + 10**9)])
def test_a_tick_that_is_being_written_does_not_count(words: tuple[int, ...]) -> None:
    torn = machine(stable=False, ticks=(TICKED[0], words))
    assert log_clock(booted(torn)) == LogClock(FACTOR, SHIFT, BEGUN + 3000 + 500 - 5000)
    assert log_clock(booted(machine(stable=False, ticks=(words, words)))) is None


@pytest.mark.parametrize("names", [CHOSEN, TABLE])
def test_a_hypervisors_clock_is_not_made_of_the_tsc(names: dict[str, int]) -> None:
    for chosen in (NATIVE, HYPERVISOR):
        found = log_clock(kernel(machine(stable=True, chosen=chosen), NAMES | names, OFFSETS | IN_TABLE))
        assert (found is not None) == (chosen == NATIVE)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_kernel_lacks_is_an_error(name: str) -> None:
    names = {each: at for each, at in NAMES.items() if each != name} | CHOSEN
    with pytest.raises(OptprobeError):
        log_clock(kernel(machine(stable=name == "d___sched_clock_offset"), names, OFFSETS))
