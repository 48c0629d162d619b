"""What cannot be done is one line with what it is about underlined, and the guest is as it was."""

from __future__ import annotations

import pytest

from gdb_optprobe.commands.parse import parse_add
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.handlers.source import MOST_SHOWN
from tests.handlers.world import World as Names
from tests.probes.threads import CODE, DATA, STACKS, START, World

MANY = "+".join(["count"] * 300)
DEEP = "(" * 200 + "count" + ")" * 200

WRONG: dict[str, list[tuple[str, str, str | None]]] = {
    "syntax": [
        ("if count >", "an expression is missing before the end", ""),
        ("if (count > 3", "'(' is never closed", "("),
        ("if count = 3", "an expression assigns nothing", "="),
        ("if count ? 1", "':' is missing before the end", ""),
        ("if 0x", "'0x' is not a number", "0x"),
        ("if 1.5 > count", "floating point is not supported", "1.5"),
        ("if count # 3", "'#' is not expected here", "#"),
        ('if $comm == "dd', '" is never closed', '"'),
        ("do sum", "sum needs an argument in parentheses", "sum"),
        ("do sum()", "sum needs more than that", "()"),
        ("do sum(count, fd)", "sum takes 1 only", "fd"),
        ("do count by", "an expression is missing before the end", ""),
        ("do record(count) by fd", "record takes no key", "by"),
        ("do stack()", "stack takes no parentheses", "()"),
        ("do count count", "'count' is not expected here", "count"),
    ],
    "names": [
        ("if coutn > 3", "no parameter, register or symbol named 'coutn'", "coutn"),
        ("if $rdj", "no register or variable named '$rdj'", "$rdj"),
        ("if file->f_flag", "'struct file' has no member 'f_flag'", "f_flag"),
        ("if (struct fiel *)count", "no type named 'struct fiel'", "struct fiel *"),
        ("do conut", "no action named 'conut'", "conut"),
        ("if f(count)", "functions cannot be called", "f"),
    ],
    "types": [
        ("do sum(file)", "'struct file *' is no number", "file"),
        ("if count->f_flags", "'count' is no pointer to a struct but 'unsigned long'", "count"),
        ("if secret->d_name", "the members of 'struct dentry' are not known", "secret"),
        ("if file * 2", "'*' of a pointer", "*"),
        ("if file->load > 1", "floating point is not supported", "file->load"),
        ("if count == \"dd\"", "'count' is no string", "count"),
        ("if *pos == 3", "memory that may not be mapped cannot be read in this guest", "*pos == 3"),
        ("if count / 0", "division by zero", "/"),
        ("do lhist(count, 0, 10, 3)", "10 is no multiple of the step 3", "3"),
        ("do lhist(count, -1, 9, 1)", "-1 is below every value, which has no sign", "-1"),
        ("do lhist(count, 0, fd, 1)", "'fd' is no constant", "fd"),
    ],
    "sizes": [
        ("do count by (count, fd, mode, $pid, $time)", "too many keys: 5", "$time"),
        ("do count by (str(buf), str(buf), fd)", "the key is too large", "fd"),
        ("do record(" + ", ".join(["str(buf)"] * 9) + ")", "the record is too large", "str(buf)"),
        ("do lhist(count, 0, 100000, 1)", "100000 buckets are too many", "1"),
        (f"if {MANY} > 3 do sum({MANY})", "the program is too large", None),
        (f"if {DEEP} > 3", "the program is too large", None),
    ],
    "formats": [
        ('do print("%d")', "the format takes 1 argument, not 0", '"%d"'),
        ('do print("%d", fd, count)', "the format takes 1 argument, not 2", "count"),
        ('do print("%q", fd)', "'%q' is no format", "%q"),
        ('do print("%f", fd)', "floating point is not supported", "%f"),
        ('do print("%d", count)', "'count' has 64 bits: 'unsigned long'", "%d"),
        ('do print("%s", fd)', "'fd' is no text", "fd"),
        ('do print("%d", $comm)', "'$comm' is a text", "$comm"),
        ("do print(count)", "a format in double quotes is missing", "count"),
    ],
}


@pytest.mark.parametrize(("clauses", "message", "underlined"), [case for cases in WRONG.values() for case in cases])
def test_one_line_and_the_guest_as_it_was(clauses: str, message: str, underlined: str | None) -> None:
    world = World(NamesAt(Names(), 0x300, Constant(0)))
    places = ((START, len(world.guest.bodies[0].data)), (CODE, DATA - CODE), (DATA, STACKS - DATA))
    before = [world.guest.machine.read(*place) for place in places]
    with pytest.raises(OptprobeError) as refused:
        world.session.add(*parse_add(f"*{START:#x} {clauses}").specs())
    said, line, marks = refused.value.message.split("\n")
    typed, shown = f"*{START:#x} {clauses}", line.strip()
    assert shown == typed or (len(typed) > MOST_SHOWN and shown.strip("…") in typed)
    assert set(marks.strip()) <= {"^", "~"}
    marked = "".join(character for character, mark in zip(line, marks, strict=False) if mark != " ")
    assert (said, marked if underlined is not None else None) == (message, underlined)
    assert [world.guest.machine.read(*place) for place in places] == before
    assert not len(world.session.registry) and world.arena.code.is_empty and world.arena.data.is_empty
