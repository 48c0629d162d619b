"""The sessions of a page: its fenced blocks of commands, and whether what they print is what the page shows.

    ```gdb                                      ```console
    (gdb) optprobe add vfs_read                 $ scripts/guest start
    Probe 1 at 0xffffffff8134cc50 …             guest default is up. To debug it:
    (gdb) continue                              …
    guest# dd if=/dev/zero of=/dev/null …       ```
    ^C
    ```

`guest#` is a command in the guest while it runs; `^C` stops it once that has ended. A line of the host's that ends in
a backslash continues on the next one. `…` is any lines, or in a line any text. Words are compared, however lines are
wrapped, rows of a table in any order. Of numbers these are compared as they are: what a command of the block has, of
two digits and more (`count=500` makes `[dd]: 500`), and on the page's machine numbers of probes, instructions,
addresses and bytes that are patched. All others by whether they are 0, and bars of histograms by whether they are
there.

A block below `*Not run by the suite: REASON*` is left out; one below `*x86-64 only*` is left out on other machines.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import ROOT

GUIDES = tuple(
    f"docs/guide/{name}.md"
    for name in (
        *("session", "conditions", "returns", "tracepoints", "any-instruction", "modules", "programs"),
        *("bpftrace-lessons", "export", "page"),
    )
)
EXAMPLES = tuple(f"docs/examples/{name}.md" for name in ("virtme-ng", "cloud-image", "libvirt"))
PAGES = tuple(ROOT / name for name in ("README.md", "docs/tutorial.md", "docs/cookbook.md", *GUIDES, *EXAMPLES))
"""The pages that are run."""
CALLED = {"/tmp/calls": "500"}
"""A program of the guest's, and how often it calls its function."""
ANY = "…"
COLLECTOR = "Collector: "
"""What begins what a report says of the slot collector. It is left out where the page does not show it."""
BAR, ROW = "|@|", "row"
PROMPTS = {"(gdb)": "gdb", "$": "host", "guest#": "guest"}
LANGUAGES = ("gdb", "console")
CONTINUED = "\\"
_FENCE = re.compile(r"```(\w*)")
_LEFT_OUT = re.compile(r"\*Not run by the suite: (.+)\*")
_X86_ONLY = "*x86-64 only*"
PROMPT = re.compile(r"(\(gdb\)|\$|guest#) (.*)")
_BARS = re.compile(r"\|@*\s*\|")
_BAR = re.compile(rf".* (\d+) {_BARS.pattern}")
_ZERO = re.compile(r"(0x)?[0.,]+\D*")
_BYTES = re.compile(r"\b[0-9a-f]{2}(?: [0-9a-f]{2})+\b")
_INDEX = re.compile(r"\[\d+(?:, \d+)*\]")
_ROW = re.compile(r" +\[.+\]: ")
_TYPED = re.compile(r"(?<![\w$])\d{2,}(?!\w)")
_TIMES = re.compile(r" +\[[\d.]+[num]?s, ")
_FIGURE = re.compile(
    r"(?:(?<=\bProbe )|(?<=\bProbes 1-)|(?<= optprobe )|(?<= costs )|(?<= about )|(?<=~))\d+\b"
    r"|\d+(?= (?:or ~|instructions?\b|addresses|bytes patched|optimized))"
)
_NUMBER = re.compile(r"(?<![\w$])0x[0-9a-f]+\b|(?<![\w$])\d+(?:,\d{3})*(?:\.\d+)?[KMGTPE]?(?:ns|us|ms|s)?(?![\w])")


@dataclass(frozen=True)
class Step:
    """A command, and what the page shows of its output.

    machine:     "gdb", "host", or "guest" where GDB lets the guest run already.
    during:      commands in the guest while GDB lets it run for this one.
    interrupted: whether Ctrl-C follows.
    place:       the lines of the page that have the output, from 0.
    """

    machine: str
    command: str
    during: tuple[str, ...]
    interrupted: bool
    shown: tuple[str, ...]
    place: range


@dataclass(frozen=True)
class Block:
    """A fenced block. left_out: why it is not run, or "". x86_only: whether it is for that machine alone."""

    page: Path
    line: int
    left_out: str
    x86_only: bool
    steps: tuple[Step, ...]

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def typed(self) -> frozenset[str]:
        """The numbers that are typed, with that of a program which says none."""
        found = " ".join(line for step in self.steps for line in (step.command, *step.during))
        return frozenset(_TYPED.findall(found)) | {number for name, number in CALLED.items() if name in found}


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of commands. Raises AssertionError for one of another language."""
    lines = page.read_text().splitlines()
    begin: int | None = None
    language = ""
    for number, line in enumerate(lines):
        if (found := _FENCE.match(line)) is None:
            continue
        if begin is None:
            begin, language = number, found[1]
            continue
        inside = lines[begin + 1 : number]
        is_session = any(map(PROMPT.match, inside))
        assert is_session == (language in LANGUAGES), f"{page.name}:{begin + 1}: a block of commands is gdb or console"
        if is_session:
            before = next((each for each in reversed(lines[:begin]) if each), "")
            left_out = _LEFT_OUT.fullmatch(before)
            typed = tuple(steps(inside, begin + 1))
            yield Block(page, begin + 1, left_out[1] if left_out else "", before == _X86_ONLY, typed)
        begin = None


def steps(lines: Sequence[str], first: int) -> Iterator[Step]:
    """Yield the steps of a block, which begins at line `first` of the page."""
    starts = [at for at, line in enumerate(lines) if (found := PROMPT.match(line)) and found[1] != "guest#"]
    assert starts[:1] == [0], f"line {first + 1}: output before the first prompt"
    for at, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        prompt = PROMPT.match(lines[at])
        assert prompt is not None
        during, shown, interrupted, typed = [], [], False, prompt[2]
        while typed.endswith(CONTINUED):
            at += 1
            typed = f"{typed.removesuffix(CONTINUED)}{lines[at].strip()}"
        for line in lines[at + 1 : end]:
            if inner := PROMPT.match(line):
                during.append(inner[2])
            elif line == "^C":
                interrupted = True
            else:
                shown.append(line)
        place = range(first + at + 1, first + end)
        yield Step(PROMPTS[prompt[1]], typed, tuple(during), interrupted, tuple(shown), place)


def difference(
    shown: Sequence[str], printed: Sequence[str], typed: Collection[str] = (), *, is_its_machine: bool = False
) -> str:
    """Return how what a page shows differs from what was printed; "" where it does not.

    typed:          numbers that are compared as they are.
    is_its_machine: whether the page was written for this one: its numbers of instructions, say, are to be the same.
    """
    expected, found = (_canonical(lines, typed, is_its_machine) for lines in (shown, printed))
    # Lines are wrapped by what is in them, so words are compared.
    pattern = ".*".join(re.escape(part.strip()) for part in " ".join(expected).split(ANY))
    if re.fullmatch(pattern, " ".join(found)):
        return ""
    return "\n".join(difflib.unified_diff(expected, found, "the page", "the guest", lineterm="", n=20))


def _canonical(lines: Sequence[str], typed: Collection[str], is_its_machine: bool) -> list[str]:
    """Return lines without what differs from run to run. Bars below each other are one, rows are sorted."""
    made: list[str] = []
    for kind, several in itertools.groupby(filter(str.strip, lines), lambda line: _kind(line, typed)):
        same = [_line(line, typed, is_its_machine) for line in several]
        made += [kind] if kind == BAR else sorted(same) if kind == ROW else same
    return made


def _kind(line: str, typed: Collection[str]) -> str:
    if bar := _BAR.fullmatch(line.strip()):
        return "" if bar[1] in typed and not _TIMES.match(line) else BAR
    return ROW if _ROW.match(line) else ""


def _line(line: str, typed: Collection[str], is_its_machine: bool) -> str:
    line = _BARS.sub(BAR, _BYTES.sub("N", line))
    line = _INDEX.sub(lambda index: index[0] if index[0][1:-1] in typed else "[N]", line)
    figures = {found.span() for found in _FIGURE.finditer(line)} if is_its_machine else set()

    def plain(number: re.Match[str]) -> str:
        if number[0] in typed or number.span() in figures:
            return number[0]
        return "0" if _ZERO.fullmatch(number[0]) else "N"

    return " ".join(_NUMBER.sub(plain, line).split())
