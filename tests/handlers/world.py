"""A small kernel's names: enough of each kind to type any expression."""

from __future__ import annotations

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import (
    INT,
    LONG,
    OWN,
    TYPEDEFS,
    UNSIGNED_INT,
    UNSIGNED_LONG,
    Array,
    CType,
    Enum,
    Float,
    Function,
    Incomplete,
    Member,
    Pointer,
    Scalar,
    Struct,
    Void,
)
from gdb_optprobe.handlers.fold import constant
from gdb_optprobe.handlers.interpreter import Hit
from gdb_optprobe.handlers.ir import MASK, Clock, Expr, Frame, Load, Op, PerCpuBase, Register
from gdb_optprobe.handlers.scope import Lvalue, Meaning, Missing, Rvalue

CHAR = OWN["char"]
TASK = 0xFFFF_8880_0000_1000
FILE = 0xFFFF_8880_0000_2000
NAME = 0xFFFF_8880_0000_3000
JIFFIES = 0xFFFF_FFFF_8200_0000
PER_CPU = 0xFFFF_8880_1000_0000
FRAME = Frame(("rsp", "rbp"), Register("rcx"))


def struct(name: str, size: int, *members: Member, union: bool = False) -> Struct:
    by_name = {member.name: member for member in members}
    return Struct(name, size, union, 0, by_name.get, lambda: tuple(by_name))


PATH = struct("path", 16, Member("mnt", 0, Pointer(Void())), Member("dentry", 8, Pointer(Incomplete("struct dentry"))))
FILE_TYPE = struct(
    "file",
    128,
    Member("f_mode", 0, UNSIGNED_INT),
    Member("f_flags", 4, UNSIGNED_INT),
    Member("f_pos", 8, LONG),
    Member("f_path", 16, PATH),
    Member("low", 32, UNSIGNED_INT, 0, 3),
    Member("high", 32, INT, 3, 5),
    Member("wide", 33, UNSIGNED_LONG, 4, 40),
    Member("on", 38, OWN["_Bool"], 7, 1),
    Member("counts", 40, Array(OWN["short"], 8)),
    Member("name", 56, Pointer(CHAR)),
    Member("tag", 64, Array(CHAR, 12)),
    Member("level", 76, Enum("level", 4, signed=False)),
    Member("load", 80, Float("double", 8)),
    Member("big", 96, OWN["__int128"]),
    Member("next", 112, Pointer(Void())),
    Member("rest", 120, Array(LONG, 0)),
)
TASK_MEMBERS = (Member("pid", 0, INT), Member("comm", 8, Array(CHAR, 16)), Member("more", 64, Array(LONG, 0)))
TASK_TYPE = struct("task_struct", 64, *TASK_MEMBERS)
TYPES: dict[tuple[str, str], CType] = {
    ("struct", "file"): FILE_TYPE,
    ("struct", "path"): PATH,
    ("struct", "task_struct"): TASK_TYPE,
    ("struct", "dentry"): Incomplete("struct dentry"),
    ("enum", "level"): Enum("level", 4, signed=False),
    ("", "loff_t"): LONG,
}
PARAMETERS: dict[str, tuple[str, Scalar]] = {
    "file": ("rdi", Pointer(FILE_TYPE)),
    "buf": ("rsi", Pointer(CHAR)),
    "count": ("rdx", UNSIGNED_LONG),
    "pos": ("rcx", Pointer(LONG)),
    "fd": ("r8", INT),
    "mode": ("r9", OWN["unsigned short"]),  # type: ignore[dict-item]
    "secret": ("r10", Pointer(Incomplete("struct dentry"))),
    "any": ("r11", Pointer(Void())),
}


class World:
    """`Scope` of a function with PARAMETERS."""

    def is_type(self, name: str) -> bool:
        return name not in PARAMETERS and (name in TYPEDEFS or ("", name) in TYPES)

    def type(self, keyword: str, name: str) -> CType | Missing:
        own = None if keyword else OWN.get(TYPEDEFS.get(name, name))
        return own or TYPES.get((keyword, name)) or Missing(f"no type named '{keyword} {name}'", "no such type")

    def name(self, name: str) -> Meaning | Missing:
        if name in PARAMETERS:
            register, type_ = PARAMETERS[name]
            word: Expr = Register(register)
            return Rvalue(word if isinstance(type_, Pointer) else fold.convert(word, type_.width, type_.signed), type_)
        match name:
            case "O_APPEND":
                return Rvalue(constant(1024), INT)
            case "jiffies":
                return Lvalue(constant(JIFFIES), None, mapped=True)
            case "vfs_read":
                return Lvalue(constant(JIFFIES + 64), Function())
            case "runqueues":
                return Lvalue(constant(0x300), TASK_TYPE, per_cpu=True)
            case "irq_stat":
                return Lvalue(constant(0x300), Array(INT, 4), per_cpu=True)
            case "cpu_number":
                return Lvalue(constant(0x400), None, per_cpu=True)
        return Missing(f"no parameter, register or symbol named '{name}'", "vfs_read has: file, buf, count, pos")

    def dollar(self, name: str) -> Meaning | Missing:
        task = Load(fold.binary(Op.ADD, PerCpuBase(), constant(0x200), 64, False), 8, False, mapped=True)
        match name:
            case "rdi" | "rsi":
                return Rvalue(Register(name), LONG)
            case "arg1" | "arg2":
                return Rvalue(Register({"arg1": "rdi", "arg2": "rsi"}[name]), UNSIGNED_LONG)
            case "task":
                return Rvalue(task, Pointer(TASK_TYPE), mapped=True)
            case "pid":
                return Lvalue(task, INT, mapped=True)
            case "comm":
                return Lvalue(fold.binary(Op.ADD, task, constant(8), 64, False), Array(CHAR, 16), mapped=True)
            case "time":
                return Rvalue(Clock(), UNSIGNED_LONG)
        return Missing(f"no register or variable named '${name}'", "did you mean $rdi?")

    def per_cpu_base(self) -> Expr | Missing:
        return PerCpuBase()

    def frame(self) -> Frame | Missing:
        return FRAME

    def is_mapped(self, address: int, size: int) -> bool:
        return address >= JIFFIES and address + size <= JIFFIES + 128


def hit(comm: str = "dd", **registers: int) -> Hit:
    """One with a task called `comm` and a file, and nothing else in memory."""
    file = bytearray(range(128))
    file[56:64] = NAME.to_bytes(8, "little")
    file[64:76] = b"tag\0rest\0\0\0\0"
    memory = {
        TASK: (4242).to_bytes(8, "little") + comm.encode().ljust(16, b"\0") + bytes(40),
        FILE: bytes(file),
        NAME: b"/etc/passwd\0",
        JIFFIES: (77).to_bytes(8, "little") + bytes(120),
        PER_CPU: bytes(0x200) + TASK.to_bytes(8, "little") + bytes(0xF8) + b"\x2a" + bytes(0xFF) + b"\3" + bytes(255),
    }

    def read(address: int, size: int) -> bytes:
        for start, data in memory.items():
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise Unreadable(address, size)

    values = {**dict.fromkeys(("rsi", "rdx", "rcx", "r8", "r9", "r10", "r11"), 0), "rdi": FILE}
    return Hit({**values, **{name: value & MASK for name, value in registers.items()}}, read, PER_CPU, 123456)
