"""Programs of the language's cases as native code of x86-64: what they leave is what the interpreter says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import Clock, Loop, Program, Records
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.handlers.lower_session_maps import session_layout
from gdb_optprobe.handlers.script.compile import compile_script
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.ring import RingLayout
from tests.handlers import scripts
from tests.handlers.running import (
    CPU,
    FAULTS,
    NUMBERS,
    RING_AT,
    START,
    execute,
    hit,
    kept,
    memory_of,
    state,
    surroundings,
)
from tests.handlers.script.cases import Case, cases
from tests.handlers.script.kernel import FakeKernel
from tests.handlers.script.of_bpftrace import language_cases, unmet
from tests.handlers.script.running import HOST

SMALL = Settings(max_map_keys=8, max_strlen=64)
RING_BITS = 3
MOST_ROUNDS = 200
BEFORE = state(dict.fromkeys((name for name in NUMBERS if name != abi.FLAGS), 0))


def programs(case: Case) -> Iterator[Program]:
    """The programs of a case that give the same whenever they run."""
    kernel = FakeKernel(host=HOST, absent=("kprobe:absent_function",))
    script = compile_script(case.program, kernel, case.arguments, SMALL, unsafe=True)
    for probe in script.probes:
        program = probe.program
        small = all(each.most <= SMALL.max_map_keys for each in program.maps)
        small &= sum(session_layout(each).size for each in program.maps) <= scripts.ROOM
        if probe.point.provider in ("BEGIN", "END", "interval") and small and Clock() not in program.nodes():
            yield program


def differences(program: Program) -> Iterator[str]:
    """What two hits leave that is not as the interpreter says."""
    words = max([8, *(each.size for each in program.objects if isinstance(each, Records))]) // 8
    ring = RingLayout(words, RING_BITS)
    objects, places = (RING_AT,) * len(program.objects), scripts.places(program, FAULTS)
    around = replace(surroundings(program), ring=ring, maps=places, objects=objects)
    code = lower(program, around, BACKEND)(START)
    maps = scripts.contents(program)
    at = {place: bytes(maps[name].data[:]) for name, place in scripts.places(program, FAULTS).items()}
    memory = memory_of(BEFORE, at | {RING_AT: ring.initial()})
    emitted = []
    for _ in range(2):
        left = execute(code, BEFORE, memory)
        outcome = interpreter.run(program, replace(hit(BEFORE, memory), maps=maps))
        emitted += [(done.action.target.kind, CPU.value, done.data.ljust(8 * words, b"\0")) for done in outcome.done]
        yield from kept(BEFORE, memory, left, Dead(), FAULTS)
        memory = dict(left.memory)
    found = [(each.kind, each.cpu, each.fields) for each in ring.decode(left.read(RING_AT, ring.size)).records]
    if found != emitted[: ring.places]:
        yield f"{found} for {emitted[: ring.places]}"
    yield from scripts.wrong_maps(program, left.read, FAULTS, maps)


@pytest.mark.thorough
def compiled_cases() -> Iterator[Case]:
    """Yield the cases whose programs compile without a real kernel."""
    yield from (case for case in cases() if not case.error)
    without = unmet()
    of_peer = (case for case in language_cases() if "guest" not in case.flags and str(case) not in without)
    yield from (case for case in of_peer if not case.error)


@pytest.mark.parametrize("case", [*compiled_cases()], ids=str)
def test_same_as_the_interpreter(case: Case) -> None:
    for program in programs(case):
        if any(isinstance(each, Loop) and each.most > MOST_ROUNDS for each in program.statements()):
            continue  # more instructions than one execution has here
        try:
            assert not [*differences(program)]
        except NotLowered as refused:
            assert any(limit in refused.why for limit in ("registers", "stack", "searches in a text of the hit"))
