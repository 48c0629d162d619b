"""The tracepoints of loaded modules, and their events: each module has tables of both.

    struct module │ tracepoints_ptrs, num_tracepoints ─┼──► distances to struct tracepoint
                  │ trace_events, num_trace_events ────┼──► struct trace_event_call* ─► tp, class ─► system
                  │ bpf_raw_events, num_bpf_raw_events ┼──► struct bpf_raw_event_map: tp, bpf_func, num_args, …
A tracepoint goes with its module. A module is not unloaded while a reference to it is held, as perf and BPF hold one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest.linux.event_fields import CALL, CLASS, LONGEST
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.modules import Module, State
from gdb_optprobe.guest_text import until_zero

POINTER = Struct("<i")
"""Of tracepoints_ptrs: relative to itself (include/linux/tracepoint.h)."""
WORD = Struct("<Q")
MOST = 1 << 12
"""Tracepoints of a module, and its events: 579 (xfs)."""
SIZE = 72
"""Bytes of a struct tracepoint."""
FOR_BPF = Struct("<QQIIQ")
"""struct bpf_raw_event_map, which has 32 bytes each (include/linux/tracepoint-defs.h)."""
MAP = "bpf_raw_event_map"


@dataclass(frozen=True, slots=True)
class ModuleTracepoint:
    """address: of its structure. event: that of its event; 0, and no system, where it has none."""

    name: str
    address: int
    module: Module
    system: str = ""
    event: int = 0


def of_module(kernel: Kernel, module: Module) -> list[ModuleTracepoint]:
    """Return the tracepoints of a module that is not about to go; none where its tables cannot be understood."""
    if module.state is not State.LIVE:
        return []
    try:
        return [*_tracepoints(kernel, module)]
    except (Unreadable, Unreachable):
        raise
    except OptprobeError:
        return []


def _tracepoints(kernel: Kernel, module: Module) -> Iterator[ModuleTracepoint]:
    """Yield the tracepoints that are all within the module's memory."""
    events = _events(kernel, module)
    for place, (distance,) in _rows(kernel, module, "tracepoints_ptrs", "num_tracepoints", POINTER):
        address = place + distance
        if not module.holds(address, SIZE):
            continue
        name = _text(kernel, module, kernel.word(address + kernel.offset("tracepoint", "name")))
        if name:
            yield ModuleTracepoint(name, address, module, *events.get(address, ()))


def _events(kernel: Kernel, module: Module) -> dict[int, tuple[str, int]]:
    """Return the systems and the addresses of the module's events, by their tracepoints."""
    found = {}
    for _, (call,) in _rows(kernel, module, "trace_events", "num_trace_events", WORD):
        if module.holds(call, SIZE):
            of = kernel.word(call + kernel.offset(CALL, "class"))
            tracepoint = kernel.word(call + kernel.offset(CALL, "tp"))
            if module.holds(of, SIZE):
                found[tracepoint] = _text(kernel, module, kernel.word(of + kernel.offset(CLASS, "system"))), call
    return found


def arguments(kernel: Kernel, module: Module, tracepoint: int) -> int | None:
    """Return how many arguments a module's tracepoint has, each of one word; None where that is not known.

    The kernel's own types do not have a module's functions. BPF's table has the number. Raises OptprobeError.
    """
    if any(kernel.offset(MAP, name) != at for name, at in (("tp", 0), ("num_args", 16), ("writable_size", 20))):
        return None
    rows = _rows(kernel, module, "bpf_raw_events", "num_bpf_raw_events", FOR_BPF)
    return next((number for _, (of, _, number, *_) in rows if of == tracepoint), None)


def _rows(
    kernel: Kernel, module: Module, table: str, number: str, layout: Struct
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the rows of a table of a module's with their addresses; none where it is not in the module's memory."""
    start = kernel.word(module.address + kernel.offset("module", table))
    rows = kernel.word(module.address + kernel.offset("module", number)) & 0xFFFF_FFFF
    if 0 < rows <= MOST and module.holds(start, rows * layout.size):
        yield from kernel.rows(start, start + rows * layout.size, layout)


def _text(kernel: Kernel, module: Module, address: int) -> str:
    """Return a text in a module's memory; "" where none is there."""
    end = next((end for start, end in module.memory if start <= address < end), address)
    return until_zero(kernel.memory.read(address, min(end - address, LONGEST))) if end > address else ""
