"""The codegen backend (isa/codegen.py) of aarch64: value_codegen.py, and the verbs for memory.

    memory        base + 12 bits, or 9 bits with a sign; farther: the rest in x17. What is near the code by its page
    per CPU       TPIDR of the kernel's exception level, which EntryState.per_cpu names: 1, or 2
    atomically    ldxr and stxr at an address without an offset: nothing else may access memory between them; or one
                  instruction, where all CPUs have those of Armv8.1 (FEAT_LSE)
    order         ldaxr, stlxr and stlr, ldseta and casl; dmb ishld behind a branch
Addresses that are near, and branches out of the program, depend on its address. No other instruction is newer than
Armv8.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from gdb_optprobe.isa.aarch64 import encodings, probe_read, spill, value_codegen
from gdb_optprobe.isa.aarch64.abi import GENERAL, LR, PC, SP
from gdb_optprobe.isa.aarch64.encodings import (
    PAGE,
    FarBranch,
    Item,
    LabelBranch,
    NearAddress,
    PageAddress,
    PageOffset,
    branch_if,
    branch_on_bit,
    branch_on_zero,
    may_write,
    number,
    plain,
    scaled,
    shifted,
    unscaled,
)
from gdb_optprobe.isa.aarch64.fields import MASK, fits
from gdb_optprobe.isa.aarch64.fields import signed as as_number
from gdb_optprobe.isa.aarch64.spill import SCRATCH, Spills
from gdb_optprobe.isa.aarch64.value_codegen import ZERO, ValueEmitter
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
    Note,
    labels_among_words,
    save_before,
)

# By size, and whether signed. Those that are not scaled have another name.
_LOADS = {
    (1, False): "ldrb", (1, True): "ldrsb", (2, False): "ldrh", (2, True): "ldrsh", (4, False): "ldrw",
    (4, True): "ldrsw", (8, False): "ldr", (8, True): "ldr",
}  # fmt: skip
_STORES = {1: "strb", 2: "strh", 4: "strw", 8: "str"}
# Those of Armv8.1 that leave the greater, or the less.
_EXTREMES = {
    (Comparison.GT, True): "ldsmax", (Comparison.LT, True): "ldsmin", (Comparison.GT, False): "ldumax",
    (Comparison.LT, False): "ldumin",
}  # fmt: skip
_SYSTEM = {"SP_EL0": "get_sp_el0", "TPIDR_EL1": "get_tpidr_el1", "TPIDR_EL2": "get_tpidr_el2"}
"""Registers of the system that programs read, as GDB names them. SP_EL0 is the running thread (`current`): one that
moves to another CPU between two instructions reads its own all the same, unlike what is per CPU.
"""


class A64Emitter(ValueEmitter):
    """Implements codegen.Emitter. has_atomics: see writer.Counting."""

    probe_read_clobbers: tuple[str, ...] = (probe_read.WORD, probe_read.SIZE, *probe_read.TEMPORARY)
    swap_clobbers: tuple[str, ...] = ()

    def __init__(self, before: EntryState, has_atomics: bool = False) -> None:
        super().__init__(before)
        self._has_atomics = has_atomics
        self._keeping = Spills(before)
        self._address = "", 0, 0  # of the last near address: its register, itself, items before what is behind it
        self._loops = set[Label]()  # that only the code behind them jumps to
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
        self._opened, self._asked = len(self._items), set()
        self._address = "", 0, 0  # the save that comes in between may change its register

    def close_save(self, names: Sequence[str]) -> bool:
        if names and (not self._asked.isdisjoint((SP, *names)) or any(map(self._keeping.has, self._asked))):
            return False
        save_before(self, self._items, self._opened, names)
        return True

    def open_frame(self, size: int) -> None:
        self._code(*self._keeping.open_frame(size))

    def close_frame(self) -> None:
        self._code(*self._keeping.restore())

    def local(self, offset: int) -> Address:
        return Address(SP, offset)

    def register(self, name: str) -> str | None:
        """Return a register as Emitter.register does. Verbs use x17, and sp is an operand of few, so neither is one."""
        self._asked.add(name)
        moved = self._keeping.has(name) or name == SCRATCH
        return None if moved or name not in GENERAL else name

    def read(self, to: str, name: str) -> None:
        self._asked.add(name)
        if self._keeping.has(name):
            self._code(self._keeping.read(to, name))
        elif name == SP:
            self._code(number("addi", to, SP, self._keeping.depth))
        elif name in GENERAL:
            self.copy(to, name)
        else:
            self._code(plain(_SYSTEM[name], to))

    # values

    def load(self, to: str, value: MemoryValue) -> None:
        memory, name = value.memory, _LOADS[value.size, value.signed]
        if value.size == 8 and memory.base and memory.index and _is_sum(memory):
            self._code(plain("ldr_index", to, memory.base, memory.index))
            return
        with self._reached(memory, value.size, to) as (base, offset):
            self._code(_access(name, to, base, offset, value.size))

    def probe_read(self, to: str, address: str, size: int, short: Label, *, text: bool = False, got: str = "") -> None:
        if self._before.readers is None:
            raise KeyError("readers")
        others = [name for name in self.probe_read_clobbers if name not in (to, got)]
        free = [name for name in others if self.pool.reserve(name)]
        moved = {name: self.pool.allocate() for name in others if name not in free}
        for name, place in moved.items():
            self.copy(place, name)
        self.copy(probe_read.WORD, moved.get(address, address))
        self.constant(probe_read.SIZE, size)
        self.copy(self._scratch(), LR)
        self._items.append(FarBranch(self._before.readers.bytes, link=True))
        self.copy(LR, SCRATCH)
        if text:
            self._code(*probe_read.cut())
        self._compare(probe_read.SIZE, size, False)
        size_at = probe_read.SIZE
        if got and to == probe_read.SIZE:
            size_at = got if got != probe_read.WORD else probe_read.TEMPORARY[0]
            self.copy(size_at, probe_read.SIZE)
        self.copy(to, probe_read.WORD)
        if got:
            self.copy(got, size_at)
        for name, place in moved.items():
            self.copy(name, place)
            self.pool.free(place)
        for name in free:
            self.pool.free(name)
        self._items.append(branch_if(Comparison.LT, short))

    def per_cpu_base(self, to: str) -> None:
        if self._before.per_cpu is None:
            raise KeyError("TPIDR")
        self._code(plain(_SYSTEM[f"TPIDR_EL{self._before.per_cpu}"], to))

    def clock(self, to: str, more: int = 0) -> None:
        self._code(plain("get_cntvct_el0", to))
        if more:
            self.binary(Arithmetic.ADD, to, to, more, 64, False)

    def address(self, to: str, memory: Address) -> None:
        self._total(to, memory, as_number(memory.offset))

    # flow

    def jump(self, label: Label) -> None:
        self._items.append(encodings.jump(label))

    def branch(self, test: Comparison, left: str | MemoryValue, right: str | int, signed: bool, label: Label) -> None:
        self._branch(test, self._loaded(left), right, signed, label)

    def branch_bits(self, left: str | MemoryValue, mask: int, any_set: bool, label: Label) -> None:
        self._branch_on_bits(self._loaded(left), mask, any_set, label)

    def restore_and_jump(self, names: Sequence[str], address: int) -> None:
        self._code(*self._keeping.restoring())
        self._items.append(FarBranch(address))

    # memory

    def store(self, memory: Address, word: str | int, size: int = 8) -> None:
        if size == 8 and isinstance(word, str) and memory.base and memory.index and _is_sum(memory):
            self._code(plain("str_index", word, memory.base, memory.index))
            return
        with self._reached(memory, size) as (base, offset), self._stored(word, base, size) as source:
            self._code(_access(_STORES[size], source, base, offset, size))

    def atomic_add(self, memory: Address, word: str | int) -> None:
        if self._has_atomics:
            with self._pointer(memory) as at, self._in_register(word, at) as more:
                self._code(plain("ldadd", ZERO, at, more))
            return
        with self._pointer(memory) as at, self.pool.scratch() as value, self._summand(word, at) as more:
            again = self._load_exclusive("ldxr", value, at)
            self._add(value, value, more)
            self._store_exclusive("stxr", value, at, again, more)

    def atomic_extreme(self, test: Comparison, memory: Address, word: str, signed: bool) -> None:
        if self._has_atomics:
            with self._pointer(memory) as at:
                self._code(plain(_EXTREMES[test, signed], ZERO, at, word))
            return
        past = Label()
        with self._pointer(memory) as at, self.pool.scratch() as value:
            again = self._load_exclusive("ldxr", value, at)
            self._compare(word, value, signed)
            self._items.append(branch_if(test.opposite, past, signed))
            self._store_exclusive("stxr", word, at, again)
            self.bind(past)

    def atomic_fetch_add(self, to: str, memory: Address, word: int) -> None:
        if self._has_atomics:
            with self._pointer(memory) as at, self._in_register(word, at) as more:
                self._code(plain("ldadd", to, at, more))
            return
        with self._pointer(memory) as at, self.pool.scratch() as value, self._summand(word, at) as more:
            with self.pool.scratch() if to == at else nullcontext(to) as was:
                again = self._load_exclusive("ldxr", was, at)
                self._add(value, was, more)
                self._store_exclusive("stxr", value, at, again, more)
            self.copy(to, was)

    def compare_and_swap(self, memory: Address, expected: str | int, word: str, label: Label) -> None:
        with (
            self._pointer(memory) as at,
            self.pool.scratch() as value,
            nullcontext(ZERO) if expected == 0 else self._in_register(expected, at) as wanted,
        ):
            if self._has_atomics:
                self.copy(value, wanted)
                self._code(plain("casl", word, at, value))
                if wanted != ZERO:
                    self._code(plain("eor", value, value, wanted))
                self._items.append(branch_on_zero("cbnz", value, label))
                return
            again = self._load_exclusive("ldxr", value, at)
            if wanted != ZERO:
                self._code(plain("eor", value, value, wanted))
            self._items.append(branch_on_zero("cbnz", value, label))
            self._store_exclusive("stlxr", word, at, again, wanted)

    def claim_for(self, memory: Address, word: str, label: Label, behind: str | None = None) -> int:
        with self._pointer(memory) as at, self.pool.scratch() as value:
            if self._has_atomics:
                self.copy(value, ZERO)
                self._code(plain("casa", word, at, value))
                self._items.append(branch_on_zero("cbz", value, label))
                return 1
            load, store = ("ldaxr", "stxr") if behind is None else ("ldaxp", "stxp")
            again, taken = self._load_exclusive(load, value, at, "x0" if behind is None else ZERO), Label()
            self._items.append(branch_on_zero("cbnz", value, taken))
            with self._free(word, at, behind or "") as failed:
                self._code(plain(store, word, at, failed, behind or "x0"))
                self._items.append(branch_on_zero("cbzw", failed, label))
            self.jump(again)
            self.bind(taken)
        return 1 if behind is None else 2

    def claim(self, memory: Address, label: Label) -> None:
        with self._pointer(memory) as at, self.pool.scratch() as value:
            if self._has_atomics:
                self.constant(value, 1)
                self._code(plain("ldseta", value, at, value))
                self._items.append(branch_on_bit("tbnz", value, 0, label))
                return
            again = self._load_exclusive("ldaxr", value, at)
            self._items.append(branch_on_bit("tbnz", value, 0, label))
            self.binary(Arithmetic.OR, value, value, 1, 64, False)
            self._store_exclusive("stxr", value, at, again)

    def publish(self, memory: Address, word: str | int) -> None:
        with self._pointer(memory) as at, self._stored(word, at) as source:
            self._code(plain("stlr", source, at))

    def acquire(self) -> None:
        self._code(plain("dmb_ishld"))

    @property
    def pool_words(self) -> tuple[int, ...]:
        return encodings.pool_words(self._items)

    def finish(self, at: int, pool: int | None = None) -> bytes:
        return encodings.encode_items(self._items, at, pool)

    def labels(self, has_pool: bool = False) -> Iterator[tuple[int, Label]]:
        return labels_among_words(encodings.reading_pool(self._items) if has_pool else self._items)

    def _load_exclusive(self, name: str, to: str, at: str, behind: str = "x0") -> Label:
        """Begin an exclusive access. Return the label of its beginning. behind: for the second word of a pair."""
        again = Label()
        self._loops.add(again)
        self.bind(again)
        self._code(plain(name, to, at, a=behind))
        return again

    def _store_exclusive(self, name: str, word: str, at: str, again: Label, *busy: str | int) -> None:
        """Store and end the access, or begin it anew. busy: what this needs again, too."""
        with self._free(word, at, *(each for each in busy if isinstance(each, str))) as failed:
            self._code(plain(name, word, at, failed))
            self._items.append(branch_on_zero("cbnzw", failed, again))

    def _add(self, to: str, left: str, more: str | int) -> None:
        if isinstance(more, str):
            self._code(plain("add", to, left, more))
        else:
            self._added(to, left, more)

    # addresses

    @contextmanager
    def _reached(self, memory: Address, size: int, via: str | None = None) -> Iterator[tuple[str, int]]:
        """Have an address as base and displacement of an access for a block. via: a register that may change."""
        offset = as_number(memory.offset)
        if memory.base is not None and not (memory.index or memory.per_cpu or memory.near) and _is_near(offset, size):
            yield memory.base, offset
            return
        low = offset % PAGE if offset % size == 0 else 0
        with self._free() if via is None else nullcontext(via) as far:
            self._total(far, memory, offset - low)
            yield far, low

    def _total(self, to: str, memory: Address, offset: int) -> None:
        """Compute base + 8 * index + offset, and the per-CPU base; `to` may be base or index."""
        at = memory.base
        if memory.index is not None and at is None and memory.near and not memory.per_cpu:
            with nullcontext(to) if to != memory.index else self._free(to) as base:
                self._offset(base, memory, offset)
                self._code(shifted("add", to, base, memory.index, 3))
            return
        if memory.index is not None:
            if at is None:
                self._shift(Arithmetic.SHL, to, memory.index, 3, 64, False)
            else:
                self._code(shifted("add", to, at, memory.index, 3))
            at = to
        if memory.per_cpu:
            with nullcontext(to) if at is None else self._free(at) as mine:
                self.per_cpu_base(mine)
                if at is not None:
                    self._code(plain("add", to, at, mine))
            at = to
        if at is None:
            self._offset(to, memory, offset)
        elif memory.near or not self._added(to, at, offset):
            with self._free(at) as far:
                self._offset(far, memory, offset)
                self._code(plain("add", to, at, far))

    def _offset(self, to: str, memory: Address, offset: int) -> None:
        """Compute the offset of an address, by its page if it is near."""
        if not memory.near:
            self.constant(to, offset & MASK)
            return
        if to == SCRATCH:
            self._uses(SCRATCH)
        if (known := self._known()) is not None and abs(distance := offset - known[1]) < PAGE:
            self._added(to, known[0], distance)
        else:
            near = offset & MASK
            self._items += [NearAddress(to, near), PageOffset(to, near)] if near % PAGE else [PageAddress(to, near)]
        self._address = to, offset, len(self._items)

    def _known(self) -> tuple[str, int] | None:
        """Return the register with the last near address, if it still has it wherever this code is run from."""
        register, address, since = self._address
        if not register or any(self._may_change(item, register) for item in self._items[since:]):
            return None
        return register, address

    def _may_change(self, item: Item, register: str) -> bool:
        match item:
            case int():
                return may_write(item, register)
            case Note():
                return False
            case Label():
                return item not in self._loops
            case LabelBranch():
                return False
        return True

    @contextmanager
    def _pointer(self, memory: Address) -> Iterator[str]:
        """Yield a register with an address, for a block."""
        if memory.base is not None and memory.base != SP and not (memory.index or memory.per_cpu or memory.offset):
            yield memory.base
            return
        with self._free() as at:
            self._total(at, memory, as_number(memory.offset))
            yield at

    def _loaded(self, word: str | MemoryValue) -> str:
        if isinstance(word, str):
            return word
        self.load(self._scratch(), word)
        return SCRATCH

    @contextmanager
    def _stored(self, word: str | int, busy: str, size: int = 8) -> Iterator[str]:
        """Yield a word to store in a register that is not `busy`."""
        if word == 0:
            yield ZERO
            return
        with self._in_register(word & (1 << 8 * size) - 1 if isinstance(word, int) else word, busy) as source:
            yield source

    @contextmanager
    def _summand(self, word: str | int, busy: str) -> Iterator[str | int]:
        """Yield a word in a register that is not `busy`, or as a number of 12 bits."""
        value = as_number(word) if isinstance(word, int) else 0
        if isinstance(word, int) and abs(value) < 1 << 12:
            yield value
            return
        with self._in_register(word, busy) as register:
            yield register


def _is_sum(memory: Address) -> bool:
    """Return whether an address is that of its registers alone."""
    return not (memory.offset or memory.per_cpu)


def _is_near(offset: int, size: int) -> bool:
    """Return whether an access of `size` bytes has room for an offset."""
    return fits(offset, 9) or (offset % size == 0 and 0 <= offset < PAGE * size)


def _access(name: str, register: str, base: str, offset: int, size: int) -> int:
    """Encode a load or store."""
    if offset % size == 0 and 0 <= offset < PAGE * size:
        return scaled(name, register, base, offset, size)
    return unscaled(f"{name[:2]}u{name[2:]}", register, base, offset)


class A64Backend:
    """Implements codegen.Backend. has_atomics: see writer.Counting."""

    pc = PC
    order = staticmethod(value_codegen.order)
    kept = staticmethod(spill.registers_to_spill)

    caller = staticmethod(probe_read.caller)
    resumed = staticmethod(probe_read.resumed)

    def __init__(self, has_atomics: bool) -> None:
        self._has_atomics = has_atomics

    def emitter(self, before: EntryState) -> A64Emitter:
        return A64Emitter(before, self._has_atomics)


BACKEND, BACKEND_LSE = A64Backend(False), A64Backend(True)
_: Backend = BACKEND
