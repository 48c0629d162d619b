"""The events of system calls, by the functions that serve them: no tracepoint is switched on.

    sys_enter_read ──► entry of the function of read      args->fd ◄── names, types: struct syscall_metadata
    sys_exit_read  ──► its return                         args->ret           values: where the function has them
    raw_syscalls   ──► the function that calls all of them, where the kernel has one

The kernel's own events come a little earlier, before ptrace and seccomp look at the call, and after. A call that
these refuse, or that does not exist, is not seen here. (kernel/entry/common.c)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import cached_property
from struct import Struct
from typing import Protocol

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.event_name import ENTER, EXIT, RAW_SYSCALLS, SYSCALLS, EventName
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import LONG, UNSIGNED_LONG, CType, Enum, Integer, Pointer, Void, one_spelling
from gdb_optprobe.handlers.ir import Expr, Register
from gdb_optprobe.handlers.scope import Fields, Meaning, Missing, Rvalue

METADATA = Struct("<QiiQQ")
"""struct syscall_metadata, include/trace/syscall.h: name, syscall_nr, nb_args, types, args."""
COUNT = 0x7F
"""The bits of nb_args: above them, newer kernels have which arguments point to memory of the user's."""
TABLE = "syscalls_metadata"
MOST_CALLS = 1 << 10
"""Of any ISA: Linux 6.12 has 463."""
TOGETHER = 64
"""Rows of the table that are read at once: how long it is, is not known."""
MOST_ARGUMENTS = 6
LONGEST = 64
"""Bytes of a name or a type."""
NUMBER, RESULT, ID, ARGS = "__syscall_nr", "ret", "id", "args"
_DROPPED = ("const", "volatile", "__user", "restrict")


class SyscallAbi(Protocol):
    """How an ISA's functions of system calls are called.

    prefix: of their names, before that of the call. dispatcher: the one that calls them all, "" for none.
    """

    prefix: str
    dispatcher: str

    def number(self) -> Expr:
        """Return the call's number at the entry of the dispatcher."""

    def argument(self, kernel: Kernel, name: str, index: int) -> Expr:
        """Return a word of the arguments at the entry of a function, that of call `name` or ("") the dispatcher."""


class Types(Protocol):
    """The part of handlers.scope.Scope that looks up types."""

    def type(self, keyword: str, name: str) -> CType | Missing: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A system call: its number, and the names of its arguments with their types as C writes them."""

    number: int
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SyscallEvents:
    kernel: Kernel
    abi: SyscallAbi

    def find(self, event: EventName) -> set[int]:
        """Return the addresses of the functions that serve an event, or all that match. Raises OptprobeError."""
        if not event.event.startswith((ENTER, EXIT)):
            raise OptprobeError(f"no event is called {event}", f"they are {ENTER} and {EXIT}, of a call: {ENTER}_read")
        if event.system != SYSCALLS:
            return {self._dispatcher(event)}
        if not event.syscall:
            raise OptprobeError(f"{event} names no system call", f"tracepoint:{SYSCALLS}:{event.event}_read, or …_*")
        if event.is_glob:
            matches = re.compile(translate(event.syscall)).match
            found = {at for at, name in self._known.items() if matches(name)}
        else:
            found = set(self.kernel.symbols.lookup(self.abi.prefix + event.syscall))
        if not found:
            missing = f"no function {self.abi.prefix}{event.syscall}" if not event.is_glob else "no system call"
            raise OptprobeError(f"this kernel has no {event}: {missing}", self._similar(event))
        return found

    def matching(self, event: EventName) -> Sequence[EventName]:
        """Return the events of system calls that a name means, ascending; none where no one matches wildcards.

        Raises OptprobeError.
        """
        if not event.is_glob:
            return (event,) if event.is_syscall and self.find(event) else ()
        known = [EventName(SYSCALLS, f"{kind}_{call}") for call in self._known.values() for kind in (ENTER, EXIT)]
        if self._dispatched is not None:
            known += (EventName(RAW_SYSCALLS, kind) for kind in (ENTER, EXIT))
        found = (each for each in known if fnmatchcase(each.system, event.system))
        return sorted((each for each in found if fnmatchcase(each.event, event.event)), key=str)

    @cached_property
    def _known(self) -> Mapping[int, str]:
        """Names of the calls that the kernel's table lists, as far as it can be read, by their functions' addresses."""
        names: set[str] = set()
        for address in self._listed():
            with suppress(Unreadable):
                name, number, count, *_ = METADATA.unpack(self.kernel.memory.read(address, METADATA.size))
                if count & COUNT <= MOST_ARGUMENTS and 0 <= number < MOST_CALLS:
                    names.add(self._text(name).removeprefix("sys_"))
        places = ((self.kernel.symbols.address(self.abi.prefix + name), name) for name in names)
        return {at: name for at, name in places if at is not None}

    @property
    def _dispatched(self) -> int | None:
        """Return the address of the function that calls all system calls; None where there is none."""
        return self.kernel.symbols.address(self.abi.dispatcher) if self.abi.dispatcher else None

    def _dispatcher(self, event: EventName) -> int:
        if event.syscall:
            raise OptprobeError(f"no event is called {event}", f"tracepoint:{SYSCALLS}:{event.event}")
        if (at := self._dispatched) is None:
            missing = f" ({self.abi.dispatcher})" if self.abi.dispatcher else ""
            message = f"this kernel has no function that calls all system calls{missing}"
            raise OptprobeError(message, f"tracepoint:{SYSCALLS}:{event.event}_*, each call by its own")
        return at

    def _similar(self, event: EventName) -> str:
        near = difflib.get_close_matches(event.syscall, self._known.values(), 3)
        return f"did you mean {', '.join(near)}?" if near else ""

    def named(self, event: EventName, function: int) -> EventName:
        """Return which of the events that `event` matches is that of the function at an address."""
        if not event.is_glob:
            return event
        return replace(event, event=f"{EXIT if event.returns else ENTER}_{self._known.get(function, '')}")

    # fields ----------------------------------------------------------------------------------------------------------

    def fields(self, event: EventName, function: int, types: Types, result: str, returned: bool) -> Fields:
        """Return the fields of an event in the function at an address. result: the register that it returns in.

        returned: where the function has returned. Raises OptprobeError where they are not known.
        """
        event = self.named(event, function)
        name = event.syscall
        known: dict[str, Callable[[], Meaning]] = {}
        if returned:
            known[RESULT] = lambda: Rvalue(Register(result), LONG)
        elif name:
            known |= self._arguments(name, types)
        else:
            known[ID] = lambda: Rvalue(fold.convert(self.abi.number(), 32, True), LONG)
            known |= {f"{ARGS}[{n}]": self._word("", n) for n in range(MOST_ARGUMENTS)}
        shown = [*known] if not event.returns or returned or name else [ID, RESULT]
        return Fields.of(str(event), shown, lambda asked: known[asked]() if asked in known else None)

    def _arguments(self, name: str, types: Types) -> dict[str, Callable[[], Meaning]]:
        call = self._call(name)
        known: dict[str, Callable[[], Meaning]] = {NUMBER: lambda: Rvalue(fold.constant(call.number), LONG)}
        for index, (argument, written) in enumerate(call.arguments):
            known[argument] = self._word(name, index, written, types)
        return known

    def _word(self, name: str, index: int, written: str = "", types: Types | None = None) -> Callable[[], Meaning]:
        def meaning() -> Meaning:
            word = self.abi.argument(self.kernel, name, index)
            type_ = of_text(written, types) if types is not None else UNSIGNED_LONG
            if isinstance(type_, Integer | Enum):
                word = fold.convert(word, type_.width, type_.signed)
            return Rvalue(word, type_)

        return meaning

    def _call(self, name: str) -> Call:
        """Return what the kernel's own events know of a system call. Raises OptprobeError."""
        wanted = {f"sys_{name}", name}
        for address in self._places(name):
            try:
                called, number, count, types, names = METADATA.unpack(self.kernel.memory.read(address, METADATA.size))
                if self._text(called) not in wanted or (count := count & COUNT) > MOST_ARGUMENTS:
                    continue
                pairs = ((self._text(self.kernel.word(names + 8 * n)), self._text(self.kernel.word(types + 8 * n)))
                         for n in range(count))  # fmt: skip
                return Call(number, tuple(pairs))
            except Unreadable:
                continue
        raise OptprobeError(
            f"the arguments of the system call {name} have no names in this kernel (CONFIG_FTRACE_SYSCALLS)",
            "the function's own: $arg1, …",
        )

    def _places(self, name: str) -> Sequence[int]:
        """Return where the metadata of the call may be: its variable, else all that the kernel's table lists."""
        own = self.kernel.symbols.address(f"__syscall_meta__{name}")
        return (own,) if own is not None else self._listed()

    def _listed(self) -> Sequence[int]:
        table = self.kernel.symbols.address(TABLE)
        if table is None:
            return ()
        words: list[int] = []
        with suppress(Unreadable):
            start = self.kernel.word(table)
            for first in range(0, MOST_CALLS if start else 0, TOGETHER):
                data = self.kernel.memory.read(start + 8 * first, 8 * TOGETHER)
                words += (int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))
        return tuple(dict.fromkeys(filter(None, words)))

    def _text(self, address: int) -> str:
        return until_zero(self.kernel.memory.read(address, LONGEST))


def of_text(text: str, types: Types) -> Integer | Enum | Pointer:
    """Return a type as C writes it, `const char *`; one that is not known, or is no number, as the word it comes in."""
    base, *stars = re.split(r"\s*\*\s*", text.strip())
    words = [word for word in base.split() if word not in _DROPPED]
    keyword = words.pop(0) if words and words[0] in ("struct", "union", "enum") else ""
    found = types.type(keyword, one_spelling(" ".join(words)))
    if isinstance(found, Missing):
        found = Void() if stars else UNSIGNED_LONG
    for _ in stars:
        found = Pointer(found)
    return found if isinstance(found, Integer | Enum | Pointer) else UNSIGNED_LONG
