from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.ctype import describe
from gdb_optprobe.handlers.interpreter import evaluate
from gdb_optprobe.handlers.ir import (
    MASK,
    Binary,
    Constant,
    Convert,
    Expr,
    Load,
    Op,
    PerCpuBase,
    Register,
    StringEquals,
    nodes,
)
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Rvalue
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer, member_names
from tests.handlers.world import FILE, JIFFIES, NAME, PER_CPU, TASK, World, hit

RDI, RDX = Register("rdi"), Register("rdx")
TWICE = Binary(Op.SHL, RDX, Constant(1), 64, False)


def typed(text: str) -> Rvalue:
    world = World()
    return Typer(world).value(parse_expression(Fragment.whole(text), world.is_type))


def plus(left: Expr, right: int) -> Expr:
    return Binary(Op.ADD, left, Constant(right), 64, False)


@pytest.mark.parametrize(
    ("text", "type_", "expected"),
    [
        ("count == 7777", "int", Binary(Op.EQ, RDX, Constant(7777), 64, False)),
        ("count", "unsigned long", RDX),
        ("fd", "int", Convert(Register("r8"), 32, True)),
        ("fd < 0", "int", Binary(Op.LT, Convert(Register("r8"), 32, True), Constant(0), 32, True)),
        ("(unsigned char)count", "unsigned char", Convert(RDX, 8, False)),
        ("file->f_flags", "unsigned int", Load(plus(RDI, 4), 4, False)),
        ("file->f_path.dentry", "struct dentry *", Load(plus(RDI, 24), 8, False)),
        ("&file->f_path.dentry", "struct dentry **", plus(RDI, 24)),
        ("file->counts[3]", "short", Load(plus(RDI, 46), 2, True)),
        ("file->counts", "short *", plus(RDI, 40)),
        ("&file->counts[count]", "short *", plus(Binary(Op.ADD, RDI, TWICE, 64, False), 40)),
        ("file + 1", "struct file *", plus(RDI, 128)),
        ("*pos", "long", Load(Register("rcx"), 8, True)),
        ("pos[-1]", "long", Load(plus(Register("rcx"), -8 & MASK), 8, True)),
        ("*&file->f_mode", "unsigned int", Load(RDI, 4, False)),
        ("(*file).f_mode", "unsigned int", Load(RDI, 4, False)),
        ("file[0].f_mode", "unsigned int", Load(RDI, 4, False)),
        ("((struct file *)$arg1)->f_mode", "unsigned int", Load(RDI, 4, False)),
        ("file->low", "unsigned int", Convert(Load(plus(RDI, 32), 1, False), 3, False)),
        ("(unsigned long)jiffies", "unsigned long", Load(Constant(JIFFIES), 8, False, mapped=True)),
        ("*(unsigned int *)&jiffies", "unsigned int", Load(Constant(JIFFIES), 4, False, mapped=True)),
        ("&jiffies", "void *", Constant(JIFFIES)),
        ("vfs_read", "a pointer to a function", Constant(JIFFIES + 64)),
        ("(long)vfs_read", "long", Constant(JIFFIES + 64)),
        ("$task->pid", "int", Load(Load(plus(PerCpuBase(), 0x200), 8, False, True), 4, True, mapped=True)),
        ("$percpu(runqueues).pid", "int", Load(plus(PerCpuBase(), 0x300), 4, True, mapped=True)),
        ("$percpu(runqueues.pid)", "int", Load(plus(PerCpuBase(), 0x300), 4, True, mapped=True)),
        ("(int)$percpu(cpu_number)", "int", Load(plus(PerCpuBase(), 0x400), 4, True, mapped=True)),
        ("$percpu(*pos)", "long", Load(Binary(Op.ADD, PerCpuBase(), Register("rcx"), 64, False), 8, True)),
        ("&runqueues", "struct task_struct *", Constant(0x300)),
        ("sizeof(struct file)", "unsigned long", Constant(128)),
        ("sizeof file->counts", "unsigned long", Constant(16)),
        ("sizeof *file->name", "unsigned long", Constant(1)),
        ("sizeof(fd + 1)", "unsigned long", Constant(4)),
        ("O_APPEND | 1", "int", Constant(1025)),
        ("1 << 32L", "int", Constant(0)),
        ("1L << 32", "long", Constant(1 << 32)),
        ("1 ? 2u : 3", "unsigned int", Constant(2)),
        ("'\\xff'", "int", Constant(MASK)),
        ("-1 < 0u", "int", Constant(0)),
        ("-1L < 0u", "int", Constant(1)),
        ("2147483647 + 1", "int", Constant(-(1 << 31) & MASK)),
        ("(_Bool)0x100", "_Bool", Constant(1)),
        ("file ? buf : 0", "char *", None),
        ("file == 0 || !buf && pos", "int", None),
        ("pos - (long *)buf", "long", None),
        ("(char *)pos - buf", "long", None),
        ("*(pos + 3)", "long", Load(plus(Register("rcx"), 24), 8, True)),
    ],
)  # fmt: skip
def test_types_and_nodes(text: str, type_: str, expected: Expr | None) -> None:
    found = typed(text)
    assert describe(found.type) == type_
    if expected is not None:
        assert found.expr == expected


FILE_BYTES = bytes(range(128))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file->low", 32 & 7),
        ("file->high", 32 >> 3),
        ("file->wide", int.from_bytes(FILE_BYTES[33:41], "little") >> 4 & ((1 << 40) - 1)),
        ("file->on", 38 >> 7 & 1),
        ("file->level", int.from_bytes(FILE_BYTES[76:80], "little")),
        ("$pid == 4242", 1),
        ('$comm == "dd"', 1),
        ('"dd" != $comm', 0),
        ('$comm == "ddd"', 0),
        ('$comm == "d"', 0),
        ('$comm == "0123456789abcdef"', 0),
        ('$task->comm == "dd"', 1),
        ('str(file->name) == "/etc/passwd"', 1),
        ('file->name != "/etc/passwd"', 0),
        ('file->name == "/etc/passw"', 0),
        ('file->name == "/etc/passwd2"', 0),
        ('file->tag == "tag"', 1),
        ('str(file->tag) == "tag"', 1),
        ('*(char **)&file->name == ""', 0),
        ("(unsigned long)jiffies", 77),
        ("$percpu(runqueues).pid", 42),
        ("(int)$percpu(cpu_number)", 3),
        ("$time", 123456),
        ("&file->counts[2] - file->counts", 2),
        ("file->counts[count] == *(short *)(file->counts + count)", 1),
        ("buf && *buf", 0),
        ("!buf || *buf", 1),
        ("buf ? *buf : 5", 5),
    ],
)
def test_values(text: str, expected: int) -> None:
    assert evaluate(typed(text).expr, hit(rdx=1)) == expected


def test_a_name_of_sixteen_bytes_is_two_loads() -> None:
    found = typed('$comm == "0123456789abcde"').expr
    assert [
        node.size for node in nodes(found) if isinstance(node, Load) and node.address != plus(PerCpuBase(), 0x200)
    ] == [
        8,
        8,
    ]
    assert evaluate(found, hit(comm="0123456789abcde")) == 1
    assert evaluate(found, hit(comm="0123456789abcdX")) == 0


def test_a_short_name_is_one_load() -> None:
    found = typed('$comm == "dd"').expr
    address = plus(Load(plus(PerCpuBase(), 0x200), 8, False, True), 8)
    masked = Binary(Op.AND, Load(address, 4, False, mapped=True), Constant(0xFFFFFF), 64, False)
    assert found == Binary(Op.EQ, masked, Constant(0x6464), 64, False)


def test_a_pointer_is_compared_up_to_the_first_difference() -> None:
    assert typed('str($arg2) == "ab"').expr == StringEquals(Register("rsi"), b"ab\0", mapped=False)


@pytest.mark.parametrize("text", ["*buf", "file[5].f_mode", 'str(buf) == ""', "*(long *)-4", "buf == 0 && *buf"])
def test_what_cannot_be_read_is_a_fault(text: str) -> None:
    with pytest.raises(Fault):
        evaluate(typed(text).expr, hit())


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("$task->pid", {True}),
        ("$task->comm[3]", {True}),
        ("$task->comm[16]", {True, False}),
        ("$task->comm[count]", {True, False}),
        ("($task + 1)->pid", {True, False}),
        ("*$task->comm", {True}),
        ("*$task->more", {True, False}),
        ("((struct file *)$task)->f_mode", {True, False}),
        ("*(long *)$task", {True, False}),
        ("(unsigned long)jiffies", {True}),
        ("*(long *)((char *)&jiffies + 4096)", {False}),
        ("file->f_mode", {False}),
        ("$percpu(*pos)", {False}),
        ("$percpu(irq_stat[1])", {True}),
        ("$percpu(irq_stat)[1]", {True}),
        ("*$percpu(irq_stat)", {True}),
        ("$percpu(irq_stat)[4]", {False}),
    ],
)
def test_only_what_is_known_to_be_there_is_mapped(text: str, loads: set[bool]) -> None:
    assert {node.mapped for node in nodes(typed(text).expr) if isinstance(node, Load)} == loads


@pytest.mark.parametrize(
    ("text", "message", "marked", "hint"),
    [
        ("coutn > 4096", "no parameter, register or symbol named 'coutn'", "coutn", "vfs_read has: file"),
        ("count > $foo", "no register or variable named '$foo'", "$foo", "did you mean $rdi?"),
        ("file->f_flag", "'struct file' has no member 'f_flag'", "f_flag", "did you mean 'f_flags'?"),
        ("file->f_dentry", "'struct file' has no member 'f_dentry'", "f_dentry", "did you mean 'f_path.dentry'?"),
        ("file->zzz", "'struct file' has no member 'zzz'", "zzz", "it has: f_mode, f_flags"),
        ("file.f_mode", "'file' is no struct", "file", "file->f_mode"),
        ("file->f_path->mnt", "'file->f_path' is no pointer", "file->f_path", "file->f_path.mnt"),
        ("count->x", "'count' is no pointer to a struct but 'unsigned long'", "count", "((struct TYPE *)count)->x"),
        ("any->x", "'any' is no pointer to a struct but 'void *'", "any", "((struct TYPE *)any)->x"),
        ("buf->x", "'buf' is no struct but 'char'", "buf", ""),
        ("secret->d_name", "the members of 'struct dentry' are not known", "secret", "the type information"),
        ("*count", "'count' is a number, not a pointer", "count", "*(unsigned long *)count"),
        ("*any", "'any' points to nothing of a known type", "any", "cast it"),
        ("count[1]", "'count' is no array", "count", "nor a pointer"),
        ("jiffies + 1", "the type of 'jiffies' is not known", "jiffies", "(unsigned long)jiffies"),
        ("jiffies.x", "the type of 'jiffies' is not known", "jiffies", "((struct TYPE *)&jiffies)->x"),
        ("jiffies->x", "the type of 'jiffies' is not known", "jiffies", "((struct TYPE *)&jiffies)->x"),
        ("sizeof jiffies", "the type of 'jiffies' is not known", "jiffies", "sizeof(TYPE)"),
        ("runqueues.pid", "every CPU has its own 'runqueues.pid'", "runqueues.pid", "$percpu(runqueues.pid)"),
        ("(int)cpu_number", "every CPU has its own 'cpu_number'", "cpu_number", "$percpu(cpu_number)"),
        ("irq_stat[1]", "every CPU has its own 'irq_stat[1]'", "irq_stat[1]", "$percpu(irq_stat[1])"),
        ("*irq_stat", "every CPU has its own 'irq_stat'", "irq_stat", "$percpu(irq_stat)"),
        ("$percpu(pos)", "$percpu takes a variable", "pos", "$percpu(*p)"),
        ("$percpu(1)", "$percpu takes a variable", "1", "$percpu(VARIABLE)"),
        ("file->f_path", "'struct path' is no number", "file->f_path", "one of its members is: mnt, dentry"),
        ("file->load > 1", "floating point is not supported", "file->load", "cast its address"),
        ("file->big", "'__int128' of 16 bytes is not supported", "file->big", ""),
        ("(__int128)count", "'__int128' is not supported", "__int128", "unsigned long"),
        ("(double)count", "floating point is not supported", "double", ""),
        ("(struct file)count", "nothing can be cast to 'struct file'", "struct file", "pointer"),
        ("(struct fil *)count", "no type named 'struct fil'", "struct fil *", ""),
        ("(foo_t)count", "no type named ' foo_t'", "foo_t", ""),
        ("(foo *)count", "no type named ' foo'", "foo *", ""),
        ("&count", "'count' has no address", "count", "a value"),
        ("&(count + 1)", "'(count + 1)' has no address", "(count + 1)", ""),
        ("&file->low", "a bit field has no address", "file->low", ""),
        ("sizeof file->low", "a bit field has no size", "sizeof file->low", ""),
        ("sizeof(struct dentry)", "the size of 'struct dentry' is not known", "sizeof(struct dentry)", ""),
        ("secret + 1", "the size of 'struct dentry' is not known", "+", "(char *)"),
        ("file & 7", "'&' of a pointer", "&", "(unsigned long)"),
        ("7 * file", "'*' of a pointer", "*", "(unsigned long)"),
        ("1 - file", "'-' of a pointer", "-", "(unsigned long)"),
        ("-file", "'-' of a pointer", "-file", "(unsigned long)"),
        ("file + buf", "two pointers cannot be added", "+", ""),
        ("file - buf", "the pointers are of different types: struct file *, char *", "-", "(char *)"),
        ("1 ? file : buf", "the pointers are of different types", "1 ? file : buf", "cast"),
        ("count / 0", "division by zero", "/", ""),
        ("count % (1 - 1)", "division by zero", "%", ""),
        ('"dd"', "a string can only be compared", '"dd"', "$comm"),
        ('$comm < "dd"', "a string can only be compared", '"dd"', "$comm"),
        ("$comm == 5", "'$comm' is a text, compared with a number", "$comm", '$comm == "x"'),
        ("5 < $comm", "'$comm' is a text, compared with a number", "$comm", '$comm == "x"'),
        ('"a" == "a"', "two literals are compared", "==", ""),
        ('count == "dd"', "'count' is no string", "count", "str(p)"),
        ("str(buf) == buf", "str(p) can be compared with a literal only", "==", ""),
        ("str(buf) + 1", "str(p) is a text, not a number", "str(buf)", ""),
        ("str(fd)", "str(p) is a text", "str(fd)", ""),
        ('str(fd) == "x"', "'fd' is no pointer but 'int'", "fd", "an address"),
        ('$comm == "01234567890123456"', "the string has 17 bytes", '"01234567890123456"', "never be equal"),
        ('$comm == "a\\0b"', "the string holds a 0 byte", '"a\\0b"', ""),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_pointed_at(text: str, message: str, marked: str, hint: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        typed(text)
    first, line, carets = caught.value.message.split("\n")
    assert first.startswith(message)
    assert line[carets.index("^") :][: len(carets.strip())] == marked
    assert hint in caught.value.hint


def test_the_world_is_what_it_says() -> None:
    known = hit()
    assert known.read(PER_CPU + 0x200, 8) == TASK.to_bytes(8, "little")
    assert known.read(FILE + 56, 8) == NAME.to_bytes(8, "little")


@pytest.mark.parametrize("expression", ["file", "*file", "(struct file *)$arg1"])
def test_members_of_a_struct_and_of_one_behind_a_pointer(expression: str) -> None:
    assert "f_flags" in member_names(Fragment.whole(expression), World())


def test_a_number_has_no_members() -> None:
    assert member_names(Fragment.whole("count"), World()) == ()
