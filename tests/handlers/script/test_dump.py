"""Programs as text."""

from __future__ import annotations

from gdb_optprobe.handlers.script import dump
from gdb_optprobe.handlers.script.compile import compile_script
from gdb_optprobe.handlers.script.settings import Settings
from tests.handlers.script.cases import cases
from tests.handlers.script.kernel import FakeKernel
from tests.handlers.script.running import HOST


def dumped(text: str) -> list[str]:
    script = compile_script(text, FakeKernel(host=HOST), settings=Settings(max_strlen=64))
    return [line for probe in script.probes for line in dump.lines(probe.program)]


def test_a_condition_and_a_map_by_key() -> None:
    assert dumped("kprobe:f /arg1 == 5/ { @[arg0] = count(); @n++; delete(@, 1); }") == [
        "if ($rsi == 5)",
        "    @[$rdi] takes count()",
        "    @n += 1 (old %1, new %2)",
        "    delete @[1]",
    ]


def test_blocks_and_records() -> None:
    assert dumped('kprobe:f { if (arg0 < 3) { printf("%d", arg0); } else { @s = str(arg1); exit(); } }') == [
        "if ($rdi < 3)",
        "    record printf 0: $rdi",
        "else",
        "    %1[0:64] = str($rsi, 63)",
        "    @s = %1[0:64]",
        "    record exit 1: 0",
        "    return",
    ]


def test_loops() -> None:
    assert dumped("BEGIN { $i = 0; while ($i < 2) { $i++; } for ($kv : @m) { print($kv.1); } @m[1] = 2; }")[1:4] == [
        "loop, at most 16384 times",
        "    if (i0.0.8 < 2)",
        "    else",
    ]


def test_a_value_is_read_once_until_something_is_done() -> None:
    assert dumped("kprobe:f /@s[arg0]/ { @t = @s[arg0] + @s[arg0]; @u = @s[arg0]; @s[1] = 1; }") == [
        "%1 = @s[$rdi]",
        "if %1",
        "    @t = (%1 + %1)",
        "    %2 = @s[$rdi]",
        "    @u = %2",
        "    @s[1] = 1",
    ]


def test_every_case_has_text() -> None:
    """No statement of the language is left out."""
    for case in cases():
        if not case.error:
            kernel = FakeKernel(host=HOST, absent=("kprobe:absent_function",))
            script = compile_script(case.program, kernel, case.arguments, unsafe=True)
            shown = [line for probe in script.probes for line in dump.lines(probe.program)]
            assert all(line.strip() for line in shown), case
