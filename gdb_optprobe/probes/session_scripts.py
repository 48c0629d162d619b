"""Scripts and blocks in braces, their probes staying in the session: what they share, and what their records say.

    add vfs_* do { @[func] = count(); }  ──compile──► a Program for each function ──► one map, @, of the session
                                                      types of maps ┐
    optprobe report ◄── maps, and the text of records ◄─────────────┴ requests
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux.user.program import Program as UserProgram
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.script_scope import KernelHit
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.handlers.ctype import Integer
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script.compile import Script, compile_block
from gdb_optprobe.handlers.script.declared import Known
from gdb_optprobe.handlers.script.host import HostNames, HostScope, NoFiles
from gdb_optprobe.handlers.script.output import Contents, JsonOutput, TextOutput
from gdb_optprobe.handlers.script.runtime import Runtime
from gdb_optprobe.handlers.script.scope import Matched
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.handlers.script.types import Folded, Stack, Time
from gdb_optprobe.maps.aggregate import number
from gdb_optprobe.maps.session_map import DROPPED, SessionMap
from gdb_optprobe.probes.script_host import GuestNames
from gdb_optprobe.probes.script_kernel import ScriptKernel
from gdb_optprobe.probes.session_maps import GuestBytes, SessionMaps
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import RowView, SessionMapView

ReadRecord = Callable[[int, bytes, int | None], str]
"""What a record says: its kind, its fields, and when it was made, in nanoseconds since the guest's start."""
STRINGS = 64
"""Bytes of a string in the guest, as bpftrace 0.17 has it: a record of each kind has room for all of them."""
_NO_START = Missing("elapsed is since a script's start, and this is none", "nsecs is since the guest's")


@dataclass(frozen=True)
class _At(NoFiles):
    """A Host with the time of a record, in nanoseconds since the guest's start."""

    names: GuestNames
    since_boot: int | None

    def clock(self, format: str) -> str:
        return "(?)" if self.since_boot is None else self.names.time(self.since_boot, Time(format))


class _KnownNames(HostNames):
    """Names that are known without the guest, which runs."""

    def __init__(self, booted: int | None, symbol: Callable[[int], str]) -> None:
        super().__init__(booted)
        self._symbol = symbol

    def kernel_symbol(self, address: int) -> str:
        return self._symbol(address).partition("+")[0] or f"{address:#x}"

    def control_group(self, number: int) -> str:
        return f"(control group {number})"

    def stack(self, words: Sequence[int], stack: Stack, indent: int) -> str:
        return "\n" + " " * indent + "(a stack: report prints it)\n"


@dataclass
class SessionScripts:
    """known: types of maps, some of them of maps that are gone; and requests, the kinds of all records."""

    target: Target
    maps: SessionMaps
    known: Known = field(default_factory=Known)

    @cached_property
    def _kernel(self) -> ScriptKernel:
        return ScriptKernel(self.target, HostScope(untimed=_NO_START))

    @property
    def settings(self) -> Settings:
        return Settings(max_strlen=STRINGS)

    def current(self) -> Known:
        """Return what is known of the maps that are there, and of all records."""
        names = self.maps.by_name().keys()
        self.known.maps = {name: found for name, found in self.known.maps.items() if name[1:] in names}
        return self.known

    def compile(self, spec: Spec, names: NamesAt, address: int, program: UserProgram | None = None) -> Program:
        """Compile the block of a probe at `address`. program: the one that has it, of a probe on a program.

        Raises OptprobeError, pointing.
        """
        event, provider, guest = spec.event, spec.kind.value, self.target.guest
        if event is not None:
            name = str(guest.event_at(event, address))
            provider = name.partition(":")[0]
        elif program is not None:
            self._kernel.programs.add(program)
            name = f"{provider}:{program.path}:{program.elf.spell(address)}"
        else:
            name = f"{provider}:{guest.symbol(address)}"
        inode = program.inode if program is not None else 0
        hit = KernelHit(provider, names, address, self._kernel.timing, abi.of(guest.isa).result, program=inode)
        match = Matched(name, hit, address)
        found, types = compile_block(spec.block, provider, match, self._kernel, self.settings, self.current())
        self.known.maps.update(types)
        return found

    def reader(self) -> ReadRecord:
        """Return what tells, at this stop, what records say, each as one line."""
        names, script = self._names, Script((), {}, tuple(self.known.requests), self.settings)

        def read(kind: int, fields: bytes, since_boot: int | None) -> str:
            runtime = Runtime(script, TextOutput(names), _At(names, since_boot), {})
            return one_line(runtime.take(kind, fields).removesuffix("\n"))

        return read

    def views(self, numbers: Collection[int] | None) -> Sequence[SessionMapView]:
        """Return the maps: all, or those that these probes use."""
        there, types = self.maps.by_name(), self.current().maps
        if not types:
            return ()
        names = self._names
        text, lines = TextOutput(names), JsonOutput(names)
        runtime = Runtime(Script((), types, (), self.settings), text, NoFiles(), there)
        some = types.keys() if numbers is None else {f"@{name}" for name in self.maps.used_by(numbers)} & types.keys()
        found = []
        for name in sorted(some):
            contents = runtime.contents(name)
            shown = text.map(contents).rstrip("\n") or f"{name}: no keys"
            line = lines.map(contents).strip() or f'{{"type": "map", "data": {{"{name}": {{}}}}}}'
            aggregate = value.aggregate if isinstance(value := types[name].value, Folded) else None
            found.append(SessionMapView(shown, line, name, aggregate, _numbers(contents, text)))
        return found

    def lost_words(self, numbers: Collection[int] | None) -> list[int]:
        """Return where maps count what found no room: all, or those that these probes use."""
        placed = self.maps.placed(self.maps.used_by(numbers) if numbers is not None else self.maps.by_name())
        return [memory.address + DROPPED for _, memory in placed.values()]

    def texts(self, numbers: Collection[int] | None) -> Callable[[Memory], Sequence[SessionMapView]]:
        """Return what makes text of maps while the guest runs: all, or those that these probes use. Ask at a stop."""
        types = self.current().maps
        some = types.keys() if numbers is None else {f"@{name}" for name in self.maps.used_by(numbers)} & types.keys()
        there = self.maps.placed(name[1:] for name in some)
        if not there:
            return lambda memory: ()
        text = TextOutput(_KnownNames(self._names.booted, self.target.guest.known_symbol))

        def read(memory: Memory) -> Sequence[SessionMapView]:
            maps = {
                name: SessionMap(layout, GuestBytes(memory, slot), runs=True) for name, (layout, slot) in there.items()
            }
            runtime = Runtime(Script((), types, (), self.settings), text, NoFiles(), maps)
            return [SessionMapView(text.map(runtime.contents(f"@{name}")).rstrip("\n"), "") for name in sorted(maps)]

        return read

    def clear(self, numbers: Collection[int]) -> None:
        """Empty the maps that no other probes than these use."""
        there = self.maps.by_name()
        for name in self.maps.used_alone_by(numbers):
            if name in there:
                there[name].clear()

    @property
    def _names(self) -> GuestNames:
        return GuestNames(self._kernel, self._kernel.now(), self.maps.by_name)


def _numbers(contents: Contents, text: TextOutput) -> tuple[RowView, ...]:
    """Return the rows of a map of numbers, or of aggregates of some; none of another map."""
    value = contents.type.value
    rows = []
    for key, words in sorted(contents.words.items()):
        if isinstance(value, Integer):
            words = (number(words[0], value.signed),)
        elif not isinstance(value, Folded):
            return ()
        spelled = one_line(text.key(contents, key))
        rows.append(RowView((spelled,) if spelled else (), tuple(words), spelled))
    return tuple(rows)
