"""The register machine of ..emitter on ppc64le.

    r0                 never in the pool: what a verb needs last, a constant, the offset of an address
    comparisons        in CR0 where it is dead, else in a dead field of CR, else in CR0, which is kept
    CTR, LR, XER       never changed where they live: nothing here sets a carry
    memory             base + 16 bits; farther: addis, or the rest in r0; constants from the TOC where r2 is known
    atomically         ldarx and stdcx. at RA + RB, which change CR0
Nothing is relative to where it stands, and nothing is newer than POWER8. A pool has "cr0" to "cr7" among what was used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..emitter import Arithmetic, Before, Label, Machine, Memory, Pool, Test, Value
from . import forms, keeping
from .abi import CR_FIELDS, CTR, FLAGS, GENERAL, LR, PC, SP, XER
from .forms import NONE, Item, Jump, logical, number, plain, rotate
from .keeping import Keeping
from .templates import load
from .words import BO_CR_TRUE, MASK, fits
from .words import signed as as_number

_PACA, _TOC, _SCRATCH = "r13", "r2", "r0"
_ORDER = (11, 12, 10, 9, 8, 7, 6, 5, 4, 3, *range(14, 32))
# The bit of a field of CR, and whether the test holds where it is set.
_BITS = {
    Test.LT: (0, True),
    Test.GE: (0, False),
    Test.GT: (1, True),
    Test.LE: (1, False),
    Test.EQ: (2, True),
    Test.NE: (2, False),
}
_BO_CR_FALSE, _UNLIKELY = 4, 2  # BO: the hint is `a` and `t` (Book I, 2.4)
_LOADS = {(1, False): "lbz", (2, False): "lhz", (2, True): "lha", (4, False): "lwz", (4, True): "lwa"}
_STORES = {1: "stb", 2: "sth", 4: "stw", 8: "std"}
_BY_WORDS = ("ld", "lwa", "std")  # their displacements are multiples of 4
_BITWISE = {Arithmetic.AND: "and", Arithmetic.OR: "or", Arithmetic.XOR: "xor"}
_LEFT_FIRST = {Arithmetic.ADD: "add", Arithmetic.MUL: "mulld"}
_SIGN_EXTENDS = {8: "extsb", 16: "extsh", 32: "extsw"}


class Emitter:
    """See ..emitter.Emitter, whose verbs these are."""

    def __init__(self, before: Before) -> None:
        self.pool = Pool(MACHINE.order(before))
        self._before = before
        self._items: list[Item] = []
        self._field, spare = _fields(before)
        self._keeping = Keeping(before, spare)

    # registers

    def save(self, names: Sequence[str]) -> None:
        self._code(*self._keeping.save(names))
        self._keeps_flags()

    def restore(self, names: Sequence[str]) -> None:
        self._keeps_flags()
        self._code(*self._keeping.restore())

    def register(self, name: str) -> str | None:
        """r0 means nothing in some places, so it is never read in place."""
        moved = self._keeping.has(name) or name == _SCRATCH or (name == SP and self._keeping.depth)
        return None if moved or name not in GENERAL else name

    def read(self, to: str, name: str) -> None:
        if self._keeping.has(name):
            self._code(self._keeping.read(to, name))
        elif name == SP:
            self._code(number("addi", to, SP, self._keeping.depth))
        elif name in GENERAL:
            self._code(logical("or", to, name, name))
        else:
            self._code(plain({LR: "mflr", CTR: "mfctr", XER: "mfxer", FLAGS: "mfcr"}[name], to))

    # values

    def constant(self, to: str, word: int) -> None:
        if to == _SCRATCH:
            self._uses(_SCRATCH)
        self._code(*load(int(to[1:]), word))

    def copy(self, to: str, source: str) -> None:
        if to != source:
            self._code(logical("or", to, source, source))

    def load(self, to: str, value: Value) -> None:
        name = "ld" if value.size == 8 else _LOADS.get((value.size, value.signed), "lbz")
        with self._reached(value.memory, name in _BY_WORDS, None if to == _SCRATCH else to) as (base, offset):
            self._code(number(name, to, base, offset))
        if value.size == 1 and value.signed:
            self._code(logical("extsb", to, to))

    def per_cpu_base(self, to: str) -> None:
        if self._before.per_cpu is None:
            raise KeyError("data_offset")
        self._code(number("ld", to, _PACA, self._before.per_cpu))

    def clock(self, to: str) -> None:
        self._code(plain("mftb", to))

    def address(self, to: str, memory: Memory) -> None:
        with self._reached(memory, False, to) as (base, offset):
            if base != to or offset:
                self._code(number("addi", to, base, offset))

    def negate(self, to: str, source: str, bits: int, signed: bool) -> None:
        self._code(plain("neg", to, source))
        self._canonical(to, bits, signed)

    def invert(self, to: str, source: str, bits: int, signed: bool) -> None:
        self._code(logical("nor", to, source, source))
        if not signed:
            self._canonical(to, bits, signed)

    def extend(self, to: str, source: str, bits: int, signed: bool) -> None:
        if signed:
            self._extract(to, source, 0, bits, True)
        else:
            self._code(rotate("rldicl", to, source, 0, 64 - bits))

    def binary(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None:
        if op in (Arithmetic.SHL, Arithmetic.SHR):
            if isinstance(right, int):
                self._shift(op, to, left, right, bits, signed)
            else:
                self._shift_by_register(op, to, left, right, bits, signed)
        elif op in (Arithmetic.DIV, Arithmetic.MOD):
            self._divide(op, to, left, right, signed)
        elif not isinstance(right, int) or not self._operated(op, to, left, right, bits):
            with self._in_register(right) as other:
                self._operate(op, to, left, other)
        if op not in (*_BITWISE, Arithmetic.DIV, Arithmetic.MOD, Arithmetic.SHR):
            self._canonical(to, bits, signed)

    def compare(self, test: Test, to: str, left: str, right: str | int, signed: bool) -> None:
        if test is Test.EQ and right == 0:  # 64 zeros lead, or fewer
            self._code(logical("cntlzd", to, left), rotate("rldicl", to, to, 58, 6))
            return
        self._compare(left, right, signed)
        bit, where_set = _BITS[test]
        self.constant(_SCRATCH, 0 if where_set else 1)
        if where_set:
            self.constant(to, 1)
        self._code(forms.select(to, to if where_set else NONE, _SCRATCH, 4 * self._field + bit))

    def logarithm(self, to: str, source: str) -> None:
        self._code(logical("cntlzd", to, source))
        self.constant(_SCRATCH, 63)
        self._code(plain("subf", to, to, _SCRATCH))

    # flow

    def mark(self, label: Label) -> None:
        self._items.append(label)

    def jump(self, label: Label) -> None:
        self._items.append(Jump(label))

    def branch(self, test: Test, left: str | Value, right: str | int, signed: bool, label: Label) -> None:
        with self._loaded(left) as word:
            self._compare(word, right, signed)
        self._jump(test, label)

    def branch_bits(self, left: str | Value, mask: int, any_set: bool, label: Label) -> None:
        with self._loaded(left) as word:
            self._test(word, mask)
        self._jump(Test.NE if any_set else Test.EQ, label)

    # memory

    def store(self, memory: Memory, word: str | int, size: int = 8) -> None:
        name = _STORES[size]
        with self._reached(memory, name in _BY_WORDS) as (base, offset):
            if isinstance(word, int):
                self.constant(_SCRATCH, as_number(word, 8 * size) & MASK)
                word = _SCRATCH
            self._code(number(name, word, base, offset))

    def add(self, memory: Memory, word: str | int) -> None:
        again = Label()
        with self._held(word, 16) as more, self._pointer(memory) as (base, index), self.pool.borrowed() as value:
            self.mark(again)
            self._code(plain("ldarx", value, base, index))
            if isinstance(more, int):
                self._code(number("addi", value, value, more))
            else:
                self._code(plain("add", value, value, more))
            self._stored(value, base, index, again)

    def keep_extreme(self, test: Test, memory: Memory, word: str, signed: bool) -> None:
        again, past = Label(), Label()
        with self._pointer(memory) as (base, index), self.pool.borrowed() as value:
            self.mark(again)
            self._code(plain("ldarx", value, base, index))
            self._code(forms.compare("cmpd" if signed else "cmpld", 0, word, value))
            self._jump(test.opposite, past, 0)
            self._stored(word, base, index, again)
            self.mark(past)

    def exchange(self, memory: Memory, expected: int, word: str | int, label: Label) -> None:
        again = Label()
        with (
            self._held(word, 0) as new,
            self._held(expected, 16) as old,
            self._pointer(memory) as (base, index),
            self.pool.borrowed() as value,
        ):
            self.mark(again)
            self._code(plain("ldarx", value, base, index))
            self._code(forms.compare("cmpdi" if isinstance(old, int) else "cmpd", 0, value, old))
            self._jump(Test.NE, label, 0)
            self._stored(str(new), base, index, again)
            self._code(plain("lwsync"))

    def finish(self, at: int) -> bytes:
        """The code, wherever it stands."""
        return forms.placed(self._items)

    # what the verbs are made of

    def _code(self, *words: int) -> None:
        self._items += words

    def _uses(self, name: str) -> None:
        self.pool.used.add(name)

    def _keeps_flags(self) -> None:
        if self._keeping.uses_scratch:
            self._uses(_SCRATCH)

    def _jump(self, test: Test, label: Label, field: int | None = None) -> None:
        bit, where_set = _BITS[test]
        bo = BO_CR_TRUE | 4 if where_set else _BO_CR_FALSE
        self._items.append(Jump(label, bo, 4 * (self._field if field is None else field) + bit))

    def _canonical(self, register: str, bits: int, signed: bool) -> None:
        """After an operation of 32 bits in 64."""
        if bits == 32:
            self.extend(register, register, 32, signed)

    def _extract(self, to: str, source: str, low: int, bits: int, signed: bool) -> None:
        """`bits` of source from the bit `low` on, counted from the lowest."""
        if low or bits not in _SIGN_EXTENDS or not signed:
            self._code(rotate("rldicl", to, source, -low & 63, 64 - bits))
            source = to
        if not signed:
            return
        if bits in _SIGN_EXTENDS:
            self._code(logical(_SIGN_EXTENDS[bits], to, source))
        elif bits < 32:  # the sign's weight changes sign, where it is
            name, sign = ("xori", 1 << bits - 1) if bits < 16 else ("xoris", 1 << bits - 17)
            self._code(logical(name, to, to, sign), number("addi" if bits < 16 else "addis", to, to, -sign))
        else:
            self.constant(_SCRATCH, 1 << bits - 1)
            self._code(logical("xor", to, to, _SCRATCH), plain("subf", to, _SCRATCH, to))

    def _operated(self, op: Arithmetic, to: str, left: str, right: int, bits: int) -> bool:
        """Whether there are instructions for this constant."""
        value = as_number(right, bits)
        match op:
            case Arithmetic.ADD | Arithmetic.SUB:
                return self._added(to, left, value if op is Arithmetic.ADD else -value)
            case Arithmetic.MUL if fits(value, 16):
                self._code(number("mulli", to, left, value))
            case Arithmetic.AND:
                return self._masked(to, left, right)
            case Arithmetic.OR | Arithmetic.XOR if right < 1 << 32:
                name = _BITWISE[op]
                halves = [(f"{name}is", right >> 16), (f"{name}i", right & 0xFFFF)]
                for form, half in halves:
                    if half or (form == f"{name}i" and not right):
                        self._code(logical(form, to, left, half))
                        left = to
            case _:
                return False
        return True

    def _added(self, to: str, left: str, value: int) -> bool:
        low = as_number(value, 16)
        high = value - low >> 16
        if not fits(high, 16):
            return False
        if high:
            self._code(number("addis", to, left, high))
            left = to
        if low or not high:
            self._code(number("addi", to, left, low))
        return True

    def _masked(self, to: str, left: str, mask: int) -> bool:
        """Without changing CR0, where it lives."""
        if mask and not mask & mask + 1:
            self._code(rotate("rldicl", to, left, 0, 64 - mask.bit_length()))
        elif mask and not ~mask & MASK & (~mask & MASK) + 1:
            self._code(rotate("rldicr", to, left, 0, mask.bit_count() - 1))
        elif self._before.dead.flags and (mask < 1 << 16 or not mask & ~0xFFFF_0000):
            self._uses(CR_FIELDS[0])
            name, half = ("andi.", mask) if mask < 1 << 16 else ("andis.", mask >> 16)
            self._code(logical(name, to, left, half))
        else:
            return False
        return True

    def _operate(self, op: Arithmetic, to: str, left: str, right: str) -> None:
        if op in _BITWISE:
            self._code(logical(_BITWISE[op], to, left, right))
        elif op is Arithmetic.SUB:
            self._code(plain("subf", to, right, left))
        else:
            self._code(plain(_LEFT_FIRST[op], to, left, right))

    def _shift(self, op: Arithmetic, to: str, left: str, count: int, bits: int, signed: bool) -> None:
        if op is Arithmetic.SHR and signed:
            count = min(count, bits - 1)
            if count:
                self._extract(to, left, count, bits - count, True)
            else:
                self.copy(to, left)
        elif count >= bits:
            self.constant(to, 0)
        elif op is Arithmetic.SHL:
            self._code(rotate("rldicr", to, left, count, 63 - count))
        else:
            self._code(rotate("rldicl", to, left, -count & 63, count))

    def _shift_by_register(self, op: Arithmetic, to: str, left: str, right: str, bits: int, signed: bool) -> None:
        """sld and srd look at seven bits of the count; what is negative is shifted right inverted."""
        inverts = op is Arithmetic.SHR and signed
        enough = Label()
        with self._working(to, right if inverts else None) as work:
            if inverts:
                self._uses(_SCRATCH)
                self._code(rotate("rldicl", _SCRATCH, left, 1, 63), plain("neg", _SCRATCH, _SCRATCH))
            self._compare(right, 64 if inverts else bits, False)
            if inverts:
                self._code(logical("xor", work, left, _SCRATCH))
                left = work
            self._code(logical("sld" if op is Arithmetic.SHL else "srd", work, left, right))
            self._jump(Test.LT, enough)
            self.constant(work, 0)
            self.mark(enough)
            if inverts:
                self._code(logical("xor", to, work, _SCRATCH))

    def _divide(self, op: Arithmetic, to: str, left: str, right: str | int, signed: bool) -> None:
        name = "divd" if signed else "divdu"
        with self._in_register(right) as divisor:
            if op is Arithmetic.DIV:
                self._code(plain(name, to, left, divisor))
            elif divisor != _SCRATCH:
                self._uses(_SCRATCH)
                self._remainder(name, to, left, divisor, _SCRATCH)
            else:
                with self._working(to, left) as work:
                    self._remainder(name, to, left, divisor, work)

    def _remainder(self, name: str, to: str, left: str, divisor: str, work: str) -> None:
        self._code(plain(name, work, left, divisor), plain("mulld", work, work, divisor), plain("subf", to, work, left))

    def _compare(self, left: str, right: str | int, signed: bool) -> None:
        """Sets the field."""
        self._uses(CR_FIELDS[self._field])
        if isinstance(right, int) and signed and fits(as_number(right), 16):
            self._code(forms.compare("cmpdi", self._field, left, as_number(right)))
        elif isinstance(right, int) and not signed and right < 1 << 16:
            self._code(forms.compare("cmpldi", self._field, left, right))
        elif isinstance(right, int) and left == _SCRATCH:
            with self.pool.borrowed() as other:
                self.constant(other, right)
                self._compare(left, other, signed)
        else:
            with self._in_register(right) as other:
                self._code(forms.compare("cmpd" if signed else "cmpld", self._field, left, other))

    def _test(self, word: str, mask: int) -> None:
        """EQ in the field where no bit of mask is set."""
        self._uses(_SCRATCH)
        self._uses(CR_FIELDS[self._field])
        low = (mask & -mask).bit_length() - 1
        records = self._field == 0
        if mask and not (mask >> low) & (mask >> low) + 1:
            bits = mask.bit_count()
            self._code(rotate("rldicl." if records else "rldicl", _SCRATCH, word, -low & 63, 64 - bits))
        elif records and mask < 1 << 16:
            self._code(logical("andi.", _SCRATCH, word, mask))
        elif records and not mask & ~0xFFFF_0000:
            self._code(logical("andis.", _SCRATCH, word, mask >> 16))
        else:
            with self._working(_SCRATCH, word) as other:
                self.constant(other, mask)
                self._code(logical("and." if records else "and", _SCRATCH, word, other))
        if not records:
            self._code(forms.compare("cmpdi", self._field, _SCRATCH, 0))

    def _stored(self, value: str, base: str, index: str, again: Label) -> None:
        self._uses(CR_FIELDS[0])
        self._code(plain("stdcx.", value, base, index))
        self._items.append(Jump(again, _BO_CR_FALSE | _UNLIKELY, 2))

    # addresses

    def _named(self, memory: Memory) -> Memory:
        """A constant address from the TOC, where it is within 2 GiB."""
        if memory.base is None and not memory.per_cpu and self._before.base is not None:
            offset = as_number(memory.offset - self._before.base)
            if fits(offset + 0x8000, 32):
                return replace(memory, base=_TOC, offset=offset)
        return memory

    @contextmanager
    def _reached(self, memory: Memory, by_words: bool, via: str | None = None) -> Iterator[tuple[str, int]]:
        """The same address as a base and a displacement; by_words: a multiple of 4. via: what may be overwritten."""
        memory = self._named(memory)
        offset = as_number(memory.offset)
        low = as_number(offset, 16)
        high = offset - low
        if by_words and low & 3:
            low, high = 0, offset
        if not (high or memory.index or memory.per_cpu):
            yield memory.base or NONE, low
            return
        with self._working(via or _SCRATCH, _SCRATCH) as far:
            self._sum(far, memory, high)
            yield far, low

    def _sum(self, to: str, memory: Memory, offset: int) -> None:
        """base + 8 * index + offset, and what is per CPU; `to` may be base or index."""
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
        elif offset and not self._added(to, at, offset):
            self.constant(_SCRATCH, offset & MASK)
            self._code(plain("add", to, at, _SCRATCH))

    @contextmanager
    def _pointer(self, memory: Memory) -> Iterator[tuple[str, str]]:
        """The same address as RA and RB, with r0 among them or free for nothing else."""
        memory = self._named(memory)
        offset = as_number(memory.offset)
        if memory.per_cpu or (memory.index and (offset or memory.base is None)):
            with self.pool.borrowed() as far:
                self._sum(far, memory if memory.per_cpu else replace(memory, index=None), offset)
                if memory.per_cpu or memory.index is None:
                    yield NONE, far
                else:
                    yield far, self._eightfold(memory.index)
        elif memory.index and memory.base:
            yield memory.base, self._eightfold(memory.index)
        elif memory.base is None or (offset and not fits(offset, 16)):
            self.constant(_SCRATCH, offset & MASK)
            yield memory.base or NONE, _SCRATCH
        elif offset:
            self._code(number("addi", self._scratch(), memory.base, offset))
            yield NONE, _SCRATCH
        else:
            yield NONE, memory.base

    def _eightfold(self, index: str) -> str:
        self._code(rotate("rldicr", self._scratch(), index, 3, 60))
        return _SCRATCH

    def _scratch(self) -> str:
        self._uses(_SCRATCH)
        return _SCRATCH

    @contextmanager
    def _loaded(self, word: str | Value) -> Iterator[str]:
        if isinstance(word, str):
            yield word
            return
        self.load(self._scratch(), word)
        yield _SCRATCH

    @contextmanager
    def _in_register(self, word: str | int) -> Iterator[str]:
        if isinstance(word, int):
            self.constant(_SCRATCH, word)
        yield _SCRATCH if isinstance(word, int) else word

    @contextmanager
    def _held(self, word: str | int, bits: int) -> Iterator[str | int]:
        """In a register other than r0, or a number of so many bits."""
        if isinstance(word, str) or (bits and fits(as_number(word), bits)):
            yield word if isinstance(word, str) else as_number(word)
            return
        with self.pool.borrowed() as register:
            self.constant(register, word)
            yield register

    @contextmanager
    def _working(self, to: str, busy: str | None) -> Iterator[str]:
        """A register to make what belongs into `to` in."""
        if to != busy:
            yield to
            return
        with self.pool.borrowed() as register:
            yield register


def _fields(before: Before) -> tuple[int, tuple[str, ...]]:
    """The field of CR to compare in, and others that are dead."""
    dead = [name for name in reversed(CR_FIELDS) if name in before.dead.registers and FLAGS not in before.reads]
    if before.dead.flags or not dead:
        return 0, tuple(name for name in dead if name != CR_FIELDS[0])
    return CR_FIELDS.index(dead[0]), tuple(dead[1:])


class _Machine:
    """See ..emitter.Machine."""

    pc = PC
    emitter = staticmethod(Emitter)
    kept = staticmethod(keeping.kept)

    @staticmethod
    def order(before: Before) -> tuple[str, ...]:
        usable = [f"r{number}" for number in _ORDER]
        return tuple(sorted(usable, key=lambda name: (name in before.reads, name not in before.dead.registers)))


MACHINE = _Machine()
_: Machine = MACHINE
