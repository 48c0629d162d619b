"""Tracepoints of a small kernel: found, proven by their names, their functions, and how fields are assigned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import event_fields, event_name
from gdb_optprobe.guest.linux.event_fields import EventField
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.kernel import Symbols
from gdb_optprobe.guest.linux.modules import Module, State, Table
from gdb_optprobe.guest.linux.tracepoints import MOST_TOGETHER, ROW, Call, Tracepoint, Tracepoints, too_many
from gdb_optprobe.handlers.ctype import CHAR, Array, Integer, Pointer
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer
from tests.guest.linux import fake_kernel
from tests.handlers.world import World

KERNEL = 0xFFFF_FFFF_8100_0000
DATA, TEXTS, FUNCS = KERNEL + 0x10_0000, KERNEL + 0x20_0000, KERNEL + 0x30_0000
WAKE, CALL, CLASS, LIST = DATA, DATA + 0x200, DATA + 0x400, DATA + 0x600
BARE, TABLE = DATA + 0x180, DATA + 0xB00
MODULE, EVENTS, MAPS = DATA + 0x1000, DATA + 0x1100, DATA + 0x1200
ITERATOR, ASSIGNS, REGISTER, UNREGISTER, RCU, SRCU = range(KERNEL, KERNEL + 0x600, 0x100)
RAW, EVENT = EventName("", "wake", True), EventName("sched", "wake")
OFFSETS = {
    "tracepoint.name": 0, "tracepoint.iterator": 40, "tracepoint.funcs": 64,
    "trace_event_call.class": 16, "trace_event_call.tp": 24,
    "trace_event_class.system": 0, "trace_event_class.probe": 8, "trace_event_class.fields": 48,
    "trace_event_file.event_call": 16, "trace_event_file.filter": 24, "trace_event_file.tr": 40,
    "trace_event_file.triggers": 56, "trace_event_file.flags": 72, "trace_event_file.tm_ref": 88,
    "trace_event_buffer.trace_file": 16, "trace_event_buffer.entry": 24,
    "ftrace_event_field.link": 0, "ftrace_event_field.name": 16, "ftrace_event_field.type": 24,
    "ftrace_event_field.offset": 36, "ftrace_event_field.size": 40, "ftrace_event_field.is_signed": 44,
    "module.tracepoints_ptrs": 0, "module.num_tracepoints": 8, "module.trace_events": 16, "module.num_trace_events": 24,
    "module.bpf_raw_events": 32, "module.num_bpf_raw_events": 40,
    "bpf_raw_event_map.tp": 0, "bpf_raw_event_map.num_args": 16, "bpf_raw_event_map.writable_size": 20,
}  # fmt: skip
FIELDS = (
    EventField("comm", "char[TASK_COMM_LEN]", 8, 16, False),
    EventField("pid", "pid_t", 24, 4, True),
    EventField("where", "__data_loc char[]", 28, 4, False),
    EventField("odd", "struct pair", 32, 12, False),
)
NAMES = {
    "d___tracepoint_wake": WAKE, "d_event_wake": CALL, "__traceiter_wake": ITERATOR,
    "trace_event_raw_event_wake": ASSIGNS, "tracepoint_probe_register": REGISTER,
    "tracepoint_probe_unregister": UNREGISTER, "synchronize_rcu": RCU, "synchronize_srcu": SRCU,
    "trace_event_buffer_reserve": KERNEL + 0x700, "trace_event_buffer_commit": KERNEL + 0x800,
    "d___tracepoint_bare": BARE, "d___start___tracepoints_ptrs": TABLE, "d___stop___tracepoints_ptrs": TABLE + 8,
    "d_global_trace": DATA + 0x800, "d_tracepoint_srcu": DATA + 0x900, "d_init_task": DATA + 0xA00,
}  # fmt: skip


def facts(parameters: int = 4, why: str = "", **names: int | None) -> Tracepoints:
    memory = fake_kernel.Pages()
    for start in (DATA, TEXTS, FUNCS):
        memory.put(start, bytes(2 * 4096))
    at = TEXTS

    def text(written: str) -> int:
        nonlocal at
        memory.put(at, written.encode() + b"\0")
        at += len(written) + 1
        return at - len(written) - 1

    def put(place: int, member: str, word: int, size: int = 8) -> None:
        memory.put(place + OFFSETS[member], word.to_bytes(size, "little"))

    put(WAKE, "tracepoint.name", text("wake"))
    put(WAKE, "tracepoint.iterator", ITERATOR)
    put(WAKE, "tracepoint.funcs", FUNCS)
    put(CALL, "trace_event_call.class", CLASS)
    put(CALL, "trace_event_call.tp", WAKE)
    put(CLASS, "trace_event_class.system", text("sched"))
    put(CLASS, "trace_event_class.probe", ASSIGNS)
    links = [CLASS + OFFSETS["trace_event_class.fields"], *(LIST + 0x40 * n for n in range(len(FIELDS)))]
    for one, following in zip(links, [*links[1:], links[0]], strict=True):
        memory.put_words(one, following)
    # As the kernel has them: the last one first.
    for place, field in zip(links[1:], reversed(FIELDS), strict=True):
        put(place, "ftrace_event_field.name", text(field.name))
        put(place, "ftrace_event_field.type", text(field.written))
        for member, number in (("offset", field.offset), ("size", field.size), ("is_signed", field.signed)):
            put(place, f"ftrace_event_field.{member}", number, 4)
    for place, one in ((TABLE, WAKE), (TABLE + 4, BARE)):
        memory.put(place, (one - place).to_bytes(4, "little", signed=True))
    found = {name: address for name, address in (NAMES | names).items() if address is not None}
    arch: Any = type("Arch", (), {"why_not": lambda self, kernel: why})()
    kernel = fake_kernel.kernel(memory, found, OFFSETS)
    return Tracepoints(kernel, cast(Any, memory), arch, lambda: None, lambda _: None, lambda name: parameters)


@dataclass(frozen=True)
class Code:
    module: Module
    symbols: Symbols


def of_module(arguments: int = 3, maps: int = 1, assigns: str = "trace_event_raw_event_wake") -> Tracepoints:
    """The same tracepoint, of a module. arguments: of it. maps: how many rows tell that. assigns: the function's name.
    """
    of = facts(**{name: None for name in NAMES if "wake" in name})
    put: Any = of.kernel.memory
    put.put_words(MODULE, TABLE, 1, EVENTS, 1, MAPS, maps)
    put.put_words(EVENTS, CALL)
    put.put_words(MAPS, WAKE, 0, arguments, 0)
    ranges = ((KERNEL, KERNEL + 0x1000), (0, 0), (), ((DATA, DATA + 0x2000), (TEXTS, TEXTS + 0x2000)))
    module = Module(MODULE, "dog", State.LIVE, *ranges, {}, Table(), 0, 0, ())
    return replace(of, modules=lambda: [Code(module, fake_kernel.symbols(**{assigns: ASSIGNS}))])


def test_a_tracepoint_is_found_and_its_functions_are_listed() -> None:
    of = facts()
    found = of.find(EVENT)
    assert found == of.find(RAW) == Tracepoint("wake", WAKE)
    assert of.functions(found) == []
    of.kernel.memory.put_words(FUNCS, 0xA0, 1, 10, 0xB0, 2, 10, 0)  # type: ignore[attr-defined]
    assert of.functions(found) == [(0xA0, 1), (0xB0, 2)]
    assert of.register(found, 0xC0) == Call(REGISTER, (WAKE, 0xC0, 0))
    assert of.unregister(found, 0xC0) == Call(UNREGISTER, (WAKE, 0xC0, 0))


def test_wildcards_are_of_tracepoints_with_their_systems() -> None:
    of = facts()

    def names(written: str) -> list[str]:
        event = event_name.parse(written)
        assert event is not None
        return [str(each) for each in of.matching(event)]

    assert names("tracepoint:sched:w?ke") == names("tracepoint:s*:*") == names("tracepoint:sched:wake") == [str(EVENT)]
    assert names("rawtracepoint:*") == ["rawtracepoint:bare", "rawtracepoint:wake"], "one of them has no event"
    assert names("tracepoint:block:*") == names("tracepoint:sched:a*") == []
    assert too_many(EVENT, MOST_TOGETHER) == "" and "no more than" in too_many(EVENT, MOST_TOGETHER + 1)


def test_functions_without_an_end_are_not_believed() -> None:
    of = facts()
    of.kernel.memory.put(FUNCS, b"\1" * (ROW * 100))  # type: ignore[attr-defined]
    with pytest.raises(OptprobeError, match="have no end"):
        of.functions(of.find(RAW))


def test_every_grace_period_that_the_kernel_uses_is_waited_for() -> None:
    srcu, rcu = Call(SRCU, (NAMES["d_tracepoint_srcu"],)), Call(RCU, ())
    assert facts().waits() == [srcu, rcu]
    tasks = KERNEL + 0x900
    assert facts(synchronize_rcu_tasks_trace=tasks).waits() == [srcu, Call(tasks, ()), rcu]
    assert facts(d_tracepoint_srcu=None).waits() == [rcu], "a later kernel has no SRCU of tracepoints"


@pytest.mark.parametrize("name", ["synchronize_rcu", "tracepoint_probe_register", "tracepoint_probe_unregister"])
def test_without_a_function_nothing_is_registered(name: str) -> None:
    with pytest.raises(OptprobeError, match=f"no symbol {name}"):
        facts(**{name: None}).find(RAW)


def test_what_is_not_what_it_is_called_is_refused() -> None:
    with pytest.raises(OptprobeError, match="no tracepoint sleep"):
        facts().find(EventName("", "sleep", True))
    with pytest.raises(OptprobeError, match="hashes"):
        facts(why="hashes").find(RAW)
    with pytest.raises(OptprobeError, match="no symbol __tracepoint_wake"):
        facts(d___tracepoint_wake=None).find(RAW)
    with pytest.raises(OptprobeError, match="is none of block") as raised:
        facts().find(EventName("block", "wake"))
    assert raised.value.hint == "tracepoint:sched:wake"
    other = facts()
    other.kernel.memory.put_words(WAKE + 40, KERNEL + 0x5000)  # type: ignore[attr-defined]
    with pytest.raises(OptprobeError, match="is not the tracepoint wake"):
        other.find(RAW)


def test_fields_have_the_types_and_places_of_the_entry() -> None:
    made = facts().event_format(EVENT)
    assert (made.call, made.assigns, made.trace, made.fields) == (CALL, ASSIGNS, NAMES["d_global_trace"], FIELDS)
    assert made.entry % 16 == made.room % 16 == 0 and made.room >= 44 + event_fields.EXTRA
    members = made.members("tracepoint:sched:wake", "rsp", World())
    assert members.names == ("comm", "pid", "where", "odd")
    comm, pid, where, odd = map(members.lookup, members.names)
    assert isinstance(comm, Lvalue) and comm.type == Array(CHAR, 16)
    assert isinstance(pid, Lvalue) and isinstance(pid.type, Integer) and (pid.type.size, pid.type.signed) == (4, True)
    assert isinstance(where, Rvalue) and where.type == Pointer(CHAR) and isinstance(odd, Missing)
    entry = bytearray(made.entry + 64)
    entry[made.entry + 24 : made.entry + 28] = (-7).to_bytes(4, "little", signed=True)
    entry[made.entry + 28 : made.entry + 32] = (5 << 16 | 44).to_bytes(4, "little")
    hit = Hit({"rsp": 0x5000}, lambda at, size: bytes(entry[at - 0x5000 : at - 0x5000 + size]), 0)
    assert evaluate(Typer(World()).load(pid, Fragment.whole("pid")).expr, hit) == -7 % (1 << 64)
    assert evaluate(where.expr, hit) == 0x5000 + made.entry + 44, "the offset is of the entry, the size above it"


def test_a_module_assigns_the_fields_of_its_events() -> None:
    of = of_module()
    assert of.find(EVENT) == Tracepoint("wake", WAKE, MODULE)
    assert of.event_format(EVENT) == of.event_format(EVENT, of.find(EVENT)) == facts().event_format(EVENT)


def test_a_modules_fields_that_cannot_be_told_are_refused_for_what_is_missing() -> None:
    for wrong, why in (
        (of_module(arguments=6), "not all in registers"),
        (of_module(maps=0), "how many arguments wake has is not known"),
        (of_module(assigns="other"), "is not known"),
    ):
        with pytest.raises(OptprobeError, match=why):
            wrong.event_format(EVENT)
    gone = of_module()
    found = gone.find(EVENT)
    with pytest.raises(OptprobeError, match="is not loaded"):
        replace(gone, modules=tuple).event_format(EVENT, found)
    bare = of_module()
    bare.kernel.memory.put_words(CALL + OFFSETS["trace_event_call.tp"], BARE)  # type: ignore[attr-defined]
    with pytest.raises(OptprobeError, match="has no event"):
        bare.event_format(EVENT, found)


@pytest.mark.parametrize("parameters", [0, 7])
def test_arguments_on_the_stack_are_not_passed_on(parameters: int) -> None:
    with pytest.raises(OptprobeError, match="not all in registers"):
        facts(parameters).event_format(EVENT)


def test_a_function_of_another_kind_is_not_called() -> None:
    of = facts()
    of.kernel.memory.put_words(CLASS + 8, REGISTER)  # type: ignore[attr-defined]
    with pytest.raises(OptprobeError, match="is not known"):
        of.event_format(EVENT)



def test_without_symbols_of_data_names_are_those_in_memory() -> None:
    whole = facts()
    known = {name: at for name, at in NAMES.items() if name not in ("d___tracepoint_wake", "d___tracepoint_bare")}
    unnamed = replace(whole, kernel=replace(whole.kernel, symbols=cast(Symbols, fake_kernel.symbols(**known))))
    assert sorted(whole._names()) == ["bare", "wake"]
    assert unnamed._names() == ["wake"], "that of the other is empty"
