"""Ticks of the clock as times of the kernel's log."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.clock import NANOSECONDS, ClockRate, LogClock, last_tick, log_clock
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import MASK, Clock, nodes
from tests.guest.linux.fake_kernel import Pages, kernel

RATE = 0x1000
RATES = (ClockRate("khz", 4, 1000),)
CLOCK = LogClock(2 << 10, 10, -7)  # half a GHz


def of_rate(khz: int) -> Kernel:
    memory = Pages()
    memory.put(RATE, khz.to_bytes(4, "little"))
    return kernel(memory, {"d_khz": RATE})


def test_a_time_is_the_ticks_at_the_clocks_rate_from_its_start() -> None:
    found = log_clock(of_rate(500_000), RATES, lambda _: CLOCK)
    assert found is not None and [found(0), found(500_000_000)] == [-7, 999_999_993]
    assert LogClock(827_180_749, 31, 0)(2**64 - 1) == (2**64 - 1) * 827_180_749 >> 31, "no word is too short for it"


@pytest.mark.parametrize("clock", [
    LogClock(827_180_749, 31, -5), LogClock(2 << 10, 10, 7), LogClock(1 << 20, 20, 3),
    LogClock(0xFA00_0000_0000_0000 << 1, 64, -(1 << 40)), LogClock.of_rate(24_000_000, 11),
])  # fmt: skip
@pytest.mark.parametrize("ticks", [0, 1, 2_596_143_001, 10**9 * 86_400 * 365])
def test_a_hit_computes_the_same_time(clock: LogClock, ticks: int) -> None:
    found = evaluate(clock.now, Hit({}, lambda address, size: bytes(size), clock=ticks))
    assert 0 <= (clock(ticks) & MASK) - found <= 1, "the factor may lack its last bits"
    assert Clock() in nodes(clock.now) and len([*nodes(clock.now)]) <= 7


@pytest.mark.parametrize(("khz", "clock"), [
    (0, CLOCK), (505_001, CLOCK), (494_000, CLOCK), (500_000, None),
    (500_000, LogClock(2 << 65, 65, 0)), (500_000, LogClock(-2 << 10, 10, 0)), (500_000, LogClock(0, 0, 0)),
])  # fmt: skip
def test_a_clock_that_is_not_the_one_that_programs_read_tells_no_time(khz: int, clock: LogClock | None) -> None:
    assert log_clock(of_rate(khz), RATES, lambda _: clock) is None


def test_a_kernel_that_does_not_tell_leaves_the_ticks() -> None:
    def missing(_: Kernel) -> LogClock:
        raise OptprobeError("this kernel has no symbol cyc2ns")

    assert log_clock(of_rate(500_000), RATES, missing) is None
    assert log_clock(kernel(Pages(), {}), RATES, lambda _: CLOCK) is None


@pytest.mark.parametrize("period", [1_000_000, 4_000_000, 10_000_000])
def test_the_time_of_the_last_tick(period: int) -> None:
    """The kernel's own count begins so that 32 bits of it wrap round after five minutes."""
    begin = (1 << 32) - 300 * NANOSECONDS // period
    for seconds in (0, 7, 400):
        words = {"jiffies_64": begin + seconds * NANOSECONDS // period, "tick_nsec": period}
        assert last_tick(words.get) == seconds * NANOSECONDS


@pytest.mark.parametrize("words", [{}, {"jiffies_64": 1}, {"jiffies_64": 1, "tick_nsec": 0}, {"tick_nsec": 1}])
def test_a_kernel_that_tells_no_tick(words: dict[str, int]) -> None:
    assert last_tick(words.get) is None
