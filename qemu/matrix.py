"""Try kernels, machines, GDBs and QEMUs with one battery (qemu/battery.py), and print a table of what works.

A row boots one guest and connects one GDB. Not every combination is a row: each value is in one at least, and so are
the pairs that matter. A cell is `works`, `refused` (the tool says why) or `broken`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from . import versions
from .battery import BROKEN, FACILITIES, REFUSED, UNTRIED, WORKS, Battery, Outcome
from .build import RECIPES, BuildError, build_all, built_kernels
from .cache import say
from .channel import ChannelError
from .costs.table import aligned
from .debian import FetchError
from .debugger import Debugger, DebuggerError, gdb_program
from .guest import Guest, GuestError, Options
from .kernels import MODULES
from .machines import MACHINES
from .processes import ending_on_signals
from .reads import Reads
from .rsp_proxy import RspProxy

__all__ = ["ROWS", "Result", "Row", "markdown", "run", "table"]

FUNCTION = "vfs_read"
COST_READS, COST_TIMES = 300_000, 3
BUILT, HERE = "built ", "here"
BOOT = 300.0
"""Seconds that a guest may take to be up, a kernel with KASAN on a busy machine among them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A guest and a GDB.

    kernel: a name of versions.toml, or "built" and the name of a recipe of qemu/build.py.
    gdb, qemu: names of versions.toml; "" for this machine's own. others as in `guest.Options`.
    vmlinux: whether GDB has it, of a kernel that was built here.
    quick:  in the short form, which the suite runs.
    """

    kernel: str
    gdb: str = ""
    qemu: str = ""
    cpu: str | None = None
    smp: int = 2
    mem: int = 512
    append: str = ""
    extra: tuple[str, ...] = ()
    vmlinux: bool = False
    quick: bool = False

    @property
    def name(self) -> str:
        memory = f"{self.mem} MiB" if self.mem != 512 else ""
        machine = [self.cpu or "", f"{self.smp} vCPU{'s' * (self.smp > 1)}", memory, self.append]
        tools = [f"QEMU {self.qemu or HERE}", f"GDB {self.gdb or HERE}", "vmlinux" if self.vmlinux else ""]
        return ", ".join(filter(None, [self.kernel, *machine, *self.extra[1:], *tools]))


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a row. gone: the pinned version has left its suite. cost: instructions that a count takes."""

    row: Row
    release: str
    gone: bool
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    cost: float | None = None

    @property
    def broken(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.state == BROKEN]


Q35, POWER8, POWER9 = ("-machine", "q35"), "power8", "power9"
# Signatures of pointers by the architecture's own cipher take TCG most of its time.
ARM_MAX, ARM_N1 = "max,pauth-impdef=on", "neoverse-n1"
ROWS = (
    Row("6.1 cloud"),
    Row("6.1 cloud", gdb="16", smp=4),
    Row("6.1 cloud", gdb="18", qemu="11", smp=2),
    Row("6.1 cloud", gdb="18-multiarch", qemu="10", smp=1, append="nokaslr"),
    Row("6.1 cloud", cpu="max", mem=6144, extra=Q35, qemu="11"),
    Row("6.1 full", cpu="Nehalem", append="preempt=full"),
    Row("6.1 full", cpu="Nehalem", gdb="16", qemu="10"),
    Row("6.1 rt", smp=4),
    Row("5.10 cloud", gdb="16"),
    Row("5.10 cloud", quick=True),
    Row("5.10 full", cpu="Nehalem", gdb="18"),
    Row("6.12 backports cloud", qemu="10"),
    Row("6.12 cloud", gdb="16", qemu="10", quick=True),
    Row("6.12 cloud", gdb="18", qemu="11", cpu="max", smp=4, mem=6144, extra=Q35),
    Row("6.12 full", qemu="10", cpu="Nehalem", append="preempt=full"),
    Row("6.12 rt", qemu="10", gdb="16"),
    Row("7.2 cloud", qemu="11"),
    Row("7.2 cloud", qemu="11", gdb="18", cpu="max", smp=4),
    Row("7.2 cloud", qemu="11", gdb="16", smp=1, append="nokaslr"),
    Row("6.1 power"),
    Row("6.1 power", cpu=POWER9, smp=4, mem=2048),
    Row("6.1 power", cpu=POWER8, gdb="18-multiarch"),
    Row("6.12 power"),
    Row("6.12 power", cpu=POWER9, qemu="10", gdb="18-multiarch"),
    Row("7.2 power", qemu="11"),
    Row("7.2 power", qemu="11", cpu=POWER9, smp=1, gdb="18-multiarch"),
    Row("6.1 arm"),
    Row("6.1 arm", cpu=ARM_N1, smp=4, gdb="18-multiarch"),
    Row("6.12 arm"),
    Row("6.12 arm", cpu=ARM_MAX, qemu="10", gdb="18-multiarch"),
)


def built_rows() -> Iterator[Row]:
    """Return the rows of kernels that are built here: each way to boot it, and once with its vmlinux in GDB."""
    for recipe in RECIPES:
        rows = [Row(BUILT + recipe.name, qemu="10", append=boot) for boot in recipe.boots]
        yield from rows
        # A vmlinux has the addresses that the kernel was linked for.
        fixed = " ".join(dict.fromkeys([*rows[0].append.split(), "nokaslr"]))
        yield replace(rows[0], vmlinux=True, gdb="16", append=fixed)


def run(row: Row, names: Sequence[str] = (), cost: bool = False, extra: Sequence[str] = ()) -> Result:
    """Boot the row's guest and try each facility, or those named. Raises GuestError, FetchError.

    extra: further arguments for QEMU.
    """
    boots = _boots(row)
    boots = replace(boots, options=replace(boots.options, extra=(*row.extra, *extra)))
    program = str(versions.gdb(row.gdb)) if row.gdb else ""
    with Guest.start(boots.options, timeout=BOOT) as guest:
        release = guest.check("uname -r").strip()
        battery = Battery(guest, program, boots.vmlinux)
        outcomes = {outcome.facility: outcome for outcome in battery.run(names)}
    entry = outcomes.get("entry")
    took = _cost(boots, program) if cost and entry is not None and entry.state == WORKS else None
    return Result(row, release, boots.gone, outcomes, took)


@dataclass(frozen=True, slots=True)
class _Boots:
    """The kernel that a row boots. vmlinux: given to GDB. gone: the pinned version is not available any more."""

    options: Options
    vmlinux: Path | None
    gone: bool


def _boots(row: Row) -> _Boots:
    """Return the kernel. Raises FetchError where it cannot be fetched, BuildError where it is not built."""
    machine = Options(cpu=row.cpu, smp=row.smp, mem=row.mem, append=row.append, extra=row.extra)
    name = row.kernel.removeprefix(BUILT)
    if name != row.kernel:
        made = next((each for each in built_kernels() if each.recipe.name == name), None)
        if made is None:
            raise BuildError(f"{row.kernel} is not in the cache; scripts/matrix --build builds it")
        machine = replace(machine, kernel=str(made.kernel.image))
        vmlinux, gone = made.vmlinux if row.vmlinux else None, False
    else:
        pinned = versions.kernel(name)
        machine = replace(
            machine, arch=pinned.arch, package=pinned.package, suite=pinned.suite, modules=MODULES
        )
        vmlinux, gone = None, pinned.gone
    qemu = str(versions.qemu(row.qemu, machine.arch)) if row.qemu else None
    return _Boots(replace(machine, qemu=qemu), vmlinux, gone)


def _cost(boots: _Boots, program: str) -> float:
    """Return the guest instructions of a count at the entry of vfs_read, by a clock that counts them."""
    options = replace(boots.options, smp=1, mem=512, icount="shift=0,sleep=off")
    with (
        Guest.start(options, timeout=BOOT) as guest,
        RspProxy(guest.gdb_socket) as proxy,
        Debugger(proxy.path, program, boots.vmlinux) as gdb,
    ):
        reads = Reads(guest, gdb, proxy)
        # Newer kernels have work of their own for a while after the boot; no run takes less than the reads alone.
        reads.measure(COST_READS)
        unprobed = reads.best(COST_READS, COST_TIMES)
        gdb(f"optprobe add {FUNCTION}")
        gdb("optprobe commit")
        probed = reads.best(COST_READS, COST_TIMES)
    return round(probed.instructions - unprobed.instructions, 1)


# what is printed -----------------------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> list[str]:
    """Return a table, kernel × facility, and below it the reason for each cell that does not work."""
    facilities = _facilities(results)
    cells = [["", *facilities, "cost"]]
    for result in results:
        states = [result.outcomes[name].state if name in result.outcomes else "-" for name in facilities]
        cost = "-" if result.cost is None else f"{result.cost:g}"
        gone = f" (gone; {result.release})" if result.gone else ""
        cells.append([_told(result.row) + gone, *states, cost])
    lines = aligned([tuple(row) for row in cells])
    return [*lines, "", *_reasons(results), *_verdict(results)]


def markdown(results: Sequence[Result]) -> list[str]:
    """Return the table for the docs."""
    facilities = _facilities(results)
    lines = [f"| | {' | '.join(facilities)} | cost |", "|---" * (len(facilities) + 2) + "|"]
    for result in results:
        states = [result.outcomes[name].state if name in result.outcomes else "–" for name in facilities]
        cost = "–" if result.cost is None else f"{result.cost:g}"
        lines.append(f"| {_told(result.row)}{' (gone)' if result.gone else ''} | {' | '.join(states)} | {cost} |")
    return [*lines, "", *(f"- {reason}" for reason in _reasons(results))]


def _told(row: Row) -> str:
    """Return the row's name, with this machine's own QEMU and GDB by their versions."""
    arch = Options().arch if row.kernel.startswith(BUILT) else versions.arch(row.kernel)
    qemu, gdb = _version(MACHINES[arch].qemu), _version(gdb_program())
    return row.name.replace(f"QEMU {HERE}", f"QEMU {qemu}").replace(f"GDB {HERE}", f"GDB {gdb}")


@cache
def _version(program: str) -> str:
    told = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    # Debian's own version of the package is in parentheses.
    found = re.search(r"\d+\.\d+", re.sub(r"\(.*?\)", "", told))
    return found[0] if found else "?"


def _facilities(results: Sequence[Result]) -> list[str]:
    """Return the columns: what was tried, "boot" where that failed."""
    return [name for name in ("boot", *FACILITIES) if any(name in result.outcomes for result in results)]


def _reasons(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        for outcome in result.outcomes.values():
            if outcome.state not in (WORKS, UNTRIED):
                code = f" {outcome.code}" if outcome.code else ""
                yield f"{_told(result.row)}: {outcome.facility} {outcome.state}{code}: {outcome.text}"


def _verdict(results: Sequence[Result]) -> Iterator[str]:
    states = [outcome.state for result in results for outcome in result.outcomes.values()]
    yield f"{len(results)} rows: {', '.join(f'{states.count(each)} {each}' for each in (WORKS, REFUSED, BROKEN))}"


def as_json(result: Result) -> dict[str, object]:
    return {
        "type": "row",
        "row": result.row.name,
        "release": result.release,
        "gone": result.gone,
        "cost": result.cost,
        "outcomes": [
            {"facility": each.facility, "state": each.state, "code": each.code, "text": each.text}
            for each in result.outcomes.values()
        ],
    }


def _read(file: Path, rows: Sequence[Row]) -> dict[str, Result]:
    """Return the results of an earlier run, by row."""
    named, found = {row.name: row for row in rows}, {}
    for line in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        if line["row"] in named:
            outcomes = {each["facility"]: Outcome(**each) for each in line["outcomes"]}
            found[line["row"]] = Result(named[line["row"]], line["release"], line["gone"], outcomes, line["cost"])
    return found


def main() -> int:
    arguments = parser().parse_args()
    ending_on_signals()
    try:
        return matrix(arguments)
    except (BuildError, FetchError) as error:
        say(str(error))
        return 1


def matrix(arguments: argparse.Namespace) -> int:
    """Try the rows that are asked for and print the results."""
    if arguments.build:
        build_all(recipe.name for recipe in RECIPES)
    there = {BUILT + each.recipe.name for each in built_kernels()}
    rows = [*ROWS, *(row for row in built_rows() if row.kernel in there)]
    wanted = [row for row in rows if row.quick or not arguments.quick]
    wanted = [row for row in wanted if all(word in row.name for word in arguments.only)]
    if arguments.list:
        print("\n".join(row.name for row in wanted))
        return 0
    if not wanted:
        say(f"no row has {' and '.join(arguments.only)} in its name; see --list")
        return 2
    kept = _read(arguments.keep, wanted) if arguments.keep else {}
    results = []
    for row in wanted:
        if row.name in kept:
            results.append(kept[row.name])
            continue
        start = time.monotonic()
        say(f"{row.name} …")
        try:
            result = run(row, arguments.facility, cost=not arguments.quick and not arguments.facility)
        except (GuestError, ChannelError, FetchError, BuildError, DebuggerError, OSError) as error:
            first = str(error).strip().splitlines()[:1]
            result = Result(row, "", False, {"boot": Outcome("boot", BROKEN, text=" ".join(first))})
        results.append(result)
        if arguments.json:
            print(json.dumps(as_json(result)), flush=True)
        if arguments.keep:
            with arguments.keep.open("a") as file:
                file.write(json.dumps(as_json(result)) + "\n")
        told = ", ".join(f"{each.facility} {each.state}" for each in result.outcomes.values() if each.state != WORKS)
        say(f"{row.name}: {told or 'all works'} ({time.monotonic() - start:.0f} s)")
    if not arguments.json:
        print("\n".join(markdown(results) if arguments.markdown else table(results)))
    return 1 if any(result.broken for result in results) else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/matrix", description=__doc__)
    option = top.add_argument
    option("--quick", action="store_true", help="the short form, which scripts/test runs")
    option("--build", action="store_true", help="first build kernels as developers do, once, into the cache: an hour")
    option("--list", action="store_true", help="print the rows' names")
    option("--only", action="append", default=[], metavar="TEXT", help="rows with TEXT in their name; may be repeated")
    option("--facility", action="append", default=[], choices=tuple(FACILITIES), help="this alone; may be repeated")
    option("--keep", type=Path, metavar="FILE", help="keep JSON lines there; rows that it has are not tried again")
    option("--json", action="store_true", help="JSON lines")
    option("--markdown", action="store_true", help="the table as the docs have it")
    return top


if __name__ == "__main__":
    sys.exit(main())
