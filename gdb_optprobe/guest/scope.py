"""The meaning of names at a probed address of a Linux kernel: symbols, its own types, debug information and the ABI.

`KernelScope` is a `handlers.scope.Scope`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from gdb_optprobe.guest.abi import Abi, slots
from gdb_optprobe.guest.btf import Function as Prototype
from gdb_optprobe.guest.linux.current import NAME_SIZE, Current
from gdb_optprobe.guest.linux.kernel import EVERYWHERE, VMLINUX, Kernel
from gdb_optprobe.guest.types import BtfTypes, own_type
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import (
    INT,
    LONG,
    TYPEDEFS,
    UNSIGNED_INT,
    UNSIGNED_LONG,
    Array,
    CType,
    Enum,
    Function,
    Integer,
    Pointer,
    Scalar,
    Void,
    describe,
    number_type,
    size_of,
)
from gdb_optprobe.handlers.ir import Clock, Expr, Frame, Load, Op, Register
from gdb_optprobe.handlers.scope import Fields, Lvalue, Meaning, Missing, Rvalue

OURS = {
    "arg1": "the first argument, at a function's entry; `$arg2`, … the others",
    "retval": "what the function has returned, at its return",
    "pid": "the thread's id, which the kernel calls pid",
    "tgid": "the process's id",
    "comm": "the thread's name, at most 15 characters",
    "task": "the running thread's `struct task_struct *`",
    "cpu": "the number of this CPU",
    "time": "the time in nanoseconds since boot, as the guest's log has it",
    "ticks": "the guest's clock, in ticks",
    "pc": "the probed address",
    "sp": "the stack pointer",
}
"""The names behind `$` that are ours, and their meanings."""
_OF_PEERS = {
    "uid": "$task->cred->uid.val",
    "gid": "$task->cred->gid.val",
    "tid": "$pid",
    "ppid": "$task->real_parent->tgid",
    "current": "$task",
    "curtask": "$task",
    "nsecs": "$time",
    "execname": "$comm",
    "ret": "$retval",
    "return": "$retval",
}
"""What bpftrace, SystemTap and trace events call it, or what a user tries."""
_OURS_IN_C = {**_OF_PEERS, **{name: f"${name}" for name in OURS}, "arg0": "$arg1"}
ARGS = "args"
"""The name by which the fields of an event are asked for, as in bpftrace."""
NO_TIME = Missing("the time of this guest's log is not known", "$ticks is its clock")
MOST_ARGUMENTS = 32
MOST_TOLD = 32
"""Names of parameters and variables that a message lists."""
# What stays mapped of the kernel's image: init's parts of it are freed (include/asm-generic/vmlinux.lds.h).
_KEPT = (("_stext", "_etext"), ("__start_rodata", "__end_rodata"), ("_sdata", "_edata"), ("__bss_start", "__bss_stop"))


class Symbols(Protocol):
    """guest/symbols.py."""

    def lookup(self, name: str) -> Sequence[int]: ...

    def function_bounds(self, address: int) -> tuple[int, int] | None: ...


class Debug(Protocol):
    """Debug information at one address: debugger/dwarf.py."""

    def names(self) -> Sequence[str]: ...

    def parameters(self) -> Mapping[str, CType]: ...

    def result(self) -> CType | None:
        """Return the type that the function returns; None where it is not known."""

    def variable(self, name: str) -> Meaning | Missing | None: ...

    def type(self, keyword: str, name: str) -> CType | None: ...

    def symbol(self, name: str) -> CType | None: ...

    def constant(self, name: str) -> int | None: ...


class DebuggerSymbols(Protocol):
    """What the debugger knows of names: debugger/gdb_symbols.py."""

    def convenience(self, name: str) -> int | None:
        """Return the value of the debugger's own variable `$name`; None where it is no number."""

    def debug(self, address: int, abi: Abi, frame: Callable[[], Expr | None]) -> Debug | None:
        """Return the debug information of an address. frame: the CFA of the function there, where it is known."""

    def function(self, address: int) -> tuple[str, int, int] | None:
        """Return name, start and end (the next symbol's start) of the symbol of code around `address`."""


class NoDebuggerSymbols:
    """Implements DebuggerSymbols: the debugger knows no names."""

    def convenience(self, name: str) -> int | None:
        return None

    def debug(self, address: int, abi: Abi, frame: Callable[[], Expr | None]) -> Debug | None:
        return None

    def function(self, address: int) -> tuple[str, int, int] | None:
        return None


@dataclass(frozen=True, slots=True)
class Site:
    """The probed address. function: the function's name; "" where none is known.
    entry:   the address is the function's entry: its arguments are where the ABI has them.
    returns: the function has just returned.
    """

    address: int
    function: str
    entry: bool = False
    returns: bool = False


@dataclass(frozen=True)
class KernelScope:
    """types: None where the guest has none.

    mapped:      ranges (start, end) of the kernel's image that are always mapped.
    per_cpu:     the range (start, end) of symbols that are templates of per-CPU variables.
    convenience: returns the value of a GDB variable; None where there is none of that name.
    debug:       GDB's debug information at the address; it takes precedence over `types`.
    event:       the fields of the event that occurs here, the members of `args`; None for no event.
    hidden:      how many arguments are before `$arg1`, which no source code has.
    now:         the time of a hit in nanoseconds since boot, as the guest's log has it.
    """

    site: Site
    symbols: Symbols
    types: BtfTypes | None
    abi: Abi
    current: Current
    mapped: Sequence[tuple[int, int]] = ()
    per_cpu: tuple[int, int] = (0, 0)
    convenience: Callable[[str], int | None] = lambda name: None
    debug: Debug | None = None
    event: Fields | None = None
    hidden: int = 0
    now: Callable[[], Expr | Missing] = lambda: NO_TIME

    def is_type(self, name: str) -> bool:
        if name in self._parameters or (self.debug is not None and name in self.debug.names()):
            return False
        if self.debug is not None and self.debug.type("", name) is not None:
            return True
        return name in TYPEDEFS or (self.types is not None and self.types.btf.find("typedef", name) is not None)

    def type(self, keyword: str, name: str) -> CType | Missing:
        if name == "char" and not keyword:
            known = self.types.plain_char() if self.types is not None else None
            return known or Integer("char", 1, self.abi.signed_char)
        own = None if keyword else own_type(name)
        if own is None and self.debug is not None:
            own = self.debug.type(keyword, name)
        found = self.types.named(keyword, name) if own is None and self.types is not None else own
        if found is not None:
            return found
        what = f"{keyword} {name}".strip()
        if self.types is None:
            hint = "read a member by its offset: *(u32 *)($arg1 + OFFSET); C's own types and u8 … s64 are known"
            return Missing(f"no type information for '{what}'", hint)
        other = next((word for word in ("struct", "union", "enum") if self.types.btf.find(word, name) is not None), "")
        hint = f"did you mean {other} {name}?" if other else "" if keyword else f"or is it 'struct {name}'?"
        return Missing(f"no type named '{what}' in this kernel", hint)

    def name(self, name: str) -> Meaning | Missing:
        if name == ARGS and self.event is not None:
            return self.event
        if (variable := self._variable(name)) is not None:
            return variable
        if name in self._parameters:
            return self._parameter(name)
        if (value := self._enumerator(name)) is not None:
            return value
        found = self.symbols.lookup(name)
        if len(found) > 1:
            places = ", ".join(f"{address:#x}" for address in found[:4])
            return Missing(f"{len(found)} symbols are named '{name}'", f"use an address: {places}")
        if found:
            return self._symbol(name, found[0])
        meaning = self._unknown(name)
        return self._without_data(meaning) if isinstance(meaning, Missing) else meaning

    def dollar(self, name: str) -> Meaning | Missing:
        if (register := self._register(name)) is not None:
            return register
        if name.startswith("arg") and name[3:].isdecimal():
            return self._argument(name)
        match name:
            case "retval":
                return self._result()
            case "pid" | "tgid":
                return self._of_task(name, INT)
            case "comm":
                char = self.type("", "char")
                return self._of_task(name, Array(INT if isinstance(char, Missing) else char, NAME_SIZE))
            case "task":
                task = self.current.task
                struct = self.type("struct", "task_struct")
                target = Void() if isinstance(struct, Missing) else struct
                return task if isinstance(task, Missing) else Rvalue(task, Pointer(target), mapped=True)
            case "cpu":
                cpu = self.current.cpu
                return cpu if isinstance(cpu, Missing) else Rvalue(cpu, UNSIGNED_INT)
            case "time":
                now = self.now()
                return now if isinstance(now, Missing) else Rvalue(now, UNSIGNED_LONG)
            case "ticks":
                return Rvalue(Clock(), UNSIGNED_LONG)
        value = self.convenience(name)
        if value is not None:
            return Rvalue(fold.constant(value), LONG)
        close = difflib.get_close_matches(name, (*OURS, *self.abi.registers), 1)
        meant = _OF_PEERS.get(name) or (f"${close[0]}" if close else "")
        hint = f"did you mean {meant}?" if meant else f"ours are {', '.join('$' + ours for ours in OURS)}"
        return Missing(f"no register or variable named '${name}'", hint)

    def parameter_names(self) -> Sequence[str]:
        """Return the names of the function's parameters and of the locals that debug information has there."""
        return tuple(dict.fromkeys((*self._parameters, *(self.debug.names() if self.debug is not None else ()))))

    def per_cpu_base(self) -> Expr | Missing:
        return self.current.per_cpu

    def frame(self) -> Frame | Missing:
        return self.current.frame

    def is_mapped(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= end for start, end in self.mapped)

    @cached_property
    def _prototype(self) -> Prototype | None:
        return self.types.btf.function(self.site.function) if self.types is not None and self.site.function else None

    @cached_property
    def _parameters(self) -> Mapping[str, int]:
        """Return the first argument word of each of the function's parameters, by name."""
        return {each.name: each.type for each in self._prototype.parameters if each.name} if self._prototype else {}

    def _variable(self, name: str) -> Meaning | Missing | None:
        """Return a local or a parameter of the debug information; None where it has none of that name."""
        if self.debug is None:
            return None
        if self.site.returns:
            # The frame is gone, and a symbol of that name is not meant.
            gone = name in self.debug.parameters()
            return Missing(f"'{name}' is not available at this address") if gone else None
        if self.site.entry and (passed := self._passed(name)) is not None:
            return passed
        found = self.debug.variable(name)
        if isinstance(found, Missing) and not found.message:
            return Missing(f"'{name}' is not available at this address", found.hint)
        return found

    def _passed(self, name: str) -> Rvalue | None:
        """Return a parameter as the ABI passes it: unoptimized code stores it elsewhere, but later than at the entry.
        """
        assert self.debug is not None
        for slot, (each, type_) in enumerate(self.debug.parameters().items()):
            if not isinstance(type_, Integer | Enum | Pointer) or (size_of(type_) or 0) > 8:
                return None
            if each == name:
                return Rvalue(_as_type(self._word(slot), type_), type_)
        return None

    def _parameter(self, name: str) -> Meaning | Missing:
        assert self.types is not None and self._prototype is not None
        if not self.site.entry:
            hint = f"parameters are known at the function's entry: {self.site.function}"
            return Missing(f"'{name}' is not available at this address", hint)
        slot = slots(self._prototype.parameters, self.types.btf, self.abi).get(name)
        type_ = self.types.type(self._parameters[name])
        if slot is None:
            return Missing(f"where '{name}' is passed is not known", "it, or one before it, is not passed in registers")
        if not isinstance(type_, Integer | Enum | Pointer):
            return Missing(
                f"'{name}' of type '{describe(type_)}' is not supported", f"$arg{slot + 1} is its first word"
            )
        return Rvalue(_as_type(self._word(slot), type_), type_)

    def _argument(self, name: str) -> Meaning | Missing:
        digits = name[3:].lstrip("0")
        number = int(digits) if 0 < len(digits) < 4 else 0
        if not 0 < number <= MOST_ARGUMENTS:
            return Missing(f"no argument ${name}", "$arg1 is the first")
        if not self.site.entry:
            hint = f"arguments are known at the function's entry: {self.site.function or 'probe a function'}"
            return Missing(f"${name} is not available at this address", hint)
        return Rvalue(self._word(number - 1 + self.hidden), UNSIGNED_LONG)

    def _word(self, slot: int) -> Expr:
        """Return a word of a function's arguments, at its entry."""
        registers = self.abi.arguments
        if slot < len(registers):
            return Register(registers[slot])
        offset = fold.constant(self.abi.stacked + 8 * (slot - len(registers)))
        return Load(fold.binary(Op.ADD, Register(self.abi.sp), offset, 64, False), 8, signed=False, mapped=True)

    def _result(self) -> Meaning | Missing:
        if not self.site.returns:
            return Missing("$retval is not available at this address", "it is known where a function has returned")
        found = self._result_type()
        if not isinstance(found, Integer | Enum | Pointer) or (size_of(found) or 0) > 8:
            return Missing(f"$retval of type '{describe(found)}' is not supported")
        return Rvalue(_as_type(Register(self.abi.result), found), found)

    def _result_type(self) -> CType:
        if self.debug is not None and (told := self.debug.result()) is not None:
            return told
        return self.types.type(self._prototype.result) if self.types is not None and self._prototype else LONG

    def _register(self, name: str) -> Rvalue | None:
        if name == "pc" or name == self.abi.pc:
            return Rvalue(fold.constant(self.site.address), self.abi.registers[self.abi.pc])
        name = self.abi.sp if name == "sp" else name
        if name in self.abi.registers:
            return Rvalue(Register(name), self.abi.registers[name])
        part = self.abi.parts.get(name)
        if part is None:
            return None
        word = fold.binary(Op.SHR, Register(part.register), fold.constant(part.shift), 64, False)
        type_ = Integer(f"int{part.bits}_t", part.bits // 8, signed=True)
        return Rvalue(_as_type(word, type_), type_)

    def _of_task(self, name: str, type_: CType) -> Meaning | Missing:
        offset, task = self.current.members[name], self.current.task
        if isinstance(offset, Missing):
            return offset
        if isinstance(task, Missing):
            return task
        return Lvalue(fold.binary(Op.ADD, task, fold.constant(offset), 64, False), type_, mapped=True)

    def _enumerator(self, name: str) -> Rvalue | None:
        value = self.types.btf.constant(name) if self.types is not None else None
        if value is None and self.debug is not None:
            value = self.debug.constant(name)
        if value is None:
            return None
        negative = INT if value >= -(1 << 31) else LONG
        return Rvalue(fold.constant(value), negative if value < 0 else number_type(value, "", decimal=False))

    def _symbol(self, name: str, address: int) -> Lvalue:
        start, end = self.per_cpu
        bounds = self.symbols.function_bounds(address)
        number = self.types.btf.variable(name) if self.types is not None else None
        type_ = self.types.type(number) if self.types is not None and number is not None else None
        if type_ is None and self.debug is not None:
            type_ = self.debug.symbol(name)
        if type_ is None and bounds is not None and bounds[0] == address:
            type_ = Function()
        size = size_of(type_) if type_ is not None else None
        return Lvalue(fold.constant(address), type_, self.is_mapped(address, size or 8), start <= address < end)

    def _without_data(self, unknown: Missing) -> Missing:
        """Return why a name is unknown, with a hint where the kernel has no names of its data."""
        if unknown.hint.startswith("did you mean") or self.symbols.lookup(EVERYWHERE):
            return unknown
        why = f"of its data this kernel has no names (CONFIG_KALLSYMS_ALL): {VMLINUX}"
        return Missing(unknown.message, f"{unknown.hint}; {why}" if unknown.hint else why)

    def _unknown(self, name: str) -> Meaning | Missing:
        if name == "NULL":
            return Rvalue(fold.constant(0), Pointer(Void()))
        if name in _OURS_IN_C:
            return Missing(f"no parameter or symbol named '{name}'", f"did you mean {_OURS_IN_C[name]}?")
        if name.isupper():
            return Missing(
                f"no symbol or enumerator named '{name}'", "if it is a macro of the kernel's, give its value"
            )
        known = [*self._parameters, *(self.debug.names() if self.debug is not None else ())]
        if known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean '{close[0]}'? " if close else ""
            names = [*dict.fromkeys(known)]
            more = ", …" if len(names) > MOST_TOLD else ""
            has = f"{self.site.function} has: {', '.join(names[:MOST_TOLD])}{more}"
            return Missing(f"no parameter or symbol named '{name}'", meant + has)
        if self.types is None or (self.site.function and self._prototype is None):
            hint = "parameters are $arg1, $arg2, … at a function's entry"
            return Missing(f"no symbol named '{name}', and no type information for parameters", hint)
        return Missing(f"no parameter or symbol named '{name}'")


def kernel_scope(
    kernel: Kernel,
    current: Current,
    types: BtfTypes | None,
    abi: Abi,
    site: Site,
    convenience: Callable[[str], int | None] = lambda name: None,
    debug: Debug | None = None,
    now: Callable[[], Expr | Missing] = lambda: NO_TIME,
) -> KernelScope:
    """Return the scope at a site of a running kernel."""
    kept = tuple((start, end) for start, end in (kernel.range(*names) for names in _KEPT) if start < end)
    templates = kernel.range("__per_cpu_start", "__per_cpu_end")
    return KernelScope(site, kernel.symbols, types, abi, current, kept, templates, convenience, debug, now=now)


def _as_type(word: Expr, type_: Scalar) -> Expr:
    """Return a register's value as a type: the ABIs leave the bits above it undefined."""
    if isinstance(type_, Pointer):
        return word
    return fold.convert(word, type_.width, type_.signed)
