"""The codegen backend (isa/codegen.py) of ppc64le: value_codegen.py, and the verbs for memory.

    CTR, LR       changed only where they are dead, to spill registers to (spill.py)
    memory        base + 16 bits; farther: addis, or the rest in r0; constants from the TOC if r2 is known
    atomically    ldarx and stdcx. at RA + RB, which change CR0
Only branches out of the program depend on its address. No instruction is newer than POWER8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.codegen import (
    NOTHING_DEAD,
    Address,
    Arithmetic,
    Backend,
    Comparison,
    EntryState,
    Label,
    MemoryValue,
    labels_among_words,
    save_before,
)
from gdb_optprobe.isa.ppc64le import encodings, probe_read, spill, value_codegen
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, CTR, FLAGS, GENERAL, HEADER, LR, PC, SP, XER
from gdb_optprobe.isa.ppc64le.encodings import NONE, FarBranch, LabelBranch, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.fields import BO_NO_CTR, MASK, fits
from gdb_optprobe.isa.ppc64le.fields import signed as as_number
from gdb_optprobe.isa.ppc64le.spill import Spills
from gdb_optprobe.isa.ppc64le.value_codegen import SCRATCH, ValueEmitter

_PACA, _TOC = "r13", "r2"
_BO_FALSE_UNLIKELY = BO_NO_CTR | 2  # the hint is `a` and `t` (Book I, 2.4)
_LOADS = {(1, False): "lbz", (2, False): "lhz", (2, True): "lha", (4, False): "lwz", (4, True): "lwa"}
_STORES = {1: "stb", 2: "sth", 4: "stw", 8: "std"}
_BY_WORDS = ("ld", "lwa", "std")  # their displacements are multiples of 4


class PowerEmitter(ValueEmitter):
    """Implements codegen.Emitter."""

    probe_read_clobbers: tuple[str, ...] = (probe_read.WORD, probe_read.SIZE, *probe_read.TEMPORARY)
    swap_clobbers: tuple[str, ...] = ()

    def __init__(self, before: EntryState) -> None:
        super().__init__(before)
        self._keeping = Spills(before, self._spare_fields)
        self._opened = 0  # items before the `save` to come
        self._asked = set[str]()  # registers that the code since then reads

    # registers

    def save(self, names: Sequence[str]) -> None:
        self._code(*self._keeping.save(names))
        if self._keeping.uses_scratch:
            self._uses(SCRATCH)

    def restore(self, names: Sequence[str], dead: Dead = NOTHING_DEAD) -> None:
        self._code(*self._keeping.restore())

    def open_save(self) -> None:
        self._keeping.assume_frame()
        self._opened, self._asked = len(self._items), set()

    def close_save(self, names: Sequence[str]) -> bool:
        if not self._asked.isdisjoint((SP, *names)) or any(map(self._keeping.has, self._asked)):
            return False
        if not self._keeping.may_save(names):
            return False
        save_before(self, self._items, self._opened, names)
        return True

    def open_frame(self, size: int) -> None:
        self._code(*self._keeping.open_frame(size))

    def close_frame(self) -> None:
        self._code(*self._keeping.restore())

    def local(self, offset: int) -> Address:
        return Address(SP, HEADER + offset)

    def register(self, name: str) -> str | None:
        """Return a register as Emitter.register does. r0 means 0 in some fields, so it is never read in place."""
        self._asked.add(name)
        moved = self._keeping.has(name) or name == SCRATCH or (name == SP and self._keeping.depth)
        return None if moved or name not in GENERAL else name

    def read(self, to: str, name: str) -> None:
        self._asked.add(name)
        if self._keeping.has(name):
            self._code(self._keeping.read(to, name))
        elif name == SP:
            self._code(number("addi", to, SP, self._keeping.depth))
        elif name in GENERAL:
            self._code(logical("or", to, name, name))
        else:
            self._code(plain({LR: "mflr", CTR: "mfctr", XER: "mfxer", FLAGS: "mfcr"}[name], to))

    # values

    def load(self, to: str, value: MemoryValue) -> None:
        name = "ld" if value.size == 8 else _LOADS.get((value.size, value.signed), "lbz")
        with self._reached(value.memory, name in _BY_WORDS, None if to == SCRATCH else to) as (base, offset):
            self._code(number(name, to, base, offset))
        if value.size == 1 and value.signed:
            self._code(logical("extsb", to, to))

    def probe_read(self, to: str, address: str, size: int, short: Label, *, text: bool = False, got: str = "") -> None:
        if self._before.readers is None:
            raise KeyError("readers")
        others = [name for name in self.probe_read_clobbers if name not in (to, got)]
        free = [name for name in others if self.pool.reserve(name)]
        moved = {name: self.pool.allocate() for name in others if name not in free}
        for name, place in moved.items():
            self.copy(place, name)
        self.copy(probe_read.WORD, moved.get(address, address))
        self._code(number("addi", probe_read.SIZE, NONE, size), plain("mflr", self._scratch()))
        self._items.append(FarBranch(self._before.readers.bytes, link=True))
        self._code(plain("mtlr", self._scratch()), *(probe_read.cut() if text else ()))
        self._uses(CR_FIELDS[0])
        self._code(encodings.compare("cmpldi", 0, probe_read.SIZE, size))
        if got:
            self.copy(probe_read.TEMPORARY[0], probe_read.SIZE)
        self.copy(to, probe_read.WORD)
        if got:
            self.copy(got, probe_read.TEMPORARY[0])
        for name, place in moved.items():
            self.copy(name, place)
            self.pool.free(place)
        for name in free:
            self.pool.free(name)
        self._jump(Comparison.LT, short, 0)

    def per_cpu_base(self, to: str) -> None:
        if self._before.per_cpu is None:
            raise KeyError("data_offset")
        self._code(number("ld", to, _PACA, self._before.per_cpu))

    def clock(self, to: str, more: int = 0) -> None:
        self._code(plain("mftb", to))
        if more:
            self.binary(Arithmetic.ADD, to, to, more, 64, False)

    def address(self, to: str, memory: Address) -> None:
        memory = self._named(memory)
        self._sum(to, memory, as_number(memory.offset))

    # flow

    def jump(self, label: Label) -> None:
        self._items.append(LabelBranch(label))

    def branch(self, test: Comparison, left: str | MemoryValue, right: str | int, signed: bool, label: Label) -> None:
        self._compare(self._loaded(left), right, signed)
        self._jump(test, label)

    def branch_bits(self, left: str | MemoryValue, mask: int, any_set: bool, label: Label) -> None:
        self._test(self._loaded(left), mask)
        self._jump(Comparison.NE if any_set else Comparison.EQ, label)

    def restore_and_jump(self, names: Sequence[str], address: int) -> None:
        self._code(*self._keeping.restoring())
        self._items.append(FarBranch(address))

    # memory

    def store(self, memory: Address, word: str | int, size: int = 8) -> None:
        name = _STORES[size]
        with self._reached(memory, name in _BY_WORDS) as (base, offset):
            if isinstance(word, int):
                self.constant(SCRATCH, as_number(word, 8 * size) & MASK)
                word = SCRATCH
            self._code(number(name, word, base, offset))

    def atomic_add(self, memory: Address, word: str | int) -> None:
        again = Label()
        with self._held(word) as more, self._pointer(memory) as (base, index), self.pool.scratch() as value:
            self.bind(again)
            self._code(plain("ldarx", value, base, index))
            if isinstance(more, int):
                self._code(number("addi", value, value, more))
            else:
                self._code(plain("add", value, value, more))
            self._stored(value, base, index, again)

    def atomic_extreme(self, test: Comparison, memory: Address, word: str, signed: bool) -> None:
        again, past = Label(), Label()
        with self._pointer(memory) as (base, index), self.pool.scratch() as value:
            self.bind(again)
            self._code(plain("ldarx", value, base, index))
            self._code(encodings.compare("cmpd" if signed else "cmpld", 0, word, value))
            self._jump(test.opposite, past, 0)
            self._stored(word, base, index, again)
            self.bind(past)

    def atomic_fetch_add(self, to: str, memory: Address, word: int) -> None:
        again = Label()
        with self._held(word) as more, self._pointer(memory) as (base, index), self.pool.scratch() as value:
            with self._working(to, base if base == to else index) as was:
                self.bind(again)
                self._code(plain("ldarx", was, base, index))
                if isinstance(more, int):
                    self._code(number("addi", value, was, more))
                else:
                    self._code(plain("add", value, was, more))
                self._stored(value, base, index, again)
            self.copy(to, was)

    def compare_and_swap(self, memory: Address, expected: str | int, word: str, label: Label) -> None:
        self._code(plain("lwsync"))
        self._swap(memory, expected, word, label)

    def _swap(self, memory: Address, expected: str | int, word: str, label: Label) -> None:
        again = Label()
        with (
            self._expected(expected) as wanted,
            self._pointer(memory) as (base, index),
            self.pool.scratch() as value,
        ):
            self.bind(again)
            self._code(plain("ldarx", value, base, index))
            self._code(encodings.compare("cmpldi" if isinstance(wanted, int) else "cmpld", 0, value, wanted))
            self._uses(CR_FIELDS[0])
            self._jump(Comparison.NE, label, 0)
            self._stored(word, base, index, again)

    def claim_for(self, memory: Address, word: str, label: Label, behind: str | None = None) -> int:
        taken = Label()
        self._swap(memory, 0, word, taken)
        self._code(plain("lwsync"))
        self.jump(label)
        self.bind(taken)
        return 1

    def claim(self, memory: Address, label: Label) -> None:
        """Set bit 0. The bit is tested as the sign, which takes no second register."""
        again = Label()
        with self._pointer(memory) as (base, index), self.pool.scratch() as value:
            self.bind(again)
            self._code(plain("ldarx", value, base, index), rotate("rldicl.", value, value, 63, 0))
            self._jump(Comparison.LT, label, 0)
            self._code(rotate("rldicl", value, value, 1, 0), logical("ori", value, value, 1))
            self._stored(value, base, index, again)
        self._code(plain("lwsync"))

    def publish(self, memory: Address, word: str | int) -> None:
        self._code(plain("lwsync"))
        self.store(memory, word)

    def acquire(self) -> None:
        self._code(plain("lwsync"))

    @property
    def pool_words(self) -> tuple[int, ...]:
        return ()

    def finish(self, at: int, pool: int | None = None) -> bytes:
        return encodings.encode_items(self._items, at)

    def labels(self, has_pool: bool = False) -> Iterator[tuple[int, Label]]:
        return labels_among_words(self._items)

    def _stored(self, value: str, base: str, index: str, again: Label) -> None:
        self._uses(CR_FIELDS[0])
        self._code(plain("stdcx.", value, base, index))
        self._items.append(LabelBranch(again, _BO_FALSE_UNLIKELY, 2))

    # addresses

    def _named(self, memory: Address) -> Address:
        """Return a constant address relative to the TOC, if it is within 2 GiB."""
        if memory.base is None and self._before.base is not None:
            offset = as_number(memory.offset - self._before.base)
            if fits(offset + 0x8000, 32):
                return replace(memory, base=_TOC, offset=offset)
        return memory

    def _reached(
        self, memory: Address, by_words: bool, via: str | None = None
    ) -> AbstractContextManager[tuple[str, int]]:
        """Have an address as base and displacement for a block.

        by_words: a multiple of 4. via: a register that may change.
        """
        memory = self._named(memory)
        offset = as_number(memory.offset)
        low = as_number(offset, 16)
        high = offset - low
        if by_words and low & 3:
            low, high = 0, offset
        if not (high or memory.index or memory.per_cpu):
            return nullcontext((memory.base or NONE, low))
        return self._summed(memory, high, low, via)

    @contextmanager
    def _summed(self, memory: Address, high: int, low: int, via: str | None) -> Iterator[tuple[str, int]]:
        with self._working(via or SCRATCH, SCRATCH) as far:
            self._sum(far, memory, high)
            yield far, low

    def _sum(self, to: str, memory: Address, offset: int) -> None:
        """Compute base + 8 * index + offset, and the per-CPU base; `to` may be base or index."""
        at = memory.base
        if memory.index is not None:
            eight = to if at is None else self._scratch()
            self._code(rotate("rldicr", eight, memory.index, 3, 60))
            if at is not None:
                self._code(plain("add", to, at, eight))
            at = to
        if memory.per_cpu:
            mine = to if at is None else self._scratch()
            self.per_cpu_base(mine)
            if at is not None:
                self._code(plain("add", to, at, mine))
            at = to
        if at is None:
            self.constant(to, offset & MASK)
        elif not offset:
            self.copy(to, at)
        elif not self._added(to, at, offset) and not self._added_from_toc(to, at, offset):
            self.constant(SCRATCH, offset & MASK)
            self._code(plain("add", to, at, SCRATCH))

    def _added_from_toc(self, to: str, at: str, offset: int) -> bool:
        """Add `offset` by the TOC, if it is an address within 2 GiB of that; return whether it is."""
        if self._before.base is None or not fits(as_number(offset - self._before.base) + 0x8000, 32):
            return False
        self._code(plain("add", to, at, _TOC))
        return self._added(to, to, as_number(offset - self._before.base))

    @contextmanager
    def _pointer(self, memory: Address) -> Iterator[tuple[str, str]]:
        """Yield an address as RA and RB. r0 may be one of them, so it is in use meanwhile."""
        memory = self._named(memory)
        offset = as_number(memory.offset)
        if memory.index is not None and (offset or memory.base is None):
            with self.pool.scratch() as far:
                self._sum(far, replace(memory, index=None), offset)
                yield far, self._eightfold(memory.index)
        elif memory.index is not None and memory.base is not None:
            yield memory.base, self._eightfold(memory.index)
        elif memory.base is None or (offset and not fits(offset, 16)):
            self.constant(SCRATCH, offset & MASK)
            yield memory.base or NONE, SCRATCH
        elif offset:
            self._code(number("addi", self._scratch(), memory.base, offset))
            yield NONE, SCRATCH
        else:
            yield NONE, memory.base

    def _eightfold(self, index: str) -> str:
        self._code(rotate("rldicr", self._scratch(), index, 3, 60))
        return SCRATCH

    def _loaded(self, word: str | MemoryValue) -> str:
        if isinstance(word, str):
            return word
        self.load(self._scratch(), word)
        return SCRATCH

    @contextmanager
    def _expected(self, word: str | int) -> Iterator[str | int]:
        """Yield a word in a register, or as an unsigned number of 16 bits."""
        if isinstance(word, str) or word < 1 << 16:
            yield word
            return
        with self.pool.scratch() as register:
            self.constant(register, word)
            yield register

    @contextmanager
    def _held(self, word: str | int) -> Iterator[str | int]:
        """Yield a word in a register other than r0, or as a number of 16 bits."""
        if isinstance(word, str) or fits(as_number(word), 16):
            yield word if isinstance(word, str) else as_number(word)
            return
        with self.pool.scratch() as register:
            self.constant(register, word)
            yield register


class _PowerBackend:
    """Implements codegen.Backend."""

    pc = PC
    emitter = staticmethod(PowerEmitter)
    order = staticmethod(value_codegen.order)
    kept = staticmethod(spill.registers_to_spill)

    caller = staticmethod(probe_read.caller)
    resumed = staticmethod(probe_read.resumed)


BACKEND = _PowerBackend()
_: Backend = BACKEND
