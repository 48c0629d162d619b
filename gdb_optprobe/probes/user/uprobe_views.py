"""What the commands print of probes on programs, where it differs from that of probes on the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.backtrace import Copy
from gdb_optprobe.guest.linux.user import executable
from gdb_optprobe.guest.linux.user.unwinder import Loaded, Process, Source
from gdb_optprobe.handlers.ir import Records
from gdb_optprobe.handlers.return_scope import PROBED
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.probes import probe_views
from gdb_optprobe.probes.active_calls import Caller
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_views import SiteView
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.uprobe_site import UprobeSite
from gdb_optprobe.probes.user.uprobes import Uprobes
from gdb_optprobe.probes.user.user_rethooks import UserRethook
from gdb_optprobe.probes.views import (
    CallsView,
    CodeLine,
    DetourView,
    ExplainView,
    FrameView,
    ProbeView,
    ShowView,
)


def site_view(probe: Probe, users: Uprobes, target: Target) -> SiteView:
    """Return what a row shows of an instruction of a program. Its address is the one the program was linked for."""
    point = users.registry.uprobe_site_of(probe)
    function = users.rethooks.functions.get((point.program.inode, probe.address)) if probe.is_return else None
    return SiteView(
        address=probe.address,
        symbol=point.program.spell(probe.address),
        state="armed" if probe.enabled else "disabled",
        tier=Tier.TRAPPED.value,
        original_bytes=point.insn.data,
        patched_bytes=point.trap if point.installed is not None else b"",
        detour=_detour_view(probe, point, function, target.guest),
        stops=users.stops.counts[probe.number],
        calls=uretprobe_calls(function, users) if function is not None else None,
        frames=_frames(point, target.guest),
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
    numbers, most, least = {0, *(probe.number for probe in probes)}, _stack_cost(point, probes, guest), 0
    for each in point.parts:
        if each.part.number in numbers:
            insns = [insn for insn in code if each.start <= insn.address < each.end]
            whole = sum(map(probe_views.cost_of, insns))
            most += whole
            least += shortest(insns, probe_views.cost_of) if each.part.program else whole
    if function is not None and function.installed is not None:
        back = function.installed.detour
        *returns, last = guest.isa.decode(back.data, back.address)
        least += shortest(returns, probe_views.cost_of) + probe_views.cost_of(last)
        most += sum(map(probe_views.cost_of, (*returns, last)))
    return most, least


def _stack_cost(point: UprobeSite, probes: Sequence[Probe], guest: Guest) -> int:
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


def show_view(view: ProbeView, point: UprobeSite, guest: Guest) -> ShowView:
    """Return the instruction in the program's file, what processes have there, and the code that traps come to."""
    insn, isa = point.insn, guest.user_kernel.isa
    code: tuple[CodeLine, ...] = ()
    if point.installed is not None:
        detour = point.installed.detour
        data = guest.machine.read(detour.address, detour.size)
        notes = {each.start: each.part.note for each in point.parts}
        code = probe_views.code_lines(guest.isa.decode(data, detour.address), notes)
    trap = isa.decode(point.trap + insn.data[len(point.trap) :], insn.address, point.program.bits)[:1]
    patched = probe_views.code_lines(
        trap, {insn.address: "in a private copy of the page of each process"}
    ) if code else ()
    return ShowView(view, probe_views.code_lines([insn], {insn.address: "in the file"}), patched, code)


def explain_view(spec: Spec, users: Uprobes, guest: Guest) -> ExplainView:
    """Return what a probe on a program would be. Raises OptprobeError where it would be none."""
    point, code = users.trial(spec)
    insn, added = point.insn, guest.isa.decode(code, 0)
    return ExplainView(
        address=insn.address,
        symbol=point.program.spell(insn.address),
        tier=Tier.TRAPPED.value,
        reason=None,
        displaced=probe_views.code_lines([insn], {}),
        refused=(),
        patch_size=len(point.trap),
        instructions=sum(map(probe_views.cost_of, added)),
    )


def uretprobe_calls(function: UserRethook, users: Uprobes) -> CallsView:
    """Return the calls of a function, and the processes that are in them."""
    counts = users.rethooks.read_counts(function)
    out = users.rethooks.active_calls() if counts.active else ()  # a large table, of all functions
    own = [call for call in out if call.counters == function.counters.address]
    spaces = {space.mm: space.processes for space in users.spaces(function.program)} if own else {}
    who = [process for call in own for process in spaces.get(call.mm, ())[:1]]
    callers = (Caller(str(each), each.pid, each.name) for each in who)
    return probe_views.calls_view(counts, counts.active, callers)
