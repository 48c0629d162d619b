"""Tracepoints and events of a kernel without names of data, and of one that lies."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import derived_events
from gdb_optprobe.guest.linux.derived_data import Constants
from gdb_optprobe.guest.linux.kernel import Kernel, Symbols
from gdb_optprobe.guest.linux.tracepoints import TABLE
from gdb_optprobe.guest.machine import Memory
from tests.guest.linux.fake_kernel import Pages, Structures, symbols

TEXT, DATA, CALLS = 0xFFFF_8000_0800_0000, 0xFFFF_8000_0900_0000, 0xFFFF_8000_0910_0000
ROWS, NAMES, HEAD, TRACE = DATA + 0x800, DATA + 0x900, DATA + 0xA00, DATA + 0xB00
WAKE, SLEEP, BARE = DATA, DATA + 0x100, DATA + 0x200
TRACEPOINTS = {"wake": WAKE, "sleep": SLEEP, "bare": BARE}
OFFSETS = {
    "tracepoint.name": 0, "tracepoint.iterator": 40, "tracepoint.funcs": 64, "trace_event_call.list": 0,
    "trace_event_call.class": 16, "trace_event_call.tp": 24, "trace_array.list": 0, "trace_array.flags": 32,
}  # fmt: skip


class Code:
    def __init__(self, memory: Memory, made: Mapping[str, Constants]) -> None:
        self.memory = memory
        self.made = made

    def constants_of(self, function: str) -> Constants:
        return self.made.get(function, Constants((), ()))

    def in_text(self, address: int) -> bool:
        return TEXT <= address < DATA

    def word(self, address: int) -> int | None:
        try:
            return int.from_bytes(self.memory.read(address, 8), "little")
        except OptprobeError:
            return None


def small() -> tuple[Code, Kernel, Pages]:
    memory = Pages()
    iterators = {f"__traceiter_{name}": TEXT + 0x100 * number for number, name in enumerate(TRACEPOINTS, 1)}
    memory.put(DATA, bytes(0x2000))
    for number, (name, at) in enumerate(TRACEPOINTS.items()):
        memory.put(NAMES + 16 * number, name.encode() + b"\0")
        memory.put_words(at, NAMES + 16 * number)
        memory.put_words(at + 40, iterators[f"__traceiter_{name}"])
        memory.put(ROWS + 4 * number, (at - ROWS - 4 * number).to_bytes(4, "little", signed=True))
    calls = [CALLS, CALLS + 0x100, CALLS + 0x200]
    for here, back, on, tracepoint in zip(
        calls, (HEAD, *calls), (*calls[1:], HEAD), (WAKE, SLEEP, NAMES), strict=False
    ):
        memory.put_words(here, on, back, DATA, tracepoint)
    memory.put_words(HEAD, calls[0], calls[-1])
    memory.put_words(TRACE, TRACE, TRACE)
    memory.put(TRACE + 32, b"\1")
    walker, switch = Constants((), (HEAD, HEAD + 0x40)), Constants((TRACE, HEAD), ())
    made = {f"__traceiter_{name}": Constants((), (at + 64, DATA)) for name, at in TRACEPOINTS.items()}
    made |= {"for_each_kernel_tracepoint": Constants((ROWS, ROWS + 12), ())}
    made |= {"trace_event_update_all": walker, "__trace_early_add_events": walker, "event_trace_add_tracer": walker}
    made |= {"tracing_on": switch, "tracing_off": Constants((TRACE,), ())}
    named: Symbols = symbols(_stext=TEXT, **iterators)
    return Code(memory, made), Kernel(memory, named, Structures(OFFSETS)), memory


def derived(name: str) -> int | None:
    code, kernel, _ = small()
    known = {WAKE: CALLS, SLEEP: CALLS + 0x100}
    return derived_events.derive(code, kernel, name, lambda: known)[name]


@pytest.mark.parametrize("name", TRACEPOINTS)
def test_a_tracepoint_is_found_by_its_iterator(name: str) -> None:
    assert derived(f"__tracepoint_{name}") == TRACEPOINTS[name]


def test_the_table_the_list_and_the_trace() -> None:
    assert [derived(name) for name in (*TABLE, "ftrace_events", "global_trace")] == [ROWS, ROWS + 12, HEAD, TRACE]


def test_events_by_their_tracepoints() -> None:
    assert [derived(f"event_{name}") for name in (*TRACEPOINTS, "none")] == [CALLS, CALLS + 0x100, None, None]
    _, kernel, memory = small()
    at = Kernel(memory, symbols(d_ftrace_events=HEAD), Structures(OFFSETS))
    assert derived_events.events(at) == {WAKE: CALLS, SLEEP: CALLS + 0x100, NAMES: CALLS + 0x200}
    memory.put_words(CALLS + 0x100, CALLS)
    with pytest.raises(OptprobeError, match="broken"):
        derived_events.events(at)
    assert kernel.symbols.address("ftrace_events") is None


def test_what_another_name_or_iterator_is_at_is_no_tracepoint() -> None:
    code, kernel, memory = small()
    memory.put(NAMES, b"woke\0")
    assert derived_events.tracepoint(code, kernel, "wake") is None
    memory.put(NAMES, b"wake\0")
    memory.put_words(WAKE + 40, TEXT)
    assert derived_events.tracepoint(code, kernel, "wake") is None


@pytest.mark.parametrize("seed", range(50))
def test_memory_of_anything_gives_nothing_worse_than_nothing(seed: int) -> None:
    source = random.Random(seed)
    code, kernel, memory = small()
    for _ in range(source.randrange(1, 40)):
        memory.put(DATA + source.randrange(0x1000), source.randbytes(source.choice((1, 8, 64))))
    for name in (*TABLE, "ftrace_events", "global_trace", "__tracepoint_wake", "event_sleep", "event_none"):
        found = derived_events.derive(code, kernel, name, dict)
        assert all(value is None or 0 <= value < 1 << 64 for value in found.values())


def test_names_that_are_derived_here() -> None:
    assert derived_events.derives("event_wake") and derived_events.derives("global_trace")
    assert not derived_events.derives("runqueues")
