"""Text that is known to be mapped, lowered to words in registers: what is behind its first 0 byte is 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdb_optprobe.isa.emitter import Arithmetic, Emitter, Label, Memory, Test, Value

MASK = (1 << 64) - 1
_LOW = 0x0101_0101_0101_0101
_HIGH = 0x8080_8080_8080_8080


def whole(emit: Emitter, to: Sequence[str], at: Memory, size: int) -> None:
    """All of `size` bytes may be read: word by word.

    Of a word w, the lowest bit of (w - 0x01…) & ~w & 0x80… is in its first 0 byte, if it has one.
    """
    done = Label()
    ends = [Label() for _ in to]
    with emit.pool.borrowed() as zeros, emit.pool.borrowed() as other:
        for index, word in enumerate(to):
            _load(emit, word, replace(at, offset=at.offset + 8 * index), min(8, size - 8 * index))
            emit.constant(other, -_LOW & MASK)
            emit.binary(Arithmetic.ADD, zeros, word, other, 64, False)
            emit.invert(other, word, 64, False)
            emit.binary(Arithmetic.AND, zeros, zeros, other, 64, False)
            emit.binary(Arithmetic.AND, zeros, zeros, _HIGH, 64, False)
            emit.branch(Test.NE, zeros, 0, False, ends[index])
        emit.jump(done)
        for index, word in enumerate(to):
            emit.mark(ends[index])
            _cut(emit, word, zeros, other)
            for behind in to[index + 1 :]:
                emit.constant(behind, 0)
            emit.jump(done)
        emit.mark(done)


def _cut(emit: Emitter, word: str, zeros: str, other: str) -> None:
    """Keep the bytes below the first 0, whose highest bit is the lowest of `zeros`."""
    emit.negate(other, zeros, 64, False)
    emit.binary(Arithmetic.AND, zeros, zeros, other, 64, False)
    emit.binary(Arithmetic.SHR, zeros, zeros, 7, 64, False)
    emit.binary(Arithmetic.SUB, zeros, zeros, 1, 64, False)
    emit.binary(Arithmetic.AND, word, word, zeros, 64, False)


def _load(emit: Emitter, to: str, at: Memory, size: int) -> None:
    """1 to 8 bytes."""
    pieces = [8] if size == 8 else [piece for piece in (4, 2, 1) if size & piece]
    done = 0
    for piece in pieces:
        value = Value(replace(at, offset=at.offset + done), piece)
        if not done:
            emit.load(to, value)
        else:
            with emit.pool.borrowed() as more:
                emit.load(more, value)
                emit.binary(Arithmetic.SHL, more, more, 8 * done, 64, False)
                emit.binary(Arithmetic.OR, to, to, more, 64, False)
        done += piece


def up_to_end(emit: Emitter, to: Sequence[str], at: Memory, size: int) -> None:
    """What is behind the first 0 byte is not read: byte by byte."""
    for word in to:
        emit.constant(word, 0)
    done = Label()
    with emit.pool.borrowed() as byte:
        for index in range(size):
            emit.load(byte, Value(replace(at, offset=at.offset + index), 1))
            emit.branch(Test.EQ, byte, 0, False, done)
            if index % 8:
                emit.binary(Arithmetic.SHL, byte, byte, 8 * (index % 8), 64, False)
            emit.binary(Arithmetic.OR, to[index // 8], to[index // 8], byte, 64, False)
    emit.mark(done)
