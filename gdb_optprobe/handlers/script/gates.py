"""What lets only some hits of a probe through: every N-th, or one in so much time. Each CPU counts for itself."""

from __future__ import annotations

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    Assign,
    Clock,
    Column,
    Constant,
    Expr,
    Form,
    Get,
    If,
    Map,
    Modify,
    Op,
    Set,
    Variable,
)
from gdb_optprobe.handlers.script.scope import Gate

MOST_CPUS = 1 << 13
_NOW, _DUE, _COUNT, _OPEN = (Variable(f"%gate.{name}") for name in ("now", "due", "count", "open"))


def every(count: int, cpu: Expr, name: str) -> Gate:
    """Return what lets every hit with a number that `count` divides through. name: of the map that counts."""
    if count == 1:
        return Gate((), Constant(1))
    step = Modify(_by_cpu(name), (cpu,), Op.ADD, Constant(1), new=_COUNT)
    rest = fold.binary(Op.UMOD, _COUNT, Constant(count), 64, False)
    return Gate((step,), fold.binary(Op.EQ, rest, Constant(0), 64, False))


def every_of(test: Expr, count: int, cpu: Expr, name: str) -> Gate:
    """Return the same of the hits for which a test is not 0."""
    if count == 1:
        return Gate((), test)
    counted = every(count, cpu, name)
    passes = If(test, (*counted.statements, Assign(_OPEN, counted.passes)))
    return Gate((Assign(_OPEN, Constant(0)), passes), _OPEN)


def in_time(ticks: int, cpu: Expr, name: str) -> Gate:
    """Return what lets a hit through where so many ticks of the clock have passed since the last one was due.

    So hits that come at other times than they are due are as many. After a time without any, one is let through. The
    first one of a CPU is: the clock began long before.
    """
    due = _by_cpu(name)
    late = fold.binary(Op.LE, _DUE, _NOW, 64, False)
    return Gate(
        (
            Assign(_NOW, Clock()),
            Get(due, (cpu,), _DUE),
            If(fold.binary(Op.EQ, _DUE, Constant(0), 64, False), (Assign(_DUE, _NOW),)),
            Assign(_OPEN, late),
            If(
                _OPEN,
                (
                    Assign(_DUE, fold.binary(Op.ADD, _DUE, Constant(ticks), 64, False)),
                    If(late, (Assign(_DUE, fold.binary(Op.ADD, _NOW, Constant(ticks), 64, False)),)),
                    Set(due, (cpu,), (_DUE,)),
                ),
            ),
        ),
        _OPEN,
    )


def _by_cpu(name: str) -> Map:
    """Return the map of a gate. A blank in its name keeps it apart from those of scripts."""
    return Map(f"gate {name}", (Column("cpu", Form.UNSIGNED),), (Column("", Form.UNSIGNED),), MOST_CPUS)
