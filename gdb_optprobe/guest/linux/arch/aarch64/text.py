"""The text of an aarch64 kernel. Fills guest.text.Text.

    _stext ── __entry_text ── text ── nVHE hyp text ── idmap text ── the linker's tables ── zeros ── _etext

Alternatives are applied at boot, with numbers of that boot, and not changed in the kernel's own text from then on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256

from gdb_optprobe.guest.linux.arch.aarch64 import areas
from gdb_optprobe.guest.linux.arch.aarch64.ftrace import ENTERED, SITE
from gdb_optprobe.guest.linux.arch.aarch64.names import EXCEPTION_ROW
from gdb_optprobe.guest.linux.arch.aarch64.text_at_rest import at_rest
from gdb_optprobe.guest.linux.one_size_text import OneSizeText, instructions
from gdb_optprobe.guest.text import Area
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.direct_branches import direct_branches
from gdb_optprobe.isa.base import Insn

MODULES = (0xFFFF_8000_0000_0000, 0xFFFF_FFFF_F000_0000)
"""Where modules are: anywhere around the image (RANDOMIZE_MODULE_REGION_FULL), in the half above the linear map."""
LARGEST_IMAGE = 1 << 27
ADRP_REACH = 1 << 32
"""Bytes: code of a module and the image address each other so (arch/arm64/kernel/module.c), or not at all."""
POINTER = 8
_UPPER = re.compile(rb"\xff\xff")
SIGNS = b"\x3f\x23\x03\xd5"
"""paciasp, which makes a return address safe."""


class ArmText(OneSizeText):
    """Fills guest.text.Text for a kernel on aarch64."""

    isa = AARCH64
    modules = MODULES
    exception_row = EXCEPTION_ROW
    site = SITE
    entered = ENTERED
    _entry_text = staticmethod(areas.entry_text)
    _direct_branches = staticmethod(direct_branches)

    @cached_property
    def _elsewhere(self) -> Sequence[tuple[int, int]]:
        return areas.elsewhere(self._kernel)

    # --- Text --------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Area:
        return areas.of(name)

    def _range(self, address: int) -> Area:
        found, (start, end) = super()._range(address), self._text
        is_near = end - ADRP_REACH <= address < start + ADRP_REACH
        return Area.NOT_TEXT if found is Area.MODULE and not is_near else found

    def _core(self, address: int) -> Area:
        if any(start <= address < end for start, end in self._elsewhere):
            return Area.EARLY
        return super()._core(address)

    def _text_key(self) -> str:
        assert self._shelf is not None, "there is a cache"
        start, end = self._text
        found = sha256(f"{self._shelf.key}\n{end - start:x}\n".encode())
        found.update(self._at_rest(self._read_all(start, end), start))
        return found.hexdigest()

    def _function_lasts(self, start: int, end: int) -> bool:
        is_here = not any(first < end and start < last for first, last in self._elsewhere)
        return is_here and super()._function_lasts(start, end)

    def _at_rest(self, text: bytes, base: int) -> bytes:
        """Return the text at `base` without what differs by boot, and what the kernel rewrites while it runs."""
        end = base + len(text)
        tracers = [at for name in areas.TRACERS for at in self._kernel.symbols.lookup(name)]
        sites = [*self.ftrace.within(base, end), *tracers]
        image = base, base + LARGEST_IMAGE
        return at_rest(text, image, sites, self.jump_labels.within(base, end), self._elsewhere)

    @property
    def _code_end(self) -> int:
        """Return the last symbol of the text: the linker's tables are behind it, and zeros that detours may be in."""
        end = self._text[1]
        last = self._kernel.symbols.at(end - 1)
        return end - 1 - last.offset if last is not None else end

    # --- functions ---------------------------------------------------------------------------------------------

    def _instructions(self, data: bytes, start: int) -> Mapping[int, Insn]:
        pointers = {at for place in _pointers(data, start) for at in (place, place + AARCH64.alignment)}
        return {insn.address: insn for insn in instructions(data, start, AARCH64) if insn.address not in pointers}

    def _is_compiled(self, data: bytes, start: int, code: Mapping[int, Insn]) -> bool:
        return data.startswith((ENTERED, SIGNS))


def _pointers(data: bytes, start: int) -> Iterator[int]:
    """Yield where pointers to the image are in text at `start`: data, of which the lower half may look like code.

    A kernel with DYNAMIC_FTRACE_WITH_CALL_OPS has one before each function with a site: what its tracer loads there it
    calls (arch/arm64/kernel/entry-ftrace.S). No instruction has the upper half of an address of the kernel's.
    """
    for match in _UPPER.finditer(data):
        at = match.end() - POINTER
        near = at >= 0 and abs(int.from_bytes(data[at : match.end()], "little") - start) < ADRP_REACH
        if near and (start + at) % POINTER == 0:
            yield start + at
