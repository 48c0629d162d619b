"""One running Linux kernel, put together: its text, its tracer, its stacks, memory for detours."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Cache
from gdb_optprobe.guest.linux import filler, ftrace_sites, stacks
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.recover import Recovered
from gdb_optprobe.guest.linux.structures import CachedStructures
from gdb_optprobe.guest.linux.text import KernelText, Overlay
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.guest.saved import Saved
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.isa.base import Isa
from gdb_optprobe.isa.x86_64 import unwind as orc
from gdb_optprobe.probes.settings import Settings

LARGEST_BTF = 1 << 26


@dataclass
class Linux:
    """What is known of the guest's kernel, and what of it must be forgotten when the guest has run."""

    recovered: Recovered
    machine: Machine
    memory: KernelMemory
    isa: Isa
    kernel: Kernel
    structures: CachedStructures
    text: KernelText
    mapping: tuple[filler.PhysicalPatch, ...] = ()
    tracer: SiteTracer = field(init=False)
    _saved: list[Saved] | None = None

    def __post_init__(self) -> None:
        self.tracer = SiteTracer(self)

    @classmethod
    def of(
        cls, recovered: Recovered, machine: Machine, memory: KernelMemory, isa: Isa, cache: Cache, overlay: Overlay
    ) -> Linux:
        """`overlay` shows the original bytes where branches of ours stand."""

        def blob() -> bytes:
            kernel = Kernel(memory, recovered.symbols)
            start, end = kernel.range("__start_BTF", "__stop_BTF")
            if not 0 < end - start <= LARGEST_BTF:
                raise OptprobeError("this kernel has no type information (BTF)")
            return kernel.read(start, end)

        structures = CachedStructures(blob, cache, recovered.build)
        kernel = Kernel(memory, recovered.symbols, structures)
        text = KernelText(kernel, isa, overlay, cache.shelf(recovered.build))
        return cls(recovered, machine, memory, isa, kernel, structures, text)

    def forget(self) -> None:
        """The guest has run: page tables, the vCPUs' view, stacks and the text may have changed."""
        self._saved = None
        self.memory.forget()
        self.text.forget()

    # stacks --------------------------------------------------------------------------------------------------------

    @cached_property
    def _stacks(self) -> stacks.Stacks:
        return stacks.Stacks(self.kernel, self.machine, self.isa.registers)

    def saved(self) -> Iterable[Saved]:
        """Everywhere a PC may be saved now. Raises OptprobeError.

        While the guest stands its stacks do not change, and are read once; registers may be changed by the user.
        """
        if self._saved is None:
            start, end = self.kernel.range("_stext", "_etext")
            reach = self.isa.branch_reach
            self._saved = [found.among(start - reach, end + reach) for found in self._stacks.saved()]
        return [*self._registers(), *self._saved]

    def _registers(self) -> Iterator[Saved]:
        for vcpu in self.machine.vcpus():
            values = self.machine.registers(vcpu, self.isa.registers)
            yield Saved(f"vCPU {vcpu.number}", 0, array("Q", values.values()))

    def stacks_missing(self) -> str:
        """Why not all stacks can be told, in words; "" when they can."""
        return stacks.missing(self.kernel)

    # the unwinder ----------------------------------------------------------------------------------------------------

    def orc_tables(self) -> orc.Tables | None:
        """The kernel's own unwind tables; None where it has none."""
        symbols = self.kernel.symbols
        ips = self.kernel.range("__start_orc_unwind_ip", "__stop_orc_unwind_ip")
        entries = symbols.address("__start_orc_unwind")
        if not ips[0] or entries is None:
            return None
        lookup, end = self.kernel.range("orc_lookup", "orc_lookup_end")
        return orc.Tables(
            text=(self.kernel.address("_stext"), max(self.kernel.address("_etext"), self.kernel.address("_einittext"))),
            ips=ips,
            entries=entries,
            lookup=(lookup, (end - lookup) // 4),
            encoding=self._orc_encoding(),
        )

    def _orc_encoding(self) -> orc.Encoding:
        """From the kernel's own types; without them, as kernels until 6.2 had it."""
        try:
            return orc.encoding(self.structures.bits("orc_entry"))
        except (OptprobeError, KeyError):
            return orc.LEGACY

    # detours ---------------------------------------------------------------------------------------------------------

    def new_arena(self, settings: Settings) -> Arena:
        """Memory for detours: the user's, else filler of the kernel's own text. Raises OptprobeError."""
        if settings.arena is not None:
            return given_arena(settings)
        tables = filler.page_tables(self.machine, self.kernel)
        left = filler.left_behind(self.kernel, tables, self.machine.read_physical)
        if left is not None:
            return Arena(Ranges(code=(left.code,), data=(left.data,), fill=filler.FILL))
        found = filler.find(self.kernel)
        mapping = filler.plan_mapping(found, tables, self.machine.read_physical)
        filler.apply(mapping, self.machine)
        self.mapping = mapping
        self.memory.forget()
        return Arena(Ranges(code=(found.code,), data=(found.data,), fill=filler.FILL))

    def give_back_arena(self) -> None:
        """Nothing of ours is left: the page tables become what they were."""
        mapping, self.mapping = self.mapping, ()
        filler.undo(mapping, self.machine)
        self.memory.forget()


class SiteTracer:
    """The guest's function tracer, kept off the sites where branches of ours stand."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self._owed: dict[int, FtraceSite] = {}

    def hold(self, site: FtraceSite) -> None:
        """Mark the site as disabled. Raises Refused when a tracer has come since it was planned."""
        record = self._record(site)
        self._owed.pop(site.address, None)
        if record.disabled:
            return
        if record.in_use:
            raise Refused(Refusal.FTRACE_IN_USE.because(site=self._linux.text.spell(site.address)))
        self._change(ftrace_sites.disable(record))

    def release(self, site: FtraceSite) -> None:
        """Give the site back; while a tracer runs it stays disabled, as the tracer has not counted it."""
        self._owed[site.address] = site
        self.give_back()

    def give_back(self) -> None:
        """Give back what is owed, as soon as no tracer runs."""
        if not self._owed or self._linux.text.ftrace.tracing():
            return
        owed, self._owed = self._owed, {}
        for site in owed.values():
            record = self._record(site)
            if record.disabled:
                self._change(ftrace_sites.enable(record))

    def _record(self, site: FtraceSite) -> ftrace_sites.Record:
        record = self._linux.text.ftrace.record(site.address)
        if record is None:
            raise OptprobeError(f"the tracer's record of {self._linux.text.spell(site.address)} is gone")
        return record

    def _change(self, change: ftrace_sites.FlagsChange) -> None:
        patch.apply([Patch(change.at, change.old, change.new)], self._linux.memory)


def given_arena(settings: Settings) -> Arena:
    """The ranges of `set optprobe arena`. Raises Refused where there are none."""
    if settings.arena is None:
        raise Refused(Refusal.ARENA_MISSING.because(why="this guest is no Linux whose memory is known"))
    return Arena(Ranges(code=(settings.arena.code,), data=(settings.arena.data,)))
