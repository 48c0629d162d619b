"""offcpu, profile, latency and calls: what is typed, and what is made of the maps of their scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gdb_optprobe.commands.recipe_arguments import (
    RecipeArguments,
    parse_calls,
    parse_latency,
    parse_offcpu,
    parse_profile,
)
from gdb_optprobe.commands.recipe_output import RecipeOutput, Shown, shown
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.script.declared import MapType
from gdb_optprobe.handlers.script.host import HostNames
from gdb_optprobe.handlers.script.output import Contents
from gdb_optprobe.handlers.script.types import NOTHING, Folded, Stack, Text, Tuple, Type
from gdb_optprobe.maps.aggregate import Aggregate, Count, Powers, Stats, initial, update
from gdb_optprobe.probes.views import GatheredView, StackView
from tests.golden import golden

PARSERS = {"offcpu": parse_offcpu, "profile": parse_profile, "latency": parse_latency, "calls": parse_calls}
STACKS = {
    0: "\n",
    1: "\n    vfs_read+1\n    ksys_read+107\n    entry_SYSCALL_64_after_hwframe+110\n",
    2: "\n    vfs_read+1\n    ksys_read+99\n    entry_SYSCALL_64_after_hwframe+110\n",
    3: "\n    vfs_read+1\n    (callers unknown)\n",
    4: "\n    finish_task_switch.isra.0+1\n    __schedule+853\n    do_wait+218\n",
    5: "\n    0x47b7a0\n    main\n",
}
THREAD, STACK = Text(16), Stack(False, "bpftrace", 127, 2)


class Names(HostNames):
    """A stack is one of STACKS, by its first word."""

    def __init__(self) -> None:
        super().__init__(None)

    def stack(self, words: Sequence[int], stack: Stack, indent: int) -> str:
        return STACKS[words[0]]


def key(thread: bytes, *stacks: int) -> bytes:
    return thread.ljust(16, b"\0") + b"".join(stack.to_bytes(16, "little") for stack in stacks)


def gathered(aggregate: Aggregate, *values: int) -> tuple[int, ...]:
    words = initial(aggregate)
    for value in values:
        words = update(aggregate, words, value)
    return words


def contents(name: str, aggregate: Aggregate, type_: Type, rows: Mapping[bytes, Sequence[int]]) -> Contents:
    return Contents(f"@{name}", MapType(Folded(aggregate), type_), rows)


COUNTS = {key(b"dd", 1): (3000,), key(b"dd", 2): (1,), key(b"a;b\n", 3): (70,), key(b"init", 1): (70,)}
CALLS = contents("calls", Count(), Tuple((THREAD, STACK)), COUNTS)
WAITS = contents("offcpu", Stats(True), THREAD, {
    key(b"dd"): gathered(Stats(True), 1_000, 3_001), key(b"sh"): gathered(Stats(True), 2_500_000_000),
})  # fmt: skip
WAITED = contents("offcpu", Stats(True), Tuple((THREAD, STACK)), {
    key(b"sh", 4): gathered(Stats(True), 2_500_000_000), key(b"dd", 1): gathered(Stats(True), 5),
})  # fmt: skip
SAMPLES = contents("profile", Count(), Tuple((THREAD, STACK, STACK)), {
    key(b"dd", 5, 1): (5,), key(b"dd", 5, 2): (2,), key(b"dd", 5, 0): (4,), key(b"kworker", 0, 4): (1,),
})  # fmt: skip


def after(typed: str, *maps: Contents, width: int = 0) -> Shown:
    """What a command has made of these maps when its script has ended with them."""
    command, _, rest = typed.partition(" ")
    found = shown(command, PARSERS[command](rest), width)
    output = RecipeOutput(Names(), found)
    assert output.before_maps() == "" and all(output.map(each) == "" for each in maps)
    return found


def ended(typed: str, *maps: Contents, width: int = 0) -> str:
    """What a command prints then."""
    return after(typed, *maps, width=width).ended()


def test_calls_are_a_table_the_most_first() -> None:
    lines = ended("calls vfs_read", CALLS).splitlines()
    assert lines == [
        "Calls Share Thread Called from",
        "3,001 95.5% dd     ksys_read / entry_SYSCALL_64_after_hwframe",
        r"   70  2.2% a;b\n  (callers unknown)",
        "   70  2.2% init   ksys_read / entry_SYSCALL_64_after_hwframe",
    ]
    assert ended("calls vfs_read -top 1", CALLS).splitlines() == [*lines[:2], "… and 2 more: -top 3"]
    assert ended("calls vfs_read") == "nothing yet\n"


def test_folded_lines_begin_with_the_outermost_frame_of_the_program() -> None:
    assert ended("calls vfs_read -folded", CALLS).splitlines() == [
        "dd;entry_SYSCALL_64_after_hwframe;ksys_read;vfs_read 3001",
        r"a:b\n;(callers unknown);vfs_read 70",
        "init;entry_SYSCALL_64_after_hwframe;ksys_read;vfs_read 70",
    ]
    assert ended("profile", SAMPLES).splitlines() == [
        "dd;main;0x47b7a0;entry_SYSCALL_64_after_hwframe;ksys_read;vfs_read 7",
        "dd;main;0x47b7a0 4",
        "kworker;do_wait;__schedule;finish_task_switch.isra.0 1",
    ]


def test_stacks_are_kept_for_export() -> None:
    assert after("offcpu", WAITS).gathered() == GatheredView(
        "offcpu", stacks=(StackView(("sh",), 1, 2_500_000_000), StackView(("dd",), 2, 4001))
    )
    found = after("profile -table", SAMPLES).gathered()
    assert found.title == "profile" and found.stacks[1] == StackView(("dd", "main", "0x47b7a0"), 4)
    found = after("calls vfs_read -top 1", CALLS).gathered()
    assert found.title == "calls vfs_read" and [one.count for one in found.stacks] == [3001, 70, 70]
    result = shown("latency", parse_latency("vfs_read"), 0)
    RecipeOutput(Names(), result).map(contents("latency", Powers(True), NOTHING, {b"": gathered(Powers(True), 700)}))
    view = result.gathered()
    assert (view.title, view.function, sum(view.words)) == ("latency vfs_read", "vfs_read", 1)


def test_a_profile_is_a_table_of_functions() -> None:
    assert ended("profile -table", SAMPLES).splitlines() == [
        "Samples Share Thread  In      Function",
        "      7 58.3% dd      kernel  vfs_read",
        "      4 33.3% dd      program 0x47b7a0",
        "      1  8.3% kworker kernel  finish_task_switch.isra.0",
    ]


def test_time_off_the_cpu() -> None:
    assert ended("offcpu", WAITS).splitlines() == [
        "Time Count Average Thread",
        "2.5s     1    2.5s sh",
        " 4us     2     2us dd",
    ]
    assert ended("offcpu -by stack", WAITED).splitlines() == [
        "Time Count Average Thread Where",
        "2.5s     1    2.5s sh     __schedule / do_wait",
        " 5ns     1     5ns dd     vfs_read / ksys_read / entry_SYSCALL_64_after_hwframe",
    ]
    folded = ended("offcpu -by stack -folded", WAITED).splitlines()
    assert folded[0] == "sh;do_wait;__schedule;finish_task_switch.isra.0 2500000000"


def latency(typed: str, *intervals: Sequence[int], untimed: int = 0, rest: Sequence[int] = ()) -> str:
    """What is printed where the calls of each interval took so many nanoseconds."""
    found = shown("latency", parse_latency(typed), 0)
    output, text = RecipeOutput(Names(), found), ""

    def of(name: str, aggregate: Aggregate, words: Sequence[int]) -> Contents:
        return contents(name, aggregate, NOTHING, {b"": words} if words else {})

    for times in intervals:
        text += output.map(of("latency", Powers(True), gathered(Powers(True), *times) if times else ()))
    text += output.before_maps()
    text += output.map(of("latency", Powers(True), gathered(Powers(True), *rest) if rest else ()))
    text += output.map(of("latency_untimed", Count(), (untimed,)))
    return text + found.ended()


def test_latency_has_a_line_for_each_interval_and_a_column_for_each_power_of_two() -> None:
    first = [300] * 64 + [600] * 32 + [1100] * 16 + [2100] * 2 + [5_000_000]
    lines = latency("vfs_read -every 0.5", first, (), (1, 60_000_000_000), untimed=2, rest=(300,)).splitlines()
    at = lines[0].index("1us") - lines[1].index("|") - 1
    assert lines[0].split() == ["time", "calls", "1us", "1ms", "1s"]
    assert lines[1].startswith("     0.5s          115 | @@%+")
    cells = lines[1].partition("|")[2]
    assert cells[at] == "%" and cells[at + 12] == "=", "1.1 us, 5 ms"
    assert lines[2] == f"{'1s':>9} {0:>12} |{' ' * 28}|"
    assert lines[3] == f"{'1.5s':>9} {2:>12} |@{' ' * 26}@|", "what is beyond is in the outermost columns"
    assert lines[4].startswith(f"{'the rest':>9} {1:>12} | @")
    assert lines[5] == "vfs_read: 118 calls; 50% below 512ns, 90% below 2.05us, 99% below 8.39ms"
    assert sum(int(line.split("|")[0].split()[-1]) for line in lines[6:-1]) == 118
    assert lines[-1] == "(2 not timed: they had begun before, or another call ran within)"
    assert latency("vfs_read") == "vfs_read: 0 calls\n"


def test_json() -> None:
    assert ended("calls vfs_read -json", CALLS) == golden("calls.json")
    assert ended("profile -json", SAMPLES) == golden("profile.json")
    assert ended("offcpu -json", WAITS) + ended("offcpu -by stack -json", WAITED) == golden("offcpu.json")
    assert latency("vfs_read -json", (300, 300, 5_000), untimed=1, rest=(600,)) == golden("latency.json")


@pytest.mark.parametrize(("typed", "expected"), [
    ("offcpu", RecipeArguments()),
    ("offcpu -by comm -for 5", RecipeArguments(seconds=5.0)),
    ("offcpu -by stack -folded -o x", RecipeArguments(by_stack=True, folded=True, output="x")),
    ("profile", RecipeArguments(folded=True)),
    ("profile -table -top 3 -hz 49 -json", None),
    ("profile -hz 49 -json", RecipeArguments(folded=True, hertz=49, json=True)),
    ("latency vfs_read -every 0.5", RecipeArguments("vfs_read", every=0.5)),
    ("latency -guest 'dd if=x' ext4:ext4_sync_file", RecipeArguments("ext4:ext4_sync_file", guest="dd if=x")),
    ("calls finish_task_switch.isra.0 -script", RecipeArguments("finish_task_switch.isra.0", script=True)),
])  # fmt: skip
def test_arguments(typed: str, expected: RecipeArguments | None) -> None:
    command, _, rest = typed.partition(" ")
    if expected is not None:
        assert PARSERS[command](rest) == expected
        return
    with pytest.raises(OptprobeError, match="exclude each other"):
        PARSERS[command](rest)


@pytest.mark.parametrize(("typed", "message"), [
    ("offcpu -by thread", "-by takes comm or stack, not 'thread'"),
    ("offcpu -folded", "-folded prints stacks"),
    ("offcpu vfs_read", "'vfs_read' is not expected here"),
    ("profile -top 3", "-top is for the table"),
    ("profile -hz 0", "-hz takes a number from 1 to 10000"),
    ("profile -hz 1e3", "-hz takes a number from 1 to 10000"),
    ("latency", "a function is missing"),
    ("latency vfs_read -every 0.001", "the guest would be stopped too often"),
    ("latency vfs_read vfs_write", "'vfs_write' is not expected here"),
    ("calls vfs_*", "this is no function's name"),
    ("calls 'vfs_read { system(\"x\") }'", "this is no function's name"),
    ("calls vfs_read -json -folded", "-folded and -json exclude each other"),
])  # fmt: skip
def test_what_is_refused(typed: str, message: str) -> None:
    command, _, rest = typed.partition(" ")
    with pytest.raises(OptprobeError) as caught:
        PARSERS[command](rest)
    assert caught.value.message.startswith(message)
