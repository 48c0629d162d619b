"""What a probe waits for, as the modules that are loaded tell it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError
from tests.debugger.fake_gdb import Names


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The Python module, in a GDB of which nothing is asked."""
    before = {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")}
    monkeypatch.setitem(sys.modules, "gdb", Names("gdb"))
    yield importlib.import_module("gdb_optprobe.debugger.modules")
    for name in {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")} - before:
        del sys.modules[name]


def waits(modules: Any, lacking: Any, why: str = "") -> str:
    made = modules.LinuxModules(None, SimpleNamespace(lacking=lacking), None)
    return str(made.waits("ext4:absent", why).text)


def test_what_the_module_lacks_is_told(modules: Any) -> None:
    assert waits(modules, lambda _: "it lacks that") == "ext4:absent is not there yet: it lacks that"
    assert waits(modules, lambda _: "") == "ext4:absent is not there yet"


def test_where_something_else_is_told_the_modules_are_not_read(modules: Any) -> None:
    def lacking(_: str) -> str:
        raise AssertionError

    assert waits(modules, lacking, ": the obstacle") == "ext4:absent is not there yet: the obstacle"


def test_where_the_modules_cannot_be_read_the_probe_waits_all_the_same(modules: Any) -> None:
    def lacking(_: str) -> str:
        raise OptprobeError("the loaded modules cannot be read")

    assert waits(modules, lacking) == "ext4:absent is not there yet"
