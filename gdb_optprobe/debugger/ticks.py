"""Do something again and again in GDB's thread while the guest runs.

A thread waits and posts an event, which GDB runs between those of the guest, so that probes which stop are served
meanwhile. The next one is posted when the last has run; one that is left when the run has ended does nothing.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from gdb_optprobe.debugger.event_loop import post
from gdb_optprobe.probes.target import Ticks


class Ticker:
    """Ticks until `end`. ended: called, in GDB's thread, where the run is to end. failure: what a tick has raised."""

    def __init__(self, ticks: Ticks, ended: Callable[[], None]) -> None:
        self._ticks = ticks
        self._ended = ended
        self._pause = ticks.every
        self._over = False
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._wakes, self._wake = os.pipe()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tick no more."""
        with self._lock:
            self._over = True
            self._idle.set()
        os.write(self._wake, b"\0")
        self._thread.join()
        os.close(self._wakes)
        os.close(self._wake)

    def _wait(self) -> None:
        """Run in the thread, where SIGINT is blocked."""
        heard = select.poll()
        for each in (self._wakes, self._ticks.keys):
            if each is not None:
                heard.register(each, select.POLLIN)
        while True:
            heard.poll(1000 * self._pause)
            with self._lock:
                if self._over:
                    return
                self._idle.clear()
            post(self._tick)
            self._idle.wait()

    def _tick(self) -> None:
        try:
            pause = None if self._over else self._ticks.act()
            if pause is not None:
                self._pause = pause
            elif not self._over:
                self._stop()
        except Exception as failure:
            # GDB would print it and continue. `run_for` raises it.
            self.failure = failure
            self._stop()
        finally:
            self._idle.set()

    def _stop(self) -> None:
        self._over = True
        self._ended()
