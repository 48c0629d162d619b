"""Parse GDB's description of where a variable is at an address, into an expression of handlers/.

GDB resolves DWARF, but its Python API has no locations; `info scope *ADDRESS` prints them so (dwarf2/loc.c):

    Symbol p is a variable in $rdi, length 8.
    Symbol n is multi-location:
      Base address 0x40  Range 0x40-0x47: a variable in $rsi
      Range 0x47-0x60: a complex DWARF expression:
         0: DW_OP_fbreg -100
    , length 8.
A frame's base (DW_OP_fbreg) is the CFA: GDB has other words where it is a register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import CType, Enum, Integer, Pointer, describe, size_of
from gdb_optprobe.handlers.ir import Expr, Load, Op, Register
from gdb_optprobe.handlers.scope import Lvalue, Meaning, Missing, Rvalue

__all__ = ["located", "meaning"]

_SYMBOL = re.compile(r"^Symbol (\S+) is (.*?)(?=^Symbol |\Z)", re.MULTILINE | re.DOTALL)
_NEXT = r"^ *(?:Base address 0x[0-9a-f]+ +)?Range "
_RANGE = re.compile(
    rf"{_NEXT}(0x[0-9a-f]+)-(0x[0-9a-f]+): (.*?)(?={_NEXT}|^ *Base address |\Z)", re.MULTILINE | re.DOTALL
)
_OPERATION = re.compile(r"^ *\d+: (DW_OP_\w+) ?(.*)$", re.MULTILINE)
_ARITHMETIC = {
    "plus": Op.ADD, "minus": Op.SUB, "mul": Op.MUL, "and": Op.AND, "or": Op.OR, "xor": Op.XOR, "shl": Op.SHL,
    "shr": Op.SHR,
}  # fmt: skip
_WIDTH = 64


@dataclass(frozen=True, slots=True)
class _Unknown(Exception):
    why: str


def located(text: str, address: int) -> Mapping[str, str]:
    """Return GDB's words for where each variable is at `address`, by name, innermost blocks first; "" where it is
    nowhere.
    """
    found: dict[str, str] = {}
    for name, where in _SYMBOL.findall(text):
        found.setdefault(name, _at(where, address))
    return found


def _at(where: str, address: int) -> str:
    where = re.sub(r",? length \d+\.\s*\Z", "", where).strip()
    if not where.startswith("multi-location"):
        return where
    ranges = ((int(low, 16), int(high, 16), what) for low, high, what in _RANGE.findall(where))
    return next((what.strip().removesuffix(",") for low, high, what in ranges if low <= address < high), "")


def meaning(where: str, type_: CType, abi: Abi, frame: Callable[[], Expr | None]) -> Meaning | Missing:
    """Return the meaning of a variable of that type. frame: its function's CFA; None where that is not known."""
    if register := re.fullmatch(r"a variable in \$(\w+)", where):
        return _held(Register(register[1]), type_) if register[1] in abi.registers else _elsewhere()
    if based := re.fullmatch(r"a variable at frame base reg \$(\w+) offset (-?\d+)\+(-?\d+)", where):
        return _placed(Register(based[1]), int(based[2]) + int(based[3]), type_, abi)
    if based := re.fullmatch(r"a variable at offset (-?\d+) from base reg \$(\w+)", where):
        return _placed(Register(based[2]), int(based[1]), type_, abi)
    if static := re.match(r"static storage at address (0x[0-9a-f]+)", where):
        return Lvalue(fold.constant(int(static[1], 16)), type_)
    if constant := re.fullmatch(r"constant (-?\d+)", where):
        return _held(fold.constant(int(constant[1]) & (1 << 64) - 1), type_)
    if where.startswith("a complex DWARF expression"):
        return _computed(where, type_, abi, frame)
    return _elsewhere()


def _computed(where: str, type_: CType, abi: Abi, frame: Callable[[], Expr | None]) -> Meaning | Missing:
    operations = list(_OPERATION.findall(where))
    as_value = bool(operations) and operations[-1][0] == "DW_OP_stack_value"
    stack: list[Expr] = []
    try:
        for name, operand in operations[: -1 if as_value else None]:
            _step(name.removeprefix("DW_OP_"), operand, stack, abi, frame)
    except _Unknown as error:
        return Missing("", error.why)
    except IndexError:
        return _elsewhere()
    if len(stack) != 1:
        return _elsewhere()
    return _held(stack[0], type_) if as_value else Lvalue(stack[0], type_)


def _step(name: str, operand: str, stack: list[Expr], abi: Abi, frame: Callable[[], Expr | None]) -> None:
    """Run one operation of DWARF 5, 2.5.1. Raises _Unknown, in words."""
    number = next(_numbers(operand), 0)
    if name in ("fbreg", "call_frame_cfa"):
        base = frame()
        if base is None:
            raise _Unknown("its frame is not known here")
        stack.append(_plus(base, number))
    elif name.startswith("breg"):
        register = re.search(r"\[\$(\w+)\]", operand)
        if register is None or register[1] not in abi.registers:
            raise _Unknown(f"it is computed from DWARF's {name}, which is no register that is known")
        stack.append(_plus(Register(register[1]), number))
    elif re.fullmatch(r"lit\d+", name):
        stack.append(fold.constant(int(name[3:])))
    elif name.startswith("const") or name == "addr":
        stack.append(fold.constant(number & (1 << 64) - 1))
    elif name == "plus_uconst":
        stack.append(_plus(stack.pop(), number))
    elif name == "deref":
        stack.append(Load(stack.pop(), 8, signed=False))
    elif name in _ARITHMETIC:
        right, left = stack.pop(), stack.pop()
        stack.append(fold.binary(_ARITHMETIC[name], left, right, _WIDTH, False))
    elif "entry_value" in name:
        raise _Unknown("only its value at the function's entry is known: probe that")
    else:
        raise _Unknown(f"it is computed with DW_OP_{name}, which is not supported")


def _numbers(operand: str) -> Iterator[int]:
    return (int(number, 0) for number in re.findall(r"(?<![\w$])-?(?:0x[0-9a-f]+|\d+)", operand))


def _held(word: Expr, type_: CType) -> Meaning | Missing:
    """Return the value of a type in a word. The bits above it are undefined."""
    if isinstance(type_, Pointer):
        return Rvalue(word, type_)
    if isinstance(type_, Integer | Enum) and size_of(type_) in (1, 2, 4, 8):
        return Rvalue(fold.convert(word, type_.width, type_.signed), type_)
    return Missing("", f"'{describe(type_)}' in a register is not supported")


def _placed(base: Expr, offset: int, type_: CType, abi: Abi) -> Meaning | Missing:
    if not isinstance(base, Register) or base.name not in abi.registers:
        return _elsewhere()
    return Lvalue(_plus(base, offset), type_)


def _plus(base: Expr, offset: int) -> Expr:
    return fold.binary(Op.ADD, base, fold.constant(offset & (1 << 64) - 1), _WIDTH, False)


def _elsewhere() -> Missing:
    return Missing("", "the compiler keeps it nowhere here, but may elsewhere in the function")
