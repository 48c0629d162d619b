"""A guest without an operating system: code and names by the debugger's symbols alone."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.guest import abi
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux import current
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.scope import Debug, DebuggerSymbols, KernelScope, Site
from gdb_optprobe.guest.text import FORBIDDEN, Area, FtraceSite, Function, Jump, Mark, Overlay, Whole
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.record import Isa

_ANYWHERE = (Flow.INDIRECT_JUMP, Flow.BRANCH)


class _NoSymbols:
    """A kernel's symbol table without any symbol."""

    def lookup(self, name: str) -> Sequence[int]:
        return ()

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return None


class BareText:
    """Implements guest.text.Text. overlay: shows the original bytes in place of branches of probes."""

    def __init__(self, machine: Machine, isa: Isa, overlay: Overlay, debugger: DebuggerSymbols) -> None:
        self._machine, self._isa = machine, isa
        self._overlay, self._debugger = overlay, debugger
        self._known: dict[int, tuple[bytes, Function]] = {}

    def area(self, address: int) -> Area:
        function = self.function(address)
        if function is None:
            return Area.NOT_TEXT
        hazard = self._isa.forbidden(function.own).get(address)
        return Area.TEXT if hazard is None else FORBIDDEN[hazard]

    def function(self, address: int) -> Function | None:
        found = self._debugger.function(address)
        if found is None:
            return None
        name, start, end = found
        data = self._overlay(start, self._machine.read(start, end - start))
        known = self._known.get(start)
        if known is None or known[0] != data:
            known = self._known[start] = data, self._decode(name, start, data)
        return known[1]

    def _decode(self, name: str, start: int, data: bytes) -> Function:
        insns = self._isa.decode(data, start)
        end = start + len(data)
        flows = (Flow.JUMP, Flow.BRANCH, Flow.CALL)
        code = {insn.address: insn for insn in insns}
        whole = Whole(
            code=code,
            complete=bool(insns) and insns[-1].end == end,
            jumps=tuple(Jump(i.address, i.target) for i in insns if i.target is not None and i.flow in flows),
            # Conditional ones too, which may be returns.
            blind_jumps=tuple(i.address for i in insns if i.flow in _ANYWHERE and i.target is None),
        )
        return Function(name, start, end, own=code, look=lambda: whole, compiled=False)

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        return ()

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        return ()

    def spell(self, address: int) -> str:
        name = self.symbol(address)
        return f"{address:#x} <{name}>" if name else f"{address:#x}"

    def symbol(self, address: int) -> str:
        """Return "name+0x10", or "" where there is no symbol."""
        found = self._debugger.function(address)
        if found is None:
            return ""
        return found[0] if address == found[1] else f"{found[0]}+{address - found[1]:#x}"


class BareGuest(Guest):
    """A guest of which the threads are not known: patches stay within one instruction."""

    stacks_missing = "the threads of this guest are not known: it is no Linux"

    def __init__(self, machine: Machine, isa: Isa, overlay: Overlay, debugger: DebuggerSymbols) -> None:
        self.machine, self.isa = machine, isa
        self.text = self._text = BareText(machine, isa, overlay, debugger)
        self._debugger = debugger

    def symbol(self, address: int) -> str:
        return self._text.symbol(address)

    def known_symbol(self, address: int) -> str:
        return self._text.symbol(address)

    def names_at(self, address: int) -> NamesAt:
        """Return the names there: registers, arguments at a function's start, variables that the debugger knows."""
        debug = self._debugger.debug(address, abi.of(self.isa), lambda: None)
        return self._names(Site(address, "", self._is_entry(address)), debug)

    def names_at_return(self, address: int) -> NamesAt | None:
        return self._names(Site(address, "", returns=True)) if self._is_entry(address) else None

    def _is_entry(self, address: int) -> bool:
        function = self.text.function(address)
        return function is not None and function.start == address

    def _names(self, site: Site, debug: Debug | None = None) -> NamesAt:
        nothing, of = current.unknown("this guest has no operating system that is known"), abi.of(self.isa)
        convenience = self._debugger.convenience
        return NamesAt(KernelScope(site, _NoSymbols(), None, of, nothing, convenience=convenience, debug=debug))
