"""Give GDB the kernel's types, so that it prints `*(struct file *)$rdi`, unless it has them of a vmlinux."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import gdb

from gdb_optprobe.debugger import kernel_symbols
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.objfiles import WITNESS
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf_dwarf import dwarf_of
from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.linux.structures import KernelStructures
from gdb_optprobe.guest.symbolfile import ASIDE, quoted, types_file
from gdb_optprobe.host_files import until_exit
from gdb_optprobe.isa.abi import ElfMachine

# The cached fact of the file: hashes of the BTF that it was made of, and of what is in it. Renamed when it changes.
MADE = "types_1"


def provide(structures: KernelStructures, shelf: Shelf | None, cache: Cache, machine: ElfMachine) -> Path | None:
    """Load a file with the kernel's types. Return its path, for `withdraw`; None where GDB has them, or there are none.

    Where GDB could not follow the types, a warning says why.
    """
    if _has_types():
        return None
    try:
        raw = structures.btf.raw
    except OptprobeError:
        return None  # of a kernel without BTF `doctor` says so
    of = f"{machine.name} {raw.hash}"
    match shelf.facts().get(MADE) if shelf is not None else None:
        case [str(made), str(hash_)] if made == of and (known := cache.file(hash_)) is not None:
            path = known
        case _:
            try:
                content = types_file(dwarf_of(structures.btf), machine)
            except OptprobeError as error:
                warn(f"GDB gets none of the kernel's types: {error}")
                return None
            stored = cache.store_file(content)
            if stored is not None and shelf is not None:
                shelf.remember({MADE: [of, sha256(content).hexdigest()]})
            # GDB reads the file when it first needs it, so its content must never change: the name has its hash.
            path = stored or until_exit(content, ".elf")
    gdb.execute(f"add-symbol-file {quoted(str(path))} -s .text {ASIDE:#x}", to_string=True)
    return path


def withdraw(path: Path) -> None:
    """Unload the file of `provide`: the kernel is gone, and the next one may have others."""
    kernel_symbols.unload(quoted(str(path)), "types")


def _has_types() -> bool:
    try:
        gdb.lookup_type(f"struct {WITNESS}")
    except gdb.error:
        return False
    return True
