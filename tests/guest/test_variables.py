"""Where variables live, in GDB's own words (GDB 13.1, of a file that GCC 12 made)."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest import abi
from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.guest.variables import located, meaning
from gdb_optprobe.handlers.ctype import INT, LONG, UNSIGNED_LONG, Struct
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import Expr, Register
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.isa import ppc64le, x86_64

X86_64 = abi.of(x86_64.X86_64)
PPC64LE = abi.of(ppc64le.PPC64LE)

SCOPE = """\
Scope for *helper+40:
Symbol p is multi-location:
  Range 0x0-0x2f: a variable in $rdi
  Range 0x2f-0x7f: a variable in $rbx
  Range 0x7f-0x83: a complex DWARF expression:
     0: DW_OP_entry_value
       2: DW_OP_reg5 [$rdi]
     3: DW_OP_stack_value

, length 8.
Symbol copy is a complex DWARF expression:
     0: DW_OP_fbreg -96
, length 64.
Symbol flag is optimized out.
Symbol p is a variable in $rsi, length 8.
Symbol local is multi-location:
  Base address 0x47  Range 0x47-0x4b: a variable in $rsi
  Range 0x4b-0x82: a variable in $r12
, length 8.
Symbol global is static storage at address 0x4010, length 4.
"""
REGISTERS = {"rbx": 0x1234_5678_9ABC_DEF0, "rbp": 0x1000, "rsp": 0x2000, "r31": 0x3000}


def no_memory(address: int, size: int) -> bytes:
    return (0xABCD).to_bytes(8, "little")[:size]


def word(expr: Expr) -> int:
    return evaluate(expr, Hit(REGISTERS, no_memory))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0x2E, {"p": "a variable in $rdi", "local": ""}),
        (0x2F, {"p": "a variable in $rbx", "local": ""}),
        (0x47, {"local": "a variable in $rsi"}),
        (0x4B, {"p": "a variable in $rbx", "local": "a variable in $r12"}),
        (0x83, {"p": "", "local": ""}),
    ],
)
def test_by_the_range_that_holds_the_address(address: int, expected: dict[str, str]) -> None:
    found = located(SCOPE, address)
    assert {name: found[name] for name in expected} == expected
    assert found["global"] == "static storage at address 0x4010"
    assert found["flag"] == "optimized out."


@pytest.mark.parametrize(
    ("where", "abi", "expected"),
    [
        ("a variable at frame base reg $rbp offset 16+-20", X86_64, 0x1000 - 4),
        ("a variable at offset -8 from base reg $rsp", X86_64, 0x2000 - 8),
        ("a variable at offset 112 from base reg $r31", PPC64LE, 0x3000 + 112),
        ("static storage at address 0x4010", X86_64, 0x4010),
        ("a complex DWARF expression:\n     0: DW_OP_fbreg -96\n", X86_64, 0x2008 - 96),
        ("a complex DWARF expression:\n     0: DW_OP_call_frame_cfa\n     1: DW_OP_plus_uconst 5", X86_64, 0x200D),
        ("a complex DWARF expression:\n     0: DW_OP_breg6 16 [$rbp]\n     2: DW_OP_deref\n", X86_64, 0xABCD),
        ("a complex DWARF expression:\n     0: DW_OP_addr 0xffffffff81000000\n", X86_64, 0xFFFF_FFFF_8100_0000),
    ],
)
def test_in_memory(where: str, abi: Abi, expected: int) -> None:
    frame = Rvalue(Register("rsp"), UNSIGNED_LONG)
    found = meaning(where, LONG, abi, lambda: _above(frame.expr))
    assert isinstance(found, Lvalue)
    assert word(found.address) == expected


def _above(sp: Expr) -> Expr:
    found = meaning("a variable at offset 8 from base reg $rsp", LONG, X86_64, lambda: None)
    assert isinstance(found, Lvalue) and isinstance(sp, Register)
    return found.address


def test_in_a_register() -> None:
    for type_, expected in ((LONG, 0x1234_5678_9ABC_DEF0), (INT, 0x9ABC_DEF0 - (1 << 32) & (1 << 64) - 1)):
        found = meaning("a variable in $rbx", type_, X86_64, lambda: None)
        assert isinstance(found, Rvalue) and found.type == type_
        assert word(found.expr) == expected


def test_as_a_computation() -> None:
    text = """a complex DWARF expression:
     0: DW_OP_breg3 1 [$rbx]
     2: DW_OP_lit2
     3: DW_OP_mul
     4: DW_OP_const1s -2
     6: DW_OP_plus
     7: DW_OP_stack_value
"""
    found = meaning(text, UNSIGNED_LONG, X86_64, lambda: None)
    assert isinstance(found, Rvalue)
    assert word(found.expr) == 2 * 0x1234_5678_9ABC_DEF0


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("", "nowhere here"),
        ("optimized out.", "nowhere here"),
        ("a variable in $xmm0", "nowhere here"),
        ("a complex DWARF expression:\n     0: DW_OP_fbreg -96\n", "its frame is"),
        ("a complex DWARF expression:\n     0: DW_OP_entry_value\n       2: DW_OP_reg5 [$rdi]\n", "at the function's"),
        ("a complex DWARF expression:\n     0: DW_OP_GNU_entry_value\n", "at the function's entry"),
        ("a complex DWARF expression:\n     0: DW_OP_piece 4 (bytes)\n", "DW_OP_piece, which is not supported"),
        ("a complex DWARF expression:\n     0: DW_OP_plus\n", "nowhere here"),
        ("a complex DWARF expression:\n     0: DW_OP_breg17 0 [$xmm0]\n", "no register that is known"),
    ],
)
def test_where_it_is_not(where: str, hint: str) -> None:
    found = meaning(where, LONG, X86_64, lambda: None)
    assert isinstance(found, Missing) and hint in found.hint


def test_a_struct_in_registers_is_refused() -> None:
    found = meaning("a variable in $rbx", Struct("s", 8), X86_64, lambda: None)
    assert isinstance(found, Missing) and "'struct s' in a register" in found.hint
