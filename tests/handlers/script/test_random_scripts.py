"""Random scripts as native code of each ISA: what hits leave is what the interpreter says. A seed names a script.

$OPTPROBE_PROGRAMS: how many. $OPTPROBE_SEED: the first one's. $OPTPROBE_TURNS: each for one ISA, in turns, and so three
times as many in the same time. $OPTPROBE_ISA: all for this one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.garbage import uncollected
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.isa.codegen import Backend, Emitter, EntryState
from tests.examples import FULL, examples
from tests.handlers.script import native, random_scripts
from tests.handlers.script.native import Machine
from tests.handlers.script.random_scripts import Dialect, Statement, made, smaller, written

NATIVE = Dialect(inputs=("arg0", "arg1", "arg2", "arg3"), addresses=("arg4", "arg5"))
COUNT = int(os.environ.get("OPTPROBE_PROGRAMS", 20_000 if FULL else examples(100)))
FIRST = int(os.environ.get("OPTPROBE_SEED", 0))
TURNS = bool(os.environ.get("OPTPROBE_TURNS"))
ALONE = os.environ.get("OPTPROBE_ISA")
TOGETHER = 250
"""Scripts of one process, before it says what it found."""
REFUSED = "refused"
"""Scripts that are not compiled, or for which there is no native code: too many bytes of variables."""
MOST_REFUSED = 0.05
MACHINES = {"x86-64": native.intel, "ppc64le": native.ibm, "aarch64": native.arm}


@cache
def machine(name: str) -> Machine:
    return MACHINES[name]()


def isas_of(seed: int) -> Sequence[str]:
    """Return the ISAs that the script of a seed is compiled for."""
    names = (ALONE,) if ALONE else tuple(MACHINES)
    return names[seed % len(names) :][:1] if TURNS else names


def trouble(statements: Sequence[Statement], seed: int, name: str) -> str:
    """Return what is wrong with a script; "" if nothing is, and REFUSED where there is no native code."""
    try:
        return "; ".join(machine(name).differences(f"kprobe:f {{ {written(statements)} }}", seed))
    except NotLowered as refused:
        assert any(limit in refused.why for limit in native.LIMITS), refused.why
        return REFUSED
    except OptprobeError:
        return REFUSED


def some(first: int, count: int) -> tuple[list[str], int, float]:
    """Return what is wrong with so many scripts, how many were refused, and the seconds of a CPU that they took."""
    began, found, refused = time.process_time(), [], Counter[str]()
    with uncollected():
        for seed in range(first, first + count):
            statements = made(seed, NATIVE)
            for name in isas_of(seed):
                wrong = trouble(statements, seed, name)
                refused[name] += wrong == REFUSED
                if wrong and wrong != REFUSED:
                    found.append(reported(statements, seed, name))
    return found, refused.total(), time.process_time() - began


def reported(statements: tuple[Statement, ...], seed: int, name: str) -> str:
    """Return the smallest script that fails as this one does, and how."""

    def fails(some: tuple[Statement, ...]) -> bool:
        return trouble(some, seed, name) not in ("", REFUSED)

    least = smaller(statements, fails)
    return f"seed {seed} on {name}: {trouble(least, seed, name)}\n    kprobe:f {{ {written(least)} }}"


def all_of(first: int, count: int) -> Iterator[tuple[list[str], int, float]]:
    """Yield what parts of so many scripts leave, in several processes where they are many."""
    parts = [(at, min(TOGETHER, first + count - at)) for at in range(first, first + count, TOGETHER)]
    if len(parts) == 1:
        yield some(*parts[0])
        return
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(some, *zip(*parts, strict=True))


@pytest.mark.stress
def test_random_scripts_leave_what_the_interpreter_says() -> None:
    began = time.monotonic()
    found, refused, busy = [], 0, 0.0
    for number, (wrong, without, seconds) in enumerate(all_of(FIRST, COUNT)):
        found += wrong
        refused += without
        busy += seconds
        for each in wrong:
            print(each, flush=True)
        if number % 20 == 19:
            done = TOGETHER * (number + 1)
            print(f"{done} scripts from seed {FIRST} on, {refused} refused, {len(found)} wrong", flush=True)
    rates = f"{COUNT / (time.monotonic() - began):.0f} a second, {COUNT / busy:.0f} a second of a CPU"
    print(f"{COUNT} scripts, {refused} refused, {rates}")
    assert not found, f"{len(found)} scripts; the shortest:\n{min(found, key=len)}"
    assert refused <= MOST_REFUSED * COUNT * len(isas_of(0))


def test_a_script_is_compiled_alike_for_each_isa() -> None:
    """So `native.compiled` is asked for one of them, and its registers are renamed."""
    seen = 0
    for seed in range(40):
        text = f"kprobe:f {{ {written(made(seed, NATIVE))} }}"
        for name in MACHINES:
            with suppress(OptprobeError):
                here = machine(name)
                assert here.program(text) == native.compiled(text, here.place.arguments), text
                seen += 1
    assert seen > 60


def test_a_seed_names_a_script() -> None:
    assert written(made(7, NATIVE)) == written(made(7, NATIVE)) != written(made(8, NATIVE))


def test_what_fails_is_made_smaller() -> None:
    """A script fails where it has a `while` with a `print` in it; nothing else is left."""

    def fails(some: tuple[Statement, ...]) -> bool:
        return any(isinstance(each, random_scripts.Nest) and "while" in each.head and "print" in written([each])
                   for each in some)  # fmt: skip

    seed = next(seed for seed in range(1000) if fails(made(seed, NATIVE)))
    least = smaller(made(seed, NATIVE), fails)
    assert len(least) == 1 and isinstance(least[0], random_scripts.Nest) and len(least[0].body) == 1


class _Counted:
    """A backend, and how often a program was emitted with it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.times = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def emitter(self, before: EntryState) -> Emitter:
        self.times += 1
        return self._backend.emitter(before)


@pytest.mark.parametrize("name", MACHINES)
def test_code_that_overwrites_nothing_it_reads_is_made_once(name: str) -> None:
    """What saves its registers is put before it then. Else it is made again: with these read where they are saved."""
    counted: Any = _Counted(machine(name).place.backend)
    here = Machine(replace(machine(name).place, backend=counted))
    reads = ", ".join(f"arg{number}" for number in range(4))
    once, again = "@ = arg0;", f"$t = str(arg4); @[{reads}, $t, arg5] = sum(arg0 * arg1 / (arg2 % arg3));"
    enough = name == "aarch64"  # it has registers that nothing reads
    for text, times in ((once, range(1, 2)), (again, range(1, 2) if enough else range(2, 4))):
        before = counted.times
        assert not [*here.differences(f"kprobe:f {{ {text} }}", 1)]
        assert counted.times - before in times, text


def test_a_wrong_result_is_seen() -> None:
    """Of two scripts, the code of one and the interpretation of another."""
    for name in MACHINES:
        here = machine(name)
        texts = ("@ = arg0;", "@ = arg0 + 1;")
        assert not [*here.differences(f"kprobe:f {{ {texts[0]} }}", 1)]
        assert [*here.differences(f"kprobe:f {{ {texts[0]} }}", 1, f"kprobe:f {{ {texts[1]} }}")]


KEY_THAT_COMES = (
    '$a = @[3].1; if ($a != "xyz") { @[3] = ((int64)99, @[3].1); $b = @[3].0; print($b); } @[2] = ((int64)1, "hello");'
)


@pytest.mark.parametrize("name", MACHINES)
def test_a_key_that_was_not_there_is_found_behind_what_adds_it(name: str) -> None:
    """In a block of its own, where the statement that adds it keeps its entry for others."""
    assert not [*machine(name).differences(f"kprobe:f {{ {KEY_THAT_COMES} }}", 1)]


def test_code_that_is_too_long_is_not_run() -> None:
    """It would overwrite what reads memory, which the next scripts run."""
    for name in MACHINES:
        short = Machine(replace(machine(name).place, room=8))
        with pytest.raises(OptprobeError, match="bytes of code, for 8"):
            [*short.differences("kprobe:f { @[arg0] = count(); }", 1)]
