"""Sourced into GDB by tests, after hot_code.py: fill 64 KiB with detours, and show that each of them counts.

    near-arena              a stretch of 64 KiB of what the arena would be found in becomes all of it; JSON
    near-own NAME…          for each function an instruction that Linux optimizes a kprobe on, as "name+offset", and the
                            address of one on the same straight line that a probe of ours would be optimized at; JSON
    near-fill SEED NAME…    probe at addresses drawn by SEED until a detour no longer fits; JSON
    near-detours            how many probes are optimized, and what is wrong with the branch, detour or counter of any,
                            as the guest has them now; JSON
    near-lines              the hits of probes on the same straight line, a list for each line that has several; JSON
    near-text FILE          where the text differs from what `keep-text` wrote, but for Linux's own detours, which it
                            never clears; JSON

Drawn is by instructions of core text, each as likely as any other: in turns two of all functions, and one of those that
are named, with its next neighbour on the same straight line.
"""

from __future__ import annotations

import json
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gdb

from gdb_optprobe.debugger.attach import attachments
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.linux.arch.ppc64le import image_padding
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.symbols import Symbol
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.probe import Probe
from qemu.linux_rule_ppc64le import PowerRule

if TYPE_CHECKING:
    from tests.booted.hot_code import (
        differing,
        entry,
        explained,
        function,
        kernel,
        session,
        straight_lines,
        whole_text,
    )

AREA = 64 << 10
LINE = 128
SMALLEST = 28
"""No detour that counts has fewer bytes: six instructions and a branch back."""
MISSES = 60
"""Detours in a row that did not fit: what is left fits none."""


def say(value: object) -> None:
    print(json.dumps(value))


def linux() -> Any:
    assert attachments.current is not None and attachments.current.linux is not None
    return attachments.current.linux


# --- the arena -------------------------------------------------------------------------------------------------------


def give_arena() -> dict[str, list[int]]:
    session()
    assert attachments.current is not None
    (start, _), *_ = image_padding.find(attachments.current.machine, kernel()).code
    table, page = kernel().address("__stop___bug_table"), image_padding.page_size(kernel())
    data = -(-table // LINE) * LINE, -(-table // page) * page
    gdb.execute(f"set optprobe arena code={start:#x}-{start + AREA:#x} data={data[0]:#x}-{data[1]:#x}")
    return {"code": [start, start + AREA], "data": list(data)}


def free() -> int:
    arena = session().optimizer.take_arena()
    return arena.code.size - arena.code.used


# --- what is probed --------------------------------------------------------------------------------------------------


def line_of(insn: Insn) -> list[Insn]:
    """The straight line that `insn` is on."""
    text = session().target.guest.text
    code = text.function(insn.address)
    assert code is not None
    return next(line for line in straight_lines(code, text) if insn in line)


def own_place(name: str) -> dict[str, object]:
    session()
    text = linux().text.core
    assert isinstance(text, PowerText)
    code = function(name)
    behind = max([entry(code.start), *(site.end for site in text.ftrace_sites(code.start, code.end))])
    for insn in PowerRule(text, ()).optimizable(code):
        others = [one.address for one in line_of(insn) if one.address >= behind and one is not insn]
        ours = next((at for at in others if explained(at)["tier"] == "optimized"), None)
        if insn.address >= behind and ours is not None:
            return {"theirs": f"{name}+{insn.address - code.start:#x}", "ours": ours}
    raise gdb.GdbError(f"no two instructions of {name} will do")


class Pool:
    """Functions, drawn by how many instructions they have."""

    def __init__(self, functions: Sequence[Symbol]) -> None:
        self.functions = functions
        self.ends = list(accumulate(max(1, one.size // 4) for one in functions))

    def draw(self, dice: random.Random) -> int:
        number = dice.randrange(self.ends[-1])
        index = bisect_right(self.ends, number)
        return self.functions[index].address + 4 * (number - (self.ends[index - 1] if index else 0))


def pools(names: Sequence[str]) -> tuple[Pool, Pool]:
    start, end = kernel().range("_stext", "_etext")
    all_ = [one for one in linux().recovered.symbols.functions() if start <= one.address < end]
    return Pool(all_), Pool([one for one in all_ if one.name in names])


def drawn(seed: int, names: Sequence[str]) -> Iterator[int]:
    """Addresses, each once, for ever."""
    dice, (everywhere, hot) = random.Random(seed), pools(names)
    seen = {probe.address for probe in session().registry.probes()}
    while True:
        for at in (everywhere.draw(dice), everywhere.draw(dice), *with_neighbour(hot.draw(dice))):
            if at not in seen:
                seen.add(at)
                yield at


def with_neighbour(at: int) -> list[int]:
    text = session().target.guest.text
    code = text.function(at)
    insn = code.own.get(at) if code is not None else None
    if insn is None:
        return [at]
    line = next((line for line in straight_lines(code, text) if insn in line), [])  # type: ignore[arg-type]
    return [at, *(one.address for one in line if one.address == insn.end)]


@dataclass
class Filled:
    """optimized: how many probes. refused: addresses that no detour can be made for, by the code of the reason.

    full: of addresses for which there was no memory left, by tier; no probe is left there.
    """

    optimized: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    full: Counter[str] = field(default_factory=Counter)
    free: int = 0
    seconds: float = 0.0


def fill(seed: int, names: Sequence[str]) -> Filled:
    found, begun = Filled(), time.monotonic()
    gdb.execute("set optprobe exit-on-error off")
    for at in drawn(seed, names):
        try:
            gdb.execute(f"optprobe add *{at:#x} -tier optimized", to_string=True)
            found.optimized += 1
            continue
        except gdb.error:
            plan = explained(at)
        if plan["tier"] != "optimized":
            found.refused[plan["refused"][0]["code"]] += 1
            continue
        (probe,) = json.loads(gdb.execute(f"optprobe add *{at:#x} -json", to_string=True))
        found.full[f"{probe['reason']['code']} {probe['tier']}"] += 1
        gdb.execute(f"optprobe delete {probe['number']}", to_string=True)
        if free() < SMALLEST or found.full.total() == MISSES:
            break
    gdb.execute("set optprobe exit-on-error on")
    found.free, found.seconds = free(), time.monotonic() - begun
    return found


# --- what the guest has of it ----------------------------------------------------------------------------------------


def optimized() -> list[Probe]:
    registry = session().registry
    return [probe for probe in registry.probes() if registry.site_of(probe).tier is Tier.OPTIMIZED]


def wrong() -> Iterator[str]:
    """The branch leads to the detour, and the detour adds one to the counter of this probe and of no other."""
    target, read = session().target, session().target.guest.machine.read
    counters = Counter(probe.counter for probe in optimized())
    for probe in optimized():
        spelled = target.guest.text.spell(probe.address)
        detour = session().registry.site_of(probe).detour
        if detour is None or probe.counter is None or counters[probe.counter] != 1:
            yield f"{spelled} has no detour, or no counter of its own"
            continue
        (branch,) = target.guest.isa.decode(read(probe.address, 4), probe.address)
        if branch.target != detour.address or branch.text.split()[0] != "b":
            yield f"{spelled} holds {branch.text}"
        if [original for _, _, original in detour.programs] != [probe.address]:
            yield f"{spelled} has the programs {detour.programs}"
            continue
        yield from (f"{spelled}: {words}" for words in wrong_program(detour.programs[0], probe, target.guest.isa))


def wrong_program(program: tuple[int, int, int], probe: Probe, isa: Isa) -> Iterator[str]:
    code = session().target.guest.machine.read(program[0], program[1] - program[0])
    toc = isa.toc(*_beginning(kernel().address("schedule")))  # type: ignore[attr-defined]
    assert probe.counter is not None
    if list(image_padding.counters(code, toc)) != [probe.counter.address]:
        yield f"counts at {[hex(at) for at in image_padding.counters(code, toc)]}, not at {probe.counter.address:#x}"
    insns = isa.decode(code, program[0])
    at = next((n for n, insn in enumerate(insns) if insn.text.startswith("ldarx ")), None)
    texts = [insn.text for insn in insns[at:][:3]] if at is not None else []
    value, *place = texts[0].removeprefix("ldarx ").split(", ") if texts else ("", "")
    expected = [f"addi {value}, {value}, 1", f"stdcx. {', '.join([value, *place])}"]
    if at is None or texts[1:] != expected or insns[at + 3].target != insns[at].address:
        yield f"does not add one: {[insn.text for insn in insns]}"


def _beginning(start: int) -> tuple[int, dict[int, Insn]]:
    insns = session().target.guest.isa.decode(kernel().read(start, start + 8), start)
    return start, {insn.address: insn for insn in insns}


def lines() -> Iterator[list[int]]:
    probes = json.loads(gdb.execute("optprobe list -json", to_string=True))
    hits = {int(probe["address"], 16): probe["hits"] for probe in probes}
    text = session().target.guest.text
    starts = {code.start: code for at in hits if (code := text.function(at)) is not None}
    for code in starts.values():
        for line in straight_lines(code, text):
            found = [hits[insn.address] for insn in line if insn.address in hits]
            if len(found) > 1:
                yield found


def changed(old: bytes) -> list[str]:
    text = session().target.guest.text
    start, now = whole_text()
    bounds = linux().recovered.symbols.function_bounds(kernel().address("optinsn_slot"))
    places = (start + at for at in differing(old, now))
    return [str(text.spell(at)) for at in places if not bounds[0] <= at < bounds[1]]


# --- commands --------------------------------------------------------------------------------------------------------


class NearArena(gdb.Command):
    """near-arena"""

    def __init__(self) -> None:
        super().__init__("near-arena", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        say(give_arena())


class NearOwn(gdb.Command):
    """near-own NAME…"""

    def __init__(self) -> None:
        super().__init__("near-own", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        say([own_place(name) for name in argument.split()])


class NearFill(gdb.Command):
    """near-fill SEED NAME…"""

    def __init__(self) -> None:
        super().__init__("near-fill", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        seed, *names = argument.split()
        say(vars(fill(int(seed), names)))


class NearDetours(gdb.Command):
    """near-detours"""

    def __init__(self) -> None:
        super().__init__("near-detours", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        say({"optimized": len(optimized()), "wrong": list(wrong())})


class NearLines(gdb.Command):
    """near-lines"""

    def __init__(self) -> None:
        super().__init__("near-lines", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        say(list(lines()))


class NearText(gdb.Command):
    """near-text FILE"""

    def __init__(self) -> None:
        super().__init__("near-text", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        say(changed(Path(argument).read_bytes()))


for command in (NearArena, NearOwn, NearFill, NearDetours, NearLines, NearText):
    command()
