"""A guest without an operating system: what the debugger's symbols say of it, and what nothing says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.guest.bare import BareGuest
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.scope import Debug
from gdb_optprobe.guest.text import Area, Overlay
from gdb_optprobe.handlers.ir import Expr, Register
from gdb_optprobe.handlers.scope import Missing, Rvalue
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import FakeMemory, code

START = 0x10_0000
LISTING = """
    48 01 c8                add %rcx,%rax
    74 01                   je L
    90                      nop
    c3                      ret (L)
"""
CODE = code(LISTING)


class Symbols:
    """See guest.scope.DebuggerSymbols: one function, and a variable of the user."""

    def convenience(self, name: str) -> int | None:
        return 7 if name == "mine" else None

    def debug(self, address: int, abi: Abi, frame: Callable[[], Expr | None]) -> Debug | None:
        return None

    def function(self, address: int) -> tuple[str, int, int] | None:
        return ("f", START, START + len(CODE)) if START <= address < START + len(CODE) else None


def bare(overlay: Overlay = lambda address, data: data) -> BareGuest:
    machine: Any = SimpleNamespace(read=FakeMemory(START, CODE).read)
    return BareGuest(cast(Machine, machine), X86_64, overlay, Symbols())


def test_functions_are_those_that_the_debugger_has_symbols_of() -> None:
    guest = bare()
    function = guest.text.function(START + 3)
    assert function is not None and (function.name, function.start, function.end) == ("f", START, START + len(CODE))
    assert [insn.size for insn in function.hot] == [3, 2, 1, 1] and function.whole.complete
    assert guest.text.function(START + 4) is function, "it is decoded once while its bytes are the same"
    assert guest.text.function(START - 1) is None
    assert (guest.text.area(START), guest.text.area(START - 1)) == (Area.TEXT, Area.NOT_TEXT)
    assert (guest.symbol(START), guest.symbol(START + 3), guest.symbol(START - 1)) == ("f", "f+0x3", "")


def test_branches_of_probes_are_not_seen() -> None:
    original = b"\x90" * len(CODE)
    function = bare(lambda address, data: original).text.function(START)
    assert function is not None and [insn.size for insn in function.hot] == [1] * len(CODE)


def test_arguments_have_names_where_a_function_starts() -> None:
    guest = bare()
    at_entry, inside = guest.names_at(START).names, guest.names_at(START + 3).names
    first = at_entry.dollar("arg1")
    assert isinstance(first, Rvalue) and first.expr == Register("rdi")
    assert isinstance(inside.dollar("arg1"), Missing) and isinstance(inside.dollar("mine"), Rvalue)
    assert isinstance(inside.dollar("comm"), Missing), "no operating system is known"
    assert guest.names_at_return(START + 3) is None
    at_return = guest.names_at_return(START)
    assert at_return is not None and isinstance(at_return.names.dollar("retval"), Rvalue)


def test_what_only_an_operating_system_has_is_missing() -> None:
    guest = bare()
    assert guest.stacks_missing and guest.has_hidden_stacks() and not list(guest.saved())
    assert guest.is_same_kernel() is None and guest.moment() != guest.moment()
    assert (guest.completions("f"), guest.why_bypassed(START), tuple(guest.backtrace({}, b""))) == ((), "", ())
    for question in (guest.trap_calls, lambda: guest.user_kernel, lambda: guest.programs):
        with pytest.raises(OptprobeError):
            question()
