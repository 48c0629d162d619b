from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.interpreter import Outcome, run
from gdb_optprobe.handlers.ir import (
    Cell,
    Column,
    Constant,
    Emit,
    Form,
    HashMap,
    Program,
    Records,
    Register,
    Stop,
    StringLoad,
    Update,
    may_fault,
)
from gdb_optprobe.handlers.source import Fragment, split
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, Powers, Sum
from tests.handlers.world import FRAME, World, hit


def compiled(actions: str = "", condition: str = "", limits: ProgramLimits | None = None) -> Program:
    parts = split(Fragment.whole(actions)) if actions else ()
    return compile_handler(Fragment.whole(condition) if condition else None, parts, World(), limits)


def outcome(actions: str, condition: str = "", comm: str = "dd", **registers: int) -> Outcome:
    return run(compiled(actions, condition), hit(comm, **registers))


def words(*values: int | bytes) -> bytes:
    return b"".join(value if isinstance(value, bytes) else value.to_bytes(8, "little") for value in values)


def test_no_action_is_count() -> None:
    assert compiled() == Program(None, (Update(Cell("count", Count())),))
    assert compiled("", "1") == compiled()


@pytest.mark.parametrize(
    ("action", "aggregate"),
    [
        ("count", Count()),
        ("sum(count)", Sum(signed=False)),
        ("sum(fd)", Sum(signed=True)),
        ("min(fd)", Least(signed=True)),
        ("max(count)", Greatest(signed=False)),
        ("avg(mode)", Average(signed=False)),
        ("hist(count)", Powers(signed=False)),
        ("lhist(fd, -10, 90, 10)", Linear(-10, 90, 10, signed=True)),
        ("lhist(count, 0, 1000, 1)", Linear(0, 1000, 1, signed=False)),
        ("lhist(count, 0, 1 << 12, 0x100)", Linear(0, 4096, 256, signed=False)),
    ],
)
def test_aggregates(action: str, aggregate: object) -> None:
    (found,) = compiled(action).actions
    assert isinstance(found, Update) and found.target == Cell(action, aggregate)  # type: ignore[arg-type]
    assert (found.value is None) == (action == "count")


def test_keys_are_columns() -> None:
    (found,) = compiled("hist(count) by ($comm, fd, str(buf), file)").actions
    assert isinstance(found, Update)
    assert found.target == HashMap(
        "hist(count) by ($comm, fd, str(buf), file)",
        (
            Column("$comm", Form.TEXT, 16),
            Column("fd", Form.SIGNED),
            Column("str(buf)", Form.TEXT, 64),
            Column("file", Form.POINTER),
        ),
        Powers(signed=False),
    )
    comm, _, name, file = found.by
    assert isinstance(comm, StringLoad) and (comm.size, comm.mapped, comm.whole) == (16, True, True)
    assert name == StringLoad(Register("rsi"), 64, mapped=False, whole=False)
    assert file == Register("rdi")


def test_records() -> None:
    program = compiled('record(count, file->tag), print("%s %d\\n", file->name, fd), stack, stop')
    record, printed, stack, stop = program.actions
    assert isinstance(record, Emit) and isinstance(printed, Emit)
    assert record.target.columns == (Column("count", Form.UNSIGNED), Column("file->tag", Form.TEXT, 16))
    assert record.target.size == 24
    assert printed.target.format == "%s %d\n"
    assert printed.target.columns == (Column("file->name", Form.TEXT, 64), Column("fd", Form.SIGNED))
    columns = tuple(Column(name, Form.UNSIGNED) for name in (*FRAME.registers, "room"))
    kept = Records("stack", columns, stack=64)
    assert stack == Emit(kept, (Register("rsp"), Register("rbp"), FRAME.room)) and kept.size == 3 * 8 + 64 * 8
    assert stop == Stop()
    assert program.objects == (record.target, printed.target, kept)
    assert program.registers == {"rdi", "rdx", "r8", "rsp", "rbp", "rcx"}
    assert program.dereferences


def test_what_a_program_needs() -> None:
    quiet = compiled("count by $comm", '$comm == "dd" && count > 1')
    assert not quiet.dereferences and not any(map(may_fault, quiet.operands()))
    assert quiet.registers == {"rdx"}
    divides = compiled("sum(count / fd)")
    assert not divides.dereferences and any(map(may_fault, divides.operands()))
    assert compiled("count by str($arg2)").dereferences


def test_a_hit_that_holds_is_carried_out() -> None:
    found = outcome("count, sum(fd) by ($comm, fd & 3)", '$comm == "dd" && fd < 0', r8=0xFFFFFFFE)
    assert found.held and not found.faults and not found.stops
    counted, summed = found.done
    assert (counted.value, counted.data) == (0, b"")
    assert summed.value == (1 << 64) - 2
    assert summed.data == words(b"dd".ljust(16, b"\0"), 2)


@pytest.mark.parametrize(("condition", "comm"), [('$comm == "dd"', "cat"), ("count == 7777", "dd"), ("0", "dd")])
def test_a_hit_that_does_not_hold_does_nothing(condition: str, comm: str) -> None:
    assert outcome("count, stop", condition, comm) == Outcome(held=False)


def test_a_fault_of_the_condition_is_counted_and_ends_the_hit() -> None:
    assert outcome("count, stop", "*buf == 0") == Outcome(held=False, faults=1)
    assert outcome("count", "count / fd == 1") == Outcome(held=False, faults=1)


def test_a_fault_of_an_action_ends_that_action_alone() -> None:
    found = outcome("count, hist(*pos), record(count, *buf), count by str(buf), sum(1 / fd), stop")
    assert (found.held, found.faults, found.stops) == (True, 4, True)
    assert len(found.done) == 2


def test_texts_end_at_their_first_zero() -> None:
    (done,) = outcome("record(file->tag, str(file->name), $comm)", comm="init").done
    assert done.data == words(b"tag".ljust(16, b"\0"), b"/etc/passwd".ljust(64, b"\0"), b"init".ljust(16, b"\0"))


def test_a_text_is_cut_at_the_limit() -> None:
    program = compiled("count by str(file->name)", limits=ProgramLimits(text=5))
    (done,) = run(program, hit()).done
    assert done.data == b"/etc/\0\0\0"


@pytest.mark.parametrize(
    ("action", "message", "marked", "hint"),
    [
        ("count by (1, 2, 3, 4, 5)", "too many keys: 5", "5", "at most 4"),
        ("count by (str(buf), str(buf), fd)", "the key is too large", "fd", "at most 128"),
        (f"record({'str(buf), ' * 8}fd)", "the record is too large", "fd", "512"),
        ("hist(file)", "'struct file *' is no number", "file", "(unsigned long)"),
        ("hist($comm)", "'char *' is no number", "$comm", "(unsigned long)"),
        ("sum(file->f_path)", "'struct path' is no number", "file->f_path", "mnt"),
        ("count by file->f_path", "'struct path' is no number", "file->f_path", "mnt"),
        ('count by "x"', "a string can only be compared", '"x"', ""),
        ("lhist(count, 0, 100, fd)", "'fd' is no constant", "fd", "lhist(e, min, max, step)"),
        ("lhist(count, 0, 100, 0)", "the step must be above 0", "0", ""),
        ("lhist(count, 0, 100, -5)", "the step must be above 0", "-5", ""),
        ("lhist(count, 100, 100, 1)", "the maximum 100 is not above the minimum 100", "100", ""),
        ("lhist(count, 0, 100, 7)", "100 is no multiple of the step 7", "7", "105"),
        ("lhist(count, -1, 100, 1)", "-1 is below every value", "-1", "(long)"),
        ("lhist(count, 0, 1001, 1)", "1001 buckets are too many", "1", "1000"),
        ("lhist(fd, 0, 1UL << 63, 1UL << 62)", "9223372036854775808 is above every value", "1UL << 63", ""),
        ('print("%d")', "the format takes 1 argument, not 0", '"%d"', ""),
        ('print("%d", fd, count)', "the format takes 1 argument, not 2", "count", ""),
        ('print("%d", count)', "'count' has 64 bits: 'unsigned long'", "%d", "%ld"),
        ('print("%5x is", file)', "'file' has 64 bits: 'struct file *'", "%5x", "%5lx"),
        ('print("%d %s", fd, fd)', "'fd' is no text", "fd", "str(fd)"),
        ('print("%ld", $comm)', "'$comm' is a text", "$comm", "%s"),
        ('print("%f", fd)', "floating point is not supported", "%f", ""),
        ('print("a%q", fd)', "'%q' is no format", "%q", "%d %u"),
        ('print("100%")', "'%' is no format", "%", ""),
        ('print("%*d", fd)', "'%*' is no format", "%*", ""),
        ('print("%n", fd)', "'%n' is no format", "%n", ""),
        ('print("%ls", buf)', "'%ls' is no format", "%ls", ""),
        ('print("%99999d", fd)', "'%99999d' is too wide", "%99999d", ""),
        ("coutn", "no action named 'coutn'", "coutn", "count"),
        ("sum(coutn)", "no parameter, register or symbol named 'coutn'", "coutn", "file, buf"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_pointed_at(action: str, message: str, marked: str, hint: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        compiled(action)
    first, line, carets = caught.value.message.split("\n")
    assert first.startswith(message)
    assert line[carets.rindex(" ") + 1 :][: len(carets.strip())] == marked
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("condition", "actions"),
    [
        ("||".join("(fd&1+fd*3)==7" for _ in range(90)), ()),
        ("1", ["hist(fd+count*3+fd*7-count/3)"] * 60),
    ],
)
def test_a_program_too_large_is_refused(condition: str, actions: Sequence[str]) -> None:
    with pytest.raises(OptprobeError, match="the program is too large"):
        compile_handler(Fragment.whole(condition), [Fragment.whole(action) for action in actions], World())


def test_the_whole_line_is_shown() -> None:
    line = "vfs_read if coutn > 4096 do count"
    with pytest.raises(OptprobeError) as caught:
        compile_handler(Fragment(line, 12, 24), [], World())
    assert caught.value.message.splitlines()[1:] == [f"    {line}", f"    {' ' * 12}^~~~~"]


def test_a_constant_condition_is_kept_where_it_is_false() -> None:
    assert compiled("", "sizeof(int) == 5").condition == Constant(0)
