"""Compute what a program does at one hit: for the tiers that stop the guest, and to check native code against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.arithmetic import Fault
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
    Emit,
    Expr,
    Load,
    Operand,
    Or,
    PerCpuBase,
    Program,
    Register,
    Stop,
    StringEquals,
    StringLoad,
    Unary,
    Update,
    operands,
)

ReadMemory = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Hit:
    """The state of a vCPU at the probed address, before the instruction there.

    read:       reads memory by address and size; raises Unreadable.
    per_cpu:    PerCpuBase on this CPU.
    clock:      Clock; None if it is not known, which is a fault.
    probe_read: as `read`, for memory that may not be mapped; without it `read` is used.
    """

    registers: Mapping[str, int]
    read: ReadMemory
    per_cpu: int = 0
    clock: int | None = None
    probe_read: ReadMemory | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """An action that was carried out. value: for its aggregate. data: its key, or the record's fields."""

    action: Action
    value: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one hit does. held: the condition. faults: how many of condition and actions ended in a fault."""

    held: bool
    done: tuple[Done, ...] = ()
    faults: int = 0

    @property
    def stops(self) -> bool:
        return any(isinstance(done.action, Stop) for done in self.done)


def run(program: Program, hit: Hit) -> Outcome:
    """Compute what one hit does. Nothing is written."""
    try:
        held = program.condition is None or bool(evaluate(program.condition, hit))
    except Fault:
        return Outcome(held=False, faults=1)
    if not held:
        return Outcome(held=False)
    done: list[Done] = []
    for action in program.actions:
        try:
            done.append(_carry_out(action, hit))
        except Fault:
            continue
    return Outcome(True, tuple(done), len(program.actions) - len(done))


def evaluate(node: Expr, hit: Hit) -> int:
    """Compute the word of an expression. Raises Fault."""
    match node:
        case Constant(value):
            return value
        case Register(name):
            return hit.registers[name] & MASK
        case PerCpuBase():
            return hit.per_cpu & MASK
        case Clock():
            if hit.clock is None:
                raise Fault("the clock is not known")
            return hit.clock & MASK
        case Load(address, size, signed, mapped):
            data = _read(hit, evaluate(address, hit), size, mapped)
            return arithmetic.extend(int.from_bytes(data, "little"), 8 * size, signed)
        case Unary(op, value, bits, signed):
            return arithmetic.unary(op, evaluate(value, hit), bits, signed)
        case Binary(op, left, right, bits, signed):
            return arithmetic.binary(op, evaluate(left, hit), evaluate(right, hit), bits, signed)
        case Convert(value, bits, signed):
            return arithmetic.extend(evaluate(value, hit), bits, signed)
        case And(left, right):
            return int(bool(evaluate(left, hit)) and bool(evaluate(right, hit)))
        case Or(left, right):
            return int(bool(evaluate(left, hit)) or bool(evaluate(right, hit)))
        case Choose(condition, yes, no):
            return evaluate(yes if evaluate(condition, hit) else no, hit)
        case StringEquals(address, literal, mapped):
            start = evaluate(address, hit)
            return int(all(_read(hit, start + at, 1, mapped)[0] == byte for at, byte in enumerate(literal)))


def _carry_out(action: Action, hit: Hit) -> Done:
    evaluated = [(operand, data(operand, hit)) for operand in operands(action)]
    value = 0
    if isinstance(action, Update) and action.value is not None:
        value = int.from_bytes(evaluated.pop(0)[1], "little")
    kept = b"".join(each for _, each in evaluated)
    if isinstance(action, Emit) and action.target.stack:
        sp, room = (int.from_bytes(evaluated[at][1], "little") for at in (0, -1))
        if action.target.tried:
            words = _words(hit, sp, action.target.stack)
            return Done(action, value, kept[:-WORD] + len(words).to_bytes(WORD, "little") + words)
        kept += _read(hit, sp, WORD * min(room // WORD, action.target.stack), mapped=True)
    return Done(action, value, kept)


def _words(hit: Hit, start: int, most: int) -> bytes:
    """Read words up to the first that is not mapped."""
    found = b""
    while len(found) < WORD * most:
        try:
            found += _read(hit, start + len(found) & MASK, WORD, mapped=False)
        except Fault:
            break
    return found


def data(operand: Operand, hit: Hit) -> bytes:
    """Return the bytes of a part of a key or a record."""
    if not isinstance(operand, StringLoad):
        return evaluate(operand, hit).to_bytes(WORD, "little")
    start = evaluate(operand.address, hit)
    reads = _read if operand.whole else _up_to_zero
    text = reads(hit, start, operand.size, operand.mapped)
    return text.partition(b"\0")[0].ljust(-(-operand.size // WORD) * WORD, b"\0")


def _up_to_zero(hit: Hit, start: int, size: int, mapped: bool) -> bytes:
    """Read byte by byte: what follows the 0 may not be mapped."""
    text = b""
    while len(text) < size and not text.endswith(b"\0"):
        text += _read(hit, start + len(text), 1, mapped)
    return text


def _read(hit: Hit, address: int, size: int, mapped: bool) -> bytes:
    if address + size > MASK + 1:
        raise Fault("memory ends")
    read = hit.read if mapped or hit.probe_read is None else hit.probe_read
    try:
        return read(address, size)
    except Unreadable as error:
        raise Fault(error.message) from error
