"""Find a Linux kernel in guest memory by the protection of its pages: no symbols needed, and KASLR does not matter.

    _text ┌────────┐ read, execute
          │ text   │
          ├────────┤ read only     kallsyms, .notes with the build-id, the banner, BTF
          │ rodata │
          ├────────┤ read, write
          │ data   │
     _end └────────┘

The split is made by mark_rodata_ro() (arch/x86/mm/init_64.c), the last thing before the first user process.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.errors import NotBooted, OptprobeError
from gdb_optprobe.guest_text import printable

__all__ = ["BuildId", "Image", "Run", "banner", "build_id", "find", "find_build_id", "is_note_of", "merged"]

# A .notes entry: sizes of name and description, type NT_GNU_BUILD_ID, name (include/linux/elfnote.h).
NOTE = re.compile(rb"\x04\0\0\0([\x08-\x40])\0\0\0\x03\0\0\0GNU\0", re.DOTALL)
BANNER = re.compile(rb"Linux version \d[ -~]{0,511}")
UNPROTECTED = "the guest's kernel has not booted yet, or was booted with rodata=off (its code is not write-protected)"
# Limits (budget.py), and what Debian's kernels have at the most.
MOST_EMBEDDED = 64
"""ELF files within the constants: 4, of vDSOs."""
MOST_NOTES = 1 << 12
"""Notes that look like a build-id: 6."""
# e_ident of little-endian ELF32 and ELF64, and for each where e_shoff is, its size, and where e_shentsize, e_shnum are.
ELF = re.compile(rb"\x7fELF([\x01\x02])\x01\x01", re.DOTALL)
SECTION_HEADERS = {b"\x01": ("<I", 0x20, 0x2E), b"\x02": ("<Q", 0x28, 0x3A)}


@dataclass(frozen=True, slots=True)
class Run:
    """Virtual memory of one protection."""

    start: int
    size: int
    writable: bool
    executable: bool

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Image:
    """The addresses of a kernel. `text` starts at `_text`; `data` ends with the last page that the image has mapped."""

    text: Run
    rodata: Run
    data: Run


@dataclass(frozen=True, slots=True)
class BuildId:
    """The linker's name for one build, in hex, and the `offset` of the note that holds it in the data searched."""

    hex: str
    offset: int


def find(runs: Iterable[Run]) -> Image:
    """Return the kernel among the mappings of the kernel's half of the address space. Raises NotBooted."""
    known = list(merged(runs))
    if not known:
        raise NotBooted("no Linux kernel is mapped in the guest")
    text = _largest(run for run in known if run.executable and not run.writable)
    constant = [run for run in known if text and run.start >= text.end and not run.executable and not run.writable]
    rodata = _largest(constant)
    writable = [run for run in known if rodata and run.start >= rodata.end and run.writable and not run.executable]
    if not text or not rodata or not writable:
        raise NotBooted(UNPROTECTED)
    start, end = writable[0].start, writable[-1].end
    return Image(text, rodata, Run(start, end - start, writable=True, executable=False))


def build_id(rodata: bytes) -> BuildId:
    """Return the kernel's build-id, from its .notes. Raises OptprobeError where it has none."""
    found = find_build_id(rodata)
    if found is None:
        raise OptprobeError("the guest's kernel has no build-id")
    return found


def find_build_id(rodata: bytes) -> BuildId | None:
    """Return the build-id; None where there is none. Notes in embedded ELF files (the vDSO's) do not count."""
    embedded = list(islice(_embedded(rodata), MOST_EMBEDDED + 1))
    if len(embedded) > MOST_EMBEDDED:
        raise OverBudget("the read-only data of the guest's kernel", MOST_EMBEDDED, "ELF files within")
    for note in islice(NOTE.finditer(rodata), MOST_NOTES):
        at = note.start()
        if at % 4 == 0 and not any(start <= at < end for start, end in embedded):
            return BuildId(_described(rodata, note), at)
    return None


def is_note_of(build: str, data: bytes) -> bool:
    """Return whether `data` begins with the note of this build-id (in hex)."""
    note = NOTE.match(data)
    return note is not None and _described(data, note) == build


def banner(rodata: bytes) -> str:
    """Return the line that begins "Linux version"; "" without one."""
    found = BANNER.search(rodata)
    return printable(found[0]) if found else ""


def _described(data: bytes, note: re.Match[bytes]) -> str:
    return data[note.end() : note.end() + note[1][0]].hex()


def merged(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield neighbours with the same protection as one run, ascending."""
    last: Run | None = None
    for run in sorted(runs, key=lambda run: run.start):
        same = last and (last.writable, last.executable) == (run.writable, run.executable)
        if last and same and last.end == run.start:
            last = Run(last.start, last.size + run.size, last.writable, last.executable)
            continue
        if last:
            yield last
        last = run
    if last:
        yield last


def _largest(runs: Iterable[Run]) -> Run | None:
    return max(runs, key=lambda run: run.size, default=None)


def _embedded(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of whole ELF files in `data`: they end with their section headers."""
    for magic in ELF.finditer(data):
        start = magic.start()
        form, offset, sizes = SECTION_HEADERS[magic[1]]
        if start + sizes + 4 <= len(data):
            (headers,) = struct.unpack_from(form, data, start + offset)
            entry, count = struct.unpack_from("<HH", data, start + sizes)
            end = start + headers + entry * count
            if end <= len(data):
                yield start, end
