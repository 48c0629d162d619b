"""One probed instruction of a program: the probes there, and the code that its traps come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.pagecache import NotInMemory
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.isa.base import Code, Insn
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.maps.trap_table import Key
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.user import boundary

LONGEST = 16
"""Bytes of an instruction, at most."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The jump at the end of an instruction's copy, at `address`."""

    address: int
    jump: bytes

    def trapping(self, trap: bytes) -> bytes:
        """Return the same with a trap in its place."""
        return trap + self.jump[len(trap) :]


@dataclass(frozen=True, slots=True)
class XolTrap:
    """A trap in place of `tail`. installed: its code. record: its number in the journal."""

    tail: Tail
    installed: InstalledDetour
    record: int


@dataclass(frozen=True, slots=True)
class CodePart:
    """Code of a trap's. note: what it is for. program: whether it is a probe's. number: of the probe it runs for.

    The entry of a call runs for all return probes there, and has the number of the last.
    """

    note: str
    code: Code
    program: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """Where it is."""

    start: int
    end: int
    part: CodePart


def lay_out(parts: Iterable[CodePart], address: int) -> Iterator[InstalledPart]:
    """One behind the other from there on."""
    for part in parts:
        end = address + len(part.code(address))
        yield InstalledPart(address, end, part)
        address = end


@dataclass
class UprobeSite:
    """All probes on one instruction of a program.

    needs_copy: whether the instruction may have to be run out of line. record: the trap's number in the journal.
    installed: the code that its traps come to, while they are in the processes. parts: of that code.
    xol_trap: the trap behind its copy. settled_for: numbers of the probes that the guest was last changed for.
    memory: of removed probes, which `installed` writes to until it is replaced, by the probes' numbers.
    """

    program: Program
    insn: Insn
    needs_copy: bool
    trap: bytes
    record: int
    probes: list[Probe] = field(default_factory=list)
    installed: InstalledDetour | None = None
    xol_trap: XolTrap | None = None
    parts: tuple[InstalledPart, ...] = ()
    settled_for: frozenset[int] = frozenset()
    memory: dict[int, Slot] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """See maps/trap_table.py."""
        return self.program.offset(self.insn.address), self.program.inode

    @property
    def enabled(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.enabled]


def decode_instruction(program: Program, address: int, isa: UserTrapping) -> Insn:
    """Return the instruction there. Raises OptprobeError where none begins."""
    bounds = program.function(address)
    start = bounds[0] if bounds is not None else address
    code = isa.decode(program.text(start, address - start + LONGEST), start, program.bits)
    found = next((insn for insn in code if insn.address == address), None)
    if found is not None:
        if bounds is None:
            _check_boundary(program, address, isa)
        _check_reserved(program, address, isa)
        if program.elf.checks_branches and isa.is_landing_pad(found):
            next_ = program.spell(found.end)
            raise Refused(Refusal.LANDING_PAD.because(address=program.spell(address), next=next_))
        return found
    inside = next((insn for insn in code if insn.address < address < insn.end), None)
    if inside is not None:
        raise _in_the_middle(program, address, inside)
    raise OptprobeError(f"the code at {program.spell(address)} cannot be decoded")


def _check_boundary(program: Program, address: int, isa: UserTrapping) -> None:
    """Raises OptprobeError where the code before says that no instruction does, in a program without symbols."""
    first = max(program.code_start(address), address - boundary.BEFORE)
    try:
        text = program.text(first, address - first + LONGEST)
    except NotInMemory:
        return
    inside = boundary.enclosing(lambda start: isa.decode(text[start - first :], start, program.bits), first, address)
    if inside is not None:
        raise _in_the_middle(program, address, inside)


def _in_the_middle(program: Program, address: int, inside: Insn) -> OptprobeError:
    at = program.spell(inside.address)
    return OptprobeError(f"{program.spell(address)} is in the middle of the instruction at {at}", f"probe {at}")


def _check_reserved(program: Program, address: int, isa: UserTrapping) -> None:
    """Raises Refused where nothing may stop between the instructions around."""
    first = max(program.code_start(address), address - isa.around)
    if isa.around and address in isa.reserved(isa.decode(program.text(first, 2 * isa.around), first, program.bits)):
        raise Refused(Refusal.RESERVATION.because(address=program.spell(address)))
