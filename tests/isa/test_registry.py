"""The names that GDB has for architectures."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.registry import by_name
from gdb_optprobe.isa.x86_64 import X86_64


def test_x86_64() -> None:
    assert by_name("i386:x86-64") is X86_64
    assert by_name("i386:x86-64:intel") is X86_64


def test_aarch64() -> None:
    assert by_name("aarch64") is AARCH64


def test_ppc64le() -> None:
    assert by_name("powerpc:common64") is PPC64LE


@pytest.mark.parametrize("name", ["i386", "i8086", "i386:intel", "i386:x64-32", "arm", "aarch64:ilp32"])
def test_other_modes(name: str) -> None:
    with pytest.raises(OptprobeError, match="32- or 16-bit mode"):
        by_name(name)


def test_others() -> None:
    with pytest.raises(OptprobeError, match="architecture is riscv:rv64"):
        by_name("riscv:rv64")
