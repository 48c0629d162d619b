"""`set optprobe …` and `show optprobe …`. GDB holds the values; `current_settings` reads them.

In batch mode GDB reports only the last command's failure, so there the first failure ends GDB. No user can be asked
about the probes at its end, so they are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import gdb

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.settings import (
    AUTO,
    DEFAULT_MAX_MEMORY,
    DEFAULT_MAX_PROBES,
    LIVE,
    ON_EXIT,
    SIZES,
    Settings,
    parse_arena,
)

Observer = Callable[[str], object]

# Options of GDB's command line that take the next word. That word may look like `-batch`.
_SHORT = "s e c p x ix eix ex iex eiex se cd d D b l i ui tty"
_LONG = (
    "symbols exec core pid command init-command early-init-command eval-command init-eval-command "
    "early-init-eval-command directory data-directory interpreter"
)
_WITH_ARGUMENT = frozenset(f"{_SHORT} {_LONG}".split())

_observers: list[Observer] = []


def on_change(observer: Observer) -> None:
    """Call `observer` with a setting's name ("boost", "on-exit", …) after the user has changed it."""
    if observer not in _observers:
        _observers.append(observer)


def current_settings() -> Settings:
    """Return the current settings; the defaults before `register`."""
    if not registered():
        return Settings()

    def value(name: str) -> object:
        return gdb.parameter(f"optprobe {name}")

    return Settings(
        optimization=bool(value("optimization")),
        boost=bool(value("boost")),
        emulation=bool(value("emulation")),
        trap=bool(value("trap")),
        arena=parse_arena(str(value("arena"))),
        on_exit=str(value("on-exit")),
        exit_on_error=bool(value("exit-on-error")),
        max_probes=int(str(value("max-probes"))),
        max_memory=int(str(value("max-memory"))),
        guardian=bool(value("guardian")),
        load_symbols=bool(value("load-symbols")),
        live=str(value("live")),
        qmp_socket=str(value("qmp-socket") or ""),
        **{name.replace("-", "_"): int(str(value(name))) for name in SIZES},
    )


def batch_mode(command_line: list[str] | None = None) -> bool:
    """Return whether GDB was started with -batch. GDB has no way to ask, so its command line is read."""
    for word in _options(_command_line() if command_line is None else command_line):
        if word == "batch" or (word.startswith("batch-") and "batch-silent".startswith(word)):
            return True
    return False


def machine_interface(command_line: list[str] | None = None) -> bool:
    """Return whether a program drives GDB: it was started with -i=mi or --interpreter=mi3."""
    words = _command_line() if command_line is None else command_line
    pairs = [*(word.partition("=")[::2] for word in words), *pairwise(words)]
    return any(name.lstrip("-") in ("i", "interpreter") and value.startswith("mi") for name, value in pairs)


def _options(command_line: list[str]) -> list[str]:
    """Return the names of the options on GDB's command line, without dashes and arguments."""
    names = []
    words = iter(command_line[1:])
    for word in words:
        if word in ("-args", "--args", "--"):
            break
        if not word.startswith("-"):
            continue
        name = word.lstrip("-")
        names.append(name)
        if name in _WITH_ARGUMENT:
            next(words, None)
    return names


def _command_line() -> list[str]:
    try:
        return Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def registered() -> bool:
    try:
        gdb.parameter("optprobe max-probes")
    except RuntimeError:
        return False
    return True


def register(fail: Callable[[OptprobeError], None]) -> None:
    """Register the settings with GDB, once. `fail` reports a refused value; it raises gdb.GdbError."""
    if registered():
        return
    batch = batch_mode()
    _Prefix("set optprobe", fail)
    _Prefix("show optprobe", fail)
    _Switch("optimization", "whether hits that can be are counted by code in the guest, without a stop", True)
    _Switch("boost", "whether a hit that stops the guest runs a copy of the instruction instead of a single step", True)
    _Switch("emulation", "whether a hit that stops the guest may compute the instruction's effect", True)
    _Switch("trap", "whether hits may be handled in the guest's own trap handler", True)
    _Arena(fail)
    _OnExit("remove" if batch else "ask")
    _Switch("exit-on-error", "whether the first failure of an optprobe command ends GDB with status 1", batch)
    _MaxProbes()
    _MaxMemory()
    _Switch("guardian", "whether a process of its own frees the guest should GDB die", True)
    _Switch("load-symbols", "whether GDB gets the kernel's symbols as soon as a guest is connected", True)
    _Live()
    _QmpSocket()
    for name in SIZES:
        _Size(name, fail)


NAMES = (
    "optimization",
    "boost",
    "emulation",
    "trap",
    "arena",
    "on-exit",
    "exit-on-error",
    "max-probes",
    "max-memory",
    "guardian",
    "load-symbols",
    "live",
    "qmp-socket",
    *SIZES,
)


def _changed(name: str) -> None:
    for observer in tuple(_observers):
        observer(name)


class _Prefix(gdb.Command):
    """The settings of gdb_optprobe."""

    def __init__(self, words: str, fail: Callable[[OptprobeError], None]) -> None:
        super().__init__(words, gdb.COMMAND_BREAKPOINTS, prefix=True)
        self._words = words
        self._fail = fail

    def invoke(self, argument: str, from_tty: bool) -> None:
        if argument:
            name = argument.split()[0]
            self._fail(OptprobeError(f"no setting named '{name}'", f"the settings are {', '.join(NAMES)}"))
        elif self._words.startswith("show"):
            for name in NAMES:
                gdb.execute(f"show optprobe {name}")
        else:
            gdb.execute("help set optprobe")


class _Setting(gdb.Parameter):
    """A setting. A change is reported to the observers."""

    name: str

    def __init__(self, name: str, what: str, kind: int, value: object, choices: tuple[str, ...] = ()) -> None:
        self.name = name
        self.set_doc = f"Set {what}."
        self.show_doc = f"Show {what}."
        if choices:
            super().__init__(f"optprobe {name}", gdb.COMMAND_BREAKPOINTS, kind, choices)
        else:
            super().__init__(f"optprobe {name}", gdb.COMMAND_BREAKPOINTS, kind)
        self.value = value

    def get_set_string(self) -> str:
        _changed(self.name)
        return ""

    def get_show_string(self, value: str) -> str:
        return f"optprobe {self.name} is {value}."


class _Switch(_Setting):
    """On or off."""

    def __init__(self, name: str, what: str, value: bool) -> None:
        super().__init__(name, what, gdb.PARAM_BOOLEAN, value)


class _OnExit(_Setting):
    """keep: they run on in the guest without GDB. remove: the guest is as it was. ask: at the prompt."""

    def __init__(self, value: str) -> None:
        super().__init__(
            "on-exit", "whether probes stay when GDB leaves the guest", gdb.PARAM_ENUM, value, ON_EXIT
        )


class _Live(_Setting):
    """process: by /proc of QEMU on this host. qmp: by qmp-socket. slices: at short stops. auto: what works first."""

    def __init__(self) -> None:
        super().__init__("live", "how what probes gather is read while the guest runs", gdb.PARAM_ENUM, AUTO, LIVE)


class _QmpSocket(_Setting):
    """QEMU serves one client at a time: name one that nothing else uses."""

    def __init__(self) -> None:
        what = "where QEMU has a socket of its control protocol, QMP, by which memory is read while the guest runs"
        super().__init__("qmp-socket", what, gdb.PARAM_OPTIONAL_FILENAME, "")

    def get_show_string(self, value: str) -> str:
        return super().get_show_string(value or "none")


class _MaxProbes(_Setting):
    """A glob that matches more than this many addresses is refused, but * alone by default."""

    def __init__(self) -> None:
        what = "how many addresses one location may match"
        super().__init__("max-probes", what, gdb.PARAM_ZUINTEGER, DEFAULT_MAX_PROBES)


class _MaxMemory(_Setting):
    """The guest runs for it, at an `add` for which the data memory has no room. 0: it never does."""

    def __init__(self) -> None:
        what = "how many MiB of memory the guest's kernel may lend for what probes gather"
        super().__init__("max-memory", what, gdb.PARAM_ZUINTEGER, DEFAULT_MAX_MEMORY)


class _Size(_Setting):
    """Rounded up where it has to be; probes that are there keep theirs."""

    def __init__(self, name: str, fail: Callable[[OptprobeError], None]) -> None:
        self._size = SIZES[name]
        self._accepted = self._size.default
        self._fail = fail
        super().__init__(name, self._size.what, gdb.PARAM_ZUINTEGER, self._size.default)

    def get_set_string(self) -> str:
        try:
            self._accepted = self._size.rounded(self.name, int(self.value))
        except OptprobeError as error:
            self.value = self._accepted
            self._fail(error)
            return ""
        self.value = self._accepted
        return ""


class _Arena(_Setting):
    """auto: memory is found or made in the guest. code=START-END data=START-END: ranges of yours."""

    def __init__(self, fail: Callable[[OptprobeError], None]) -> None:
        super().__init__("arena", "where the guest keeps the probes' code and data", gdb.PARAM_STRING, "auto")
        self._accepted = "auto"
        self._fail = fail

    def get_set_string(self) -> str:
        try:
            ranges = parse_arena(self.value or "")
        except OptprobeError as error:
            self.value = self._accepted
            self._fail(error)
            return ""
        self.value = self._accepted = str(ranges) if ranges else "auto"
        return super().get_set_string()
