"""The modules of a Linux guest: implements `probes.target.Modules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gdb_optprobe.debugger.locations import Locations
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.probes.stops import Hit, StopPoint, Stops
from gdb_optprobe.probes.target import NoModules

LOADED = "do_init_module"
"""The kernel calls it with a loaded module before any code of the module runs (kernel/module/main.c)."""


@dataclass(frozen=True)
class LinuxModules(NoModules):
    linux: LinuxGuest
    locations: Locations
    stops: Stops

    def identity(self, address: int) -> object:
        return self.linux.text.identity(address)

    def loaded_state(self) -> object:
        return self.linux.text.staying(), tuple(self.linux.text.strange.items())

    def location(self, address: int) -> str:
        return self.linux.text.symbol(address)

    def find(self, location: str) -> Sequence[int]:
        found = self.locations.loaded(location)
        strange = self.linux.text.strange
        if not found and strange:
            # It may be in a module that cannot be read.
            name, why = next(iter(strange.items()))
            raise OptprobeError(f"{f'the module {name}' if name else 'the loaded modules'} cannot be read: {why}")
        return found

    def waits(self, location: str, why: str) -> Reason:
        if not why:
            # Where the modules cannot be read, it is not known what they lack: the probe waits all the same.
            with suppress(OptprobeError):
                if lacking := self.locations.lacking(location):
                    why = f": {lacking}"
        return super().waits(location, why)

    def loading_text(self, module: int) -> tuple[int, int]:
        return self.linux.text.arriving(module).module.text

    def on_load(self, call: Callable[[int], None]) -> StopPoint:
        (first, *_) = abi.of(self.linux.isa).arguments

        def hit(hit: Hit) -> None:
            self.linux.forget()
            try:
                call(hit.regs[first])
            except OptprobeError as error:
                warn(error)

        self.linux.text.check()
        return self.stops.set(self.linux.entry(self.linux.kernel.address(LOADED)), hit)
