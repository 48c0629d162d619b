"""The codegen backend (isa/codegen.py) of x86-64.

    saved registers   push each, flags by pushfq; a program that reads one finds it there
    fixed registers   of a division, a shift by a register, rdtsc: other values are moved aside and back again
    memory            [base + 8 * index + 32 bits], gs: where it is per CPU; [rip + 32 bits] for what is near the code
                      and in neither the upper nor the lower 2 GiB; twice 32 bits, the first added in a register, for
                      the arena's data below the kernel; other addresses in a register
    jumps             2 bytes, or 6 and 5 where that does not reach
In `used` of a pool, "eflags" means the flags that `inc` changes, "carry" is CF, which it does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    RegisterPool,
    save_before,
)
from gdb_optprobe.isa.x86_64 import probe_read
from gdb_optprobe.isa.x86_64.abi import CARRY, FLAGS, GENERAL, PC, SP
from gdb_optprobe.isa.x86_64.branch_relaxation import Item, LabelBranch, encode_items, place_labels
from gdb_optprobe.isa.x86_64.encoder import (
    LOCK,
    NUMBERS,
    Relative,
    immediate,
    instruction,
    is_relative,
    pop,
    push,
    relative,
)
from gdb_optprobe.isa.x86_64.writer import DROP, MASK, fits
from gdb_optprobe.isa.x86_64.writer import signed as signed_number

# Condition codes (SDM volume 2, appendix B.1.4.7): the lowest four bits of jcc, setcc and cmovcc.
_UNSIGNED = {Comparison.EQ: 4, Comparison.NE: 5, Comparison.LT: 2, Comparison.GE: 3, Comparison.LE: 6, Comparison.GT: 7}
_SIGNED = _UNSIGNED | {Comparison.LT: 12, Comparison.GE: 13, Comparison.LE: 14, Comparison.GT: 15}
# Opcode of `op reg, r/m`, and the extension of `op r/m, immediate`.
_SIMPLE = {
    Arithmetic.ADD: (b"\x03", 0),
    Arithmetic.OR: (b"\x0b", 1),
    Arithmetic.AND: (b"\x23", 4),
    Arithmetic.SUB: (b"\x2b", 5),
    Arithmetic.XOR: (b"\x33", 6),
}
_BITWISE = (Arithmetic.AND, Arithmetic.OR, Arithmetic.XOR)
_CMP = 7
_SHL, _SHR, _SAR = 4, 5, 7
LOWEST = -1 << 31
"""What a displacement of 32 bits can take away at most."""


class X86Emitter:
    """Implements codegen.Emitter."""

    probe_read_clobbers: tuple[str, ...] = (probe_read.WORD, probe_read.SIZE, probe_read.LOST)
    swap_clobbers: tuple[str, ...] = ("rax",)

    def __init__(self, before: EntryState) -> None:
        self.pool = RegisterPool(BACKEND.order(before))
        self._before = before
        self._items: list[Item] = []
        self._pushed = ["" if name == before.kept.but else name for name in before.kept.names]
        self._frame = self._frame_top = 0  # words of the frame; words pushed, it included
        self._opened = 0  # items before the `save` to come
        self._asked = set[str]()  # registers that the code since then reads

    # registers

    def save(self, names: Sequence[str]) -> None:
        for name in names:
            self._push(name)

    def restore(self, names: Sequence[str], dead: Dead = NOTHING_DEAD) -> None:
        for name in reversed(names):
            self._pop(name, name == FLAGS and dead.flags and CARRY in dead.registers)

    def open_save(self) -> None:
        self._opened, self._asked = len(self._items), set()

    def close_save(self, names: Sequence[str]) -> bool:
        if names and not self._asked.isdisjoint((SP, *names, *self._pushed)):
            return False
        save_before(self, self._items, self._opened, names)
        return True

    def register(self, name: str) -> str | None:
        self._asked.add(name)
        moved = name in self._pushed or (name == SP and self._pushed)
        return None if moved or name not in GENERAL else name

    def read(self, to: str, name: str) -> None:
        self._asked.add(name)
        if name in self._pushed:
            slot = Address(SP, 8 * (len(self._pushed) - 1 - self._pushed.index(name)))
            self._extended(to, slot, 4 if name == FLAGS else 8, False)
        elif name == SP:
            self._move(b"\x8d", to, Address(SP, 8 * len(self._pushed)))
        elif name == FLAGS:
            self._push(FLAGS)
            self._pop(to)
        elif name in GENERAL:
            self.copy(to, name)
        else:
            raise KeyError(name)

    def open_frame(self, size: int) -> None:
        self._move(b"\x8d", SP, Address(SP, -size))
        self._frame = size // 8
        self._pushed += [""] * self._frame
        self._frame_top = len(self._pushed)

    def close_frame(self) -> None:
        self._move(b"\x8d", SP, Address(SP, 8 * self._frame))
        del self._pushed[len(self._pushed) - self._frame :]

    def local(self, offset: int) -> Address:
        return Address(SP, offset + 8 * (len(self._pushed) - self._frame_top))

    def raw(self, code: bytes) -> None:
        """Emit an instruction that no verb emits."""
        self._code(code)

    # values

    def constant(self, to: str, word: int) -> None:
        """Load a constant, without changing flags."""
        number = NUMBERS[to]
        if word < 1 << 32:
            self._code(bytes((0x41,)) * (number > 7) + bytes((0xB8 | number & 7,)) + immediate(word, 4))
        elif fits(signed_number(word)):
            self._move(b"\xc7", 0, to, tail=immediate(word, 4))
        else:
            self._code(bytes((0x48 | number >> 3, 0xB8 | number & 7)) + immediate(word, 8))

    def copy(self, to: str, source: str) -> None:
        if to != source:
            self._move(b"\x8b", to, source)

    def load(self, to: str, value: MemoryValue) -> None:
        with self._reached(value.memory, to) as memory:
            self._extended(to, memory, value.size, value.signed)

    def probe_read(self, to: str, address: str, size: int, short: Label, *, text: bool = False, got: str = "") -> None:
        readers = self._before.readers
        if readers is None:
            raise KeyError("readers")
        with self._fixed((to, got), *(name for name in self.probe_read_clobbers if name not in (to, got))) as places:
            self.copy(probe_read.WORD, places.get(address, address))
            self.constant(probe_read.SIZE, size)
            self._items.append(Relative(b"\xe8" + bytes(4), 1, readers.text if text else readers.bytes))
            self._immediate(_CMP, probe_read.SIZE, size, 4)
            if to == probe_read.SIZE:
                self._code(b"\x4c\x87\xd0")  # xchg rax, r10
                self.copy(got or probe_read.WORD, probe_read.WORD)
            else:
                self.copy(to, probe_read.WORD)
                self.copy(got or probe_read.SIZE, probe_read.SIZE)
        self._jump(_UNSIGNED[Comparison.LT], short)

    def per_cpu_base(self, to: str) -> None:
        if self._before.per_cpu is None:
            raise KeyError("this_cpu_off")
        self.load(to, MemoryValue(Address(offset=self._before.per_cpu, per_cpu=True)))

    def clock(self, to: str, more: int = 0) -> None:
        offset = signed_number(more) if fits(signed_number(more)) else 0
        with self._fixed((), *(name for name in ("rdx", "rax") if name != to)):
            self._code(b"\x0f\x31")  # rdtsc: the halves of the word
            self._alter(b"\xc1", _SHL, "rdx", tail=bytes((32 - 3,)))
            self._move(b"\x8d", to, Address("rax", offset, "rdx"))
        if more and not offset:
            self.binary(Arithmetic.ADD, to, to, more, 64, False)

    def address(self, to: str, memory: Address) -> None:
        if memory.base is None and memory.index is None:
            self.constant(to, memory.offset & MASK)
            return
        with self._reached(memory, to) as reached:
            self._move(b"\x8d", to, reached)

    def negate(self, to: str, source: str, bits: int, signed: bool) -> None:
        self.copy(to, source)
        self._alter(b"\xf7", 3, to, bits // 8)
        self._canonical(to, bits, signed)

    def invert(self, to: str, source: str, bits: int, signed: bool) -> None:
        self.copy(to, source)
        self._move(b"\xf7", 2, to, 4 if bits == 32 and not signed else 8)

    def extend(self, to: str, source: str, bits: int, signed: bool) -> None:
        if bits in (8, 16, 32):
            self._extended(to, source, bits // 8, signed)
        elif not signed and bits < 32:
            self.binary(Arithmetic.AND, to, source, (1 << bits) - 1, 64, False)
        else:
            self.copy(to, source)
            self._alter(b"\xc1", _SHL, to, tail=bytes((64 - bits,)))
            self._alter(b"\xc1", _SAR if signed else _SHR, to, tail=bytes((64 - bits,)))

    def binary(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None:
        if op in (Arithmetic.SHL, Arithmetic.SHR):
            self._shift(op, to, left, right, bits, signed)
        elif op in (Arithmetic.DIV, Arithmetic.MOD):
            self._divide(op, to, left, right, signed)
        else:
            size = 8 if bits == 64 or (op in _BITWISE and signed) else 4
            if isinstance(right, int):
                self._operate_number(op, to, left, right, size)
            elif to != right:
                self.copy(to, left)
                self._operate(op, to, right, size)
            elif op is Arithmetic.SUB:  # left - to
                self._alter(b"\xf7", 3, to)
                self._operate(Arithmetic.ADD, to, left, size)
            else:
                self._operate(op, to, left, size)
            if op not in _BITWISE:
                self._canonical(to, bits, signed)

    def multiply_high(self, to: str, left: str, right: str | int) -> None:
        with self._fixed((), *(name for name in ("rax", "rdx") if name != to)) as places:
            left = places.get(left, left)
            if isinstance(right, int):
                factor = "rdx" if left == "rax" else "rax"
                self.constant(factor, right)
                other = factor if left == "rax" else left
            elif "rax" in (left, right := places.get(right, right)):
                other = right if left == "rax" else left
            else:
                self.copy("rax", left)
                other = right
            self._alter(b"\xf7", 4, other)
            self.copy(to, "rdx")

    def compare(self, test: Comparison, to: str, left: str, right: str | int, signed: bool) -> None:
        codes = self._compare(left, right, signed)
        self._move(bytes((0x0F, 0x90 | codes[test])), 0, to, 1)
        self._extended(to, to, 1, False)

    def logarithm(self, to: str, source: str, any_set: bool = False) -> None:
        done = Label()
        self._alter(b"\x0f\xbd", to, source)  # bsr: leaves `to` undefined where it sets ZF
        if any_set:
            return
        self._jump(_UNSIGNED[Comparison.NE], done)
        self._alter(b"\x83", 1, to, tail=b"\xff")
        self.bind(done)

    def logarithm_less(self, to: str, source: str) -> int:
        self.logarithm(to, source)
        return 0

    # flow

    def bind(self, label: Label) -> None:
        self._items.append(label)

    def jump(self, label: Label) -> None:
        self._jump(None, label)

    def branch(self, test: Comparison, left: str | MemoryValue, right: str | int, signed: bool, label: Label) -> None:
        self._jump(self._compare(left, right, signed)[test], label)

    def branch_bits(self, left: str | MemoryValue, mask: int, any_set: bool, label: Label) -> None:
        if isinstance(left, str):
            self._test(left, mask, 8)
        else:
            with self._reached(left.memory) as memory:
                self._test(memory, _within(mask, left), left.size)
        self._jump(_UNSIGNED[Comparison.NE if any_set else Comparison.EQ], label)

    def restore_and_jump(self, names: Sequence[str], address: int) -> None:
        self._code(b"".join(pop(name) for name in reversed(names)))
        self._items.append(Relative(b"\xe9" + bytes(4), 1, address))

    # memory

    def store(self, memory: Address, word: str | int, size: int = 8) -> None:
        with self._reached(memory) as reached:
            if isinstance(word, int) and (size < 8 or fits(signed_number(word))):
                self._move(b"\xc6" if size == 1 else b"\xc7", 0, reached, size, immediate(word, min(size, 4)))
            else:
                with self._in_register(word) as source:
                    self._move(b"\x88" if size == 1 else b"\x89", source, reached, size)

    def atomic_add(self, memory: Address, word: str | int) -> None:
        with self._reached(memory) as reached:
            if word == 1:  # changes all flags but CF
                self._move(b"\xff", 0, reached, prefix=LOCK)
                self.pool.used.add(FLAGS)
            elif isinstance(word, int) and fits(signed_number(word)):
                self._alter(b"\x81", 0, reached, tail=immediate(word, 4), prefix=LOCK)
            else:
                with self._in_register(word) as source:
                    self._alter(b"\x01", source, reached, prefix=LOCK)

    def atomic_extreme(self, test: Comparison, memory: Address, word: str, signed: bool) -> None:
        again, done = Label(), Label()
        with self._fixed((), "rax") as places, self._reached(moved(memory, places)) as reached:
            value = places.get(word, word)
            self._move(b"\x8b", "rax", reached)
            self.bind(again)
            codes = self._compare(value, "rax", signed)
            self._jump(codes[test.opposite], done)
            self._alter(b"\x0f\xb1", value, reached, prefix=LOCK)  # cmpxchg; if it fails, rax has the present value
            self._jump(codes[Comparison.NE], again)
            self.bind(done)

    def atomic_fetch_add(self, to: str, memory: Address, word: int) -> None:
        with self._reached(memory) as reached:
            self.constant(to, word)
            self._alter(b"\x0f\xc1", to, reached, prefix=LOCK)

    def compare_and_swap(self, memory: Address, expected: str | int, word: str, label: Label) -> None:
        with self._fixed((), "rax") as places, self._reached(moved(memory, places)) as reached:
            if isinstance(expected, int):
                self.constant("rax", expected)
            else:
                self.copy("rax", places.get(expected, expected))
            self._alter(b"\x0f\xb1", places.get(word, word), reached, prefix=LOCK)  # cmpxchg
        self._jump(_UNSIGNED[Comparison.NE], label)

    def claim(self, memory: Address, label: Label) -> None:
        self._claim(memory, Comparison.LT, label)

    def claim_for(self, memory: Address, word: str, label: Label, behind: str | None = None) -> int:
        self._claim(memory, Comparison.GE, label)  # `cmpxchg` would need rax
        return 0

    def _claim(self, memory: Address, test: Comparison, label: Label) -> None:
        with self._reached(memory) as reached:
            self._alter(b"\x0f\xba", 5, reached, tail=b"\x00", prefix=LOCK)  # bts
        self._jump(_UNSIGNED[test], label)

    def publish(self, memory: Address, word: str | int) -> None:
        """Store: other CPUs see stores in order, and loads are made in order too (SDM volume 3, 9.2.2)."""
        self.store(memory, word)

    def acquire(self) -> None:
        pass

    @property
    def pool_words(self) -> tuple[int, ...]:
        return ()

    def finish(self, at: int, pool: int | None = None) -> bytes:
        return encode_items(self._items, at)

    def labels(self, has_pool: bool = False) -> Iterator[tuple[int, Label]]:
        return place_labels(self._items)

    # parts of the verbs

    def _code(self, data: bytes) -> None:
        self._items.append(data)

    def _move(
        self,
        opcode: bytes,
        register: str | int,
        operand: str | Address,
        size: int = 8,
        tail: bytes = b"",
        prefix: bytes = b"",
    ) -> None:
        """Emit an instruction that changes no flags."""
        if isinstance(operand, Address) and is_relative(operand):
            self._items.append(relative(opcode, register, operand, size, tail, prefix))
        else:
            self._code(instruction(opcode, register, operand, size, tail, prefix))

    def _alter(
        self,
        opcode: bytes,
        register: str | int,
        operand: str | Address,
        size: int = 8,
        tail: bytes = b"",
        prefix: bytes = b"",
    ) -> None:
        """Emit an instruction that changes flags."""
        self.pool.used |= {FLAGS, CARRY}
        self._move(opcode, register, operand, size, tail, prefix)

    def _jump(self, condition: int | None, label: Label) -> None:
        self._items.append(LabelBranch(condition, label))

    def _push(self, name: str) -> None:
        self._code(push(name))
        self._pushed.append(name)

    def _pop(self, name: str, dropped: bool = False) -> None:
        self._code(DROP if dropped else pop(name))
        self._pushed.pop()

    def _extended(self, to: str, source: str | Address, size: int, signed: bool) -> None:
        if size == 8 or (size == 4 and not signed):
            self._move(b"\x8b", to, source, size)
        elif size == 4:
            self._move(b"\x63", to, source)
        else:
            self._move(bytes((0x0F, 0xB6 | 8 * signed | (size == 2))), to, source)

    def _canonical(self, register: str, bits: int, signed: bool) -> None:
        """Sign-extend the result of an operation of 32 bits, which leaves zeros above them."""
        if bits == 32 and signed:
            self._extended(register, register, 4, True)

    def _operate(self, op: Arithmetic, to: str, other: str, size: int) -> None:
        self._alter(b"\x0f\xaf" if op is Arithmetic.MUL else _SIMPLE[op][0], to, other, size)

    def _operate_number(self, op: Arithmetic, to: str, left: str, number: int, size: int) -> None:
        value = signed_number(number)
        if op is Arithmetic.AND and number in (0xFF, 0xFFFF, 0xFFFF_FFFF):
            self._extended(to, left, number.bit_length() // 8, False)
        elif op is Arithmetic.AND and number < 1 << 32:
            self.copy(to, left)
            self._immediate(_SIMPLE[op][1], to, number, 4)
        elif size == 8 and not fits(value):
            with self._in_register(number) as other:
                self.binary(op, to, left, other, 64, False)
        elif op is Arithmetic.MUL:
            self._alter(b"\x69", to, left, size, immediate(number, 4))
        elif op in (Arithmetic.ADD, Arithmetic.SUB) and to != left and fits(value, 31):
            self._move(b"\x8d", to, Address(left, value if op is Arithmetic.ADD else -value), size)
        else:
            self.copy(to, left)
            self._immediate(_SIMPLE[op][1], to, number, size)

    def _immediate(self, extension: int, operand: str | Address, number: int, size: int) -> None:
        """Emit `op operand, number`, of the group of opcode 81 (SDM volume 2, table A-6)."""
        if size == 1:
            self._alter(b"\x80", extension, operand, size, immediate(number, 1))
        elif fits(signed_number(number, 8 * size), 8):
            self._alter(b"\x83", extension, operand, size, immediate(number, 1))
        else:
            self._alter(b"\x81", extension, operand, size, immediate(number, min(size, 4)))

    def _shift(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None:
        extension = _SHL if op is Arithmetic.SHL else _SAR if signed else _SHR
        size = 4 if bits == 32 and op is Arithmetic.SHL else 8
        if isinstance(right, int):
            if right >= bits and extension != _SAR:
                self.constant(to, 0)
                return
            self.copy(to, left)
            self._alter(b"\xc1", extension, to, size, bytes((min(right, 63),)))
        else:
            self._shift_by_register(extension, to, left, right, bits, size)
        if op is Arithmetic.SHL:
            self._canonical(to, bits, signed)

    def _shift_by_register(self, extension: int, to: str, left: str, right: str, bits: int, size: int) -> None:
        enough = Label()
        with self._fixed((to,), "rcx") as places, self._working(to, "rcx") as work:
            self.copy("rcx", places.get(right, right))
            self.copy(work, places.get(left, left))
            if extension == _SAR:
                self.branch(Comparison.LE, "rcx", 63, False, enough)
                self.constant("rcx", 63)
            else:
                self.branch(Comparison.LT, "rcx", bits, False, enough)
                self.constant(work, 0)
            self.bind(enough)
            self._alter(b"\xd3", extension, work, size)
            self.copy(to, work)

    def _divide(self, op: Arithmetic, to: str, left: str, right: str | int, signed: bool) -> None:
        with self._fixed((to,), "rax", "rdx") as places:
            with self._in_register(places.get(right, right) if isinstance(right, str) else right) as divisor:
                self.copy("rax", places.get(left, left))
                if signed:
                    self._code(b"\x48\x99")  # cqo
                else:
                    self.constant("rdx", 0)
                self._alter(b"\xf7", 7 if signed else 6, divisor)
            self.copy(to, "rax" if op is Arithmetic.DIV else "rdx")

    def _compare(self, left: str | MemoryValue, right: str | int, signed: bool) -> Mapping[Comparison, int]:
        """Set the flags; return the condition codes that read them."""
        codes = _SIGNED if signed else _UNSIGNED
        if isinstance(left, str):
            if right == 0:
                self._alter(b"\x85", left, left)
            elif isinstance(right, int) and fits(signed_number(right)):
                self._immediate(_CMP, left, right, 8)
            else:
                with self._in_register(right) as other:
                    self._alter(b"\x3b", left, other)
            return codes
        if isinstance(right, int) and _fits_operand(right, left):
            with self._reached(left.memory) as memory:
                self._immediate(_CMP, memory, right, left.size)
            return _UNSIGNED if left.size < 8 and not left.signed else codes
        if isinstance(right, str) and left.size == 8:
            with self._reached(left.memory) as memory:
                self._alter(b"\x39", right, memory)
            return codes
        with self.pool.scratch() as loaded:
            self.load(loaded, left)
            return self._compare(loaded, right, signed)

    def _test(self, operand: str | Address, mask: int, size: int) -> None:
        """Set ZF if no bit of mask is set, else clear it."""
        if mask < 1 << 32:
            size = min(size, 4)
        if size == 1:
            self._alter(b"\xf6", 0, operand, size, immediate(mask, 1))
        elif size < 8 or fits(signed_number(mask)):
            self._alter(b"\xf7", 0, operand, size, immediate(mask, min(size, 4)))
        else:
            with self._in_register(mask) as other:
                self._alter(b"\x85", other, operand)

    def _reached(self, memory: Address, via: str = "") -> AbstractContextManager[Address]:
        """Have the same address with an offset of 32 bits, from 0, a register or the instruction, for a block.

        via: a register that may change, where there is one.
        """
        if fits(signed_number(memory.offset)) or is_relative(memory):
            return nullcontext(memory)
        return self._reached_from_register(memory, via)

    @contextmanager
    def _reached_from_register(self, memory: Address, via: str) -> Iterator[Address]:
        offset = signed_number(memory.offset)
        if fits(offset - LOWEST) and not memory.per_cpu and (memory.base is not None or memory.index is not None):
            with nullcontext(via) if via else self.pool.scratch() as near:
                self._move(b"\x8d", near, replace(memory, offset=LOWEST))
                yield Address(near, offset - LOWEST)
            return
        with self._in_register(memory.offset & MASK) as far:
            if memory.base is not None:
                self._operate(Arithmetic.ADD, far, memory.base, 8)
            yield Address(far, 0, memory.index, memory.per_cpu)

    def _in_register(self, word: str | int) -> AbstractContextManager[str]:
        return nullcontext(word) if isinstance(word, str) else self._constant(word)

    @contextmanager
    def _constant(self, word: int) -> Iterator[str]:
        with self.pool.scratch() as register:
            self.constant(register, word)
            yield register

    def _working(self, to: str, busy: str) -> AbstractContextManager[str]:
        """Have a register to compute the value of `to` in for a block, which is not `busy`."""
        return nullcontext(to) if to != busy else self.pool.scratch()

    @contextmanager
    def _fixed(self, to: Collection[str], *names: str) -> Iterator[Mapping[str, str]]:
        """Free these registers for the block; yield the present places of those in use. Those in `to` get results."""
        free = [name for name in names if self.pool.reserve(name)]
        places = {name: self.pool.allocate() for name in names if name not in free}
        for name, place in places.items():
            self.copy(place, name)
        yield places
        for name, place in places.items():
            if name not in to:
                self.copy(name, place)
            self.pool.free(place)
        for name in free:
            self.pool.free(name)


class _X86Backend:
    """Implements codegen.Backend."""

    pc = PC
    emitter = staticmethod(X86Emitter)

    @staticmethod
    def order(before: EntryState) -> tuple[str, ...]:
        usable = [name for name in GENERAL if name != SP]
        return tuple(sorted(usable, key=lambda name: (name in before.reads, name not in before.dead.registers)))

    @staticmethod
    def kept(used: Collection[str], before: EntryState) -> tuple[str, ...]:
        wanted = (FLAGS in used and not before.dead.flags) or (CARRY in used and CARRY not in before.dead.registers)
        wanted |= FLAGS in before.reads and not {FLAGS, CARRY}.isdisjoint(used)
        lives = [n for n in GENERAL if n in used and (n in before.reads or n not in before.dead.registers)]
        return (*((FLAGS,) if wanted else ()), *lives)

    caller = staticmethod(probe_read.caller)

    @staticmethod
    def resumed(registers: Mapping[str, int]) -> Mapping[str, int]:
        return registers


BACKEND = _X86Backend()
_: Backend = BACKEND


def moved(memory: Address, places: Mapping[str, str]) -> Address:
    """Return the same address once its registers have moved to `places`."""
    base, index = (None if name is None else places.get(name, name) for name in (memory.base, memory.index))
    return replace(memory, base=base, index=index)


def _within(mask: int, value: MemoryValue) -> int:
    """Return the bits of the value in memory that a mask of the whole word tests."""
    bits = 8 * value.size
    beyond = mask >> bits and value.signed
    return mask & (1 << bits) - 1 | (1 << bits - 1 if beyond else 0)


def _fits_operand(word: int, value: MemoryValue) -> bool:
    """Return whether `word` can be compared with the value in memory without extending that."""
    if value.size == 8 or value.signed:
        return fits(signed_number(word), min(8 * value.size, 32))
    return word < 1 << 8 * value.size
