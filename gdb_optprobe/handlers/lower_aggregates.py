"""What maps/aggregate.py says of one more value, as native code: word by word, each atomically."""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label
from gdb_optprobe.maps.aggregate import MASK, Aggregate, Average, Count, Greatest, Least, Linear, Powers, Sum


def update(emit: Emitter, aggregate: Aggregate, at: Address, value: str | int) -> None:
    """Add a value to the aggregate at an address. value: a register, or a word; of a count, any."""
    match aggregate:
        case Count():
            emit.atomic_add(at, 1)
        case Sum():
            emit.atomic_add(at, value)
        case Average():
            emit.atomic_add(at, 1)
            emit.atomic_add(_beyond(at, 1), value)
        case _ if isinstance(value, int):
            with emit.pool.scratch() as register:
                emit.constant(register, value)
                update(emit, aggregate, at, register)
        case Least(signed) | Greatest(signed):
            emit.atomic_extreme(Comparison.LT if isinstance(aggregate, Least) else Comparison.GT, at, value, signed)
            emit.store(_beyond(at, 1), 1)
        case Powers(signed):
            _powers(emit, signed, at, value)
        case Linear():
            _linear(emit, aggregate, at, value)


def _beyond(at: Address, words: int) -> Address:
    return replace(at, offset=at.offset + 8 * words)


def _powers(emit: Emitter, signed: bool, at: Address, value: str) -> None:
    """The bucket of 0 is the second word, one below that of 1, whose logarithm is 0; of what is negative, the first."""
    found = Label()
    with emit.pool.scratch() as index:
        if signed:
            emit.constant(index, -2 & MASK)
            emit.branch(Comparison.LT, value, 0, True, found)
        emit.logarithm(index, value)
        emit.bind(found)
        emit.atomic_add(replace(_beyond(at, 2), index=index), 1)


def _linear(emit: Emitter, histogram: Linear, at: Address, value: str) -> None:
    """Above low, the distance from it is an unsigned word, whatever the sign."""
    below, above, done = Label(), Label(), Label()
    low, span = histogram.low & MASK, histogram.high - histogram.low
    if low or histogram.signed:
        emit.branch(Comparison.LT, value, low, histogram.signed, below)
    with emit.pool.scratch() as index:
        emit.binary(Arithmetic.SUB, index, value, low, 64, False)
        emit.branch(Comparison.GE, index, span, False, above)
        if histogram.step & histogram.step - 1:
            emit.binary(Arithmetic.DIV, index, index, histogram.step, 64, False)
        elif histogram.step > 1:
            emit.binary(Arithmetic.SHR, index, index, histogram.step.bit_length() - 1, 64, False)
        emit.atomic_add(replace(_beyond(at, 1), index=index), 1)
    emit.jump(done)
    emit.bind(below)
    emit.atomic_add(at, 1)
    emit.jump(done)
    emit.bind(above)
    emit.atomic_add(_beyond(at, histogram.words - 1), 1)
    emit.bind(done)
