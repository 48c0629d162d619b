"""Have a program read its registers from where a trap has saved them: a register of the kernel points there.

The saved PC may be behind the trap; the program reads the address of the trap as its PC.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Binary, Expr, Load, Op, Register

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class TrapFrame:
    """Where a trap has saved registers.

    frame:     the register that points there.
    registers: by name, the offset of each.
    pc:        the name of the PC. behind: how far the saved PC is behind the trap.
    resident:  by name in the program, a register that is read as it is.
    """

    frame: str
    registers: Mapping[str, int]
    pc: str
    behind: int
    resident: Mapping[str, str] = field(default_factory=dict)

    def word(self, name: str) -> Expr:
        """Return the saved register."""
        if name in self.resident:
            return Register(self.resident[name])
        place = fold.binary(Op.ADD, Register(self.frame), fold.constant(self.registers[name]), 64, False)
        word = Load(place, 8, signed=False, mapped=True)
        return word if name != self.pc else fold.binary(Op.SUB, word, fold.constant(self.behind), 64, False)


def rename_registers(node: Node, names: Mapping[str, str]) -> Node:
    """Return a node with other names for registers."""
    return _within(node, lambda name: Register(names.get(name, name)))


def read_from_frame(node: Node, saved: TrapFrame, but: Collection[str] = ()) -> Node:
    """Return a program, or that of a function's entry, with its registers read from there; `but` are no registers."""
    return _within(node, lambda name: None if name in but else saved.word(name))


def replace_register(node: Node, name: str, place: Expr) -> Node:
    """Return `node` with `place` instead of the register `name`."""
    return _within(node, lambda found: place if found == name else None)


def _within(node: Node, meaning: Callable[[str], Expr | None]) -> Node:
    if isinstance(node, Register):
        return meaning(node.name) or node  # type: ignore[return-value]
    if isinstance(node, tuple):
        return tuple(_within(each, meaning) for each in node)  # type: ignore[return-value]
    if not is_dataclass(node) or isinstance(node, type):
        return node
    new = {each.name: _within(getattr(node, each.name), meaning) for each in fields(node)}
    same = all(new[each.name] is getattr(node, each.name) for each in fields(node))
    if same:
        return node
    if isinstance(node, Binary):
        return fold.binary(**new)  # type: ignore[return-value]
    return replace(node, **new)
