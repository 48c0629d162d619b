"""Tracepoints of a module's tables, which are believed only within the module's own memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.guest.linux import module_tracepoints
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.module_tracepoints import MOST, ModuleTracepoint
from gdb_optprobe.guest.linux.modules import Module, State, Table
from tests.guest.linux import fake_kernel

MODULE = 0xFFFF_FFFF_C000_0000
END = MODULE + 0x2000
START, STOP, EVENT, OF, POINTERS, EVENTS, TEXTS, MAPS = (MODULE + 0x200 * number for number in range(1, 9))
OFFSETS = {
    "module.tracepoints_ptrs": 8, "module.num_tracepoints": 16,
    "module.trace_events": 24, "module.num_trace_events": 32,
    "module.bpf_raw_events": 40, "module.num_bpf_raw_events": 48,
    "bpf_raw_event_map.tp": 0, "bpf_raw_event_map.num_args": 16, "bpf_raw_event_map.writable_size": 20,
    "tracepoint.name": 0, "trace_event_call.class": 16, "trace_event_call.tp": 24, "trace_event_class.system": 0,
}  # fmt: skip


def world(**numbers: int) -> tuple[Kernel, Module]:
    """A module with two tracepoints, one of which has an event. numbers: what is in its structure in place of that."""
    memory = fake_kernel.Pages()
    memory.put(MODULE, bytes(END - MODULE))
    for at, text in ((TEXTS, b"start"), (TEXTS + 16, b"stop"), (END - 9, b"watchdog")):
        memory.put(at, text + b"\0")
    for place, tracepoint, name in ((POINTERS, START, TEXTS), (POINTERS + 4, STOP, TEXTS + 16)):
        memory.put(place, (tracepoint - place).to_bytes(4, "little", signed=True))
        memory.put_words(tracepoint, name)
    memory.put_words(EVENTS, EVENT)
    memory.put_words(EVENT + 16, OF, START)
    memory.put_words(OF, END - 9)
    memory.put_words(MAPS, STOP, 0, 2, 0, START, 0, 7 << 32 | 3, 0)
    told = {"tracepoints_ptrs": POINTERS, "num_tracepoints": 2, "trace_events": EVENTS, "num_trace_events": 1}
    told |= {"bpf_raw_events": MAPS, "num_bpf_raw_events": 2}
    for name, number in (told | numbers).items():
        memory.put_words(MODULE + OFFSETS[f"module.{name}"], number)
    ranges = ((MODULE, MODULE + 0x1000), (0, 0), (), ((MODULE + 0x1000, END),))
    none = Table()
    module = Module(MODULE, "dog", State.LIVE, *ranges, {}, none, 0, 0, ())
    return fake_kernel.kernel(memory, {}, OFFSETS), module


def test_a_module_has_tracepoints_with_their_systems() -> None:
    kernel, module = world()
    found = module_tracepoints.of_module(kernel, module)
    assert found == [
        ModuleTracepoint("start", START, module, "watchdog", EVENT),
        ModuleTracepoint("stop", STOP, module, ""),
    ], "a text may end with the module's memory"


@pytest.mark.parametrize("state", [State.COMING, State.GOING])
def test_one_that_comes_or_goes_has_none(state: State) -> None:
    kernel, module = world()
    assert module_tracepoints.of_module(kernel, replace(module, state=state)) == []


def test_what_is_outside_of_the_module_is_not_believed() -> None:
    assert module_tracepoints.of_module(*world(tracepoints_ptrs=END)) == []
    assert module_tracepoints.of_module(*world(tracepoints_ptrs=END - 4)) == [], "the second one would be outside"
    assert module_tracepoints.of_module(*world(num_tracepoints=MOST + 1)) == []
    kernel, module = world(trace_events=END)
    assert [one.system for one in module_tracepoints.of_module(kernel, module)] == ["", ""]
    kernel.memory.put(POINTERS + 4, (END - POINTERS - 4).to_bytes(4, "little"))  # type: ignore[attr-defined]
    assert [one.name for one in module_tracepoints.of_module(kernel, module)] == ["start"]


def test_the_number_of_arguments_is_that_which_bpf_is_told() -> None:
    kernel, module = world()
    assert [module_tracepoints.arguments(kernel, module, at) for at in (START, STOP, EVENT)] == [3, 2, None]
    for wrong in ({"bpf_raw_events": END - 32}, {"num_bpf_raw_events": 0}, {"num_bpf_raw_events": MOST + 1}):
        assert module_tracepoints.arguments(*world(**wrong), START) is None, "outside of the module's memory, or none"
    other = fake_kernel.kernel(kernel.memory, {}, OFFSETS | {"bpf_raw_event_map.num_args": 12})  # type: ignore[arg-type]
    assert module_tracepoints.arguments(other, module, START) is None, "of another layout"


def test_a_kernel_without_tracepoints_has_none() -> None:
    kernel, module = world()
    assert kernel.structures is not None
    without = replace(kernel, structures=None)
    assert module_tracepoints.of_module(without, module) == []
