"""Expressions lowered to a register machine: a word in a register, or a jump on what it is.

A register of the machine's own is read where it is; a constant is an operand; of two operands the one that needs more
registers comes first (Sethi and Ullman), into the register that the result will be in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from gdb_optprobe.handlers import lower_strings
from gdb_optprobe.handlers.arithmetic import number
from gdb_optprobe.handlers.ir import (
    MASK,
    WORD,
    Action,
    And,
    Binary,
    Choose,
    Clock,
    Constant,
    Convert,
    Expr,
    Load,
    Op,
    Operand,
    Or,
    PerCpuBase,
    Register,
    StringEquals,
    StringLoad,
    Unary,
    UnaryOp,
    children,
)
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label, MemoryValue

UNMAPPED = "memory that may not be mapped is not read here"


class NotLowered(Exception):
    """What native code cannot do, by the node it is asked for in."""

    def __init__(self, node: Operand | Action, why: str) -> None:
        super().__init__(f"{why}: {node}")
        self.node = node
        self.why = why


class ExpressionLowering:
    """What evaluates expressions, with `emitter`.

    pc:    what the PC is, by its name.
    fault: where a fault leads; asked for, it is `faulted`.
    """

    def __init__(self, emitter: Emitter, pc: tuple[str, int]) -> None:
        self._emitter = emitter
        self._pc = pc
        self._fault = Label()
        self.faulted = False

    @property
    def fault(self) -> Label:
        self.faulted = True
        return self._fault

    def another(self) -> ExpressionLowering:
        """With a fault of its own."""
        return ExpressionLowering(self._emitter, self._pc)

    @contextmanager
    def word(self, node: Expr) -> Iterator[str]:
        """In a register, for as long as this lasts; not to be written to."""
        at = self._emitter.register(node.name) if isinstance(node, Register) else None
        if at is not None:
            yield at
            return
        with self._emitter.pool.scratch() as to:
            self.into(to, node)
            yield to

    @contextmanager
    def operand(self, node: Expr) -> Iterator[str | int]:
        """In a register, or a constant."""
        if isinstance(node, Constant):
            yield node.value
            return
        with self.word(node) as register:
            yield register

    @contextmanager
    def compared(self, node: Expr) -> Iterator[str | MemoryValue]:
        """In a register, or in memory."""
        if isinstance(node, Load) and node.mapped:
            with self.memory(node.address) as memory:
                yield MemoryValue(memory, node.size, node.signed)
            return
        with self.word(node) as register:
            yield register

    @contextmanager
    def memory(self, address: Expr) -> Iterator[Address]:
        """What an address names."""
        terms = list(_terms(address))
        offset = sum(term.value for term in terms if isinstance(term, Constant)) & MASK
        others = [term for term in terms if not isinstance(term, Constant)]
        per_cpu = PerCpuBase() in others
        if per_cpu:
            others.remove(PerCpuBase())
        if not others:
            yield Address(None, number(offset, True), per_cpu=per_cpu)
            return
        base = others[0]
        for other in others[1:]:
            base = Binary(Op.ADD, base, other, 64, False)
        with self.word(base) as register:
            yield Address(register, number(offset, True), per_cpu=per_cpu)

    def words(self, stack: ExitStack, node: Operand) -> list[str | int]:
        """The words that a part of a key or of a record takes, for as long as `stack` lasts."""
        if not isinstance(node, StringLoad):
            return [stack.enter_context(self.operand(node))]
        others = () if node.mapped else self._emitter.probe_read_clobbers
        made = [stack.enter_context(self._emitter.pool.scratch(others)) for _ in range(-(-node.size // WORD))]
        if node.mapped:
            with self.memory(node.address) as memory:
                (lower_strings.whole if node.whole else lower_strings.up_to_end)(self._emitter, made, memory, node.size)
        else:
            with self.peeking(node), self.word(node.address) as at:
                lower_strings.peeked(self._emitter, made, at, node.size, node.whole, self.fault)
        return [*made]

    def store_text(self, node: StringLoad, into: Address) -> None:
        """The same words of text that may not be there, into memory."""
        with self.peeking(node), self.word(node.address) as at:
            lower_strings.store_peeked(self._emitter, into, at, node.size, node.whole, self.fault)

    def into(self, to: str, node: Expr) -> None:
        """Evaluate into a register of the pool's."""
        emit = self._emitter
        match node:
            case Constant(value):
                emit.constant(to, value)
            case Register(name) if name == self._pc[0]:
                emit.constant(to, self._pc[1])
            case Register() | PerCpuBase() | Clock():
                self._leaf(to, node)
            case Load(address, size, signed, True):
                with self.memory(address) as memory:
                    emit.load(to, MemoryValue(memory, size, signed))
            case Load(address, size, signed):
                with self.peeking(node):
                    emit.probe_read(to, self._first(to, address), size, self.fault)
                if size < WORD:
                    emit.extend(to, to, 8 * size, signed)
            case Unary(op, value, bits, signed):
                verb = emit.negate if op is UnaryOp.NEGATE else emit.invert
                verb(to, self._first(to, value), bits, signed)
            case Convert(value, bits, signed):
                emit.extend(to, self._first(to, value), bits, signed)
            case Binary(op, left, right, bits, signed) if not op.compares:
                self._binary(to, op, left, right, bits, signed)
            case Binary(op, left, right, _, signed):
                if isinstance(left, Constant):
                    left, right, op = right, left, Op[Comparison[op.name].turned.name]
                with self._both(left, right) as (one, other):
                    emit.compare(Comparison[op.name], to, one, other, signed)
            case And() | Or() | StringEquals():
                self._choose(to, node, Constant(1), Constant(0))
            case Choose(condition, yes, no):
                self._choose(to, condition, yes, no)

    def jump(self, node: Expr, when: bool, label: Label) -> None:
        """To the label where the word is not 0 (when), or is 0; else on."""
        emit = self._emitter
        match node:
            case Constant(value):
                if bool(value) is when:
                    emit.jump(label)
            case And(left, right) | Or(left, right):
                decides = isinstance(node, Or)  # the left alone, where it is this
                on = Label()
                self.jump(left, decides, label if when is decides else on)
                self.jump(right, when, label)
                emit.bind(on)
            case Choose(condition, yes, no):
                otherwise, on = Label(), Label()
                self.jump(condition, False, otherwise)
                self.jump(yes, when, label)
                emit.jump(on)
                emit.bind(otherwise)
                self.jump(no, when, label)
                emit.bind(on)
            case Binary(Op.EQ | Op.NE as op, left, Constant(0)):
                self.jump(left, when is (op is Op.NE), label)
            case Binary(op, left, right, _, signed) if op.compares:
                self._compare(Comparison[op.name], left, right, signed, when, label)
            case Binary(Op.AND, left, Constant(mask)):
                with self.compared(left) as word:
                    emit.branch_bits(word, mask, when, label)
            case Convert(value, bits):
                with self.compared(value) as word:
                    emit.branch_bits(word, (1 << bits) - 1, when, label)
            case StringEquals(address, literal, True):
                self._text(address, literal, when, label)
            case StringEquals(address, literal):
                with self.peeking(node), self.word(address) as at:
                    lower_strings.peeked_equals(emit, at, literal, when, label, self.fault)
            case _:
                with self.compared(node) as word:
                    emit.branch(Comparison.NE if when else Comparison.EQ, word, 0, False, label)

    @contextmanager
    def peeking(self, node: Operand) -> Iterator[None]:
        """Around peeks that `node` needs. Raises NotLowered where nothing can read what may not be there."""
        try:
            yield
        except KeyError as error:
            raise NotLowered(node, UNMAPPED) from error

    def _leaf(self, to: str, node: Register | PerCpuBase | Clock) -> None:
        try:
            match node:
                case Register(name):
                    self._emitter.read(to, name)
                case PerCpuBase():
                    self._emitter.per_cpu_base(to)
                case Clock():
                    self._emitter.clock(to)
        except KeyError as error:
            raise NotLowered(node, "what native code cannot read here") from error

    def _first(self, to: str, node: Expr) -> str:
        """The register that has the word, `to` where that is none already."""
        at = self._emitter.register(node.name) if isinstance(node, Register) else None
        if at is not None:
            return at
        self.into(to, node)
        return to

    def _binary(self, to: str, op: Op, left: Expr, right: Expr, bits: int, signed: bool) -> None:
        other: str | int
        with ExitStack() as stack:
            if isinstance(right, Constant):
                one, other = self._first(to, left), right.value
            elif need(right) > need(left):
                other = self._first(to, right)
                one = stack.enter_context(self.word(left))
            else:
                one = self._first(to, left)
                other = stack.enter_context(self.word(right))
            self._operate(to, op, one, other, bits, signed)

    def _operate(self, to: str, op: Op, left: str, right: str | int, bits: int, signed: bool) -> None:
        if op not in (Op.DIV, Op.MOD):
            self._emitter.binary(Arithmetic[op.name], to, left, right, bits, signed)
        elif isinstance(right, int):
            self._divide_by_constant(to, op, left, right, bits, signed)
        else:
            self._divide(to, op, left, right, bits, signed)

    def _divide(self, to: str, op: Op, left: str, right: str, bits: int, signed: bool) -> None:
        """A divisor of -1 is one of its own: processors trap, or leave anything, where the quotient is too great."""
        emit = self._emitter
        emit.branch(Comparison.EQ, right, 0, False, self.fault)
        if not signed:
            emit.binary(Arithmetic[op.name], to, left, right, bits, signed)
            return
        minus, done = Label(), Label()
        emit.branch(Comparison.EQ, right, MASK, False, minus)
        emit.binary(Arithmetic[op.name], to, left, right, bits, signed)
        emit.jump(done)
        emit.bind(minus)
        self._divide_by_constant(to, op, left, MASK, bits, signed)
        emit.bind(done)

    def _divide_by_constant(self, to: str, op: Op, left: str, right: int, bits: int, signed: bool) -> None:
        emit = self._emitter
        if right == 0:
            emit.jump(self.fault)
        elif signed and right == MASK and op is Op.DIV:
            emit.negate(to, left, bits, signed)
        elif signed and right == MASK:
            emit.constant(to, 0)
        elif not signed and right & right - 1 == 0:
            if op is Op.DIV:
                emit.binary(Arithmetic.SHR, to, left, right.bit_length() - 1, bits, signed)
            else:
                emit.binary(Arithmetic.AND, to, left, right - 1, bits, signed)
        else:
            emit.binary(Arithmetic[op.name], to, left, right, bits, signed)

    def _choose(self, to: str, condition: Expr, yes: Expr, no: Expr) -> None:
        otherwise, done = Label(), Label()
        self.jump(condition, False, otherwise)
        self.into(to, yes)
        self._emitter.jump(done)
        self._emitter.bind(otherwise)
        self.into(to, no)
        self._emitter.bind(done)

    def _compare(self, test: Comparison, left: Expr, right: Expr, signed: bool, when: bool, label: Label) -> None:
        if isinstance(left, Constant):
            left, right, test = right, left, test.turned
        with ExitStack() as stack:
            if need(right) > need(left):
                other = stack.enter_context(self.operand(right))
                one = stack.enter_context(self.compared(left))
            else:
                one = stack.enter_context(self.compared(left))
                other = stack.enter_context(self.operand(right))
            self._emitter.branch(test if when else test.opposite, one, other, signed, label)

    @contextmanager
    def _both(self, left: Expr, right: Expr) -> Iterator[tuple[str, str | int]]:
        with ExitStack() as stack:
            if need(right) > need(left):
                other = stack.enter_context(self.operand(right))
                yield stack.enter_context(self.word(left)), other
            else:
                one = stack.enter_context(self.word(left))
                yield one, stack.enter_context(self.operand(right))

    def _text(self, address: Expr, literal: bytes, when: bool, label: Label) -> None:
        differs = Label()
        with self.memory(address) as memory:
            for at, byte in enumerate(literal):
                place = Address(memory.base, memory.offset + at, per_cpu=memory.per_cpu)
                self._emitter.branch(Comparison.NE, MemoryValue(place, 1), byte, False, differs if when else label)
        if when:
            self._emitter.jump(label)
        self._emitter.bind(differs)


def _terms(node: Expr) -> Iterator[Expr]:
    """What is added up to an address."""
    if isinstance(node, Binary) and node.op is Op.ADD and node.bits == 64:
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


@lru_cache(4096)
def need(node: Expr) -> int:
    """About how many registers it takes to evaluate."""
    match node:
        case Constant() | Register():
            return 0
        case Binary(_, left, right):
            one, other = need(left), need(right)
            return max(one, other, 1) if one != other else one + 1
        case _:
            return max((1, *(need(child) for child in children(node))))
