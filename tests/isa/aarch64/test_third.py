"""A third ISA, of which a few instructions are known: it is found by both lists, without a change in the package."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import capstone
import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch import registry as linux_arches
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.registry import ISAS, by_name

BRANCHES = {"b": Flow.JUMP, "bl": Flow.CALL, "ret": Flow.RETURN, "brk": Flow.TRAP, "svc": Flow.SYSTEM}
SIZE = 4


def decode(code: bytes, address: int) -> list[Insn]:
    """Decode a few instructions; see Isa.decode."""
    engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    found = []
    for at, size, mnemonic, operands in engine.disasm_lite(code, address):
        flow = BRANCHES.get(mnemonic, Flow.NEXT)
        target = int(operands.lstrip("#"), 0) if flow in (Flow.JUMP, Flow.CALL) else None
        start = at - address
        found.append(Insn(at, code[start : start + size], f"{mnemonic} {operands}".strip(), flow, target))
    return found


AARCH64 = cast(Isa, SimpleNamespace(name="aarch64", other_modes=("arm",), alignment=SIZE, decode=decode))


def test_it_is_found_by_its_name() -> None:
    assert by_name("aarch64", (*ISAS, AARCH64)) is AARCH64
    with pytest.raises(OptprobeError, match="32- or 16-bit mode"):
        by_name("arm", (*ISAS, AARCH64))
    with pytest.raises(OptprobeError):
        by_name("aarch64")


def test_it_has_no_linux() -> None:
    assert linux_arches.of(AARCH64) is None


def test_its_instructions_are_decoded() -> None:
    code = bytes.fromhex("fd7bbfa9 02000094 fd7bc1a8 c0035fd6")
    found = AARCH64.decode(code, 0x1000)
    assert [insn.flow for insn in found] == [Flow.NEXT, Flow.CALL, Flow.NEXT, Flow.RETURN]
    assert found[1].target == 0x100C and found[-1].end == 0x1000 + len(code)
