"""The text of an aarch64 kernel. Fills guest.text.Text.

    _stext ── __entry_text ── text ── nVHE hyp text ── idmap text ── the linker's tables ── zeros ── _etext

Every branch is one instruction, so mid-function entries do not matter here. Known of a function are its code, where
the kernel rewrites it or knows it by its address, and where neither a stop nor a detour is allowed. Alternatives are
applied at boot, and not changed in the kernel's own text from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.arch.aarch64 import areas
from gdb_optprobe.guest.linux.arch.aarch64.ftrace import ENTERED, SITE
from gdb_optprobe.guest.linux.arch.aarch64.names import EXCEPTION_ROW
from gdb_optprobe.guest.linux.core_text import CoreText
from gdb_optprobe.guest.linux.exception_table import ExceptionTable
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import FORBIDDEN, Area, Fact, Function, IdleSites, Jump, Mark, Overlay, Whole
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow, Hazard, Insn

MODULES = (0xFFFF_8000_0000_0000, 0xFFFF_FFFF_F000_0000)
"""Where modules are: anywhere around the image (RANDOMIZE_MODULE_REGION_FULL), in the half above the linear map."""
SIGNS = b"\x3f\x23\x03\xd5"
"""paciasp, which makes a return address safe."""


@dataclass(frozen=True, slots=True)
class _ReadOnly:
    """`machine.Memory` for what only reads."""

    read: Callable[[int, int], bytes]

    def write(self, address: int, data: bytes) -> None:
        raise Unreadable(address, len(data))


class ArmText(CoreText):
    """Fills guest.text.Text for a kernel on aarch64."""

    def __init__(
        self,
        kernel: Kernel,
        overlay: Overlay | None = None,
        originals: OriginalText | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """Take the text of `kernel`. originals: of a text that this one is beside, in place of an overlay.
        shelf: caches what is found in this kernel's text.
        """
        found = originals or OriginalText(kernel, AARCH64, overlay)
        super().__init__(kernel, found, FtraceSites(kernel, SITE), areas.entry_text(kernel), MODULES, shelf)
        self._elsewhere = areas.elsewhere(kernel)
        self._never: dict[int, Mapping[int, Hazard]] = {}

    def through(self, read: Callable[[int, int], bytes]) -> ArmText:
        """Return the same text through another reader: for the unwinder, which must not send packets of its own."""
        kernel = replace(self._kernel, memory=_ReadOnly(read))
        self.originals.find()  # derive it now: `read` cannot be used for that
        return ArmText(kernel, originals=self.originals.through(kernel))

    @cached_property
    def exceptions(self) -> ExceptionTable:
        return ExceptionTable(self._kernel, EXCEPTION_ROW)

    def forget(self) -> None:
        super().forget()
        self._never.clear()

    # --- Text --------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Area:
        return areas.of(name)

    def _core(self, address: int) -> Area:
        if any(start <= address < end for start, end in self._elsewhere):
            return Area.EARLY
        area = super()._core(address)
        hazard = self._forbidden(address).get(address) if area is Area.TEXT else None
        return FORBIDDEN[hazard] if hazard is not None else area

    def _forbidden(self, address: int) -> Mapping[int, Hazard]:
        """Return the addresses, in the function around `address`, at which no stop and no detour is allowed."""
        function = self.function(address)
        if function is None:
            return {}
        if function.start not in self._never:
            self._never[function.start] = AARCH64.forbidden(function.own)
        return self._never[function.start]

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        found = [*super().marks(start, end)]
        found += [Mark(Fact.BUG, at, 4) for at in range(start, end, 4) if self.bugs.has(at)]
        return found

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """See guest.Guest.idle_sites. Functions are entered at the instruction before the tracer's site, if any is."""
        if self.originals.missing or self.bugs.addresses is None:
            return IdleSites()
        start, end = self._text
        sites = frozenset(self.ftrace.addresses)
        before = [at for at in sorted(addresses) if start <= at < end and at + len(ENTERED) in sites]
        found = super().idle_sites(addresses, kept_off), self._untouched(before, ENTERED)
        return max(found, key=lambda sites: len(sites.addresses))

    def _rewritten(self) -> Iterator[int]:
        yield from super()._rewritten()
        yield from self.bugs.addresses or ()

    def _text_key(self) -> str:
        """Return none: alternatives with numbers of each boot are all over the text."""
        return ""

    # --- functions ---------------------------------------------------------------------------------------------

    def _decode(self, start: int, end: int) -> Function:
        # Single functions are read by themselves, as for a backtrace.
        data = self._read(start, end) if self._pieces else self.originals(start, self._kernel.read(start, end))
        code = {insn.address: insn for insn in instructions(data, start)}
        return Function(
            name=self._name(start),
            start=start,
            end=end,
            own=code,
            look=lambda: self._whole(start, end, code),
            compiled=data.startswith((ENTERED, SIGNS)),
        )

    def _whole(self, start: int, end: int, code: Mapping[int, Insn]) -> Whole:
        """Return the jumps inside the function. Entries from elsewhere are not needed to move one instruction."""
        jumps = [Jump(i.address, i.target, i.flow.value) for i in code.values() if i.target is not None]
        jumps += [Jump(source, target, "jump label") for source, target in self.jump_labels.within(start, end)]
        jumps += [Jump(*row, "fixup of a fault") for row in self.exceptions.leading_from(start, end)]
        return Whole(
            code=code,
            complete=False,
            jumps=tuple(jumps),
            blind_jumps=tuple(insn.address for insn in code.values() if insn.flow is Flow.INDIRECT_JUMP),
        )


def instructions(data: bytes, address: int) -> Iterator[Insn]:
    """Yield all instructions; a word that is none (a number beside the code, padding) is skipped."""
    at = 0
    while at < len(data):
        found = AARCH64.decode(data[at:], address + at)
        yield from found
        at = found[-1].end - address if found else at + AARCH64.alignment
