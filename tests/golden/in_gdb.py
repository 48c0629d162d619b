"""Sourced in GDB: prints what commands, settings, functions and the Python API are called there."""

import dataclasses
import inspect
from typing import Any

import gdb

import gdb_optprobe
from gdb_optprobe.debugger import api
from gdb_optprobe.probes.return_stops import EntryHit, ReturnHit
from gdb_optprobe.probes.stops import Hit
from gdb_optprobe.probes.views import ProbeView


def called(function: Any) -> str:
    """Parameters by name, with their defaults and without types: names inside may change."""
    parameters = inspect.signature(function).parameters.values()
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature(plain))


def words(start: str) -> list[str]:
    """What GDB completes: commands, settings."""
    found = (line for letter in "_abcdefghijklmnopqrstuvwxyz" for line in completed(f"{start}{letter}"))
    return sorted(line.removeprefix(start) for line in found)


def completed(start: str) -> list[str]:
    return gdb.execute(f"complete {start}", to_string=True).splitlines()


for word in words("optprobe "):
    print(f"command {word}")
for word in words("set optprobe "):
    print(f"setting {word}: {gdb.parameter(f'optprobe {word}')}")
for line in sorted(gdb.execute("show convenience", to_string=True).splitlines()):
    if line.startswith("$optprobe"):
        print(f"function {line}")
print(f"module {' '.join(gdb_optprobe.__all__)}")
for function in (gdb_optprobe.kprobe, gdb_optprobe.kretprobe):
    print(f"{function.__name__}{called(function)}")
print(f"handle {' '.join(name for name in dir(api.Handle) if name[0] != '_')} number")
for of, kind in (("hit", Hit), ("hit at an entry", EntryHit), ("hit of a return", ReturnHit)):
    methods = [name for name, each in vars(kind).items() if inspect.isfunction(each) and name[0] != "_"]
    print(f"{of} {' '.join([each.name for each in dataclasses.fields(kind)] + methods)}")
print(f"view {' '.join(each.name for each in dataclasses.fields(ProbeView))}")
