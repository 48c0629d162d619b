"""A program that reads registers which a trap has saved: from memory that a register of the kernel's leads to.

The saved PC is that of the byte behind the trap; what the program reads as the PC is that of the trap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.program import Expr, Load, Op, Program, Register

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class Saved:
    """frame: the register that leads there. registers: by name, how far in. pc: its name. behind: the trap's size."""

    frame: str
    registers: Mapping[str, int]
    pc: str
    behind: int

    def word(self, name: str) -> Expr:
        """What the register was."""
        place = fold.binary(Op.ADD, Register(self.frame), fold.constant(self.registers[name]), 64, False)
        word = Load(place, 8, signed=False, mapped=True)
        return word if name != self.pc else fold.binary(Op.SUB, word, fold.constant(self.behind), 64, False)


def framed(program: Program, saved: Saved) -> Program:
    """`program` with its registers read from there."""
    return _within(program, saved)


def _within(node: Node, saved: Saved) -> Node:
    if isinstance(node, Register):
        return saved.word(node.name)  # type: ignore[return-value]
    if isinstance(node, tuple):
        return tuple(_within(each, saved) for each in node)  # type: ignore[return-value]
    if not is_dataclass(node) or isinstance(node, type):
        return node
    new = {each.name: _within(getattr(node, each.name), saved) for each in fields(node)}
    same = all(new[each.name] is getattr(node, each.name) for each in fields(node))
    return node if same else replace(node, **new)
