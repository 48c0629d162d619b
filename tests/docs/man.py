"""The man page of the installed program, made of its help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gdb_optprobe import __version__
from qemu import demo, guest_program, program

HEAD = f"""\
.\\" Written by scripts/docs.
.TH OPTPROBE 1 "" "optprobe {__version__}"
.SH NAME
optprobe \\- probe a live QEMU guest from GDB
.SH SYNOPSIS
.B optprobe
.I COMMAND
[\\fIARG\\fR ...]
.SH DESCRIPTION
A GDB extension that turns a breakpoint in a live QEMU guest into a branch to native code in the guest's own memory.
This program starts GDB with it, and guests to probe.
"""
TAIL = """\
.SH EXIT STATUS
0, or 1 for an error, which one line names, or 2 where the command line is wrong.
.B gdb
has GDB's, which with \\-batch is 1 at the first
.B optprobe
command that fails;
.B guest run
has the command's.
.SH ENVIRONMENT
.TP
.B OPTPROBE_GDB
The GDB to run, in place of gdb\\-multiarch or gdb.
.TP
.B OPTPROBE_CACHE
The folder of kernels and symbols, in place of ~/.cache/optprobe.
.SH SEE ALSO
.BR gdb (1),
.BR qemu\\-system\\-x86_64 (1);
in GDB,
.BR "help optprobe" .
"""


def page() -> str:
    """Return the page in troff's man macros."""
    return "".join([HEAD, *commands(), *guest(), *options("DEMO", demo.parser()), TAIL])


def commands() -> Iterator[str]:
    yield ".SH COMMANDS\n"
    for line in program.usage().splitlines():
        usage, _, text = line.strip().removeprefix("optprobe ").partition("  ")
        yield item(usage, text or "print the version")


def guest() -> Iterator[str]:
    for action in guest_program.parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from options(f"GUEST {name.upper()}", sub)


def options(title: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    description = " ".join((parser.description or "").split())
    yield f".SH {title}\n{escaped(description)}\n"
    for action in parser._actions:
        if action.help and action.option_strings and "-h" not in action.option_strings:
            names = ", ".join(action.option_strings)
            value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())
            yield item(names if action.nargs == 0 else f"{names} {value}", action.help)


def item(what: str, text: str) -> str:
    return f".TP\n.B {escaped(what)}\n{escaped(text.strip())}\n"


def escaped(text: str) -> str:
    """Return text in which troff finds no command and no typographic hyphen."""
    return "\\&" + text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
