"""The kernel's vmlinux, if GDB has loaded it: its file, for symbols, and the layouts in its debug information.

A file is the running kernel's if it has its build-id; another one's names and types are never taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gdb

from gdb_optprobe.guest.linux.structures import Layouts
from gdb_optprobe.guest.vmlinux import is_kernel

WITNESS = "task_struct"
"""A structure that every kernel's debug information has."""
BYTE = 8


def files() -> Mapping[str, Path]:
    """Return the files that GDB has loaded symbols from, by build-id."""
    return {each.build_id: Path(each.filename) for each in _objfiles() if each.build_id and each.filename}


def other_kernels(build: str, among: Mapping[str, Path] | None = None) -> Mapping[str, Path]:
    """Return the files of kernels that are not the build `build`, by build-id. among: files; None for all."""
    found = files() if among is None else among
    return {other: path for other, path in found.items() if other != build and is_kernel(path)}


def layouts(build: str) -> Layouts | None:
    """Return the layouts in the debug information of the kernel `build`; None where GDB has none."""
    found = (Structures(each) for each in _objfiles() if each.build_id == build)
    return next((each for each in found if each.type(WITNESS) is not None), None)


def _objfiles() -> Iterator[gdb.Objfile]:
    return (each for each in gdb.objfiles() if each.is_valid())


@dataclass(frozen=True, slots=True)
class Structures:
    """Implements guest.linux.structures.Layouts."""

    objfile: gdb.Objfile

    def type(self, struct: str) -> gdb.Type | None:
        found = self.objfile.lookup_static_symbol(struct, gdb.SYMBOL_STRUCT_DOMAIN)
        return found.type if found is not None else None

    def offset(self, struct: str, member: str) -> int | None:
        type_, offset = self.type(struct), 0
        for name in member.split("."):
            found = _place(type_, name) if type_ is not None else None
            if found is None:
                return None
            bit, type_ = found
            offset += bit // BYTE
        return offset

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        type_ = self.type(struct)
        if type_ is None:
            return {}
        return {each.name: (each.bitpos, each.bitsize) for each in type_.fields() if each.name and each.bitsize}


def _place(type_: gdb.Type, name: str, base: int = 0) -> tuple[int, gdb.Type] | None:
    """Return the first bit of a member and its type; members of anonymous structs and unions are found too."""
    type_ = type_.strip_typedefs()
    if type_.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        return None
    for field in type_.fields():
        if field.type is None or not hasattr(field, "bitpos"):
            continue
        if field.name == name:
            return base + field.bitpos, field.type
        if not field.name and (found := _place(field.type, name, base + field.bitpos)) is not None:
            return found
    return None
