"""Count the instructions of a stock kernel that could have an optimized probe, and why the others could not.

Each instruction is planned as if it were probed alone: of the functions behind every Nth text symbol, in the order of
kallsyms, or of all core text (--all). Core text is the code from _stext to _etext, without padding and without text
that only runs at boot.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.planner import PlanRequest, load_before, plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import default_cache
from gdb_optprobe.guest.linux.arch import registry
from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.guest.linux.arch.base import LinuxArch, LinuxText, Unwinder
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kernel_discovery import KnownFailures, discover
from gdb_optprobe.guest.linux.structures import KernelStructures
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.guest.symbols import FUNCTION_TYPES, SymbolTable
from gdb_optprobe.guest.text import Function
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes import kretprobe
from gdb_optprobe.probes.kretprobe import NEAR

from .cache import guests_directory, say
from .channel import ChannelError
from .debian import FetchError
from .guest import Guest, GuestError, Options
from .linux_rule import BLACKLIST, LinuxRule, ranges
from .linux_rule_ppc64le import PowerRule
from .machines import MACHINES
from .memory_snapshot import take_snapshot
from .processes import ending_on_signals
from .qmp import QmpError
from .text_sweep import sweep

__all__ = ["EVERY", "Subject", "Tally", "codes_of", "functions", "returns", "subject_of", "survey", "table"]

EVERY = {"x86_64": 401, "ppc64le": 101, "aarch64": 101}
ISAS: dict[str, Isa] = {"x86_64": X86_64, "ppc64le": PPC64LE, "aarch64": AARCH64}
CHUNK = 64
"""Functions that one process plans in a row: neighbours share decoded code."""


def main() -> int:
    arguments = parser().parse_args()
    ending_on_signals()
    try:
        with guest_for(arguments.name, arguments.arch) as guest:
            every = 1 if arguments.all else arguments.every or EVERY[guest.options.arch]
            subject = subject_of(guest)
    except (GuestError, ChannelError, FetchError, QmpError, OptprobeError, OSError) as error:
        say(str(error))
        return 1
    report(subject, every, listing=not arguments.all)
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/survey", description=__doc__)
    which = top.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="all core text; about a minute")
    usual = ", ".join(f"{every} on {arch}" for arch, every in EVERY.items())
    which.add_argument("--every", type=positive, metavar="N", help=f"of text symbols; {usual}")
    guest = top.add_mutually_exclusive_group()
    guest.add_argument("--arch", default="x86_64", choices=sorted(MACHINES))
    guest.add_argument("--name", help="a guest that scripts/guest started; without it one is booted")
    return top


def positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def guest_for(name: str | None, arch: str) -> AbstractContextManager[Guest]:
    """Return the running guest called `name`, or one that ends with the block."""
    if name is not None:
        return nullcontext(Guest.find(guests_directory() / name))
    say("booting a guest, a few seconds")
    return Guest.start(Options(arch=arch))


def report(subject: Subject, every: int, listing: bool) -> None:
    """Print what was found."""
    chosen = functions(subject, every)
    began = time.monotonic()
    found = survey(subject, chosen)
    took = time.monotonic() - began
    if listing:
        print("\n".join(found.listing(subject)), end="\n\n")
    print("\n".join(table(subject, found)), end="\n\n")
    print(f"{found.functions:,} functions, {found.instructions:,} instructions")
    print(f"{took:.1f} s, {found.seconds:.1f} s of processor time")
    print(f"optimizable: {found.share:.2%}; by Linux's own rule: {found.share_by_linux:.2%}")
    print("\n".join(returns(found)))


# --- what is surveyed ------------------------------------------------------------------------------------------------


class Rule(Protocol):
    def optimizable(self, function: Function) -> list[Insn]:
        """Return the instructions of the function that Linux would optimize a probe on."""


class NoRule:
    """On aarch64 Linux optimizes no probe."""

    def optimizable(self, function: Function) -> list[Insn]:
        return []


@dataclass(frozen=True)
class Subject:
    """A kernel in a memory snapshot."""

    isa: Isa
    kernel: Kernel
    symbols: SymbolTable
    text: LinuxText
    rule: Rule
    arch: LinuxArch
    unwinder: Unwinder | None

    def entry(self, function: int) -> int:
        """Return the address of a probe on the function."""
        return self.arch.entry(function, self.text)

    def is_traced(self, function: int) -> bool:
        """Return whether it has a tracer's site."""
        return bool(self.text.ftrace_sites(function, self.entry(function) + NEAR))

    def is_entered_by_calls(self, function: Function) -> bool:
        return self.arch.entered(function, self.unwinder)

    def names_at_return(self, address: int) -> int | None:
        """Return `address` where it is the entry of a function."""
        function = self.text.function(address)
        return address if function is not None and address == self.entry(function.start) else None


def subject_of(guest: Guest) -> Subject:
    """Return the kernel of a running guest, copied: the guest is no longer needed. Raises GuestError, OptprobeError."""
    isa = ISAS[guest.options.arch]
    blacklist = ranges(guest.check(f"cat {BLACKLIST}"))
    frozen, cache, arch = take_snapshot(guest), default_cache(), registry.of(isa)
    if arch is None:
        raise GuestError(f"Linux on {isa.name} is not known")
    recovered = discover(frozen, arch, cache, say, KnownFailures())
    if recovered is None:
        raise GuestError("the guest runs no Linux")
    memory, symbols = KernelMemory(frozen, frozen, recovered.view.walk), recovered.symbols
    names = arch.names(memory, symbols)
    bare = Kernel(memory, names)
    structures = KernelStructures(lambda: bare.read(*bare.range("__start_BTF", "__stop_BTF")))
    kernel = arch.kernel(memory, names, structures)
    text = arch.text(kernel, lambda _, data: data, recovered.shelf, say)
    unwinder = arch.unwinder(kernel, text, structures, memory.read)
    return Subject(isa, kernel, symbols, text, _rule(kernel, text, blacklist), arch, unwinder)


def _rule(kernel: Kernel, text: LinuxText, blacklist: Sequence[tuple[int, int]]) -> Rule:
    if isinstance(text, PowerText):
        return PowerRule(text, blacklist)
    if isinstance(text, ArmText):
        return NoRule()
    assert isinstance(text, KernelText)
    # Find what all processes need before there are several.
    text.all_entries()
    return LinuxRule(text, blacklist, kernel.range("__indirect_thunk_start", "__indirect_thunk_end"))


def functions(subject: Subject, every: int = 1) -> list[int]:
    """Return where the functions behind every Nth symbol of core text start, ascending, each once."""
    start, end = subject.kernel.range("_stext", "_etext")
    columns = subject.symbols.symbols
    named = zip(columns.addresses, columns.types, strict=True)
    text = [address for address, kind in named if kind in FUNCTION_TYPES and start <= address < end]
    return list(dict.fromkeys(text[::every]))


# --- the sweep -------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts: instructions by the code of the refusal ("" where optimizable), and the first address of each code.

    by_function: for each function's start, how many instructions it has and how many are optimizable.
    by_linux:    instructions that Linux would optimize a probe on.
    returns:     functions by the code of why their return cannot be probed, "" where it can. traced: that have a site.
    seconds:     of processor time, of all processes together.
    """

    codes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, int] = field(default_factory=dict)
    by_function: dict[int, tuple[int, int]] = field(default_factory=dict)
    by_linux: int = 0
    returns: Counter[str] = field(default_factory=Counter)
    traced: int = 0
    seconds: float = 0.0

    @property
    def instructions(self) -> int:
        return self.codes.total()

    @property
    def functions(self) -> int:
        return len(self.by_function)

    @property
    def share(self) -> float:
        """The share of instructions that are optimizable."""
        return self.codes[""] / self.instructions

    @property
    def share_by_linux(self) -> float:
        return self.by_linux / self.instructions

    def add(self, other: Tally) -> None:
        self.codes.update(other.codes)
        self.examples = {**other.examples, **self.examples}
        self.by_function.update(other.by_function)
        self.by_linux += other.by_linux
        self.returns.update(other.returns)
        self.traced += other.traced
        self.seconds += other.seconds

    def listing(self, subject: Subject) -> Iterator[str]:
        """Yield the functions, by address."""
        yield f"{'instructions':>12} {'optimizable':>12}  function"
        for start, (all_, those) in sorted(self.by_function.items()):
            yield f"{all_:12,} {those:12,}  {subject.text.spell(start)}"


def survey(subject: Subject, chosen: Sequence[int]) -> Tally:
    """Plan every instruction of the functions that start at the addresses `chosen`, with a process for each CPU."""
    chunks = [chosen[at : at + CHUNK] for at in range(0, len(chosen), CHUNK)]
    count = max(1, min(len(os.sched_getaffinity(0)), len(chunks)))
    found = Tally()
    pipes = [_start(subject, chunks[number::count]) for number in range(count)]
    for pipe in pipes:
        found.add(pipe.recv())
    return found


def _start(subject: Subject, chunks: Sequence[Sequence[int]]) -> Connection:
    """Start a process with the same memory, and return the connection on which it sends its Tally."""
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        theirs.send(_sweep(subject, chunks))

    multiprocessing.get_context("fork").Process(target=run, daemon=True).start()
    theirs.close()
    return ours


def _sweep(subject: Subject, chunks: Sequence[Sequence[int]]) -> Tally:
    # Millions of small tuples and no cycles worth the collector's time.
    gc.disable()
    found, began = Tally(), time.process_time()
    for chunk in chunks:
        cfgs = CfgCache(subject.isa, subject.text)
        for start in chunk:
            asked = codes_of(start, cfgs)
            function = subject.text.function(start)
            if not asked or function is None:
                continue
            codes = Counter(asked.values())
            found.codes.update(codes)
            found.by_function[start] = len(asked), codes[""]
            for code in codes.keys() - found.examples.keys():
                found.examples[code] = next(at for at in asked if asked[at] == code)
            why = no_return(subject, start, cfgs)
            found.returns[why] += 1
            found.traced += not why and subject.is_traced(start)
            found.by_linux += sum(insn.address in asked for insn in subject.rule.optimizable(function))
    found.seconds = time.process_time() - began
    return found


def codes_of(start: int, cfgs: CfgCache) -> dict[int, str]:
    """Return every instruction of the function that starts there, with the code of its refusal."""
    asked = list(sweep(start, cfgs))
    # Where the entries of a function are not known, the planner cannot recognise padding at its end.
    while asked and cfgs.isa.fills(asked[-1][0]):
        asked.pop()
    function = cfgs.text.function(start)
    forbidden = cfgs.isa.forbidden(function.own) if function is not None else {}
    codes = {insn.address: code for insn, code in asked}
    return codes | {address: _refused(address, cfgs) for address in codes.keys() & forbidden.keys()}


def no_return(subject: Subject, function: int, cfgs: CfgCache) -> str:
    """Return the code with which a probe of the function's returns is refused; "" where it is possible."""
    address = subject.entry(function)
    try:
        if not subject.is_traced(function):  # there a breakpoint is possible at least
            plan(PlanRequest(address), cfgs)
        kretprobe.check_function(address, subject)
    except Refused as refused:
        return refused.reason.code
    return ""


def _refused(address: int, cfgs: CfgCache) -> str:
    """Return why no tier at all is possible there, nor at a load that counts for it; "" where one is."""
    try:
        load = load_before(address, cfgs)
        why = plan(PlanRequest(load or address), cfgs).why_not(Tier.OPTIMIZED)
    except Refused as refused:
        return refused.reason.code
    return why.code if why is not None and load is not None else ""


# --- what is printed -------------------------------------------------------------------------------------------------


def table(subject: Subject, found: Tally) -> Iterator[str]:
    """Yield a line for each reason: how many instructions, their share, and an example in the planner's own words."""
    cfgs = CfgCache(subject.isa, subject.text)
    yield f"{'instructions':>12} {'share':>8}  reason"
    for code, count in found.codes.most_common():
        yield f"{count:12,} {count / found.instructions:8.3%}  {code or 'optimizable'}"
        if code:
            yield f"{'':23} {_words(found.examples[code], cfgs)}"


def returns(found: Tally) -> Iterator[str]:
    """Yield how many functions' returns can be probed, with a tracer's site and without, and why not the others'."""
    can = found.returns[""]
    share = can / found.returns.total()
    # No probe of aarch64 is on a tracer's site.
    traced = f"; {found.traced:,} have a tracer's site" if found.traced else ""
    yield f"returns: {can:,} of {found.returns.total():,} functions, {share:.2%}{traced}"
    yield from (f"{count:12,}  {code}" for code, count in found.returns.most_common() if code)


def _words(address: int, cfgs: CfgCache) -> str:
    """Return why the planner would not optimize a probe there."""
    try:
        reason = plan(PlanRequest(load_before(address, cfgs) or address), cfgs).why_not(Tier.OPTIMIZED)
    except Refused as refused:
        reason = refused.reason
    return f"{cfgs.text.spell(address)}: {reason.text if reason is not None else 'optimizable'}"


if __name__ == "__main__":
    sys.exit(main())
