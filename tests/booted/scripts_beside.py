"""Random scripts of BEGIN alone, run by bpftrace in a guest and by us: what is printed is the same.

    scripts ──► one BEGIN, a line each ──┬── bpftrace, in the guest ──┐
                                         └── the host's interpreter ──┴── what each script printed, and its maps
One process of bpftrace takes seconds, so it runs many scripts. Where it refuses one, the others are run without it.
"""

from __future__ import annotations

import base64
import gzip
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.errors import OptprobeError
from qemu.guest import Guest
from tests.handlers.script.random_scripts import Dialect, Statement, made, written
from tests.handlers.script.running import compiled, ran

SUITE, KERNEL = "trixie", "6.1 cloud"
INPUTS = 8
DIALECT = Dialect(
    inputs=tuple(f"{name}[{at}]" for name in ("@signed", "@unsigned") for at in range(INPUTS)), defined=True, ends=False
)
CONFIG = f"config = {{ max_strlen = 64; max_map_keys = {INPUTS} }}"
EDGES = (0, 1, 2, 3, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, (1 << 63) - 1)
FILE = "/tmp/random.bt"
PIECE = 3000
"""Characters of a command that the guest's shell takes."""
TIMEOUT = 1200.0
"""It is 6 s where nothing else runs."""
_MARK = "#"
_PLACE = re.compile(rf"{re.escape(FILE)}:(\d+)(?:-\d+)?:.*ERROR: (.*)")


@dataclass(frozen=True)
class Printed:
    """What scripts printed. lines: by seed. maps: by seed, each with what stands behind its name, in any order."""

    lines: Mapping[int, Sequence[str]]
    maps: Mapping[int, Sequence[str]]


@dataclass
class Result:
    """same: scripts that print the same. differ: by seed, both texts. refused, unloaded: by bpftrace, by seed, and why.

    ours: refused here and not there.
    """

    same: int = 0
    differ: dict[int, tuple[str, str]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    unloaded: dict[int, str] = field(default_factory=dict)
    ours: dict[int, str] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        """How many were not compared."""
        return len(self.refused) + len(self.unloaded) + len(self.ours)

    def add(self, other: Result) -> None:
        self.same += other.same
        for name in ("differ", "refused", "unloaded", "ours"):
            getattr(self, name).update(getattr(other, name))

    def text(self) -> str:
        """Return how many there are of each kind, and why."""
        whys = (Counter(why for why in getattr(self, name).values()) for name in ("refused", "unloaded", "ours"))
        named = zip(("refused", "not loaded", "refused here"), whys, strict=True)
        kinds = [f"{count} {what}: {why}" for what, some in named for why, count in some.most_common()]
        return "\n".join([f"{self.same} the same, {len(self.differ)} different", *kinds])


def statements(seed: int) -> tuple[Statement, ...]:
    return made(seed, DIALECT, f"p{seed}_")


def script(some: Mapping[int, Sequence[Statement]], first: int) -> str:
    """Return scripts as one, each on a line behind the first. first: the seed of the numbers that they are given."""
    chosen = random.Random(first)
    given = []
    for at in range(INPUTS):
        edge = chosen.choice(EDGES)
        given.append(f"@signed[{at}] = (int64){chosen.choice((edge, -edge, chosen.getrandbits(8)))};")
        given.append(f"@unsigned[{at}] = (uint64){chosen.choice((edge, chosen.getrandbits(64)))};")
    lines = [f"{CONFIG} BEGIN {{ {' '.join(given)}"]
    lines += [f'printf("{_MARK}{seed}\\n"); {written(each)}' for seed, each in some.items()]
    return "\n".join([*lines, "exit(); }", ""])


def printed(text: str) -> Printed:
    """Return what a script printed, by the scripts in it."""
    lines: dict[int, list[str]] = defaultdict(list)
    maps: dict[int, list[str]] = defaultdict(list)
    seed: int | None = None
    for line in text.splitlines():
        if line.startswith(_MARK):
            seed = int(line[len(_MARK) :])
        elif line.startswith("@"):
            found = re.match(r"@p(\d+)_", line)
            seed = int(found[1]) if found else None
            if seed is not None:
                maps[seed].append(line)
        elif maps and seed is not None and line:
            maps[seed][-1] += "\n" + line
        elif seed is not None and line:
            lines[seed].append(line)
    return Printed(lines, {seed: sorted(each) for seed, each in maps.items()})


def put(guest: Guest, text: str) -> None:
    """Write a script into the guest."""
    data = base64.b64encode(gzip.compress(text.encode())).decode()
    guest.check(f": > {FILE}.64")
    for at in range(0, len(data), PIECE):
        guest.check(f"echo {data[at : at + PIECE]} >> {FILE}.64")
    guest.check(f"base64 -d {FILE}.64 | gunzip > {FILE}")


def compared(guest: Guest, seeds: Sequence[int]) -> Result:
    """Run scripts there and here."""
    some = {seed: statements(seed) for seed in seeds}
    result = Result(ours=_refused(some, seeds[0]))
    result.add(_compared(guest, {seed: each for seed, each in some.items() if seed not in result.ours}, seeds[0]))
    return result


def _refused(some: Mapping[int, Sequence[Statement]], first: int) -> dict[int, str]:
    """Return which scripts we refuse, and why. They are tried one by one only where all together are refused."""
    try:
        compiled(script(some, first))
    except OptprobeError as error:
        if len(some) == 1:
            return dict.fromkeys(some, error.message.partition("\n")[0])
        return {seed: why for seed, one in some.items() for why in _refused({seed: one}, first).values()}
    return {}


def _compared(guest: Guest, some: dict[int, tuple[Statement, ...]], first: int) -> Result:
    result = Result()
    while some:
        put(guest, script(some, first))
        status, said = guest.run(f"/usr/bin/bpftrace --no-warnings {FILE} 2>{FILE}.errors", timeout=TIMEOUT)
        if status == 0:
            for seed, texts in _differences(printed(said), printed(ran(script(some, first)).printed), some):
                result.differ[seed] = texts
            result.same += len(some) - len(result.differ)
            return result
        errors = guest.run(f"cat {FILE}.errors")[1]
        found = {int(number): why for number, why in _PLACE.findall(errors) if int(number) - 2 in range(len(some))}
        if not found:
            result.add(_halves(guest, some, first, errors))
            return result
        seeds = [*some]
        for number, why in found.items():
            result.refused[seeds[number - 2]] = why
            del some[seeds[number - 2]]
    return result


def _halves(guest: Guest, some: dict[int, tuple[Statement, ...]], first: int, errors: str) -> Result:
    """Compare the halves of what bpftrace could not load, or note the one that it cannot."""
    seeds = [*some]
    if len(seeds) == 1:
        return Result(unloaded={seeds[0]: _shortened(errors)})
    result = Result()
    for half in (seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]):
        result.add(_compared(guest, {seed: some[seed] for seed in half}, first))
    return result


def _shortened(errors: str) -> str:
    lines = [re.sub(r"\x1b\[\d*m|\d+", "", line) for line in errors.splitlines() if "ERROR" in line or "BUG" in line]
    return lines[0][:100] if lines else errors[-600:]


def _differences(
    theirs: Printed, ours: Printed, seeds: Sequence[int] | Mapping[int, object]
) -> Iterator[tuple[int, tuple[str, str]]]:
    for seed in seeds:
        there, here = (
            "\n".join((*each.lines.get(seed, ()), *each.maps.get(seed, ()))) for each in (theirs, ours)
        )
        if there != here:
            yield seed, (there, here)
