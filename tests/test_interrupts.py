"""A Ctrl-C waits for the end of what must not be broken, is not lost there, and ends what may be ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from gdb_optprobe.interrupts import checkpoint, held, interruptible, is_held, spare_events, unbroken


@pytest.fixture(autouse=True)
def _heeded() -> Iterator[None]:
    """What is started in the background may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_raised_behind_the_work() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held():
        ctrl_c()
        with held():
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"] and not is_held()


def test_why_the_work_failed_is_told_instead() -> None:
    with pytest.raises(ValueError, match="why"), held():
        ctrl_c()
        raise ValueError("why")
    assert not is_held()
    checkpoint()


def test_work_ends_at_a_checkpoint_and_in_an_interruptible_part() -> None:
    def long() -> None:
        with interruptible():
            ctrl_c()
            pytest.fail("it went on")

    for act in (checkpoint, long):
        with held():
            if act is checkpoint:
                ctrl_c()
            with pytest.raises(KeyboardInterrupt):
                act()
            assert is_held()
    assert not is_held()


def test_an_interruptible_part_of_firm_work_is_none() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held(firmly=True):
        with held(), interruptible():
            ctrl_c()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"] and not is_held()


def test_an_event_gets_no_exception_and_the_next_code_does() -> None:
    done = []

    def handler() -> None:
        ctrl_c()
        done.append("handled")

    before = signal.getsignal(signal.SIGINT)
    spare_events()
    try:
        with pytest.raises(KeyboardInterrupt):
            unbroken(handler)()
            done.append("back")
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["handled", "back"]


@pytest.mark.parametrize("holds", [True, False])
def test_an_event_is_held_unless_it_asks_for_that(holds: bool) -> None:
    seen = []
    unbroken(lambda: seen.append(is_held()), holds=holds)()
    assert seen == [holds] and not is_held()


def test_a_ctrl_c_in_an_event_breaks_none_of_its_work() -> None:
    """Not even where nothing sends it again: work in GDB, and what it calls, is done whole."""
    done = []

    def handler() -> None:
        ctrl_c()
        done.append("handled")

    with pytest.raises(KeyboardInterrupt):
        unbroken(handler)()
    assert done == ["handled"]
