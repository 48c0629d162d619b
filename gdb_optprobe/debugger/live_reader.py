"""Choose how the running guest's memory is read: /proc of QEMU, else QMP, else not but at short stops.

The choice is made while the guest is stopped, anew each time: what a way reads must be what the stub reads then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

import gdb

from gdb_optprobe.debugger.machine import PAGE, GdbMachine
from gdb_optprobe.debugger.parameters import current_settings
from gdb_optprobe.debugger.qemu_memory import ProcessMemory, QmpMemory, peers
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.live_memory import Candidate, LiveMemory, chosen, extents
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.interrupts import held
from gdb_optprobe.probes.settings import PROCESS, QMP, SLICES, Settings

_HOST = re.compile(r"Host virtual address for 0x[0-9a-f]+ \([^)]*\) is (0x[0-9a-f]+)", re.I)
_PHYSICAL = re.compile(r"gpa: (0x[0-9a-f]+)", re.I)
MOST_ASKED = 256
"""Pages of which the monitor is asked where they are, in a guest with page tables that are not known."""


def live_memory(
    machine: GdbMachine, spans: Sequence[tuple[int, int]], *, to_keep: bool = False
) -> tuple[LiveMemory | None, str]:
    """Return what reads these (start, end) pieces while the guest runs, None where only stops can; and why so.

    to_keep: it stays open, so it is not QMP, which answers one client at a time. Raises OptprobeError where the setting
    asks for a way that does not work.
    """
    settings = current_settings()
    if settings.live == SLICES:
        return None, "set optprobe live slices"
    if to_keep and settings.live == QMP:
        return None, "set optprobe live qmp, and QMP answers one client at a time"
    candidates = _candidates(settings, to_keep)
    with held():
        found, why = chosen(candidates, lambda: extents(spans, partial(_physical, machine), _host), machine)
    if found is None and settings.live in (PROCESS, QMP):
        told = "; ".join(why) or "set optprobe qmp-socket PATH"
        raise OptprobeError(f"the running guest cannot be read: {told}", "set optprobe live auto")
    return found, "; ".join(why) or ("" if found is not None else "no process of this host is at the connection")


def _candidates(settings: Settings, to_keep: bool) -> Iterator[Candidate]:
    if settings.live != QMP:
        for process in peers():
            yield Candidate(f"/proc/{process}/mem", partial(ProcessMemory, process))
    if settings.live != PROCESS and settings.qmp_socket and not to_keep:
        yield Candidate(f"QMP at {settings.qmp_socket}", partial(QmpMemory, settings.qmp_socket))


def _host(physical: int) -> int:
    return _asked(f"gpa2hva {physical:#x}", _HOST)


def _physical(machine: GdbMachine, address: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the guest-physical pieces of virtual memory. Raises OptprobeError."""
    if isinstance(machine.memory, KernelMemory):
        with machine.reading_pages():
            found = machine.memory.extents(address, size)
        yield from found
        return
    pages = range(address - address % PAGE, address + size, PAGE)
    if len(pages) > MOST_ASKED:
        raise OptprobeError(f"its page tables are not known, and it has {len(pages)} pages")
    for page in pages:
        start, end = max(page, address), min(page + PAGE, address + size)
        yield _asked(f"gva2gpa {start:#x}", _PHYSICAL), end - start


def _asked(command: str, answer: re.Pattern[str]) -> int:
    """Return the number in the answer of QEMU's monitor. Raises OptprobeError where it has none."""
    try:
        said = gdb.execute(f"monitor {command}", to_string=True) or ""
    except gdb.error as error:
        said = str(error)
    found = answer.search(said)
    if found is None:
        raise OptprobeError(f"QEMU's monitor does not answer {command}: {one_line(' '.join(said.split()))[:100]}")
    return int(found[1], 16)
