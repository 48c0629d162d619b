"""The guest's programs and libraries as a script sees them: where probes in them are attached, and what is there."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.script_scope import KernelHit, Timing
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script.scope import Matched

PROGRAMS = ("uprobe", "uretprobe")
_INODE = 1 << 63
"""Addresses of the kernel, and no numbers of processes, are from there on."""
_IN_LIBC = ("libpthread", "libdl", "librt", "libutil")
"""What is libc's own since glibc 2.34, which leaves libraries without functions behind."""


@dataclass(frozen=True)
class ScriptPrograms:
    """Programs are read once, by path. A script is compiled and attached within one stop but for what it attaches."""

    guest: Guest
    _known: dict[str, Program] = field(default_factory=dict)
    _symbols: dict[tuple[object, int, int], str] = field(default_factory=dict)
    """By the moment, address and process: a list of all processes is walked for each."""

    def matches(
        self, provider: str, target: str, name: str, offset: int, timing: Timing
    ) -> Sequence[Matched] | Missing:
        """Return the functions of a program, or of a library such as `libc`; `name` may have wildcards."""
        try:
            for path in self._paths(target.strip('"')):
                if found := [*self._functions(provider, self._program(path), name, offset, timing)]:
                    return found
        except (Unreadable, Unreachable):
            raise
        except OptprobeError as error:
            return Missing(error.message, error.hint)
        return ()

    def add(self, program: Program) -> None:
        """Know a program's functions by its file, and its addresses in processes."""
        self._known[program.path] = program
        self._symbols.clear()

    def unmatched(self, provider: str, timing: Timing) -> KernelHit:
        """Return names for a probe that is attached nowhere. Raises OptprobeError where programs cannot be probed."""
        return self._hit(provider, 0, _INODE, self._names(provider, 0, True, 64), timing)

    def symbol(self, address: int, of: int) -> str:
        """Return the function around an address, without an offset; "" where it is not known. of: see types.Symbol.

        Of a process that is there: in the program that it runs, and in those that scripts probe.
        """
        asked = self.guest.moment(), address, of
        if asked not in self._symbols:
            if self._symbols and next(iter(self._symbols))[0] != asked[0]:
                self._symbols.clear()
            self._symbols[asked] = self._symbol(address, of)
        return self._symbols[asked]

    def _symbol(self, address: int, of: int) -> str:
        if of >= _INODE:
            program = next((each for each in self._known.values() if each.inode == of), None)
            return _function(program, address) if program is not None else ""
        try:
            return next(filter(None, (_function(*place) for place in self._places(address, of))), "")
        except (Unreadable, Unreachable):
            raise
        except OptprobeError:
            return ""

    def _places(self, address: int, pid: int) -> Iterator[tuple[Program, int]]:
        """Yield what a process has at an address: a program, and the address in its file. Raises OptprobeError."""
        programs = self.guest.programs
        run = programs.of_process(pid)
        for program in (*([run] if run is not None else ()), *self._known.values()):
            for space in programs.mapping(program.file):
                if space.start <= address < space.end and any(each.pid == pid for each in space.processes):
                    yield program, program.elf.address(space.offset + address - space.start)

    def _paths(self, target: str) -> Sequence[str]:
        if "/" in target:
            return (target,)
        found = self.guest.programs.search(target)
        if target.partition(".")[0] in _IN_LIBC:
            found += self.guest.programs.search("libc")
        if not found:
            raise OptprobeError(f"the guest has no program or library '{target}' in memory", "give its path")
        return found

    def _program(self, path: str) -> Program:
        if path not in self._known:
            self._known[path] = self.guest.programs.find(path)
            self._symbols.clear()
        return self._known[path]

    def _functions(
        self, provider: str, program: Program, name: str, offset: int, timing: Timing
    ) -> Iterator[Matched]:
        for place, address in _places_of(program, name, offset):
            is_entry = program.is_entry(address)
            names = self._names(provider, address, is_entry, program.bits)
            hit = self._hit(provider, address - offset, program.inode, names, timing)
            hit = replace(hit, parameters=partial(program.parameters, address))
            yield Matched(f"{provider}:{program.path}:{place}", hit, address)

    def _names(self, provider: str, address: int, is_entry: bool, bits: int) -> NamesAt:
        if provider == "uretprobe":
            return self.guest.program_names_at_return(bits)
        return self.guest.program_names_at(address, is_entry, bits)

    def _hit(self, provider: str, entry: int, inode: int, names: NamesAt, timing: Timing) -> KernelHit:
        return KernelHit(provider, names, entry, timing, abi.of(self.guest.isa).result, program=inode)


def _places_of(program: Program, name: str, offset: int) -> Iterator[tuple[str, int]]:
    """Yield the places of a name in a program, as `-user` takes them, with their addresses. Raises OptprobeError."""
    behind = f"+{offset:#x}" if offset else ""
    if name[:1].isdecimal():
        place = f"{program.offset(_number(name, program)) + offset:#x}"
        yield place, program.resolve(place)
        return
    if not program.elf.symbols:
        raise OptprobeError(f"{program.path} has no symbols: it is stripped", "uprobe:FILE:0xADDRESS")
    names = [each.name for each in program.elf.symbols]
    if name in names:
        yield f"{name}{behind}", program.resolve(f"{name}{behind}")
        return
    for symbol in (each for each in program.elf.symbols if fnmatch.fnmatchcase(each.name, name)):
        place = symbol.name if names.count(symbol.name) == 1 else f"{program.offset(symbol.address + symbol.local):#x}"
        yield f"{place}{behind}", program.resolve(f"{place}{behind}")


def _number(text: str, program: Program) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise OptprobeError(f"{program.path} has no function {text}") from None


def _function(program: Program, address: int) -> str:
    """Return the name of the function at an address of its file; "" where none is known."""
    bounds = program.function(address)
    return program.elf.spell(bounds[0]) if bounds is not None else ""
