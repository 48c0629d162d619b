"""What works in a guest, and why the rest does not: of each facility the question that `add` asks. Nothing is changed.

    question ──► the fact worth knowing          works
             └─► an error, with its next step    refused
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import build_count
from gdb_optprobe.detours.obstacles import somewhere
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused, reason_of
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.probes import probe_views
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.leftovers import LEFT, RECOVER
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.site_views import COUNTER_DISTANCE
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.views import FacilityView

TRIED = 8
"""Entries that are planned, spread over the kernel's text."""
FRAMES = 64
"""Frames of a stack that is unwound, at most."""
KIB = 1024
LOADER = "find_module"
"""A function that every kernel has which can load modules (kernel/module/main.c)."""

Question = Callable[[], str]
"""The fact worth knowing of a facility. Raises OptprobeError where it does not work."""

NAMES = {
    "symbols": Refusal.SYMBOLS_MISSING,
    "types": Refusal.TYPES_MISSING,
    "unwinding": Refusal.UNWINDING_MISSING,
    "current_thread": Refusal.CURRENT_MISSING,
    "task_list": Refusal.TASKS_MISSING,
    "quiescence": Refusal.TASKS_MISSING,
    "code_memory": Refusal.ARENA_MISSING,
    "data_memory": Refusal.ARENA_MISSING,
    "entries": Refusal.FTRACE_MISSING,
    "ftrace_records": Refusal.FTRACE_MISSING,
    "trap_tier": Refusal.TRAP_TIER_MISSING,
    "probe_read": Refusal.READS_MISSING,
    "user_programs": Refusal.PROGRAMS_MISSING,
    "modules": Refusal.MODULES_MISSING,
    "tracepoints": Refusal.TRACEPOINTS_MISSING,
}
"""A guest's facilities, in the order of the output: the code of a refusal that has none of its own."""


def asked(name: str, otherwise: Refusal, question: Question) -> FacilityView:
    """Return the answer. An error that is not expected is one too: a report of it begins with these lines."""
    try:
        return FacilityView(name, question())
    except OptprobeError as error:
        why = reason_of(error, otherwise)
    except Exception as error:
        why = Refusal.UNEXPECTED.because(error=f"{type(error).__name__}: {error}")
    return FacilityView(name, "", probe_views.reason_view(why))


def of_no_guest(error: OptprobeError) -> tuple[FacilityView, ...]:
    """Return the facilities of a guest that cannot be looked at, and why."""
    why = probe_views.reason_view(reason_of(error, Refusal.GUEST_MISSING))
    return tuple(FacilityView(name, "", why) for name in NAMES)


def of_guest(session: Session, linux: LinuxGuest | None) -> tuple[FacilityView, ...]:
    """Return the facilities of the guest of `session`. linux: its kernel; None where it is no Linux."""
    questions = dict(_Guest(session).questions)
    if linux is not None:
        questions |= _Kernel(session, linux).questions
    return tuple(asked(name, otherwise, questions.get(name, _no_linux)) for name, otherwise in NAMES.items())


LENT = ", which the guest's kernel is to lend: the guest runs for it at the first probe that needs some"


def _no_linux() -> str:
    raise Refused(Refusal.NOT_LINUX.because())


class _Guest:
    """What is asked of any guest."""

    def __init__(self, session: Session) -> None:
        self.session, self.optimizer, self.target = session, session.optimizer, session.target

    @property
    def questions(self) -> Mapping[str, Question]:
        return {
            "symbols": lambda: "those of GDB",
            "types": lambda: "those of GDB's debug information, where it has some",
            "quiescence": self.quiescence,
            "code_memory": lambda: self.code_memory() + self.lent + self.left,
            "data_memory": lambda: _memory(self.arena.ranges.data, self.arena.data.used) + self.lent + self.more,
            "trap_tier": self.trap_tier,
            "user_programs": self.user_programs,
        }

    def code_memory(self) -> str:
        return _memory(self.arena.ranges.code, self.arena.code.used)

    @property
    def arena(self) -> Arena:
        return self.optimizer.find_arena()

    @property
    def lent(self) -> str:
        return LENT if self.target.arena_source.lends() else ""

    @property
    def more(self) -> str:
        """How much more there can be, or why there is none."""
        lender = self.arena.lender
        if lender is None:
            return ""
        lent = f"; {lender.lent // KIB:,} KiB of it are lent" if lender.lent else ""
        if why := lender.why_not():
            return f"{lent}; no more: {why}"
        return f"{lent}; up to {lender.left // KIB:,} KiB more, for which the guest runs"

    @property
    def left(self) -> str:
        """What `add` waits for, where it does."""
        before = self.arena.earlier if self.optimizer.arena is None else None
        return f"; {LEFT}: {RECOVER}" if before is not None and before.probes else ""

    def quiescence(self) -> str:
        """Check that all saved PCs can be enumerated: for branches over several instructions."""
        if missing := self.target.guest.stacks_missing:
            raise Refused(Refusal.STACKS_UNKNOWN.because(missing=missing, needed=self.target.guest.isa.branch_size))
        return f"{_counted(sum(each.stack is not None for each in self.saved), 'stack')} looked through"

    @cached_property
    def saved(self) -> Sequence[SavedWords]:
        return tuple(self.target.guest.saved())

    def trap_tier(self) -> str:
        """Check that traps can be redirected to our handler."""
        if missing := self.optimizer.traps.missing:
            raise Refused(Refusal.TRAP_TIER_MISSING.because(missing=missing))
        found = self.target.guest.trap_calls()
        handler = self.target.guest.symbol(found.handler)
        return f"traps are taken at {_counted(len(found.calls), 'place')}, before {handler}"

    def user_programs(self) -> str:
        user = self.session.uprobes.check_guest()
        return f"traps in private copies of their pages, which are of {user.kernel.mmu.kind.page // KIB} KiB"


class _Kernel(_Guest):
    """What is asked of a Linux kernel besides."""

    def __init__(self, session: Session, linux: LinuxGuest) -> None:
        super().__init__(session)
        self.linux = linux

    @property
    def questions(self) -> Mapping[str, Question]:
        return {
            "symbols": lambda: f"{len(self.linux.recovered.symbols):,}, found in the guest's memory",
            "types": self.linux.structures.source,
            "code_memory": super().questions["code_memory"],
            "unwinding": self.unwinding,
            "current_thread": self.current_thread,
            "task_list": self.task_list,
            "entries": self.entries,
            "ftrace_records": self.ftrace_records,
            "probe_read": self.probe_read,
            "modules": self.modules,
            "tracepoints": self.tracepoints,
        }

    def tracepoints(self) -> str:
        """Say how handlers are taken off again, and whether fields can be had."""
        facts = self.linux.tracepoints
        facts.check()
        return f"registered by a call in the guest, freed after {len(facts.waits())} grace periods"

    def code_memory(self) -> str:
        """Say beside its size how many functions can be counted: those with a tracer's site have detours alike."""
        size, isa, arena = super().code_memory(), self.linux.isa, self.arena
        plans = self._plans(self.sites, []) if len(self.ftrace) else iter(())
        plan = next((plan for plan in plans if plan.tier is Tier.OPTIMIZED), None)
        if plan is None:
            return size
        at = somewhere(plan.address, isa)
        detour = build_count(replace(plan, dead=isa.dead_at_entry(), base=None), isa, at, at + COUNTER_DISTANCE)
        code = arena.rounded(detour.size)
        return f"{size}, room for {_counted(arena.counts_that_fit(code, Handler().size), 'count')}"

    def unwinding(self) -> str:
        """By what, tried on the vCPUs that are in the kernel: every caller must be code."""
        unwinder, linux = self.linux.own_unwinder, self.linux
        if unwinder is None:
            raise linux.unwind_missing or NoSuchKernel("this kernel has no tables for it that are known")
        deepest, pc = 0, linux.isa.pc
        for vcpu in linux.machine.vcpus():
            registers: Mapping[str, int] = linux.machine.registers(vcpu, linux.isa.registers)
            exact, depth = True, 0
            while unwinder.knows(registers[pc]) and depth < FRAMES:
                depth += 1
                found = unwinder.caller(registers, exact)
                if found is None:
                    break
                registers, exact = found
                if not (unwinder.knows(registers[pc]) or self._is_init(registers[pc])):
                    where = f"frame {depth} of vCPU {vcpu.number} is at {registers[pc]:#x}"
                    raise NoSuchKernel(f"{unwinder.how}: {where}, which is no code")
            deepest = max(deepest, depth)
        untried = "no vCPU is in the kernel to try them on"
        tried = f"{_counted(deepest, 'frame')} where a vCPU is" if deepest else untried
        return f"{unwinder.how}; {tried}"

    def _is_init(self, pc: int) -> bool:
        """Return whether `pc` is in init text: the idle thread of the first CPU was called from there."""
        start, end = self.linux.kernel.range("_sinittext", "_einittext")
        return start <= pc < end

    def current_thread(self) -> str:
        """Return what $task, $comm and $pid are read from."""
        current = self.linux.current
        for found in (current.task, current.cpu, *current.members.values()):
            if isinstance(found, Missing):
                raise OptprobeError(found.message, found.hint)
        return f"$task, $cpu, {', '.join(f'${name}' for name in sorted(current.members))}"

    def task_list(self) -> str:
        if missing := self.target.guest.stacks_missing:
            raise NoSuchKernel(missing)
        threads = {each.stack.pid for each in self.saved if each.stack is not None and each.stack.pid is not None}
        return _counted(len(threads), "thread")

    @cached_property
    def sites(self) -> Sequence[int]:
        """Tracers' sites, spread over the kernel's text. Raises OptprobeError where it has none."""
        found = self.ftrace.within(*self.linux.recovered.text)
        if not found:
            raise NoSuchKernel("it has none (CONFIG_DYNAMIC_FTRACE)")
        return found[:: -(-len(found) // TRIED)]

    @property
    def ftrace(self) -> FtraceSites:
        return self.linux.text.ftrace

    def entries(self) -> str:
        """Return whether probes of functions' entries are optimized: some are planned."""
        refused: list[Reason] = []
        plans = list(self._plans(self.sites if len(self.ftrace) else self._functions(), refused))
        if refused and not plans:
            raise Refused(refused[-1])
        worse = Counter(plan.reason for plan in plans if plan.reason is not None)
        optimized = sum(plan.tier is Tier.OPTIMIZED for plan in plans)
        if plans and not optimized:
            raise Refused(_commonest(plans))
        told = f"{optimized} of {len(plans)} that were tried would be optimized"
        rest = f"; the others: {_commonest(plans).text}" if worse else ""
        traced = f"{len(self.ftrace):,} functions with a tracer's site" if len(self.ftrace) else "no tracer's sites"
        return f"{traced}, {told}{rest}"

    def _functions(self) -> Sequence[int]:
        """Functions, spread over the text, where none has a tracer's site."""
        start, end = self.linux.kernel.range("_stext", "_etext")
        return range(start, end, max(1, (end - start) // TRIED)) if start else ()

    def _plans(self, places: Sequence[int], refused: list[Reason]) -> Iterator[Plan]:
        """refused: takes why there is no plan of others."""
        for at in places:
            function = self.linux.text.function(at)
            if function is None:
                continue
            try:
                yield self.optimizer.plan(self.linux.entry(function.start), [Spec(location=function.name)])
            except Refused as error:
                refused.append(error.reason)

    def ftrace_records(self) -> str:
        """Check that the guest's own tracers can be kept off a site that has our branch."""
        ftrace = self.ftrace
        records = ftrace.records(self.sites).values()
        if len(records) != len(self.sites):
            raise NoSuchKernel("they changed while they were read")
        used = sum(each.in_use for each in records)
        tracing = "a tracer runs now" if ftrace.tracing() else "no tracer runs now"
        return f"{len(ftrace):,}; {used} of {len(records)} that were read are in use, {tracing}"

    def probe_read(self) -> str:
        found = self.linux.reads
        if isinstance(found, Missing):
            raise OptprobeError(found.message, found.hint)
        return f"page tables are walked before each load, {_counted(len(found.routine.code), 'byte')} of code"

    def modules(self) -> str:
        text = self.linux.text
        if self.linux.kernel.symbols.address(LOADER) is None:
            return "this kernel has none (CONFIG_MODULES)"
        text.check()
        names = sorted(each.module.name for each in text.modules())
        if text.strange:
            (name, why), count = min(text.strange.items()), len(text.strange)
            raise NoSuchKernel(f"{count} of {count + len(names)} cannot be read, as {name}: {why}")
        return f"{len(names)} loaded" + (f": {', '.join(names)}" if names else "")


def _commonest(plans: Sequence[Plan]) -> Reason:
    """Return the most frequent reason of plans that are not optimized."""
    reasons = [plan.reason for plan in plans if plan.reason is not None]
    (code, _), *_ = Counter(reason.code for reason in reasons).most_common(1)
    return next(reason for reason in reasons if reason.code == code)


def _memory(ranges: Sequence[tuple[int, int]], used: int) -> str:
    size = sum(end - start for start, end in ranges)
    where = ", ".join(f"{start:#x}" for start, _ in ranges)
    in_use = f", {used:,} bytes in use" if used else ""
    return f"{size // KIB:,} KiB at {where}{in_use}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s'[: number != 1]}"
