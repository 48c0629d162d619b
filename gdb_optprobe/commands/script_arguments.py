"""The arguments of `optprobe script`: words as a shell splits them, for a program is one word."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from gdb_optprobe.commands.options import seconds_of
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import one_line

OPTIONS = (
    "-e", "-for", "-guest", "-f", "-json", "-o", "-q", "-no-warnings", "-unsafe", "-keep", "-dry-run", "-d", "-l",
)  # fmt: skip
_WITH_VALUE = ("-e", "-for", "-guest", "-f", "-o", "-l")
_PARAMETER = re.compile(r"\$[\d#]", re.ASCII)
USAGE = "optprobe script FILE [ARG...], or optprobe script -e 'PROGRAM' [ARG...]"


@dataclass(frozen=True, slots=True)
class ScriptArguments:
    """text: the script; "" where it is in `file`. parameters: of `$1`, …. seconds: how long it runs at most.

    guest: a command in the guest, with which the script ends. pattern: of probes that are to be listed.
    output: a file for what the script prints. dry: attach, and end.
    """

    text: str
    file: str = ""
    parameters: tuple[str, ...] = ()
    seconds: float | None = None
    guest: str = ""
    json: bool = False
    unsafe: bool = False
    keep: bool = False
    dump: bool = False
    pattern: str = ""
    output: str = ""
    quiet: bool = False
    warns: bool = True
    dry: bool = False


def parse_script(text: str) -> ScriptArguments:
    """Return the arguments of `optprobe script`. Raises OptprobeError."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise OptprobeError("a quote is never closed", USAGE) from None
    given: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "-" and "-e" not in given:
        option = words.pop(0)
        if option not in OPTIONS:
            raise OptprobeError(f"no option '{one_line(option)}'", USAGE)
        takes = option in _WITH_VALUE
        if option in given:
            raise OptprobeError(f"{option} is given twice", USAGE)
        if takes and not (words and (words[0].strip() or option == "-e")):
            raise OptprobeError(f"{option} takes a value", USAGE)
        given[option] = words.pop(0) if takes else ""
    if given.get("-f", "text") not in ("text", "json"):
        raise OptprobeError(f'Invalid output format "{one_line(given["-f"])}"', "-f text, -f json")
    if "-dry-run" in given and "-keep" in given:
        raise OptprobeError("-dry-run and -keep exclude each other: the one detaches, the other does not", USAGE)
    if "-e" not in given and "-l" not in given and not words:
        raise OptprobeError("a script is missing", USAGE)
    return ScriptArguments(
        given.get("-e", ""),
        words.pop(0) if "-e" not in given and "-l" not in given else "",
        tuple(words),
        seconds_of(given["-for"]) if "-for" in given else None,
        given.get("-guest", ""),
        json="-json" in given or given.get("-f") == "json",
        unsafe="-unsafe" in given,
        keep="-keep" in given,
        dump="-d" in given,
        pattern=given.get("-l", ""),
        output=given.get("-o", ""),
        quiet="-q" in given,
        warns="-no-warnings" not in given,
        dry="-dry-run" in given,
    )


def check_parameters(text: str, parameters: tuple[str, ...]) -> None:
    """Refuse an option behind a script that takes no arguments: without it the script may never end."""
    behind = next((parameter for parameter in parameters if parameter in OPTIONS), None)
    if behind is not None and not _PARAMETER.search(text):
        message = f"{behind} is behind the script, which takes no arguments"
        raise OptprobeError(message, "options come before FILE or -e")
