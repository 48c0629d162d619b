"""Code of a guest without an operating system, as GDB's symbols describe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gdb

from gdb_optprobe.debugger.dwarf import dwarf
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux import current
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.scope import Debug, KernelScope, Site
from gdb_optprobe.guest.text import FORBIDDEN, Area, FtraceSite, Function, Jump, Mark, Whole
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.original import overlaid
from gdb_optprobe.probes.registry import Registry

# The longest function that is looked for. A symbol without a size would include all memory after it.
LARGEST = 1 << 16
_ANYWHERE = (Flow.INDIRECT_JUMP, Flow.BRANCH)


class _NoSymbols:
    """A kernel's symbol table without any symbol."""

    def lookup(self, name: str) -> Sequence[int]:
        return ()

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return None


class BareText:
    """Implements guest.text.Text and probes.target.Tracer from GDB's symbols alone."""

    def __init__(self, machine: Machine, isa: Isa) -> None:
        self._machine = machine
        self._isa = isa
        self.registry: Registry | None = None
        self._known: dict[int, tuple[bytes, Function]] = {}

    def area(self, address: int) -> Area:
        function = self.function(address)
        if function is None:
            return Area.NOT_TEXT
        hazard = self._isa.forbidden(function.own).get(address)
        return Area.TEXT if hazard is None else FORBIDDEN[hazard]

    def scope(self, address: int, convenience: Callable[[str], int | None]) -> KernelScope:
        """Return the names at an address: registers, arguments at a function's start, variables that GDB knows."""
        debug = dwarf(address, abi.of(self._isa), frame=lambda: None)
        return self._names(Site(address, "", self._begins(address)), convenience, debug)

    def at_return(self, address: int, convenience: Callable[[str], int | None]) -> KernelScope | None:
        """Return the names after the return of the function at `address`; None where no function begins there."""
        return self._names(Site(address, "", returns=True), convenience) if self._begins(address) else None

    def _begins(self, address: int) -> bool:
        function = self.function(address)
        return function is not None and function.start == address

    def _names(
        self, site: Site, convenience: Callable[[str], int | None], debug: Debug | None = None
    ) -> KernelScope:
        nothing = current.unknown("this guest has no operating system that is known")
        of = abi.of(self._isa)
        return KernelScope(site, _NoSymbols(), None, of, nothing, convenience=convenience, debug=debug)

    def function(self, address: int) -> Function | None:
        found = self._symbol(address)
        if found is None:
            return None
        name, start, end = found
        data = self._machine.read(start, end - start)
        data = overlaid(data, start, self.registry) if self.registry else data
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
        found = self._symbol(address)
        if found is None:
            return ""
        return found[0] if address == found[1] else f"{found[0]}+{address - found[1]:#x}"

    def hold(self, site: FtraceSite) -> None:
        """There is no tracer."""

    def passed_over(self) -> Sequence[int]:
        return ()

    def forget(self, site: FtraceSite) -> None:
        raise AssertionError("this guest has no modules")

    def release(self, site: FtraceSite) -> None:
        """There is no tracer."""

    def give_back(self) -> None:
        """There is no tracer."""

    def _symbol(self, address: int) -> tuple[str, int, int] | None:
        """Return name, start and end (the next symbol's start) of the function symbol around `address`."""
        text = gdb.execute(f"info symbol {address:#x}", to_string=True).split(" in section ")
        if len(text) < 2 or not text[1].startswith(".text"):
            return None
        name, _, offset = text[0].partition(" + ")
        start = address - int(offset or 0)
        return name, start, self._end(name, start)

    def _end(self, name: str, start: int) -> int:
        low, high = start, start + LARGEST
        while high - low > 1:
            middle = (low + high) // 2
            text = gdb.execute(f"info symbol {middle:#x}", to_string=True)
            low, high = (middle, high) if text.partition(" in section ")[0].split(" + ")[0] == name else (low, middle)
        return high
