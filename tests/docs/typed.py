"""Parse every command of optprobe in docs/ and in the help texts: python -m tests.docs.typed

In docs/ a command is code that begins with `optprobe` or `set optprobe`, in README a line behind `(gdb)`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.clauses import is_block, parse_action
from gdb_optprobe.handlers.ctype import TYPEDEFS
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.source import Fragment, legible
from qemu.program import WORDS
from tests.docs.blocks import ROOT, interactive

_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PROMPTED = re.compile(r"^\(gdb\) ((?:set )?optprobe .*)$", re.MULTILINE)
_CONTINUED = re.compile(r"\\\n\s*")
_SPAN = re.compile(r"`((?:set )?optprobe [^`\n]*)`")
_SAVE = re.compile(r"save\s+\w+\s*=")
_USAGE = re.compile(r"LOCATION|EXPR|COMMAND|\bN\b|NAME|FILE|[…|\[]")


def commands(page: str) -> Iterator[str]:
    """Yield the commands of a Markdown page, but for those of the installed program."""
    for fence in _FENCED.findall(page):
        yield from _PROMPTED.findall(_CONTINUED.sub(" ", fence))
    for span in _SPAN.findall(_FENCED.sub("", page)):
        typed = span.replace("\\|", "|")
        if not _USAGE.search(typed) and typed.split()[1] not in WORDS:
            yield typed


def examples() -> Iterator[str]:
    """Yield the commands in the examples of all help texts."""
    for each in interactive().commands:
        _, _, text = (inspect.getdoc(each) or "").partition("Examples:\n")
        yield from (line.strip() for line in text.splitlines() if line.startswith("  optprobe "))


def fault(command: str) -> str:
    """Return what is wrong with a command; "" where nothing is."""
    words = command.split(maxsplit=2)
    if words[0] == "set":
        names = {setting.name for setting in interactive().parameters}
        name = words[2].split()[0]
        return "" if name in names else f"no setting named '{name}'"
    found = {each.name: each for each in interactive().commands}.get(f"optprobe {words[1]}")
    if found is None:
        return f"no subcommand '{words[1]}'"
    try:
        args = found.parse(legible(words[2] if len(words) > 2 else ""))
        if hasattr(args, "specs"):
            args.specs()
            for clause in filter(None, (args.entry, args.clause)):
                if clause.condition is not None:
                    parse_expression(clause.condition, TYPEDEFS.__contains__)
                for action in clause.actions:
                    _parse(action)
    except OptprobeError as error:
        return error.message
    return ""


def _parse(action: Fragment) -> None:
    if is_block(action.text):
        return  # compiled for a place, where its names have types
    if saved := _SAVE.match(action.text):
        parse_expression(Fragment.whole(action.text[saved.end() :]), TYPEDEFS.__contains__)
    else:
        parse_action(action, TYPEDEFS.__contains__)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page that users read, and its text. README's spans are usage, not commands."""
    folders = [ROOT / "docs", ROOT / "docs" / "guide", ROOT / "docs" / "examples"]
    for path in sorted(path for folder in folders for path in folder.glob("*.md")):
        yield path, path.read_text()
    readme = ROOT / "README.md"
    yield readme, "\n".join(_FENCED.findall(readme.read_text()))


def main() -> None:
    typed = [(str(path.relative_to(ROOT)), command) for path, text in pages() for command in commands(text)]
    typed += [("help", command) for command in examples()]
    wrong = [f"{where}: {command}\n    {found}" for where, command in typed if (found := fault(command))]
    print(f"{len(typed)} commands")
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
