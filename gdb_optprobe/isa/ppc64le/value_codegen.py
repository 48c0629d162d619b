"""The verbs of the codegen backend from registers to registers, and comparisons.

    r0             never in the pool: the last register that a verb needs, or a constant
    comparisons    in CR0 if it is dead, else in a dead field of CR, else in CR0, which is saved
    XER            not changed: nothing here sets a carry, so a shift that brings in signs takes several instructions
`used` of a pool may have "r0" and "cr0" to "cr7".
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from gdb_optprobe.isa.codegen import Arithmetic, Comparison, EntryState, Label, RegisterPool
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, FLAGS
from gdb_optprobe.isa.ppc64le.encodings import NONE, Item, LabelBranch, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.fields import BO_CR_TRUE, BO_NO_CTR, MASK, fits
from gdb_optprobe.isa.ppc64le.fields import signed as as_number
from gdb_optprobe.isa.ppc64le.templates import load

SCRATCH = "r0"
_ORDER = (11, 12, 10, 9, 8, 7, 6, 5, 4, 3, *range(14, 32))
# The bit of a field of CR, and whether the test holds where it is set.
_BITS = {
    Comparison.LT: (0, True),
    Comparison.GE: (0, False),
    Comparison.GT: (1, True),
    Comparison.LE: (1, False),
    Comparison.EQ: (2, True),
    Comparison.NE: (2, False),
}
_BITWISE = {Arithmetic.AND: "and", Arithmetic.OR: "or", Arithmetic.XOR: "xor"}
_LEFT_FIRST = {Arithmetic.ADD: "add", Arithmetic.MUL: "mulld"}
_SIGN_EXTENDS = {8: "extsb", 16: "extsh", 32: "extsw"}


def branch_if(test: Comparison, label: Label, field: int = 0) -> LabelBranch:
    """Return a branch to `label` if a field of CR holds the result of a comparison that satisfies `test`."""
    bit, where_set = _BITS[test]
    return LabelBranch(label, BO_NO_CTR | (BO_CR_TRUE if where_set else 0), 4 * field + bit)


def order(before: EntryState) -> tuple[str, ...]:
    """Do as Backend.order."""
    usable = [f"r{number}" for number in _ORDER]
    return tuple(sorted(usable, key=lambda name: (name in before.reads, name not in before.dead.registers)))


def fields(before: EntryState) -> tuple[int, tuple[str, ...]]:
    """Return the field of CR to compare in, and others that are dead."""
    dead = [name for name in reversed(CR_FIELDS) if name in before.dead.registers and FLAGS not in before.reads]
    if before.dead.flags or not dead:
        return 0, tuple(name for name in dead if name != CR_FIELDS[0])
    return CR_FIELDS.index(dead[0]), tuple(dead[1:])


class ValueEmitter:
    """Implements the verbs of codegen.Emitter that need no memory."""

    def __init__(self, before: EntryState) -> None:
        self.pool = RegisterPool(order(before))
        self._before = before
        self._items: list[Item] = []
        self._field, self._spare_fields = fields(before)

    def constant(self, to: str, word: int) -> None:
        if to == SCRATCH:
            self._uses(SCRATCH)
        self._code(*load(int(to[1:]), word))

    def copy(self, to: str, source: str) -> None:
        if to != source:
            self._code(logical("or", to, source, source))

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
                self._shift_by_register(op, to, left, right, signed)
        elif op in (Arithmetic.DIV, Arithmetic.MOD):
            self._divide(op, to, left, right, signed)
        elif not isinstance(right, int) or not self._operated(op, to, left, right, bits):
            self._operate(op, to, left, self._in_register(right))
        if op not in (*_BITWISE, Arithmetic.DIV, Arithmetic.MOD, Arithmetic.SHR):
            self._canonical(to, bits, signed)

    def multiply_high(self, to: str, left: str, right: str | int) -> None:
        self._code(plain("mulhdu", to, left, self._in_register(right)))

    def compare(self, test: Comparison, to: str, left: str, right: str | int, signed: bool) -> None:
        if test is Comparison.EQ and right == 0:  # 64 zeros lead, or fewer
            self._code(logical("cntlzd", to, left), rotate("rldicl", to, to, 58, 6))
            return
        self._compare(left, right, signed)
        bit, where_set = _BITS[test]
        self.constant(SCRATCH, 0 if where_set else 1)
        if where_set:
            self.constant(to, 1)
        self._code(encodings.select(to, to if where_set else NONE, SCRATCH, 4 * self._field + bit))

    def logarithm(self, to: str, source: str, any_set: bool = False) -> None:
        self._code(logical("cntlzd", to, source))
        self.constant(SCRATCH, 63)
        self._code(plain("subf", to, to, SCRATCH))

    def logarithm_less(self, to: str, source: str) -> int:
        self.logarithm(to, source)
        return 0

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

    def _jump(self, test: Comparison, label: Label, field: int | None = None) -> None:
        self._items.append(branch_if(test, label, self._field if field is None else field))

    def _canonical(self, register: str, bits: int, signed: bool) -> None:
        """Extend the result of an operation of 32 bits, which was done in 64."""
        if bits == 32:
            self.extend(register, register, 32, signed)

    def _extract(self, to: str, source: str, low: int, bits: int, signed: bool) -> None:
        """Extract `bits` of source from the bit `low` on, counted from the lowest."""
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
            self.constant(SCRATCH, 1 << bits - 1)
            self._code(logical("xor", to, to, SCRATCH), plain("subf", to, SCRATCH, to))

    def _operated(self, op: Arithmetic, to: str, left: str, right: int, bits: int) -> bool:
        """Emit instructions for this constant, if there are any; return whether there are."""
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
                if right >> 16:
                    self._code(logical(f"{name}is", to, left, right >> 16))
                    left = to
                if right & 0xFFFF or not right:
                    self._code(logical(f"{name}i", to, left, right))
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
        """Emit an AND with a constant that does not change a live CR0, if possible; return whether it is."""
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

    def _shift_by_register(self, op: Arithmetic, to: str, left: str, right: str, signed: bool) -> None:
        """Shift by a register. sld and srd take seven bits of the count; negative words are shifted right inverted."""
        inverts = op is Arithmetic.SHR and signed
        enough = Label()
        with self._working(to, right if inverts else None) as work:
            if inverts:
                self._uses(SCRATCH)
                self._code(rotate("rldicl", SCRATCH, left, 1, 63), plain("neg", SCRATCH, SCRATCH))
            self._compare(right, 64, False)
            if inverts:
                self._code(logical("xor", work, left, SCRATCH))
                left = work
            self._code(logical("sld" if op is Arithmetic.SHL else "srd", work, left, right))
            self._jump(Comparison.LT, enough)
            self.constant(work, 0)
            self.bind(enough)
            if inverts:
                self._code(logical("xor", to, work, SCRATCH))

    def _divide(self, op: Arithmetic, to: str, left: str, right: str | int, signed: bool) -> None:
        name = "divd" if signed else "divdu"
        divisor = self._in_register(right)
        if op is Arithmetic.DIV:
            self._code(plain(name, to, left, divisor))
        elif divisor != SCRATCH:
            self._uses(SCRATCH)
            self._remainder(name, to, left, divisor, SCRATCH)
        else:
            with self._working(to, left) as work:
                self._remainder(name, to, left, divisor, work)

    def _remainder(self, name: str, to: str, left: str, divisor: str, work: str) -> None:
        self._code(plain(name, work, left, divisor), plain("mulld", work, work, divisor), plain("subf", to, work, left))

    def _compare(self, left: str, right: str | int, signed: bool) -> None:
        """Compare into the field."""
        self._uses(CR_FIELDS[self._field])
        if isinstance(right, int) and signed and fits(as_number(right), 16):
            self._code(encodings.compare("cmpdi", self._field, left, as_number(right)))
        elif isinstance(right, int) and not signed and right < 1 << 16:
            self._code(encodings.compare("cmpldi", self._field, left, right))
        elif isinstance(right, int) and left == SCRATCH:
            with self.pool.scratch() as other:
                self.constant(other, right)
                self._compare(left, other, signed)
        else:
            other = self._in_register(right)
            self._code(encodings.compare("cmpd" if signed else "cmpld", self._field, left, other))

    def _test(self, word: str, mask: int) -> None:
        """Set EQ in the field if no bit of mask is set, else clear it."""
        self._uses(SCRATCH)
        self._uses(CR_FIELDS[self._field])
        low = (mask & -mask).bit_length() - 1
        records = self._field == 0
        if mask and not (mask >> low) & (mask >> low) + 1:
            bits = mask.bit_count()
            self._code(rotate("rldicl." if records else "rldicl", SCRATCH, word, -low & 63, 64 - bits))
        elif records and mask < 1 << 16:
            self._code(logical("andi.", SCRATCH, word, mask))
        elif records and not mask & ~0xFFFF_0000:
            self._code(logical("andis.", SCRATCH, word, mask >> 16))
        else:
            with self._working(SCRATCH, word) as other:
                self.constant(other, mask)
                self._code(logical("and." if records else "and", SCRATCH, word, other))
        if not records:
            self._code(encodings.compare("cmpdi", self._field, SCRATCH, 0))

    def _in_register(self, word: str | int) -> str:
        if isinstance(word, int):
            self.constant(SCRATCH, word)
            return SCRATCH
        return word

    def _working(self, to: str, busy: str | None) -> AbstractContextManager[str]:
        """Have a register to compute the value of `to` in for a block, which is not `busy`."""
        return nullcontext(to) if to != busy else self.pool.scratch()
