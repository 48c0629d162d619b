"""Which guests are recognised is what the tables of `Attachments` say."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.bare import BareGuest
from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE
from gdb_optprobe.isa.registry import ISAS
from tests.debugger.fake_gdb import Names


class Machine:
    """One of which nothing is asked."""

    def __init__(self, *_: object) -> None: ...

    def leave_physical_mode(self) -> bool:
        return False

    def of_each_vcpu(self, _: str) -> list[int]:
        return [2 << 20, 2 << 20]

    def read_physical(self, address: int, size: int) -> bytes:
        raise AssertionError

    def check_stopped(self) -> None:
        raise AssertionError


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, in a GDB that is connected to a guest that calls itself aarch64 and has the symbols of a program."""
    gdb: Any = Names("gdb")
    before = {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")}
    monkeypatch.setitem(sys.modules, "gdb", gdb)
    for name in ("disassembler", "events", "unwinder"):
        monkeypatch.setitem(sys.modules, f"gdb.{name}", getattr(gdb, name))
    module = importlib.import_module("gdb_optprobe.debugger.attach")
    architecture = SimpleNamespace(name=lambda: "aarch64")
    gdb.selected_inferior = lambda: SimpleNamespace(architecture=lambda: architecture)
    gdb.breakpoints = gdb.objfiles = lambda: ()
    monkeypatch.setattr(module, "stopped_guest", object)
    monkeypatch.setattr(module, "GdbMachine", Machine)
    monkeypatch.setattr(module, "GdbStops", lambda *_: SimpleNamespace(on_resume=lambda *_: None))
    monkeypatch.setattr(module.kernel_symbols, "of_another_program", lambda: True)
    yield module
    for name in {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")} - before:
        del sys.modules[name]


def test_an_isa_without_a_linux_is_attached_to_with_what_its_cpus_have(attach: Any) -> None:
    session = attach.Attachments((AARCH64,), ()).session()
    assert session.target.guest.isa is AARCH64_LSE and isinstance(session.target.guest, BareGuest)


def test_what_the_table_lacks_is_refused_by_its_name(attach: Any) -> None:
    others = [isa for isa in ISAS if isa is not AARCH64]
    with pytest.raises(OptprobeError, match="architecture is aarch64"):
        attach.Attachments(others).session()


def test_a_linux_is_looked_for_where_the_table_has_one(attach: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[object] = []
    linux = SimpleNamespace(isa=AARCH64)

    def discover(machine: object, arch: object, *_: object) -> None:
        looked_for.append(arch)

    monkeypatch.setattr(attach, "discover", discover)
    monkeypatch.setattr(attach.kernel_symbols, "of_another_program", lambda: False)
    with pytest.raises(OptprobeError, match="no Linux kernel"):
        attach.Attachments((AARCH64,), (linux,)).session()
    assert looked_for == [linux]
