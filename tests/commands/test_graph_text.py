"""Trees of calls as Linux's function_graph prints them, to the blank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.commands.graph_text import GraphText, duration
from gdb_optprobe.probes.graph.trees import Call, Ending, Tree

NAMES = ("vfs_read", "rw_verify_area", "__rcu_read_lock", "__rcu_read_unlock", "schedule")


def call(function: int, begin: int, end: int | None, *calls: Call, cpu: int = 1, to: int | None = None) -> Call:
    """A call from one nanosecond to another. to: the CPU on which it returns."""
    place = (cpu if to is None else to, end, 0) if end is not None else None
    return Call(function, cpu, begin, 0, calls=[*calls], end=place)


def text(tree: Tree, **options: object) -> str:
    found = GraphText(NAMES.__getitem__, lambda ticks: ticks, 2)
    for name, value in options.items():
        setattr(found, name, value)
    return "".join(f"{line}\n" for line in found.lines(tree))


def tree(root: Call, pid: int = 112, comm: bytes = b"dd\0\0\0\0\0\0", ending: Ending = Ending.RETURNED) -> Tree:
    return Tree(root, pid, comm, ending)


READ = tree(
    call(0, 0, 1115475, call(1, 10, 203522, call(2, 20, 43484), call(3, 43500, 46124))),
)


def test_a_tree_is_what_linux_prints() -> None:
    """The lines are those of a 6.1 kernel."""
    header = "".join(f"{line}\n" for line in GraphText(NAMES.__getitem__, lambda ticks: ticks, 2).header())
    assert header + text(READ) == (
        "# tracer: function_graph\n"
        "#\n"
        "# CPU  DURATION                  FUNCTION CALLS\n"
        "# |     |   |                     |   |   |   |\n"
        " 1)               |  vfs_read() {\n"
        " 1)               |    rw_verify_area() {\n"
        " 1) + 43.464 us   |      __rcu_read_lock();\n"
        " 1)   2.624 us    |      __rcu_read_unlock();\n"
        " 1) ! 203.512 us  |    }\n"
        " 1) # 1115.475 us |  }\n"
    )


@pytest.mark.parametrize(
    ("nanoseconds", "shown"),
    [
        (0, "  0.000 us    "),
        (10_000, "  10.000 us   "),
        (10_001, "+ 10.001 us   "),
        (100_001, "! 100.001 us  "),
        (1_000_001, "# 1000.001 us "),
        (10_000_001, "* 10000.00 us "),
        (100_000_001, "@ 100000.0 us "),
        (1_000_000_001, "$ 1000000 us  "),
        (123_456_789_012, "$ 123456789 us "),
    ],
)
def test_durations_have_their_marks_and_seven_digits(nanoseconds: int, shown: str) -> None:
    assert duration(nanoseconds) == shown


def test_what_never_returned_stays_open() -> None:
    open_tree = tree(call(0, 0, None, call(1, 1, 501), call(4, 600, None)), ending=Ending.OPEN)
    assert text(open_tree) == (
        " 1)               |  vfs_read() {\n"
        " 1)   0.500 us    |    rw_verify_area();\n"
        " 1)               |    schedule() {\n"
    )


def test_what_is_lost_is_told_behind_the_tree() -> None:
    lost = tree(call(0, 0, None), ending=Ending.LOST)
    assert text(lost).splitlines()[-1] == " 1)               |  /* what came next is lost */"


def test_a_call_that_returns_on_another_cpu_is_no_leaf() -> None:
    moved = tree(call(4, 0, 5000, cpu=1, to=0))
    assert text(moved) == " 1)               |  schedule() {\n 0)   5.000 us    |  }\n"


def test_a_change_of_the_thread_on_a_cpu_is_told() -> None:
    found = GraphText(NAMES.__getitem__, lambda ticks: ticks, 2)
    lines = [*found.lines(tree(call(1, 0, 10))), *found.lines(tree(call(1, 0, 10, cpu=0), 113, b"longer-n"))]
    assert len(lines) == 2  # on another CPU nothing has changed
    lines = [*found.lines(tree(call(1, 0, 10), 113, b"longer-n"))]
    assert lines == [
        " ------------------------------------------",
        " 1)     dd-112     =>  longer--113  ",
        " ------------------------------------------",
        "",
        " 1)   0.010 us    |  rw_verify_area();",
    ]


def test_interrupts_are_marked() -> None:
    inside = [call(2, 20, 120), call(3, 130, 230)]
    for each in inside:
        each.is_interrupt = True
    assert text(tree(call(0, 0, 1000, *inside, call(1, 300, 350)))) == (
        " 1)               |  vfs_read() {\n"
        " 1)   ==========> |\n"
        " 1)   0.100 us    |    __rcu_read_lock();\n"
        " 1)   0.100 us    |    __rcu_read_unlock();\n"
        " 1)   <========== |\n"
        " 1)   0.050 us    |    rw_verify_area();\n"
        " 1)   1.000 us    |  }\n"
    )


def test_one_interrupt_behind_another_has_marks_of_its_own() -> None:
    inside = [call(number, 20 * number, 20 * number + 10) for number in (2, 3, 2, 3)]
    for each in inside:
        each.is_interrupt, each.begins = True, each.function == 2
    lines = text(tree(call(0, 0, 1000, *inside, call(1, 300, 350)))).splitlines()[1:-2]
    one = ["==========> |", "0.010 us    |", "0.010 us    |", "<========== |"]
    assert [line[4:19].strip() for line in lines] == [*one, *one]


def test_what_may_lack_is_told_behind_the_tree() -> None:
    early = replace(tree(call(1, 0, 10)), is_early=True)
    assert text(early).splitlines()[1:] == [" 1)               |  /* calls through pointers may lack */"]


def test_deeper_calls_are_left_out() -> None:
    assert text(READ, depth=1) == (
        " 1)               |  vfs_read() {\n"
        " 1) ! 203.512 us  |    rw_verify_area();\n"
        " 1) # 1115.475 us |  }\n"
    )


def test_values_arguments_and_threads_as_newer_kernels_have_them() -> None:
    read = call(0, 0, 2000, call(1, 10, 110))
    read.end, read.calls[0].end = (1, 2000, 2**64 - 14), (1, 110, 64)
    arguments = lambda function, words: "(count=0x1)"  # noqa: E731
    shown = text(tree(read), value=lambda function, word: word, threads=True, arguments=arguments)
    assert shown == (
        " 1)     dd-112     |               |  vfs_read(count=0x1) {\n"
        " 1)     dd-112     |   0.100 us    |    rw_verify_area(count=0x1); /* = 0x40 */\n"
        " 1)     dd-112     |   2.000 us    |  } /* vfs_read = -14 */\n"
    )
    header = [*GraphText(NAMES.__getitem__, lambda ticks: ticks, 2, threads=True).header()]
    assert header[2:] == [
        "# CPU  TASK/PID         DURATION                  FUNCTION CALLS",
        "# |     |    |           |   |                     |   |   |   |",
    ]


def test_tails_have_the_functions_name() -> None:
    assert text(READ, tails=True).splitlines()[-1] == " 1) # 1115.475 us |  } /* vfs_read */"


def test_names_of_the_guest_are_made_printable() -> None:
    found = GraphText(NAMES.__getitem__, lambda ticks: ticks, 2, threads=True)
    (line,) = found.lines(tree(call(1, 0, 10), 5, b"\x1b[2Jdd\0\0"))
    assert r"\033[2Jdd-5" in line and "\x1b" not in line


def test_the_column_of_cpus_is_as_wide_as_the_guest_has_them() -> None:
    (line,) = GraphText(NAMES.__getitem__, lambda ticks: ticks, 16).lines(tree(call(1, 0, 10)))
    assert line.startswith("  1)   0.010 us")
