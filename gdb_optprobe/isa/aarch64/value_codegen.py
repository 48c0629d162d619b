"""The verbs of the codegen backend from registers to registers, and comparisons.

    x17            never in the pool: the last register that a verb needs, or a constant
    comparisons    with 0 and of single bits by cbz and tbz; for equality through x17, unless the flags are dead;
                   others by the flags
    32 bits        by the low halves (wN), which leaves zeros above them; signed results are extended
sp is never an operand: it is copied by `read`. `used` of a pool may have "x17" and "cpsr".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from gdb_optprobe.isa.aarch64 import encodings
from gdb_optprobe.isa.aarch64.abi import FLAGS
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    bits,
    branch_if,
    branch_on_bit,
    branch_on_zero,
    masked,
    number,
    plain,
    select,
    shifted,
)
from gdb_optprobe.isa.aarch64.fields import MASK
from gdb_optprobe.isa.aarch64.fields import signed as as_number
from gdb_optprobe.isa.aarch64.spill import SCRATCH
from gdb_optprobe.isa.codegen import Arithmetic, Comparison, EntryState, Label, RegisterPool

ZERO = "xzr"
# x18 is the platform's register, x29 and x30 lead unwinders to the callers.
_ORDER = (*range(9, 17), *range(8, -1, -1), *range(28, 18, -1))
_BITWISE = {Arithmetic.AND: "and", Arithmetic.OR: "orr", Arithmetic.XOR: "eor"}
_SUMS = {Arithmetic.ADD: "add", Arithmetic.SUB: "sub"}
_EQUALITY = (Comparison.EQ, Comparison.NE)


def order(before: EntryState) -> tuple[str, ...]:
    """Do as Backend.order."""
    usable = [f"x{number}" for number in _ORDER]
    return tuple(sorted(usable, key=lambda name: (name in before.reads, name not in before.dead.registers)))


class ValueEmitter:
    """Implements the verbs of codegen.Emitter that need no memory."""

    def __init__(self, before: EntryState) -> None:
        self.pool = RegisterPool(order(before))
        self._before = before
        self._items: list[Item] = []

    def constant(self, to: str, word: int) -> None:
        if to == SCRATCH:
            self._uses(SCRATCH)
        self._code(*encodings.constant(to, word))

    def copy(self, to: str, source: str) -> None:
        if to != source:
            self._code(plain("orr", to, ZERO, source))

    def negate(self, to: str, source: str, bits: int, signed: bool) -> None:
        self._code(plain(_width("sub", bits, signed), to, ZERO, source))
        self._canonical(to, bits, signed)

    def invert(self, to: str, source: str, bits: int, signed: bool) -> None:
        self._code(plain(_width("orn", bits, signed), to, ZERO, source))

    def extend(self, to: str, source: str, bits: int, signed: bool) -> None:
        self._extract(to, source, 0, bits, signed)

    def binary(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None:
        match op:
            case Arithmetic.ADD | Arithmetic.SUB:
                self._sum(op, to, left, right, bits, signed)
            case Arithmetic.MUL:
                self._multiply(to, left, right, bits, signed)
            case Arithmetic.DIV | Arithmetic.MOD:
                self._divide(op, to, left, right, signed)
            case Arithmetic.SHL | Arithmetic.SHR:
                self._shift(op, to, left, right, bits, signed)
            case _:
                self._operate(op, to, left, right)

    def multiply_high(self, to: str, left: str, right: str | int) -> None:
        with self._in_register(right) as other:
            self._code(plain("umulh", to, left, other))

    def compare(self, test: Comparison, to: str, left: str, right: str | int, signed: bool) -> None:
        if test is Comparison.EQ and right == 0:  # 64 zeros lead, or fewer
            self._code(plain("clz", to, left))
            self._extract(to, to, 6, 58, False)
            return
        self._compare(left, right, signed)
        self._code(select("csinc", to, ZERO, ZERO, test.opposite, signed))

    def logarithm(self, to: str, source: str, any_set: bool = False) -> None:
        self._code(plain("clz", to, source))
        if any_set:  # 63 - to, of a number of six bits
            self.binary(Arithmetic.XOR, to, to, 63, 64, False)
        else:  # ~(to - 64)
            self._code(number("subi", to, to, 64), plain("orn", to, ZERO, to))

    def logarithm_less(self, to: str, source: str) -> int:
        self._code(plain("clz", to, source), plain("sub", to, ZERO, to))
        return 63

    def bind(self, label: Label) -> None:
        self._items.append(label)

    # parts of the verbs

    def _code(self, *words: int) -> None:
        self._items += words

    def _uses(self, name: str) -> None:
        self.pool.used.add(name)

    def _scratch(self) -> str:
        self._uses(SCRATCH)
        return SCRATCH

    def _canonical(self, register: str, bits: int, signed: bool) -> None:
        """Sign-extend the result of an operation of 32 bits."""
        if bits == 32 and signed:
            self.extend(register, register, 32, True)

    def _extract(self, to: str, source: str, low: int, width: int, signed: bool) -> None:
        """Extract bits of source from the bit `low` on, counted from the lowest."""
        self._code(bits("sbfm" if signed else "ubfm", to, source, low, low + width - 1))

    def _sum(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None:
        value = as_number(right, bits) if isinstance(right, int) else 0
        name = _width(_SUMS[op], bits, signed)
        if isinstance(right, str) or not self._added(to, left, value if op is Arithmetic.ADD else -value, bits, signed):
            with self._in_register(right, left) as other:
                self._code(plain(name, to, left, other))
        self._canonical(to, bits, signed)

    def _operate(self, op: Arithmetic, to: str, left: str, right: str | int) -> None:
        word = masked(f"{_BITWISE[op]}i", to, left, right) if isinstance(right, int) else None
        if word is not None:
            self._code(word)
            return
        with self._in_register(right, left) as other:
            self._code(plain(_BITWISE[op], to, left, other))

    def _added(self, to: str, left: str, value: int, bits: int = 64, signed: bool = False) -> bool:
        """Emit a sum with this number, if it has at most 24 bits; return whether it has. Both may be sp."""
        name, value = ("addi" if value >= 0 else "subi"), abs(value)
        if value >> 24:
            return False
        name = _width(name, bits, signed)
        high, low = value >> 12, value & 0xFFF
        if high:
            self._code(number(name, to, left, high, shifted=True))
            left = to
        if low or not high:
            self._code(number(name, to, left, low))
        return True

    def _multiply(self, to: str, left: str, right: str | int, bits: int, signed: bool) -> None:
        if isinstance(right, int) and right.bit_count() == 1:
            self._shift(Arithmetic.SHL, to, left, right.bit_length() - 1, bits, signed)
            return
        if isinstance(right, int) and right and bits == 64 and (right - 1).bit_count() == 1:
            self._code(shifted("add", to, left, left, right.bit_length() - 1))
            return
        with self._in_register(right, left) as other:
            self._code(plain(_width("madd", bits, signed), to, left, other, ZERO))
        self._canonical(to, bits, signed)

    def _shift(self, op: Arithmetic, to: str, left: str, count: str | int, width: int, signed: bool) -> None:
        if isinstance(count, str):
            self._shift_by_register(op, to, left, count, width, signed)
            return
        if op is Arithmetic.SHR and signed:
            count = min(count, width - 1)
            self._extract(to, left, count, width - count, True)
        elif count >= width:
            self.constant(to, 0)
        elif op is Arithmetic.SHR:
            self._extract(to, left, count, width - count, False)
        else:  # as many bits of the lowest, inserted above zeros; the highest of them is the sign
            self._code(bits("sbfm" if signed else "ubfm", to, left, -count & 63, width - 1 - count))

    def _shift_by_register(self, op: Arithmetic, to: str, left: str, right: str, bits: int, signed: bool) -> None:
        """Shift by a register, of which the instructions take six bits."""
        if op is Arithmetic.SHR and signed:
            self._compare(right, 63, False)
            self.constant(SCRATCH, 63)
            self._code(select("csel", SCRATCH, right, SCRATCH, Comparison.LT, False), plain("asr", to, left, SCRATCH))
            return
        self._compare(right, 64, False)
        self._code(plain("lsl" if op is Arithmetic.SHL else "lsr", to, left, right))
        self._code(select("csel", to, to, ZERO, Comparison.LT, False))
        if op is Arithmetic.SHL and bits == 32:
            self.extend(to, to, 32, signed)

    def _divide(self, op: Arithmetic, to: str, left: str, right: str | int, signed: bool) -> None:
        name = "sdiv" if signed else "udiv"
        with self._in_register(right, left) as divisor:
            if op is Arithmetic.DIV:
                self._code(plain(name, to, left, divisor))
                return
            with nullcontext(to) if to not in (left, divisor) else self._free(left, divisor) as quotient:
                self._code(plain(name, quotient, left, divisor), plain("msub", to, quotient, divisor, left))

    def _compare(self, left: str, right: str | int, signed: bool) -> None:
        """Compare into the flags."""
        self._uses(FLAGS)
        if isinstance(right, int) and (found := _as_sum(as_number(right))) is not None:
            # A number that is subtracted and its opposite that is added leave the same flags, but for 0.
            value, shifted = found
            self._code(number("subsi" if value >= 0 else "addsi", ZERO, left, abs(value), shifted))
            return
        with self._in_register(right, left) as other:
            self._code(plain("subs", ZERO, left, other))

    def _branch(self, test: Comparison, left: str, right: str | int, signed: bool, label: Label) -> None:
        if right == 0 and self._branch_on_zero(test, left, signed, label):
            return
        if test not in _EQUALITY or self._before.dead.flags:
            self._compare(left, right, signed)
            self._items.append(branch_if(test, label, signed))
            return
        with self._free() as difference:
            if isinstance(right, str) or not self._added(difference, left, -as_number(right)):
                with self._in_register(right, left) as other:
                    self._code(plain("eor", difference, left, other))
            self._items.append(branch_on_zero("cbz" if test is Comparison.EQ else "cbnz", difference, label))

    def _branch_on_zero(self, test: Comparison, left: str, signed: bool, label: Label) -> bool:
        """Branch on the comparison with 0, if that needs no flags; return whether it does not."""
        if test in _EQUALITY or (not signed and test in (Comparison.GT, Comparison.LE)):
            name = "cbz" if test in (Comparison.EQ, Comparison.LE) else "cbnz"
            self._items.append(branch_on_zero(name, left, label))
        elif signed and test in (Comparison.LT, Comparison.GE):
            self._items.append(branch_on_bit("tbnz" if test is Comparison.LT else "tbz", left, 63, label))
        else:
            return False
        return True

    def _branch_on_bits(self, left: str, mask: int, any_set: bool, label: Label) -> None:
        """Branch if some bit of mask is set, or if none is."""
        if mask.bit_count() == 1:
            name = "tbnz" if any_set else "tbz"
            self._items.append(branch_on_bit(name, left, mask.bit_length() - 1, label))
            return
        name = "cbnz" if any_set else "cbz"
        if mask in (MASK, MASK >> 32):
            self._items.append(branch_on_zero(name if mask == MASK else f"{name}w", left, label))
            return
        with self._free() as tested:
            self._operate(Arithmetic.AND, tested, left, mask)
            self._items.append(branch_on_zero(name, tested, label))

    @contextmanager
    def _in_register(self, word: str | int, busy: str = "") -> Iterator[str]:
        """Yield a word in a register that is not `busy`."""
        if isinstance(word, str):
            yield word
            return
        with self._free(busy) as register:
            self.constant(register, word)
            yield register

    def _free(self, *busy: str) -> AbstractContextManager[str]:
        """Have a register to work with for a block, which is none of these."""
        return self.pool.scratch() if SCRATCH in busy else nullcontext(self._scratch())


def _as_sum(value: int) -> tuple[int, bool] | None:
    """Return a number as 12 bits, and whether there are 12 zeros below them; None if it is not of that form."""
    for by in (0, 12):
        if abs(value) >> by < 1 << 12 and abs(value) % (1 << by) == 0:
            return value >> by, bool(by)
    return None


def _width(name: str, bits: int, signed: bool) -> str:
    """Return the name of an operation of 32 bits that leaves zeros above them, where that is what is wanted."""
    return f"{name}w" if bits == 32 and not signed else name
