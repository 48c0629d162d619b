"""What names mean at an address of a kernel: parameters by the ABI, registers, the running thread, symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.guest import abi
from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.linux.arch.ppc64le.current import Paca
from gdb_optprobe.guest.linux.arch.ppc64le.current import current as current_of
from gdb_optprobe.guest.linux.current import Current, unknown
from gdb_optprobe.guest.scope import KernelScope, Site
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.handlers.ctype import (
    INT,
    LONG,
    UNSIGNED_INT,
    UNSIGNED_LONG,
    Array,
    Function,
    Integer,
    Pointer,
    Void,
    describe,
)
from gdb_optprobe.handlers.ir import (
    MASK,
    Binary,
    Clock,
    Constant,
    Convert,
    Expr,
    Load,
    Op,
    Register,
)
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.isa import ppc64le, x86_64
from tests.guest.blobs import BtfWriter

X86_64 = abi.of(x86_64.X86_64)
PPC64LE = abi.of(ppc64le.PPC64LE)

PROBED = 0xFFFF_FFFF_8100_0000
DATA = 0xFFFF_FFFF_8200_0000
SYMBOLS = {
    "probed": (PROBED,),
    "jiffies": (DATA,),
    "freed": (DATA + 0x10000,),
    "twice": (PROBED + 64, PROBED + 128),
    "runqueues": (0x1000,),
    "count": (DATA + 8,),
    "init_task": (DATA + 16,),
}


class Symbols:
    def lookup(self, name: str) -> Sequence[int]:
        return SYMBOLS.get(name, ())

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return (PROBED, PROBED + 64) if PROBED <= address < PROBED + 64 else None


def written() -> BtfTypes:
    """probed(struct file *file, int fd, u8 mode, struct pair pair, long one, long two, long three), and others."""
    writer = BtfWriter()
    int_, long_ = writer.integer("int", 4, signed=True), writer.integer("long int", 8, signed=True)
    char, byte = writer.integer("char", 1, signed=True), writer.integer("unsigned char", 1)
    file = writer.struct("file", 8, ("pos", long_, 0))
    pointer = writer.add("", 2, file)
    u8 = writer.add("byte_t", 8, byte)
    pair = writer.struct("pair", 16, ("left", long_, 0), ("right", long_, 64))
    large = writer.struct("large", 80, ("first", long_, 0))

    def function(name: str, result: int, *parameters: tuple[str, int]) -> None:
        words = [word for parameter, type_ in parameters for word in (writer.string(parameter), type_)]
        writer.add(name, 12, writer.add("", 13, result, *words, vlen=len(parameters)))

    many = [(f"a{number}", long_) for number in range(10)]
    first = (("file", pointer), ("fd", int_), ("mode", u8), ("pair", pair))
    function("probed", int_, *first, ("one", long_), ("two", long_), ("three", long_))
    function("many", 0, *many)
    function("splits", 0, *many[:5], ("pair", pair), ("behind", long_))
    function("hides", pointer, ("one", long_), ("big", large), ("lost", long_))
    writer.add("task_struct", 4, 8, writer.string("pid"), int_, 0, vlen=1)
    writer.add("level", 6, 4, writer.string("HIGH"), 7, writer.string("LOW"), -2, vlen=2)
    writer.add("", 3, 0, char, int_, 16)
    writer.add("runqueues", 14, pair, 1)
    return BtfTypes(Btf(writer.blob()))


TYPES = written()
PACA = Paca(current=0x908, number=8, pid=2024, comm=2528, per_cpu_offset=DATA)
TASK = Load(Binary(Op.ADD, Register("r13"), Constant(0x908), 64, False), 8, False, mapped=True)


def scope(
    function: str = "probed",
    isa: Abi = X86_64,
    types: BtfTypes | None = TYPES,
    entry: bool = True,
    returns: bool = False,
    current: Current | None = None,
) -> KernelScope:
    return KernelScope(
        Site(PROBED, function, entry, returns),
        Symbols(),
        types,
        isa,
        current or current_of(PACA),
        mapped=((DATA, DATA + 0x1000),),
        per_cpu=(0, 0x2000),
        convenience={"mine": -5}.get,
    )


def missing(found: object) -> str:
    assert isinstance(found, Missing)
    return found.message


def stacked(register: str, offset: int) -> Expr:
    return Load(Binary(Op.ADD, Register(register), Constant(offset), 64, False), 8, False, mapped=True)


@pytest.mark.parametrize(
    ("isa", "name", "type_", "expected"),
    [
        (X86_64, "file", "struct file *", Register("rdi")),
        (X86_64, "fd", "int", Convert(Register("rsi"), 32, True)),
        (X86_64, "mode", "unsigned char", Convert(Register("rdx"), 8, False)),
        (X86_64, "one", "long", Register("r9")),
        (X86_64, "two", "long", stacked("rsp", 8)),
        (X86_64, "three", "long", stacked("rsp", 16)),
        (PPC64LE, "file", "struct file *", Register("r3")),
        (PPC64LE, "mode", "unsigned char", Convert(Register("r5"), 8, False)),
        (PPC64LE, "one", "long", Register("r8")),
        (PPC64LE, "three", "long", Register("r10")),
    ],
)
def test_parameters(isa: Abi, name: str, type_: str, expected: Expr) -> None:
    found = scope(isa=isa).name(name)
    assert isinstance(found, Rvalue)
    assert (describe(found.type), found.expr) == (type_, expected)


@pytest.mark.parametrize(
    ("isa", "name", "expected"),
    [
        (X86_64, "a5", Register("r9")),
        (X86_64, "a6", stacked("rsp", 8)),
        (X86_64, "a9", stacked("rsp", 32)),
        (PPC64LE, "a7", Register("r10")),
        (PPC64LE, "a8", stacked("r1", 96)),
        (PPC64LE, "a9", stacked("r1", 104)),
    ],
)
def test_parameters_beyond_the_registers(isa: Abi, name: str, expected: Expr) -> None:
    found = scope("many", isa).name(name)
    assert isinstance(found, Rvalue) and found.expr == expected
    positional = scope("many", isa).dollar(f"arg{int(name[1:]) + 1}")
    assert positional == Rvalue(expected, UNSIGNED_LONG)


@pytest.mark.parametrize("isa", [X86_64, PPC64LE])
def test_what_follows_a_large_struct_is_not_guessed(isa: Abi) -> None:
    assert isinstance(scope("hides", isa).name("one"), Rvalue)
    for name in ("big", "lost"):
        assert isinstance(scope("hides", isa).name(name), Missing)


def test_a_struct_that_the_registers_do_not_hold_is_not_guessed_either() -> None:
    assert "not known" in missing(scope("splits").name("behind"))
    assert scope("splits", PPC64LE).name("behind") == Rvalue(Register("r10"), LONG)


@pytest.mark.parametrize(
    ("name", "entry", "types", "message", "hint"),
    [
        ("fd", False, TYPES, "'fd' is not available at this address", "at the function's entry: probed"),
        ("fdd", True, TYPES, "no parameter or symbol named 'fdd'", "did you mean 'fd'? probed has: file, fd, mode"),
        ("zzz", True, TYPES, "no parameter or symbol named 'zzz'", "probed has: file, fd, mode"),
        ("comm", True, TYPES, "no parameter or symbol named 'comm'", "did you mean $comm?"),
        ("current", True, TYPES, "no parameter or symbol named 'current'", "did you mean $task?"),
        ("uid", True, TYPES, "no parameter or symbol named 'uid'", "did you mean $task->cred->uid.val?"),
        ("O_APPEND", True, TYPES, "no symbol or enumerator named 'O_APPEND'", "macro"),
        ("fd", True, None, "no symbol named 'fd', and no type information for parameters", "$arg1"),
        ("pair", True, TYPES, "'pair' of type 'struct pair' is not supported", "$arg4 is its first word"),
        ("twice", True, TYPES, "2 symbols are named 'twice'", f"{PROBED + 64:#x}, {PROBED + 128:#x}"),
    ],
)
def test_names_that_mean_nothing(name: str, entry: bool, types: BtfTypes | None, message: str, hint: str) -> None:
    found = scope(entry=entry, types=types).name(name)
    assert isinstance(found, Missing)
    assert found.message == message
    assert hint in found.hint


def test_a_kernel_without_names_of_its_data_has_that_in_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    known = scope().name("jiffy")
    assert isinstance(known, Missing) and "KALLSYMS_ALL" not in known.hint
    monkeypatch.delitem(SYMBOLS, "init_task")
    for entry, types, more in ((True, TYPES, "probed has: file, fd, mode"), (True, None, "$arg1")):
        found = scope(entry=entry, types=types).name("init_task")
        assert isinstance(found, Missing) and more in found.hint
        assert "no names (CONFIG_KALLSYMS_ALL): before the first optprobe command, load its vmlinux" in found.hint
    near = scope().name("fdd")
    assert isinstance(near, Missing) and "KALLSYMS_ALL" not in near.hint, "a parameter is meant"


def test_null_is_a_pointer() -> None:
    assert scope(types=None).name("NULL") == Rvalue(Constant(0), Pointer(Void()))


def test_symbols() -> None:
    assert scope().name("jiffies") == Lvalue(Constant(DATA), None, mapped=True)
    assert scope().name("freed") == Lvalue(Constant(DATA + 0x10000), None)
    assert scope().name("probed") == Lvalue(Constant(PROBED), Function())
    pair = TYPES.named("struct", "pair")
    assert scope().name("runqueues") == Lvalue(Constant(0x1000), pair, per_cpu=True)
    assert scope(types=None).name("runqueues") == Lvalue(Constant(0x1000), None, per_cpu=True)


def test_enumerators_are_numbers() -> None:
    assert scope().name("HIGH") == Rvalue(Constant(7), INT)
    assert scope().name("LOW") == Rvalue(Constant(-2 & MASK), INT)


@pytest.mark.parametrize(
    ("isa", "name", "type_", "expected"),
    [
        (X86_64, "rdi", LONG, Register("rdi")),
        (X86_64, "sp", UNSIGNED_LONG, Register("rsp")),
        (X86_64, "rip", Pointer(Function()), Constant(PROBED)),
        (X86_64, "pc", Pointer(Function()), Constant(PROBED)),
        (X86_64, "eflags", UNSIGNED_INT, Register("eflags")),
        (X86_64, "eax", Integer("int32_t", 4, True), Convert(Register("rax"), 32, True)),
        (X86_64, "r8w", Integer("int16_t", 2, True), Convert(Register("r8"), 16, True)),
        (X86_64, "sil", Integer("int8_t", 1, True), Convert(Register("rsi"), 8, True)),
        (
            X86_64,
            "ah",
            Integer("int8_t", 1, True),
            Convert(Binary(Op.SHR, Register("rax"), Constant(8), 64, False), 8, True),
        ),
        (PPC64LE, "r3", UNSIGNED_LONG, Register("r3")),
        (PPC64LE, "sp", UNSIGNED_LONG, Register("r1")),
        (PPC64LE, "lr", Pointer(Function()), Register("lr")),
        (PPC64LE, "cr", UNSIGNED_INT, Register("cr")),
        (PPC64LE, "pc", Pointer(Function()), Constant(PROBED)),
        (X86_64, "arg1", UNSIGNED_LONG, Register("rdi")),
        (X86_64, "ticks", UNSIGNED_LONG, Clock()),
        (X86_64, "mine", LONG, Constant(-5 & MASK)),
    ],
)
def test_dollars(isa: Abi, name: str, type_: object, expected: Expr) -> None:
    assert scope(isa=isa).dollar(name) == Rvalue(expected, type_)  # type: ignore[arg-type]


def test_the_time_is_that_of_the_guests_log() -> None:
    now = Binary(Op.ADD, Clock(), Constant(5), 64, False)
    assert replace(scope(), now=lambda: now).dollar("time") == Rvalue(now, UNSIGNED_LONG)
    assert scope().dollar("time") == Missing("the time of this guest's log is not known", "$ticks is its clock")


def test_the_running_thread() -> None:
    known = scope(isa=PPC64LE)
    pid = Binary(Op.ADD, TASK, Constant(2024), 64, False)
    assert known.dollar("pid") == Lvalue(pid, INT, mapped=True)
    assert known.dollar("tgid") == Lvalue(Binary(Op.ADD, TASK, Constant(2028), 64, False), INT, mapped=True)
    comm = known.dollar("comm")
    assert isinstance(comm, Lvalue) and comm.mapped and isinstance(comm.type, Array) and comm.type.count == 16
    task = known.dollar("task")
    assert isinstance(task, Rvalue) and task.mapped and describe(task.type) == "struct task_struct *"
    assert scope(isa=PPC64LE, types=None).dollar("task") == Rvalue(TASK, Pointer(Void()), mapped=True)
    number = Load(Binary(Op.ADD, Register("r13"), Constant(8), 64, False), 2, False, mapped=True)
    assert known.dollar("cpu") == Rvalue(number, UNSIGNED_INT)
    base = known.per_cpu_base()
    assert isinstance(base, Load) and base.mapped


@pytest.mark.parametrize("name", ["pid", "tgid", "comm", "task", "cpu"])
def test_where_nothing_is_known_of_threads(name: str) -> None:
    lost = scope(current=unknown("this kernel has not booted"))
    assert lost.dollar(name) == Missing("this kernel has not booted")
    assert lost.per_cpu_base() == Missing("this kernel has not booted")


@pytest.mark.parametrize(
    ("name", "entry", "message", "hint"),
    [
        ("arg1", False, "$arg1 is not available at this address", "probed"),
        ("arg0", True, "no argument $arg0", "$arg1 is the first"),
        ("arg33", True, "no argument $arg33", "$arg1 is the first"),
        ("retval", True, "$retval is not available at this address", "has returned"),
        ("rdo", True, "no register or variable named '$rdo'", "did you mean $rd"),
        ("uid", True, "no register or variable named '$uid'", "did you mean $task->cred->uid.val?"),
        ("nsecs", True, "no register or variable named '$nsecs'", "did you mean $time?"),
        ("xyzzy", True, "no register or variable named '$xyzzy'", "ours are $arg1, $retval"),
        ("xmm0", True, "no register or variable named '$xmm0'", ""),
    ],
)
def test_dollars_that_mean_nothing(name: str, entry: bool, message: str, hint: str) -> None:
    found = scope(entry=entry).dollar(name)
    assert isinstance(found, Missing)
    assert found.message == message
    assert hint in found.hint


def test_what_a_function_returned() -> None:
    assert scope(entry=False, returns=True).dollar("retval") == Rvalue(Convert(Register("rax"), 32, True), INT)
    assert scope(entry=False, returns=True, types=None).dollar("retval") == Rvalue(Register("rax"), LONG)
    assert scope(isa=PPC64LE, returns=True, types=None).dollar("retval") == Rvalue(Register("r3"), LONG)
    nothing = scope("many", returns=True).dollar("retval")
    assert isinstance(nothing, Missing) and "void" in nothing.message


def test_what_a_function_returned_by_debug_information() -> None:
    """Its variables are known where it is entered, but nowhere once it has returned."""
    debug: Any = SimpleNamespace(result=lambda: INT, parameters=lambda: {"count": INT})
    debug.variable = lambda name: Rvalue(Register("rdi"), INT)
    there = replace(scope(entry=False, returns=True, types=None), debug=debug)
    assert there.dollar("retval") == Rvalue(Convert(Register("rax"), 32, True), INT)
    assert isinstance(there.name("count"), Missing)
    debug.result = lambda: None
    assert there.dollar("retval") == Rvalue(Register("rax"), LONG)


def test_types() -> None:
    known = scope()
    assert known.is_type("byte_t") and known.is_type("u64") and not known.is_type("file") and not known.is_type("zzz")
    assert known.type("", "byte_t") == Integer("unsigned char", 1, signed=False)
    assert known.type("", "unsigned long") == UNSIGNED_LONG
    assert known.type("", "char") == Integer("char", 1, signed=True)
    assert scope(isa=PPC64LE, types=None).type("", "char") == Integer("char", 1, signed=False)
    assert scope(types=None).type("", "u16") == Integer("unsigned short", 2, signed=False)


@pytest.mark.parametrize(
    ("keyword", "name", "types", "message", "hint"),
    [
        ("struct", "fil", TYPES, "no type named 'struct fil' in this kernel", ""),
        ("struct", "level", TYPES, "no type named 'struct level' in this kernel", "did you mean enum level?"),
        ("", "file", TYPES, "no type named 'file' in this kernel", "did you mean struct file?"),
        ("", "zzz", TYPES, "no type named 'zzz' in this kernel", "struct zzz"),
        ("struct", "file", None, "no type information for 'struct file'", "OFFSET"),
    ],
)
def test_types_that_are_not_there(keyword: str, name: str, types: BtfTypes | None, message: str, hint: str) -> None:
    found = scope(types=types).type(keyword, name)
    assert isinstance(found, Missing)
    assert found.message == message
    assert hint in found.hint


def test_abis_by_name() -> None:
    assert X86_64.arguments[0] == "rdi" and PPC64LE.arguments[0] == "r3"


def test_the_names_of_parameters() -> None:
    assert scope().parameter_names()[:2] == ("file", "fd")
    assert scope(types=None).parameter_names() == ()
