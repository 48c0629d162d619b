"""Compare random `optprobe explain`s with the same `add`s. It is sourced in GDB after scripts/optprobe.py.

    (gdb) python agree_seed, agree_count = 7, 50        # these where nothing is said
    (gdb) source qemu/agree.py
    {"seed": 7, "asked": 50, "refused": 12, "disagreements": []}
A disagreement is a line: what was asked, what `explain` said, what `add` did. Some probes stay for the questions that
follow, which are often about their neighbours, and a setting is off at times; at the end all is as it was.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import gdb

from gdb_optprobe.debugger.attach import attachments
from gdb_optprobe.errors import OptprobeError

PROGRAM = "/bin/busybox"
OF_PROGRAMS = 5
"""One question in so many is about a program: an `add` there runs the guest."""
FEWEST = 1 << 16
"""Bytes that the program has at least."""
NEAR = 16
"""Bytes within which probes share a branch."""
OPTIONS = (
    "",
    "",
    "-tier optimized",
    "-tier trapped",
    "-tier emulated",
    "-tier boosted",
    "-tier breakpoint",
    "-return",
    "-return -maxactive 7",
    "if $arg1 != 0",
    "do count by $comm",
    "do hist($arg2), sum($arg1)",
    "if $pid > 1 do record($arg1)",
    "-return do latency, hist($retval)",
    "-return if $retval < 0 do count by $pid",
    'do print("%lx", $arg1)',
    "if no_such_name > 1",
)
FULL = re.compile(r"(?<=the memory for detours is full) .*")
"""How much is in use then: `add` has reserved a part of what it needs by the time, and `explain` none of it."""
SETTINGS = ("optimization", "trap", "boost", "emulation")
OF_PROGRAM = ("", "", "do count by $comm", "if $arg1 > 1", "-return", "-return do latency", "-tier optimized", "-pid 1")


@dataclass(frozen=True)
class Answer:
    """The outcome at an address: tier "" where there is none. words: of the error where all was refused."""

    probes: tuple[tuple[str, str, str], ...] = ()
    words: str = ""

    def __str__(self) -> str:
        return self.words or "; ".join(f"{address} {tier or 'nothing'} {code}" for address, tier, code in self.probes)


@dataclass
class Found:
    """asked: how many questions. refused: of those that `add` refused."""

    asked: int = 0
    refused: int = 0
    disagreements: list[str] = field(default_factory=list)


def run(seed: int, count: int) -> Found:
    """Ask `count` random questions."""
    found, rng, kept = Found(), random.Random(seed), list[int]()
    off = ""
    for line in questions(rng, count, kept):
        if off or rng.random() < 0.1:
            off, before = ("" if off else rng.choice(SETTINGS)), off
            gdb.execute(f"set optprobe {off or before} {'off' if off else 'on'}", to_string=True)
        told, done = explained(line), added(line, kept if rng.random() < 0.4 else None)
        found.asked += 1
        found.refused += bool(done.words)
        if not agree(told, done):
            found.disagreements.append(f"{line}{f' ({off} off)' if off else ''}: explain: {told}; add: {done}")
    for name in SETTINGS:
        gdb.execute(f"set optprobe {name} on", to_string=True)
    gdb.execute("optprobe delete", to_string=True)
    return found


def agree(told: Answer, done: Answer) -> bool:
    """Return whether the two answers agree: for a refusal, on the code's words."""
    if not done.words:
        return told == done
    if told.words:
        return FULL.sub("", told.words) == FULL.sub("", done.words)
    return bool(told.probes) and any(tier == "" and FULL.sub("", code) in done.words for _, tier, code in told.probes)


def explained(line: str) -> Answer:
    try:
        value = json.loads(gdb.execute(f"optprobe explain -json {line}", to_string=True).splitlines()[-1])
    except gdb.error as error:
        return Answer(words=first(error))
    views = value if isinstance(value, list) else [value]
    # Of a refusal `add` tells the reason alone.
    return Answer(
        tuple(
            (view["address"], view["tier"], (view["reason"] or {}).get("code" if view["tier"] else "text", ""))
            for view in views
        )
    )


def added(line: str, kept: list[int] | None) -> Answer:
    """Return the answer of `add`. kept: gets the addresses of probes that stay; None keeps none, as on a program."""
    try:
        views = json.loads(gdb.execute(f"optprobe add -json {line}", to_string=True).splitlines()[-1])
    except gdb.error as error:
        return Answer(words=first(error))
    if kept is None or line.startswith("-user"):
        numbers = " ".join(str(view["number"]) for view in views)
        gdb.execute(f"optprobe delete {numbers}", to_string=True)
    else:
        kept += [int(view["address"], 0) for view in views]
    return Answer(tuple(one(view) for view in views))


def one(view: dict[str, object]) -> tuple[str, str, str]:
    """Return tier, code and words of a view; a probe that waits for its branch has the tier that `explain` predicts."""
    reason = view["reason"]
    if view["state"] == "optimizing":
        return str(view["address"]), "optimized", ""
    return str(view["address"]), str(view["tier"]), str(reason["code"]) if isinstance(reason, dict) else ""


def first(error: Exception) -> str:
    return str(error).partition("\n")[0]


def questions(rng: random.Random, count: int, kept: Sequence[int]) -> Iterator[str]:
    """Yield locations with options, half of them in the middle of functions. kept: addresses of probes."""
    linux = attachments.seen().linux
    assert linux is not None, "a Linux guest"
    functions = [symbol for symbol in linux.recovered.symbols.functions() if symbol.name.isidentifier()]
    for number in range(count):
        if number % OF_PROGRAMS == OF_PROGRAMS - 1:
            yield f"-user {PROGRAM}:{program_offset(rng):#x} {rng.choice(OF_PROGRAM)}".strip()
            continue
        symbol = rng.choice(functions)
        if kept and rng.random() < 0.3:
            near = rng.choice(kept)
            around = linux.text.function(near)
            some = [at for at in (around.own if around is not None else ()) if abs(at - near) < NEAR]
            yield f"*{rng.choice([near, *some]):#x} {rng.choice(OPTIONS)}".strip()
            continue
        kernel = linux.text.function(symbol.address)
        place = f"*{symbol.address:#x}"
        if kernel is not None and rng.random() < 0.7:
            # Anywhere in it, so that a part is in the middle of instructions.
            place = f"*{rng.choice([*kernel.own, kernel.start + rng.randrange(kernel.end - kernel.start)]):#x}"
        elif len(linux.recovered.symbols.lookup(symbol.name)) == 1:
            place = symbol.name
        yield f"{place} {rng.choice(OPTIONS)}".strip()


def program_offset(rng: random.Random) -> int:
    """Return an offset in the code of PROGRAM, most often of a function's start."""
    try:
        program = attachments.seen().session.uprobes.user.texts.program(PROGRAM, None)
    except OptprobeError:
        # Programs of this guest are not probed: `explain` and `add` say so of any place.
        return rng.randrange(FEWEST)
    segment = rng.choice(program.elf.code)
    address = segment.address + rng.randrange(segment.size) // 4 * 4
    function = program.function(address)
    return program.offset(function[0] if function is not None and rng.random() < 0.7 else address)


if __name__ == "__main__":
    SEED, COUNT = int(globals().get("agree_seed", 7)), int(globals().get("agree_count", 50))
    gdb.execute("set optprobe exit-on-error off")
    TOLD = run(SEED, COUNT)
    RESULT = {"seed": SEED, "asked": TOLD.asked, "refused": TOLD.refused, "disagreements": TOLD.disagreements}
    print(json.dumps(RESULT))
