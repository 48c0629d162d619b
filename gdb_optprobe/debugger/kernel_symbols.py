"""Give GDB the kernel's symbols, unless it has them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import gdb

from gdb_optprobe.debugger import objfiles
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Cache
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel
from gdb_optprobe.guest.symbolfile import ASIDE, load_command, outermost_file, quoted, symbol_file
from gdb_optprobe.host_files import until_exit
from gdb_optprobe.isa.abi import ElfMachine

# A symbol that every kernel has, at the start of its code, and no other program.
WITNESS = "_text"
LINUX = "linux_banner"
ENTRY = "__entry_text_start", "__entry_text_end"


def of_another_program() -> bool:
    """Return whether GDB's symbol file is not a Linux kernel's: a guest without an operating system.
    Files that the user has added to it do not count: a Linux guest's program, say.
    """
    return gdb.current_progspace().filename is not None and _gdb_address(LINUX) is None
# The cached fact of the kernel's file: its purpose, hash, and the bounds of its code. Renamed when the file changes.
MADE = "elf_1"


def warn_of_others(build: str, among: Mapping[str, Path] | None = None) -> None:
    """Warn of symbols of other builds than the guest's kernel, `build`. among: files by build-id; None for all."""
    for other, path in objfiles.other_kernels(build, among).items():
        warn(
            f"GDB's symbols in {path} are of another build than the guest's kernel: names, lines and backtraces are "
            f"wrong (build-id {other}, the guest has {build}); load the guest's own vmlinux, or none: symbol-file"
        )

def provide(recovered: DiscoveredKernel, cache: Cache, machine: ElfMachine, unwound: bool) -> int | None:
    """Load a symbol-only file of this kernel. Return an address in it, for `withdraw`; None where GDB needs none.
    unwound: whether we unwind its stack (debugger/unwinder.py). Then GDB must not guess where a stack ends: in entry
    text, of which a vmlinux has no frames.
    Raises OptprobeError where GDB has a vmlinux at another address.
    """
    truth = recovered.symbols.address(WITNESS)
    known = _gdb_address(WITNESS)
    if known is not None and known == truth:
        return _end_stacks(recovered, cache, machine) if unwound else None
    if known is not None and truth is not None:
        where = f"GDB's symbols are for a kernel at {known:#x}, the guest's is at {truth:#x}"
        if objfiles.other_kernels(recovered.build):
            raise OptprobeError(f"{where}, and of another build", "symbol-file, then symbol-file FILE of this build")
        raise OptprobeError(
            where,
            f"load them with 'symbol-file FILE -o {truth - known:#x}' (address randomization), or unload them",
        )
    path, origin = _known(recovered, cache, machine, unwound) or _write(recovered, cache, machine, unwound)
    slide = recovered.text[0] - origin[0]
    gdb.execute(load_command(str(path), (origin[0], origin[1]), slide), to_string=True)
    return recovered.text[0]


def withdraw(text: int) -> None:
    """Unload the file of `provide`: the kernel is gone, and the next one may be elsewhere."""
    unload(f"-a {text:#x}", "symbols")


def unload(which: str, what: str) -> None:
    """Unload a file with symbols or types. which: as `remove-symbol-file` takes it."""
    confirm = gdb.parameter("confirm")
    gdb.execute("set confirm off")
    try:
        gdb.execute(f"remove-symbol-file {which}", to_string=True)
    except gdb.error as error:
        warn(f"the {what} of the kernel that is gone stay loaded: {error}")
    finally:
        gdb.execute(f"set confirm {'on' if confirm else 'off'}")


def _end_stacks(recovered: DiscoveredKernel, cache: Cache, machine: ElfMachine) -> int | None:
    start, end = (recovered.symbols.address(name) for name in ENTRY)
    if start is None or end is None or not start < end:
        return None
    content = outermost_file((start, end), machine)
    # GDB reads the file when it first needs it, so its content must never change: the name has its hash.
    path = cache.store_file(content) or until_exit(content, ".elf")
    gdb.execute(f"add-symbol-file {quoted(str(path))} -s .text {ASIDE:#x}", to_string=True)
    return ASIDE


def _known(
    recovered: DiscoveredKernel, cache: Cache, machine: ElfMachine, unwound: bool
) -> tuple[Path, tuple[int, int]] | None:
    """Return the file that an earlier session made of the same symbols, and the bounds of its code."""
    made = recovered.shelf.facts().get(MADE) if recovered.shelf is not None else None
    match made:
        case [str(of), str(hash_), int(start), int(end)] if of == _purpose(recovered, machine, unwound):
            path = cache.file(hash_)
            return (path, (start, end)) if path is not None else None
    return None


def _purpose(recovered: DiscoveredKernel, machine: ElfMachine, unwound: bool) -> str:
    start, end = recovered.text
    return f"{machine.name} {end - start:#x} {'frames' if unwound else 'plain'}"


def _write(
    recovered: DiscoveredKernel, cache: Cache, machine: ElfMachine, unwound: bool
) -> tuple[Path, tuple[int, int]]:
    content = symbol_file(recovered.symbols.symbols, recovered.text, machine, outermost=unwound)
    path = cache.store_file(content)
    if path is None:
        return until_exit(content, ".elf"), recovered.text
    if recovered.shelf is not None:
        made = [_purpose(recovered, machine, unwound), sha256(content).hexdigest(), *recovered.text]
        recovered.shelf.remember({MADE: made})
    return path, recovered.text


def _gdb_address(name: str) -> int | None:
    try:
        return int(gdb.parse_and_eval(f"(unsigned long)&{name}"))
    except gdb.error:
        return None
