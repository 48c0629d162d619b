"""Which hits a gate lets through."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.ir import WORD, Constant, If, Program, Stop
from gdb_optprobe.handlers.script import gates
from gdb_optprobe.handlers.script.scope import Gate

SECOND = 62_500_000


@dataclass
class Words:
    """A map of the session."""

    kept: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    def get(self, key: bytes) -> tuple[int, ...] | None:
        return self.kept.get(key)

    def put(self, key: bytes, words: tuple[int, ...]) -> bool:
        self.kept[key] = words
        return True

    def delete(self, key: bytes) -> bool:
        return self.kept.pop(key, None) is not None

    def all_keys(self) -> tuple[bytes, ...]:
        return tuple(self.kept)


def let_through(gate: Gate, clock: list[int]) -> list[int]:
    """Return at which times a hit passes. A hit that does stops the guest."""
    maps = {"gate x": Words()}
    program = Program(None, (*gate.statements, If(gate.passes, (Stop(),))))

    def read(address: int, size: int) -> bytes:
        return bytes(size or WORD)

    return [at for at in clock if run(program, Hit({}, read, clock=at, maps=maps)).stops]


def test_time_counts_from_the_first_hit() -> None:
    """Not from when the clock began: one of 100 s, and ticks from the 60th second of the guest on."""
    gate = gates.in_time(100 * SECOND, Constant(0), "x")
    ticks = [60 * SECOND + tick * SECOND // 4 for tick in range(4 * 250)]
    assert let_through(gate, ticks) == [60 * SECOND, 160 * SECOND, 260 * SECOND]


def test_hits_at_other_times_than_are_due_are_as_many() -> None:
    gate = gates.in_time(SECOND // 50, Constant(0), "x")
    ticks = [7 * SECOND + tick * SECOND // 120 for tick in range(120)]
    assert len(let_through(gate, ticks)) == 50


def test_after_a_time_without_hits_one_passes() -> None:
    gate = gates.in_time(10, Constant(0), "x")
    assert let_through(gate, [100, 101, 500, 501, 509, 510]) == [100, 500, 510]
