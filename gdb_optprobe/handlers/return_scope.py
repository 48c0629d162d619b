"""What a return probe does at a function's entry, and saves for its return: `save n = EXPR`, parameters, the time.

    entry    words, evaluated where arguments are ──► a slot of the table of calls
    return   Load(slot register + offset) ◄── `$saved.n`, a parameter's name, `$elapsed`
Saved are the words that the part at the return names, and those of `save`. Other actions of the entry are carried out
for calls that have found a slot.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.compile import ProgramLimits, compile_action
from gdb_optprobe.handlers.ctype import UNSIGNED_LONG, CType, Enum, Integer, Member, Struct
from gdb_optprobe.handlers.ir import (
    Action,
    Cell,
    Clock,
    Constant,
    Emit,
    Expr,
    Frame,
    HashMap,
    Load,
    Op,
    Operand,
    Program,
    Records,
    Register,
    Update,
    nodes,
    operands,
)
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Fields, Lvalue, Meaning, Missing, Rvalue, Scope
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.handlers.types import Typer
from gdb_optprobe.maps.call_table import SAVED, WORD

NANOSECOND_SHIFT = 20
"""Times are ticks * factor >> this: exact to a millionth, for hours."""
_SAVE = re.compile(r"save\s+([A-Za-z_]\w*)\s*=(?!=)")
_SAVES = "save NAME = EXPR"
SAVE = "save"
PROBED = "probed"
"""The name of the function's entry in a record of a stack."""
_AT_ENTRY = "entry"
RETURN_ADDRESS = "return address"
"""In a program at a return, like a register: the address that the call returns to, which its slot has."""


@dataclass(frozen=True, slots=True)
class EntryProgram:
    """What is done at a function's entry. condition: the call is looked at where it is not 0; None for always.

    words:   kept of each call. actions: carried out then.
    names:   what was asked for by `save`: the number of its word, and whether it has a sign.
    """

    condition: Expr | None = None
    words: tuple[Expr, ...] = ()
    names: tuple[tuple[str, int, bool], ...] = ()
    actions: tuple[Action, ...] = ()

    @property
    def expressions(self) -> tuple[Operand, ...]:
        condition = (self.condition,) if self.condition is not None else ()
        return (*condition, *self.words, *(operand for action in self.actions for operand in operands(action)))

    @property
    def objects(self) -> tuple[Cell | HashMap | Records, ...]:
        """Return what the actions fill, in their order."""
        return Program(None, self.actions).objects

    @property
    def registers(self) -> frozenset[str]:
        """Return the registers that it reads."""
        return frozenset(
            node.name for each in self.expressions for node in nodes(each) if isinstance(node, Register)
        )


class ReturnScope:
    """Names at a function's return: those of that moment first, then what can be saved at its entry.

    slot:  the register that has the address of the call's slot.
    hertz: ticks of the clock in a second.
    """

    def __init__(self, at_return: Scope, at_entry: Scope, slot: str, hertz: int | Missing) -> None:
        self._at_return = at_return
        self._at_entry = at_entry
        self._slot = slot
        self._hertz = hertz
        self._words: list[Expr] = []
        self._saves: dict[str, tuple[int, CType]] = {}
        self._actions: list[Action] = []

    def entry(self, condition: Fragment | None) -> EntryProgram:
        """Return what is done and saved at the entry, once the part at the return is compiled. Raises OptprobeError."""
        typer = Typer(self._at_entry)
        test = None
        if condition is not None:
            test = typer.value(parse_expression(condition, self._at_entry.is_type)).expr
        names = tuple((name, (at - SAVED) // WORD, _is_signed(kept)) for name, (at, kept) in self._saves.items())
        test = None if isinstance(test, Constant) and test.value else test
        return EntryProgram(test, tuple(self._words), names, tuple(self._actions))

    def save(self, action: Fragment) -> None:
        """Compile `save n = EXPR`. Raises OptprobeError."""
        found = _SAVE.match(action.line, action.start, action.end)
        if found is None:
            raise fault("a name and a value are missing", action, _SAVES)
        name, part = found[1], Fragment(action.line, found.end(), action.end).stripped()
        if name in self._saves:
            raise fault(f"'{name}' is saved twice", Fragment(action.line, *found.span(1)))
        value = Typer(self._at_entry).value(parse_expression(part, self._at_entry.is_type))
        self._words.append(value.expr)  # at a place of its own, whatever else is kept
        self._saves[name] = (SAVED + WORD * (len(self._words) - 1), value.type)

    def act(self, action: Fragment, limits: ProgramLimits) -> None:
        """Compile any other action at the entry. Raises OptprobeError."""
        name = action.first_word()
        match name.text:
            case "stop":
                raise fault("'stop' is no action at the entry", action, "a probe of its own: optprobe break LOCATION")
            case "latency":
                raise fault("a call's time is known where it has returned", action, "entry … if EXPR do latency")
            case near if difflib.get_close_matches(near, (SAVE,)):
                raise fault(f"no action named '{near}'", name, _SAVES)
        match compile_action(action, self._at_entry, limits):
            case Update(Cell() | HashMap() as target) as done:
                self._actions.append(replace(done, target=replace(target, name=f"{_AT_ENTRY} {target.name}")))
            case Emit(target) as done:
                self._actions.append(replace(done, target=replace(target, name=f"{_AT_ENTRY} {target.name}")))

    # Scope

    def is_type(self, name: str) -> bool:
        return self._at_return.is_type(name)

    def type(self, keyword: str, name: str) -> CType | Missing:
        return self._at_return.type(keyword, name)

    def name(self, name: str) -> Meaning | Missing:
        return self._either(self._at_return.name(name), self._at_entry.name(name))

    def dollar(self, name: str) -> Meaning | Missing:
        match name:
            case "elapsed":
                return self._elapsed()
            case "saved":
                if not self._saves:
                    return Missing("nothing is saved at the entry", f"entry do {_SAVES}")
                size = SAVED + WORD * len(self._words)
                kept = Struct("saved", size, lookup=self._member, names=lambda: [*self._saves])
                return Lvalue(Register(self._slot), kept, mapped=True)
        return self._either(self._at_return.dollar(name), self._at_entry.dollar(name))

    def per_cpu_base(self) -> Expr | Missing:
        return self._at_return.per_cpu_base()

    def is_mapped(self, address: int, size: int) -> bool:
        return self._at_return.is_mapped(address, size)

    def frame(self) -> Frame | Missing:
        found = self._at_return.frame()
        if isinstance(found, Missing) or not found.probed:
            return found
        return replace(found, also=(*found.also, (PROBED, self._kept(Register(found.probed)))))

    # what is kept

    def _either(self, now: Meaning | Missing, then: Meaning | Missing) -> Meaning | Missing:
        if isinstance(now, Fields) and isinstance(then, Fields):
            return replace(now, lookup=lambda name: self._field(now.lookup(name), then.lookup(name)))
        if isinstance(now, Missing) and isinstance(then, Rvalue):
            return Rvalue(self._kept(then.expr), then.type, then.mapped)
        return now

    def _field(self, now: Meaning | Missing | None, then: Meaning | Missing | None) -> Meaning | Missing | None:
        if now is None and isinstance(then, Rvalue):
            return Rvalue(self._kept(then.expr), then.type, then.mapped)
        return now

    def _kept(self, word: Expr) -> Expr:
        if word not in self._words:
            self._words.append(word)
        offset = fold.constant(SAVED + WORD * self._words.index(word))
        return Load(fold.binary(Op.ADD, Register(self._slot), offset, 64, False), 8, signed=False, mapped=True)

    def _member(self, name: str) -> Member | None:
        return Member(name, *self._saves[name]) if name in self._saves else None

    def _elapsed(self) -> Rvalue | Missing:
        if isinstance(self._hertz, Missing):
            return self._hertz
        factor = round((10**9 << NANOSECOND_SHIFT) / self._hertz)
        ticks = fold.binary(Op.SUB, Clock(), self._kept(Clock()), 64, False)
        product = fold.binary(Op.MUL, ticks, fold.constant(factor), 64, False)
        return Rvalue(fold.binary(Op.SHR, product, fold.constant(NANOSECOND_SHIFT), 64, False), UNSIGNED_LONG)


def _is_signed(kept: CType) -> bool:
    return isinstance(kept, Integer | Enum) and kept.signed


def compile_entry(scope: ReturnScope, actions: Sequence[Fragment], limits: ProgramLimits) -> None:
    """Compile what `entry do …` asks for. Raises OptprobeError."""
    for action in actions:
        if action.first_word().text == SAVE:
            scope.save(action)
        else:
            scope.act(action, limits)
