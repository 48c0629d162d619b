"""Record what optprobe registers with GDB: commands, settings and functions, in a process that is no GDB."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


class Command:
    def __init__(self, name: str, kind: object, prefix: bool = False) -> None:
        self.name = name
        self.prefix = prefix


class Parameter:
    value: object = None

    def __init__(self, name: str, category: object, kind: str, choices: tuple[str, ...] = ()) -> None:
        self.path = name
        self.kind = kind
        self.choices = choices


class Function:
    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class Registered:
    """What a GDB would have, in the order in which it was registered."""

    commands: list[Any] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)


class _Module(ModuleType):
    """`gdb`, or a module below it: constants are their names, everything else is an empty class."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found: object = name if name.isupper() else type(name, (), {})
        setattr(self, name, found)
        return found


def registered(batch: bool = False) -> Registered:
    """Return what is registered in a new GDB. batch: in one that was started with -batch."""
    found = Registered()

    def recording(base: type, into: list[Any]) -> type:
        def __init__(self: Any, *args: Any, **named: Any) -> None:
            base.__init__(self, *args, **named)  # type: ignore[misc]
            into.append(self)

        return type(base.__name__, (base,), {"__init__": __init__})

    def parameter(name: str) -> None:
        raise RuntimeError("there is none yet")

    for name in [name for name in sys.modules if name.startswith(("gdb_optprobe.commands", "gdb_optprobe.debugger"))]:
        del sys.modules[name]
    for name in ("gdb", "gdb.events", "gdb.unwinder", "gdb.disassembler"):
        sys.modules[name] = _Module(name)
    classes = {
        "Command": recording(Command, found.commands),
        "Parameter": recording(Parameter, found.parameters),
        "Function": recording(Function, found.functions),
    }
    vars(sys.modules["gdb"]).update(classes, error=RuntimeError, GdbError=RuntimeError, parameter=parameter)
    for name in ("events", "unwinder", "disassembler"):
        vars(sys.modules["gdb"])[name] = sys.modules[f"gdb.{name}"]

    from gdb_optprobe import debugger
    from gdb_optprobe.commands.command_table import register_all
    from gdb_optprobe.debugger import parameters

    vars(debugger)["load"] = lambda: None
    vars(parameters)["batch_mode"] = lambda: batch
    register_all()
    return found
