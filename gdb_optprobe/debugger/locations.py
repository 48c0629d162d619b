"""Resolve a location that a user typed to addresses.

`*EXPR`, `symbol+offset` and `module:symbol+offset` are parsed here; GDB parses every other linespec. (An address
expression must not reach `gdb.decode_line`: GDB 13 crashes on one that names no symbol.)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import translate
from typing import Protocol

import gdb

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.symbols import SymbolTable
from gdb_optprobe.handlers.lexer import tokens
from gdb_optprobe.handlers.source import Fragment

_NAME = re.compile(r"([A-Za-z_.$][\w.$]*)(?:\s*\+\s*(0[xX][0-9a-fA-F]+|\d+))?")
_NO_CODE = "a macro or a function that is always inlined has no code of its own: probe a caller"
_WHOLE = "a glob is of whole names, as *read*; a module's functions are found once it is loaded"
_OF_MODULE = re.compile(r"([A-Za-z_][\w-]*):([^:]+)")
_LINE = re.compile(r"[\w./+-]+\.(?:[chsSC]|cc|cpp|rs):\d+")
_QUOTED = re.compile(r"""(['"])([^'"]*)\1""")
_GLOB = re.compile(r"[*?\[]")
MASK = (1 << 64) - 1
MOST_SUGGESTED = 1 << 15
"""How many names are compared with a mistyped one. The guest decides how many begin alike."""
EntriesOf = Callable[[Collection[int]], Iterable[int]]


class Modules(Protocol):
    """The names of loaded modules: guest/linux/loaded_text.py."""

    def has(self, module: str) -> bool: ...

    def names(self, module: str = "") -> Iterator[tuple[str, int]]: ...

    def bounds(self, address: int) -> tuple[int, int] | None: ...

class Locations:
    """Resolves locations. entries_of: from functions' addresses to those of probes on them: LinuxGuest.entries.

    of_event: returns where an event occurs, Guest.event_addresses.
    """

    def __init__(
        self,
        symbols: SymbolTable | None,
        entries_of: EntriesOf,
        modules: Modules | None = None,
        of_event: Callable[[EventName], tuple[int, ...]] | None = None,
    ) -> None:
        self._of_event = of_event
        self._symbols = symbols
        self._entries_of = entries_of
        self._modules = modules

    def resolve(self, location: str, glob: bool = False) -> tuple[int, ...]:
        """Return addresses, ascending. Raises OptprobeError, which names the part that is wrong."""
        text = location.strip()
        if glob and (quoted := _QUOTED.fullmatch(text)):
            text = quoted[2]
        if not text:
            raise OptprobeError("a location is missing", "optprobe add LOCATION")
        if (event := event_name.parse(text)) is not None and self._of_event is not None:
            return self._of_event(event)
        if text.startswith("*") and not glob:
            return (_expression(text[1:], text),)
        module, rest = self._of_module(text)
        if glob or (self._symbols is not None and _GLOB.search(text)):
            return self._matching(rest, module)
        named = _NAME.fullmatch(rest)
        if named is not None and self._symbols is not None:
            return self._named(named[1], named[2], module)
        return self._linespec(text)

    def loaded(self, location: str) -> tuple[int, ...]:
        """Return addresses of FUNCTION or MODULE:FUNCTION, with or without an offset, in loaded modules alone."""
        module, rest = self._of_module(location.strip())
        named = _NAME.fullmatch(rest)
        if named is None or self._modules is None:
            return ()
        starts = sorted({at for name, at in self._modules.names(module) if name == named[1]})
        if named[2] is None:
            return self._entries(starts)
        distance = _distance(named[2])
        bounds = (self._modules.bounds(start) for start in starts)
        return tuple(start + distance for start, end in filter(None, bounds) if start + distance < end)

    def lacking(self, location: str) -> str:
        """Return that the module of MODULE:FUNCTION is loaded and has no such function; "" where that is not so."""
        module, rest = self._of_module(location.strip())
        named = _NAME.fullmatch(rest)
        if self._modules is None or not module or named is None:
            return ""
        if any(name == named[1] for name, _ in self._modules.names(module)):
            return ""
        return f"the module {module} is loaded and has no such function"

    def _entries(self, starts: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({*self._entries_of({*starts})}))

    def _of_module(self, text: str) -> tuple[str, str]:
        """Split MODULE:NAME. The module is "" where none of that name is loaded."""
        found = _OF_MODULE.fullmatch(text)
        if found is None or self._modules is None or not self._modules.has(found[1]):
            return "", text
        return found[1], found[2]

    def _matching(self, pattern: str, module: str) -> tuple[int, ...]:
        if self._symbols is None:
            raise OptprobeError("a glob needs the guest's symbols", "name one function")
        own = set[int]() if module else self._symbols.functions_matching(pattern)
        matches = re.compile(translate(pattern)).match
        loaded = self._modules.names(module) if self._modules is not None else iter(())
        starts = own | {at for name, at in loaded if matches(name)}
        if not starts:
            hint = "a comma within quotes is part of the name: leave the quotes out" if "," in pattern else _WHOLE
            raise OptprobeError(f"no function matches '{pattern}'", hint)
        return self._entries(starts)

    def _addresses(self, name: str, module: str) -> list[int]:
        """Return the addresses of `name`: in `module`, if one is given; else in the kernel, else in any module."""
        assert self._symbols is not None
        found = [] if module else self._symbols.lookup(name)
        if not found and self._modules is not None:
            found = sorted({at for called, at in self._modules.names(module) if called == name})
        return found

    def _bounds(self, address: int) -> tuple[int, int] | None:
        assert self._symbols is not None
        own = self._symbols.function_bounds(address)
        return own if own is not None or self._modules is None else self._modules.bounds(address)

    def _named(self, name: str, offset: str | None, module: str) -> tuple[int, ...]:
        addresses = self._addresses(name, module)
        if not addresses and module:
            raise OptprobeError(f"the module {module} has no function called {name}")
        if not addresses:
            return self._linespec(name if offset is None else f"{name}+{offset}")
        if offset is None:
            return self._entries(addresses)
        distance = _distance(offset)
        if len(addresses) > 1:
            raise OptprobeError(
                f"there are {len(addresses)} functions called {name}", f"use an address: *{addresses[0] + distance:#x}"
            )
        bounds = self._bounds(addresses[0])
        if bounds is not None and distance >= bounds[1] - addresses[0]:
            raise OptprobeError(
                f"{name} has {bounds[1] - addresses[0]} bytes: the offset {offset} is outside of it",
                f"use an offset below {bounds[1] - addresses[0]:#x}, or an address: *{addresses[0] + distance:#x}",
            )
        if addresses[0] + distance > MASK:
            raise OptprobeError(f"no address is {offset} behind {name}")
        return (addresses[0] + distance,)

    def _linespec(self, text: str) -> tuple[int, ...]:
        try:
            rest, found = gdb.decode_line(text)
        except (gdb.error, RuntimeError) as error:
            module = _OF_MODULE.fullmatch(text)
            if module is not None and self._modules is not None:
                message = f"no module called {module[1]} is loaded"
                raise OptprobeError(message, self._elsewhere(module[1], module[2])) from None
            raise OptprobeError(_clean(str(error)) or f"no location '{text}'", self._similar(text)) from None
        if rest and rest.strip():
            # GDB parses one location and returns the rest.
            raise OptprobeError(f"'{rest.strip()}' is no part of a location", "quote a name that has a comma")
        addresses = tuple(sorted({int(line.pc) & MASK for line in found or () if line.pc is not None}))
        if not addresses:
            raise OptprobeError(f"no code at '{text}'")
        return addresses

    def _elsewhere(self, module: str, text: str) -> str:
        """Return a hint for MODULE:FUNCTION where the module is not loaded: the function may be another's."""
        assert self._symbols is not None and self._modules is not None
        name = text.partition("+")[0].strip()
        if self._symbols.lookup(name):
            return f"{name} is a function of the kernel: name it without {module}:"
        if any(called == name for called, _ in self._modules.names()):
            return f"{name} is a function of another module: name it without {module}:"
        return f"if {module} is loaded later: the same with -pending"

    def _similar(self, text: str) -> str:
        """Return a hint for a location that GDB does not know."""
        if _LINE.fullmatch(text):
            return "a line needs debug information of its file: file VMLINUX (with DWARF), or FUNCTION+OFFSET"
        if self._symbols is None:
            return ""
        first, _, rest = text.partition(" ")
        if rest and self._symbols.lookup(first):
            return f"did you mean {first} if {rest}?"
        near = difflib.get_close_matches(text, self._symbols.completions(text[:3])[:MOST_SUGGESTED], 3)
        meant = f"did you mean {', '.join(near)}? " if near else ""
        return (meant + _NO_CODE if _NAME.fullmatch(text) else meant).strip()


def _distance(text: str) -> int:
    """Return a number in C's notation. Raises OptprobeError, which points at it."""
    return tokens(Fragment.whole(text))[0].value


def _expression(expression: str, location: str) -> int:
    try:
        found = gdb.parse_and_eval(expression)
        # A function means its first address, as for GDB's own commands.
        value = int(found.address if found.type.code == gdb.TYPE_CODE_FUNC and found.address is not None else found)
        if not -(MASK >> 1) - 1 <= value <= MASK:
            raise OverflowError("it has more than 64 bits")
        return value & MASK
    except (gdb.error, RuntimeError, OverflowError, ValueError) as error:
        raise OptprobeError(f"'{location}' is no address: {_clean(str(error))}") from None


def _clean(message: str) -> str:
    """Return a message of GDB without its full stop and its advice about files."""
    return message.strip().split("  ")[0].rstrip(".")
