"""What the commands print of probes on programs, where it differs from that of probes on the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.backtrace import Copy
from gdb_optprobe.guest.linux.user import executable
from gdb_optprobe.guest.linux.user.mm import AddressSpace
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.unwinder import Loaded, Process, Source
from gdb_optprobe.handlers.ir import Records
from gdb_optprobe.handlers.return_scope import PROBED
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.probes.active_calls import Caller
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_views import DetourCode, SiteCode, SiteView, calls_view, code_lines, cost_of
from gdb_optprobe.probes.user.uprobe_site import UprobeSite
from gdb_optprobe.probes.user.user_rethooks import UserRethook, UserRethooks
from gdb_optprobe.probes.views import CallsView, DetourView, FrameView


def site_view(
    probe: Probe, site: UprobeSite, function: UserRethook | None, calls: CallsView | None, stops: int, guest: Guest
) -> SiteView:
    """Return what a row shows of an instruction of a program. Its address is the one the program was linked for.

    function, calls: of a return probe.
    """
    return SiteView(
        address=probe.address,
        symbol=site.program.spell(probe.address),
        state="armed" if probe.enabled else "disabled",
        tier=Tier.TRAPPED.value,
        original_bytes=site.insn.data,
        patched_bytes=site.trap if site.installed is not None else b"",
        detour=_detour_view(probe, site, function, guest),
        stops=stops,
        calls=calls,
        frames=_frames(site, guest),
    )


def _detour_view(probe: Probe, point: UprobeSite, function: UserRethook | None, guest: Guest) -> DetourView | None:
    if point.installed is None:
        return None
    detour = point.installed.detour
    code = guest.isa.decode(detour.data, detour.address)
    mine = [one for one in point.enabled if one is probe or (one.is_return and probe.is_return)]
    most, least = _cost(point, point.enabled, function, code, guest)
    own, own_least = _cost(point, mine or point.enabled, function, code, guest)
    return DetourView(detour.address, detour.size, len(code), most, least, detour.head, own, own_least)


def _cost(
    point: UprobeSite, probes: Sequence[Probe], function: UserRethook | None, code: Sequence[Insn], guest: Guest
) -> tuple[int, int]:
    """Return the instructions of a hit that runs for `probes`, and how many they are on the shortest way."""
    numbers, most, least = {0, *(probe.number for probe in probes)}, stack_cost(point, probes, guest), 0
    for each in point.parts:
        if each.part.number in numbers:
            insns = [insn for insn in code if each.start <= insn.address < each.end]
            whole = sum(map(cost_of, insns))
            most += whole
            least += shortest(insns, cost_of) if each.part.program else whole
    if function is not None and function.installed is not None:
        back = function.installed.detour
        more, more_least = return_cost(guest.isa.decode(back.data, back.address))
        most, least = most + more, least + more_least
    return most, least


def return_cost(code: Sequence[Insn]) -> tuple[int, int]:
    """Return the instructions of the code that a call returns to, most and least; the last one leaves it."""
    *returns, last = code
    return sum(map(cost_of, code)), shortest(returns, cost_of) + cost_of(last)


def stack_cost(point: UprobeSite, probes: Sequence[Probe], guest: Guest) -> int:
    """Return the instructions that the code does not show: it copies a stack word by word."""
    objects = [each for probe in probes for each in probe.handler.objects]
    words = sum(each.stack - 1 for each in objects if isinstance(each, Records) and each.tried)
    return words * guest.user_kernel.isa.frames[point.program.bits].cost if words else 0


def _frames(point: UprobeSite, guest: Guest) -> Callable[[Mapping[str, int], bytes], Iterator[FrameView]]:
    """Of hits' stacks, by the probed file and the program that ran."""
    isa, programs, bits = guest.user_kernel.isa, guest.programs, point.program.bits
    frames, decode = isa.frames[bits], partial(isa.decode, bits=bits)

    @cache
    def probed() -> Source:
        return Source(point.program, executable.is_as_it_was(programs, point.program))

    @cache
    def ran(*taken: tuple[str, int]) -> Source | None:
        program = executable.executable(programs, dict(taken))
        if program is None or program.inode == point.program.inode or program.bits != bits:
            return None
        return Source(program)

    def unwound(taken: Mapping[str, int], stack: bytes) -> Iterator[FrameView]:
        bias = taken.get(PROBED, taken[frames.pc]) - point.insn.address
        files = [Loaded(probed(), bias)]
        other = ran(*(pair for pair in taken.items() if pair[0] in executable.NAMES))
        if other is not None:
            files.append(Loaded(other, taken[executable.START] - other.program.first_code))
        for frame in Process(tuple(files), frames, decode).callers(taken, Copy(taken[frames.sp], stack)):
            unknown = f"… ({frame.symbol})" if frame.symbol else "…"
            yield FrameView(frame.address, frame.symbol if frame.address else unknown, frame.sure)

    return unwound


def site_code(site: UprobeSite, function: UserRethook | None, guest: Guest) -> SiteCode:
    """Return what `show` lists: the instruction in the program's file, what processes have there, the traps' code.

    function: where return probes are there.
    """
    insn = site.insn
    original = code_lines([insn], {insn.address: "in the file"})
    if site.installed is None:
        return SiteCode(original, ())
    data = site.trap + insn.data[len(site.trap) :]
    trap = guest.user_kernel.isa.decode(data, insn.address, site.program.bits)[:1]
    patched = code_lines(trap, {insn.address: "in a private copy of the page of each process"})
    notes = {each.start: each.part.note for each in site.parts}
    programs = {each.start: each.part.code for each in site.parts}
    detour = DetourCode(site.installed.detour, notes, programs)
    return SiteCode(original, patched, detour, _return_code(function) if function is not None else None)


def _return_code(function: UserRethook) -> DetourCode | None:
    """Return the code of the trap that a function's calls return to, once it has found the call."""
    if function.installed is None:
        return None
    detour = function.installed.detour
    notes = {detour.address: "a call has returned: on to its own return address, once the probes are done"}
    programs = {detour.address: function.code} if function.code is not None else {}
    return DetourCode(detour, notes, programs)


def uretprobe_calls(
    function: UserRethook, rethooks: UserRethooks, spaces: Callable[[Program], Iterable[AddressSpace]]
) -> CallsView:
    """Return the calls of a function, and the processes that are in them. spaces: those that run a program."""
    counts = rethooks.read_counts(function)
    out = rethooks.active_calls() if counts.active else ()  # a large table, of all functions
    own = [call for call in out if call.counters == function.counters.address]
    processes = {space.mm: space.processes for space in spaces(function.program)} if own else {}
    who = [process for call in own for process in processes.get(call.mm, ())[:1]]
    callers = (Caller(str(each), each.pid, each.name) for each in who)
    return calls_view(counts, counts.active, callers)
