"""A kernel for scripts to be compiled against: real types where there are some, and any function, event and file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import (
    OWN,
    UNSIGNED_LONG,
    Array,
    CType,
    Enum,
    Integer,
    Member,
    Pointer,
    Struct,
    Void,
    size_of,
)
from gdb_optprobe.handlers.ir import Clock, Constant, Expr, Load, Op, Register
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.script.host import HostScope
from gdb_optprobe.handlers.script.scope import HitScope, Matched, Meaning
from gdb_optprobe.handlers.stack_walk import Walk

CONSTANTS = {"AF_INET": 2, "AF_INET6": 10, "TASK_RUNNING": 0, "EPERM": 1}
HEADERS = ("linux/", "net/", "asm/", "sys/socket.h", "errno.h")
TASK, RECORD = 0xFFFF_8880_0000_1000, "r15"
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
PROVIDERS_WITH_ARGUMENTS = ("kprobe", "uprobe", "fentry")
RETURNS = ("kretprobe", "uretprobe", "fexit")
CLASSES = {
    "sched_wakeup": "sched_wakeup_template", "sched_wakeup_new": "sched_wakeup_template", "block_io_start": "block_rq",
    "block_io_done": "block_rq", "block_rq_issue": "block_rq", "block_rq_complete": "block_rq_completion",
    "block_bio_queue": "block_bio", "writeback_start": "writeback_work_class",
    "writeback_written": "writeback_work_class",
}  # fmt: skip
"""Events whose record is named after their class."""
POINTERS = {"argv": ("char", 2), "filename": ("char", 1), "pathname": ("char", 1), "rqtp": ("__kernel_timespec", 1)}
"""Parameters of system calls that are pointers: what to, and how many."""


@dataclass(frozen=True)
class FakeHit:
    """A HitScope: arguments are registers, a tracepoint's record is where one of them points."""

    provider: str
    types: BtfTypes | None
    record: Struct | None = None
    parameters: Mapping[str, CType] = field(default_factory=dict)
    arguments: Sequence[str] = ARGUMENTS

    def builtin(self, name: str) -> Meaning | Missing:
        match name:
            case "comm":
                return Lvalue(Constant(TASK + 8), Array(OWN["char"], 16), mapped=True)
            case "curtask":
                task = self.types.named("struct", "task_struct") if self.types else None
                return Rvalue(Constant(TASK), Pointer(task or Void()), mapped=True)
            case "nsecs" | "elapsed":
                return Rvalue(Clock(), UNSIGNED_LONG)
            case "retval" if self.provider in RETURNS:
                return Rvalue(Register("rax"), UNSIGNED_LONG)
            case "retval":
                return Missing("The retval builtin can only be used with 'kretprobe' and 'uretprobe' probes")
        return Rvalue(Load(Constant(TASK), 4, False, mapped=True), UNSIGNED_LONG)

    def argument(self, number: int) -> Rvalue | Missing:
        if self.provider not in PROVIDERS_WITH_ARGUMENTS:
            return Missing(f"The arg{number} builtin can only be used with 'kprobes', 'uprobes' and 'usdt' probes")
        return Rvalue(Register(self.arguments[number]), UNSIGNED_LONG)

    def register(self, name: str) -> Rvalue | Missing:
        return Rvalue(Register("rip"), UNSIGNED_LONG)

    def field(self, name: str) -> Meaning | Missing:
        if name in self.parameters:
            type_ = self.parameters[name]
            number = [*self.parameters].index(name)
            assert isinstance(type_, Integer | Enum | Pointer)
            return Rvalue(Register(self.arguments[number]), type_)
        found = self.record.lookup(name) if self.record is not None else None
        if found is None:
            names = self.record.names() if self.record is not None else [*self.parameters]
            return Missing(f"no field '{name}' in {self.provider}", f"it has: {', '.join(names)}")
        address = fold.binary(Op.ADD, Register(RECORD), fold.constant(found.offset), 64, False)
        return Lvalue(address, found.type, mapped=True)

    def function(self) -> Expr | Missing:
        if self.provider == "tracepoint":
            return Missing("The func builtin can not be used with 'tracepoint' probes")
        return Register("rip")

    def stack(self, user: bool, depth: int) -> Walk | Missing:
        return Walk((), (Register("rsp"),))

    def per_cpu(self, address: int, cpu: Expr | None) -> Expr | Missing:
        return Constant(address)

    def is_mapped(self, address: int, size: int) -> bool:
        return False


@dataclass(frozen=True)
class FakeKernel:
    """A Kernel that has every function and event, but for `absent`, and the types of a BTF."""

    types: BtfTypes | None = None
    absent: Sequence[str] = ()
    host: HostScope = field(default_factory=HostScope)
    arguments: Sequence[str] = ARGUMENTS

    def type(self, keyword: str, name: str) -> CType | Missing:
        found = self.types.named(keyword, name) if self.types is not None else None
        return found if found is not None else Missing(f"no type named '{f'{keyword} {name}'.strip()}' in this kernel")

    def constant(self, name: str) -> int | tuple[int, CType] | None:
        known = self.types.btf.constant(name) if self.types is not None else None
        return CONSTANTS.get(name) if known is None else known

    def has_types(self) -> bool:
        return self.types is not None

    def has_header(self, name: str) -> bool:
        return name.startswith(HEADERS)

    def symbol(self, name: str) -> int | None:
        return None if name in self.absent else 0xFFFF_FFFF_8200_0000

    def matches(
        self, provider: str, target: str, name: str, offset: int, has_args: bool = True
    ) -> Sequence[Matched] | Missing:
        parts = ":".join(part for part in (provider, target, name) if part)
        if provider in ("BEGIN", "END", "interval"):
            return (Matched(parts, self.host),)
        if parts in self.absent:
            return ()
        names = [name.replace("*", end) for end in ("a", "b")] if "*" in name else [name]
        return [Matched(parts.replace(name, each), self._hit(provider, target, each)) for each in names]

    def unmatched(self, provider: str, target: str, name: str) -> HitScope:
        return self.host if provider in ("BEGIN", "END", "interval") else self._hit(provider, target, name)

    def _hit(self, provider: str, target: str, name: str) -> FakeHit:
        if provider == "tracepoint":
            return FakeHit(provider, self.types, self._record(target, name))
        parameters: dict[str, CType] = {}
        if provider in ("fentry", "fexit") and self.types is not None and (found := self.types.btf.function(name)):
            parameters = {each.name: self.types.type(each.type) for each in found.parameters}
        return FakeHit(provider, self.types, parameters=parameters, arguments=self.arguments)

    def _record(self, system: str, event: str) -> Struct | None:
        if system == "syscalls":
            return Struct(event, 64, lookup=self._parameter, names=tuple)
        if system == "raw_syscalls":
            fields: dict[str, tuple[int, CType]] = {"id": (8, OWN["long"]), "args": (16, Array(UNSIGNED_LONG, 6))}
            return _struct(event, {**fields, "ret": (16, OWN["long"])})
        found = self.type("struct", f"trace_event_raw_{CLASSES.get(event, event)}")
        return found if isinstance(found, Struct) else None

    def _parameter(self, name: str) -> Member:
        """Return a parameter of any system call: they have all."""
        of, pointers = POINTERS.get(name, ("", 0))
        type_: CType = OWN.get(of, UNSIGNED_LONG)
        if of and of not in OWN and self.types is not None:
            type_ = self.types.named("struct", of) or Void()
        for _ in range(pointers):
            type_ = Pointer(type_)
        return Member(name, 16, type_)


def _struct(name: str, members: Mapping[str, tuple[int, CType]]) -> Struct:
    found = {label: Member(label, offset, type_) for label, (offset, type_) in members.items()}
    size = max((offset + (size_of(type_) or 0) for offset, type_ in members.values()), default=0)
    return Struct(name, size, lookup=found.get, names=lambda: tuple(found))
