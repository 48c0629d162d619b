"""Native code that changes the session's maps, run by threads of this process on all of its CPUs at once.

    code    a loop around the program: a key of the number of rounds that are left
    data    faults, maps
The kernel's scheduler interrupts the threads wherever they are, as interrupts do in a guest.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Barrier

import pytest

from gdb_optprobe.handlers.ir import (
    Assign,
    Binary,
    Column,
    Constant,
    Delete,
    Form,
    Get,
    If,
    Map,
    Modify,
    Op,
    Program,
    Register,
    Set,
    Statement,
    Update,
    Variable,
)
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.lower_session_maps import session_layout
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.aggregate import Average, Count, Sum, encode
from gdb_optprobe.maps.session_map import SPARE, SessionMapContents
from tests.examples import samples

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="runs code of x86-64")

THREADS = 4
DATA, SIZE = 0x1_0000, 0x40_0000
KEY = (Register("rdx"),)
COLUMNS = (Column("", Form.UNSIGNED),)
X = Variable("$x")


@dataclass(frozen=True)
class Process:
    """A program in memory of this process. maps: where each is, from the beginning on."""

    memory: mmap.mmap
    address: int
    maps: dict[str, int]

    def run(self, rounds: int) -> None:
        """Have every thread run the program so many times, all at once."""
        loop = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(self.address)
        together = Barrier(THREADS)

        def one(_: int) -> None:
            together.wait()
            loop(rounds)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, range(THREADS)))

    def clear(self, target: Map) -> None:
        at = self.maps[target.name]
        data = session_layout(target).initial()
        self.memory[at : at + len(data)] = data

    def contents(self, target: Map) -> SessionMapContents:
        layout, at = session_layout(target), self.maps[target.name]
        return layout.decode(self.memory[at : at + layout.size])


@contextmanager
def process(program: Program, keys: int) -> Iterator[Process]:
    """Have a program in memory, in a loop whose key (rdx) is the number of rounds left, modulo `keys`."""
    memory = mmap.mmap(-1, SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    place = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(place)
    maps, at = dict[str, int](), DATA + 8
    for target in program.maps:
        maps[target.name] = at
        at += session_layout(target).size
    assert at <= SIZE
    found = Process(memory, start, maps)
    around = LoweringContext(start, faults=start + DATA, maps={name: start + at for name, at in maps.items()})
    head = b"\x48\x89\xfa" + b"\x48\x81\xe2" + (keys - 1).to_bytes(4, "little")  # mov rdx, rdi; and rdx, keys - 1
    body = lower(program, around, BACKEND)(start + len(head))
    back = -len(head) - len(body) - 9
    code = head + body + b"\x48\xff\xcf" + b"\x0f\x85" + back.to_bytes(4, "little", signed=True) + b"\xc3"
    assert len(code) < DATA
    memory[: len(code)] = code  # dec rdi; jne; ret
    for target in program.maps:
        found.clear(target)
    try:
        yield found
    finally:
        del place
        memory.close()


def once(*statements: Statement) -> Program:
    return Program(None, statements, quiet=True)


def every(keys: int, words: tuple[int, ...]) -> dict[bytes, tuple[int, ...]]:
    return {encode((key,)): words for key in range(keys)}


def test_keys_that_all_add_at_once_are_added_once() -> None:
    """Every thread adds the same keys in the same order to an empty map."""
    keys = 1024
    target = Map("m", COLUMNS, Count(), keys)
    with process(once(Update(target, None, KEY)), keys) as here:
        for _ in range(samples(20)):
            here.clear(target)
            here.run(2 * keys)
            found = here.contents(target)
            assert found.by_key == every(keys, (2 * THREADS,)) and not found.dropped
            assert keys <= found.entries <= keys + SPARE


@pytest.mark.parametrize("key_is", ["one word", "two words", "in the frame"])
def test_nothing_is_lost_or_counted_twice(key_is: str) -> None:
    keys, rounds = 16, 16 * samples(4000)
    by = {"one word": KEY, "two words": 2 * KEY, "in the frame": 5 * KEY}[key_is]
    columns = COLUMNS * len(by)
    average, total = Map("a", columns, Average(False), keys), Map("s", columns, Sum(False), keys)
    number = Map("n", columns, COLUMNS, keys)
    statements = (
        Update(average, Constant(3), by),
        Update(total, Constant(5), by),
        Modify(number, by, Op.ADD, Constant(1)),
    )
    with process(once(*statements), keys) as here:
        here.run(rounds)
        count = THREADS * rounds // keys
        for target, words in ((average, (count, 3 * count)), (total, (5 * count,)), (number, (count,))):
            found = here.contents(target)
            assert not found.dropped
            assert found.by_key == {encode((key,) * len(by)): words for key in range(keys)}


def test_what_is_stored_read_and_deleted_at_once_is_whole() -> None:
    """A thread reads what some thread stored for this key, or nothing; as many deletes succeed as stores they undo."""
    keys, rounds = 8, 8 * samples(4000)
    target = Map("m", COLUMNS, COLUMNS, keys)
    wrong, stored, had = Map("wrong", (), Count()), Map("stored", (), Count()), Map("had", (), Sum(False))
    value = Binary(Op.ADD, Binary(Op.MUL, Register("rdx"), Constant(1 << 32), 64, False), Constant(7), 64, False)
    is_there, differs = (Binary(Op.NE, X, word, 64, False) for word in (Constant(0), value))
    statements = (
        Set(target, KEY, (value,)),
        Update(stored),
        Get(target, KEY, X),
        If(Binary(Op.AND, is_there, differs, 64, False), (Update(wrong),)),
        Delete(target, KEY, X),
        Update(had, X),
        Assign(X, Constant(0)),
    )
    with process(once(*statements), keys) as here:
        here.run(rounds)
        (sets,) = here.contents(stored).by_key.values()
        (deletes,) = here.contents(had).by_key.values()
        assert sets == (THREADS * rounds,) and 0 < deletes[0] <= sets[0]
        assert not here.contents(wrong).by_key
        assert not here.contents(target).by_key, "every store was followed by a delete"
        assert here.contents(target).entries <= keys + SPARE
