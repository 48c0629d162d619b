"""Ticks come one at a time, when a key is typed too, and end with what a tick raises; one that is left does nothing."""

from __future__ import annotations

import importlib
import os
import queue
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.probes.target import Ticks

PATIENCE = 20.0
NEVER = 1000.0


class Loop:
    """GDB's event loop, in this thread."""

    def __init__(self) -> None:
        self.posted: queue.Queue[Callable[[], object]] = queue.Queue()

    def one(self) -> None:
        self.posted.get(timeout=PATIENCE)()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    made = Loop()
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "gdb", SimpleNamespace(post_event=made.posted.put))
    yield made
    for name in [name for name in sys.modules if name.startswith("gdb_optprobe.debugger") and name not in before]:
        del sys.modules[name]


def ticker(loop: Loop, ticks: Ticks) -> tuple[Any, list[str]]:
    ended: list[str] = []
    return importlib.import_module("gdb_optprobe.debugger.ticks").Ticker(ticks, lambda: ended.append("ended")), ended


def test_a_tick_is_posted_when_the_last_has_run(loop: Loop) -> None:
    ran: list[int] = []

    def act() -> float:
        ran.append(loop.posted.qsize())
        return 0.001

    found, ended = ticker(loop, Ticks(0.002, act))
    for _ in range(5):
        loop.one()
    found.end()
    assert ran == [0] * 5 and ended == [] and found.failure is None
    while not loop.posted.empty():
        loop.one()
    assert len(ran) == 5, "one that was left does nothing"


def test_a_key_makes_a_tick_come_at_once(loop: Loop) -> None:
    reads, writes = os.pipe()
    typed: list[bytes] = []

    def act() -> float:
        typed.append(os.read(reads, 1))
        return NEVER

    found, _ = ticker(loop, Ticks(NEVER, act, reads))
    os.write(writes, b"h")
    loop.one()
    found.end()
    assert typed == [b"h"]
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("fails", [False, True], ids=["no more", "an error"])
def test_a_tick_can_end_the_run(loop: Loop, fails: bool) -> None:
    def act() -> None:
        if fails:
            raise ValueError("no")

    found, ended = ticker(loop, Ticks(0.001, act))
    loop.one()
    assert ended == ["ended"] and isinstance(found.failure, ValueError) is fails
    found.end()


def test_the_end_does_not_wait_for_a_tick_that_never_runs(loop: Loop) -> None:
    before = os.listdir("/proc/self/fd")
    found, _ = ticker(loop, Ticks(0.001, lambda: 0.001))
    loop.posted.get(timeout=PATIENCE)
    found.end()
    assert os.listdir("/proc/self/fd") == before
