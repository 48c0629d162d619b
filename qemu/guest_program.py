"""Boot a guest to probe, run commands in it, stop it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gdb_optprobe.guest_text import lines

from .cache import guests_directory, say
from .channel import ChannelError
from .checkout import program
from .debian import FetchError
from .debugger import line_to_start
from .guest import Guest, GuestError, Options
from .kernels import MODULES
from .machines import MACHINES


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. words: None for those of the command line."""
    arguments = parser().parse_args(with_extra(sys.argv[1:] if words is None else words))
    try:
        return int(arguments.command(arguments))
    except (GuestError, ChannelError, FetchError, ValueError, OSError) as error:
        say(str(error))
        return 1


def with_extra(words: Sequence[str]) -> Sequence[str]:
    """Return the words with `--extra -enable-kvm` as `--extra=-enable-kvm`: argparse takes the second for an option."""
    found = list[str]()
    for word in words:
        if found[:1] == ["start"] and found[-1] == "--extra":
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def start(arguments: argparse.Namespace) -> int:
    place = directory(arguments)
    if any(place == guest.directory for guest in guests()):
        raise GuestError(f"it runs already; to end it: {program('guest')} stop --name {arguments.name}")
    names = {each.name for each in fields(Options)} - {"extra"}
    given = {name: getattr(arguments, name) for name in names} | {"modules": tuple(arguments.modules)}
    options = Options(**given, extra=tuple(arguments.extra))
    say("booting a guest, a few seconds")
    guest = Guest.start(options, directory=place, keep=True, timeout=arguments.timeout)
    print(f"guest {arguments.name} is up. To debug it:")
    print(f"    {line_to_start(guest.gdb_socket)}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    # Some shells' users part a command from options so, and argparse keeps it.
    words = arguments.line[1:] if arguments.line[:1] == ["--"] else arguments.line
    guest = Guest.find(directory(arguments))
    if guest.stopped:
        say("the guest is stopped, by GDB perhaps: the command waits until it runs")
    try:
        status, output = guest.run(" ".join(words), arguments.timeout)
    except KeyboardInterrupt:
        say("interrupted; the command still runs in the guest, and the next one waits until it ends")
        return 130
    sys.stdout.write(lines(output) if sys.stdout.isatty() else output)
    return status


def stop(arguments: argparse.Namespace) -> int:
    Guest.find(directory(arguments)).stop()
    return 0


def socket(arguments: argparse.Namespace) -> int:
    print(Guest.find(directory(arguments)).gdb_socket)
    return 0


def log(arguments: argparse.Namespace) -> int:
    path = directory(arguments) / "console.log"
    # What the guest wrote is for the eyes, not for the terminal to carry out.
    sys.stdout.write(lines(path.read_bytes().replace(b"\r\n", b"\n").decode(errors="backslashreplace")))
    return 0


def show(arguments: argparse.Namespace) -> int:
    for guest in guests():
        state = "healthy" if guest.healthy else f"{len(guest.problems())} problems in its log"
        print(f"{guest.directory.name}\t{guest.options.arch}\tpid {guest.pid}\t{state}\t{guest.gdb_socket}")
    return 0


def guests() -> list[Guest]:
    found = []
    for place in sorted(guests_directory().iterdir()):
        try:
            found.append(Guest.find(place))
        except GuestError:
            continue
    return found


def directory(arguments: argparse.Namespace) -> Path:
    name = str(arguments.name)
    if "/" in name or name.startswith("."):
        raise ValueError(f"not a name for a guest: {name}")
    return guests_directory() / name


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=program("guest"), description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        if name != "list":
            sub.add_argument("--name", default="default", help="which guest (default: default)")
        return sub

    add_boot_options(command("start", start, "boot a guest and leave it running"))
    line = command("run", run, "run a shell command in the guest; its exit status is ours")
    line.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for the command (default: 60)")
    line.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND")
    command("stop", stop, "end the guest")
    command("socket", socket, "print what GDB's `target remote` takes")
    command("log", log, "print the guest's kernel log")
    command("list", show, "the guests that run")
    return top


def add_boot_options(sub: argparse.ArgumentParser) -> None:
    option = sub.add_argument
    option("--arch", default="x86_64", choices=sorted(MACHINES), help="architecture (default: x86_64)")
    option("--package", help="the Debian kernel to boot (default: a stock one)")
    option("--suite", default="", help="the Debian suite that has it (default: those that this machine uses)")
    option("--kernel", metavar="FILE", help="a kernel of your own")
    option("--initrd", metavar="FILE", help="an initramfs of your own")
    option("--append", default="", metavar="TEXT", help="added to the kernel command line")
    option("--cpu", metavar="MODEL", help="QEMU's -cpu")
    option("--smp", type=int, metavar="N", help="virtual CPUs (default: 2; 1 with --icount)")
    option("--icount", nargs="?", const="shift=0,sleep=off", metavar="SPEC", help="time counts instructions")
    option("--mem", type=int, default=512, metavar="MIB", help="memory (default: 512)")
    option("--qemu", metavar="PROGRAM", help="the emulator to run")
    option("--extra", action="append", default=[], metavar="ARG", help="a further argument for QEMU")
    option("--modules", nargs="+", default=(), choices=MODULES, help="have these as /lib/modules/NAME.ko")
    option("--micro", action="store_true", help="the bare-metal guest instead of Linux")
    option("--paused", action="store_true", help="stop before the first instruction")
    option("--timeout", type=float, default=120.0, metavar="SECONDS", help="for the boot (default: 120)")


if __name__ == "__main__":
    sys.exit(main())
