"""The fields of an event, as the kernel itself assigns them: trace_event_raw_event_CLASS(file, arguments…).

    our handler's frame                                   the kernel's assignment
    ┌──────────────────────────┐   file, arguments…       ┌────────────────────────────────────┐
    │ struct trace_event_file  │ ───────────────────────► │ call trace_event_buffer_reserve ───┼─► our gate: the frame
    │ room                     │                          │ entry->prev_pid = prev->pid; …     │
    │ entry                    │ ◄─────────────────────── │ call trace_event_buffer_commit ────┼─► our gate: nothing
    └──────────────────────────┘                          └────────────────────────────────────┘
The two calls of that function are redirected to gates: code that knows our file by a mark, and has the kernel's own
function run for any other. Without the gates the kernel would write the event into its own trace, which does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel, Symbols
from gdb_optprobe.guest.linux.list_head import members
from gdb_optprobe.guest.linux.syscall_events import Types, of_text
from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import Array, CType, Enum, Integer, Pointer, size_of
from gdb_optprobe.handlers.ir import Expr, Load, Op, Register
from gdb_optprobe.handlers.scope import Fields, Lvalue, Meaning, Missing, Rvalue

CALL, CLASS, FILE, BUFFER, FIELD = (
    "trace_event_call", "trace_event_class", "trace_event_file", "trace_event_buffer", "ftrace_event_field",
)  # fmt: skip
RESERVE, COMMIT, TRACE = "trace_event_buffer_reserve", "trace_event_buffer_commit", "global_trace"
ASSIGNS, EVENT = "trace_event_raw_event_", "event_"
DYNAMIC = "__data_loc "
MOST_FIELDS = 128
LONGEST = 128
LARGEST = 512
"""Bytes of an entry, without what has no fixed size."""
EXTRA = 512
"""Bytes for strings and arrays that have no fixed size, all of an event together."""
WORDS = 16
"""Bytes between file and entry, the first of them the room: 0 once it is taken. The entry is aligned to them."""
_ARRAY = re.compile(r"(.+?)\s*\[(.+)\]")


@dataclass(frozen=True, slots=True)
class EventField:
    """A field of an entry. written: its type as the kernel writes it."""

    name: str
    written: str
    offset: int
    size: int
    signed: bool

    @property
    def is_dynamic(self) -> bool:
        """Whether it says where the value is: the offset in its lower 16 bits."""
        return self.written.startswith(DYNAMIC)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Offsets in the kernel's structures, and the size of a file."""

    call: int
    trace: int
    filter: int
    flags: int
    size: int
    buffer_file: int
    buffer_entry: int


@dataclass(frozen=True)
class EventFormat:
    """call: address of the event's structure. assigns: the function that assigns the fields. trace: the kernel's own
    trace. reserve, commit: functions that it calls.
    """

    call: int
    assigns: int
    trace: int
    reserve: int
    commit: int
    layout: FileLayout
    fields: tuple[EventField, ...]

    @property
    def entry(self) -> int:
        """Return the offset of the entry from our file."""
        return self.layout.size + WORDS

    @property
    def room(self) -> int:
        """Return how many bytes an entry may have."""
        fixed = max(field.offset + field.size for field in self.fields)
        extra = EXTRA if any(field.is_dynamic for field in self.fields) else 0
        return -(-(fixed + extra) // 16) * 16

    def members(self, event: str, sp: str, types: Types) -> Fields:
        """Return the fields where our file is at the stack pointer."""
        known = {field.name: field for field in self.fields}

        def lookup(name: str) -> Meaning | Missing | None:
            return _meaning(known[name], Register(sp), self.entry, types) if name in known else None

        return Fields.of(event, [*known], lookup)


def find(kernel: Kernel, call: int, name: str, system: str, tracepoint: int, symbols: Symbols) -> EventFormat:
    """Return how the event of a tracepoint is assigned. Raises OptprobeError.

    call: address of the event's structure. symbols: of the text that the event is of, the kernel's or a module's.
    """
    of = kernel.word(call + kernel.offset(CALL, "class"))
    _check_system(kernel, of, name, system)
    if kernel.word(call + kernel.offset(CALL, "tp")) != tracepoint:
        raise NoSuchKernel(f"the event {name} is not that of the tracepoint")
    assigns = kernel.word(of + kernel.offset(CLASS, "probe"))
    symbol = symbols.at(assigns)
    if symbol is None or symbol.offset or not symbol.name.startswith(ASSIGNS):
        raise NoSuchKernel(f"the function that assigns the fields of {name} is not known")
    fields = tuple(sorted(_fields(kernel, of + kernel.offset(CLASS, "fields")), key=lambda field: field.offset))
    if not fields or any(not 0 < field.size <= LARGEST or not 0 <= field.offset <= LARGEST for field in fields):
        raise NoSuchKernel(f"the fields of {name} are not known")
    layout = FileLayout(
        call=kernel.offset(FILE, "event_call"),
        trace=kernel.offset(FILE, "tr"),
        filter=kernel.offset(FILE, "filter"),
        flags=kernel.offset(FILE, "flags"),
        size=-(-max(kernel.offset(FILE, member) for member in ("tm_ref", "flags", "triggers", "tr")) // 16) * 16 + 32,
        buffer_file=kernel.offset(BUFFER, "trace_file"),
        buffer_entry=kernel.offset(BUFFER, "entry"),
    )
    trace, reserve, commit = (kernel.address(symbol) for symbol in (TRACE, RESERVE, COMMIT))
    return EventFormat(call, assigns, trace, reserve, commit, layout, fields)


def check_system(kernel: Kernel, name: str, system: str) -> None:
    """Raise OptprobeError where the event of that name is another system's; not where its name is not known."""
    call = kernel.symbols.address(f"{EVENT}{name}")
    if call is not None:
        _check_system(kernel, kernel.word(call + kernel.offset(CALL, "class")), name, system)


def system_of(kernel: Kernel, name: str) -> str:
    """Return the system of the event of a tracepoint; "" where the tracepoint has no event. Raises OptprobeError."""
    call = kernel.symbols.address(f"{EVENT}{name}")
    return _system(kernel, kernel.word(call + kernel.offset(CALL, "class"))) if call is not None else ""


def _system(kernel: Kernel, of: int) -> str:
    return until_zero(kernel.memory.read(kernel.word(of + kernel.offset(CLASS, "system")), LONGEST))


def _check_system(kernel: Kernel, of: int, name: str, system: str) -> None:
    found = _system(kernel, of)
    if found != system:
        raise NoSuchKernel(f"the event {name} is none of {system}", f"tracepoint:{found}:{name}")


def _fields(kernel: Kernel, head: int) -> Sequence[EventField]:
    offset = {name: kernel.offset(FIELD, name) for name in ("link", "name", "type", "offset", "size", "is_signed")}
    budget = Budget(MOST_FIELDS, "an event", "fields")

    def text(at: int) -> str:
        return until_zero(kernel.memory.read(kernel.word(at), LONGEST))

    def number(at: int) -> int:
        return int.from_bytes(kernel.memory.read(at, 4), "little", signed=True)

    return [
        EventField(
            text(at + offset["name"]),
            text(at + offset["type"]),
            number(at + offset["offset"]),
            number(at + offset["size"]),
            bool(number(at + offset["is_signed"])),
        )
        for at in members(kernel, head, offset["link"], budget)
    ]


def _meaning(field: EventField, file: Expr, entry: int, types: Types) -> Meaning | Missing:
    place = _plus(file, entry + field.offset)
    if field.is_dynamic:
        return _dynamic(field, _plus(file, entry), Load(place, 4, False, mapped=True), types)
    found = _type(field, types)
    return found if isinstance(found, Missing) else Lvalue(place, found, mapped=True)


def _dynamic(field: EventField, entry: Expr, where: Expr, types: Types) -> Meaning:
    element = of_text(field.written.removeprefix(DYNAMIC).removesuffix("[]"), types)
    offset = fold.binary(Op.AND, where, fold.constant(0xFFFF), 64, False)
    return Rvalue(fold.binary(Op.ADD, entry, offset, 64, False), Pointer(element))


def _type(field: EventField, types: Types) -> CType | Missing:
    if (array := _ARRAY.fullmatch(field.written)) is not None:
        element = of_text(array[1], types)
        size = size_of(element)
        if size and field.size % size == 0:
            return Array(element, field.size // size)
    found = of_text(field.written, types)
    if isinstance(found, Enum | Pointer) and size_of(found) == field.size:
        return found
    if array is None and field.size in (1, 2, 4, 8) and not isinstance(found, Pointer):
        return Integer(field.written, field.size, field.signed)
    return Missing(f"the type '{field.written}' of '{field.name}' is not supported", "another field")


def _plus(base: Expr, offset: int) -> Expr:
    return fold.binary(Op.ADD, base, fold.constant(offset), 64, False)
