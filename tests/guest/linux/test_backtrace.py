"""A backtrace from a copy of the stack ends where the stack does, or says that the copy did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.backtrace import Copy, backtrace
from gdb_optprobe.isa.base import ReadMemory

STACK = 0xFFFF_C900_0000_0000


@dataclass(frozen=True)
class Words:
    """Each frame is one word, the return address; 0 ends the stack."""

    read: ReadMemory
    text: tuple[int, int] = (0, 1 << 64)

    def caller(self, registers: Mapping[str, int], exact: bool) -> tuple[Mapping[str, int], bool] | None:
        try:
            pc = int.from_bytes(self.read(registers["rsp"], 8), "little")
        except Unreadable:
            return None
        return ({"rip": pc, "rsp": registers["rsp"] + 8}, False) if pc else None

    def over(self, read: ReadMemory) -> Words:
        return Words(read)


def live(address: int, size: int) -> bytes:
    raise AssertionError("the stack is another one by now")


def frames(*words: int) -> list[tuple[int, bool]]:
    copy = Copy(STACK, b"".join(word.to_bytes(8, "little") for word in words))
    return list(backtrace(Words(live), {"rip": 1, "rsp": STACK}, "rip", copy))


def test_to_the_end_of_the_stack() -> None:
    assert frames(2, 3, 0, 4) == [(1, True), (2, False), (3, False)]


def test_to_the_end_of_the_copy() -> None:
    assert frames(2, 3) == [(1, True), (2, False), (3, False), (0, True)]


def test_a_stack_that_goes_round_ends_too() -> None:
    assert len(frames(*range(2, 500))) == 64
