"""Options, numbers and durations of the commands. No GDB here."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, fault, outside, whole_number

DASHES = "--"
LIST_OPTIONS: Mapping[str, str] = {"-json": ""}
REPORT_OPTIONS: Mapping[str, str] = {
    "-clear": "",
    "-json": "",
    "-sort": "FIELD",
    "-top": "N",
    "-all": "",
    "-timeline": "",
    "-folded": "",
    "-html": "FILE",
    "-last": "",
}
SORT_FIELDS = ("hits", "missed", "dropped", "faults", "stops", "time", "number", "symbol")
RUN_OPTIONS: Mapping[str, str] = {
    "-for": "SECONDS",
    "-until-hits": "N:COUNT",
    "-timeout": "SECONDS",
    "-guest": "COMMAND",
    "-every": "SECONDS",
    "-clear": "",
    "-follow": "",
    "-json": "",
}
TOP_OPTIONS: Mapping[str, str] = {"-every": "SECONDS", "-for": "SECONDS"}
COMMIT_OPTIONS: Mapping[str, str] = {"-timeout": "SECONDS"}
DOCTOR_OPTIONS: Mapping[str, str] = {"-json": ""}
EXPORT_OPTIONS: Mapping[str, str] = {"-last": ""}
RECOVER_OPTIONS: Mapping[str, str] = {"-remove": "", "-timeout": "SECONDS"}

_LARGEST_RANGE = 1 << 16
_LARGEST_NUMBER = (1 << 31) - 1  # of a probe
_MOST_HITS = (1 << 64) - 1
_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "secs"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    "h": 3600.0,
}
_MOST_SECONDS = 366 * 24 * 3600
_NUMBER = re.compile(r"\d+", re.ASCII)
_RANGE = re.compile(r"(\d+)-(\d+)", re.ASCII)
_NAME = re.compile(r"\$?[A-Za-z_][\w.-]*")
_UNTIL = re.compile(r"(\$?[\w.-]+):(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """One option as typed. argument: the place of its value (the option itself when it takes none)."""

    where: Fragment
    argument: Fragment
    value: str = ""

    @property
    def typed(self) -> Fragment:
        """Return the place of the value, without quotes."""
        start = self.argument.start + (len(self.value) < len(self.argument.text))
        return Fragment(self.argument.line, start, start + len(self.value))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which probes: numbers, and names ("-name", or "$variable") still to be looked up; nothing means all.

    sort, top: of a report, the field of its order ("" for numbers) and how many probes it has at most.
    whole:     a report has each probe of a glob that was never hit.
    timeline, folded: a report has nothing but records, or stacks.
    html: the file of a page; "" for a report that is printed. last: it is of what the last graph or profile has.
    """

    wanted: tuple[int | str, ...] = ()
    json: bool = False
    clear: bool = False
    sort: str = ""
    top: int | None = None
    whole: bool = False
    timeline: bool = False
    folded: bool = False
    html: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """`optprobe run`: until_hits names a probe (number, name or $variable) and a count.

    wanted: the probes to follow, as of Selection.
    """

    seconds: float | None = None
    until_hits: tuple[int | str, int] | None = None
    timeout: float | None = None
    guest: str = ""
    every: float | None = None
    clear: bool = False
    follow: bool = False
    wanted: tuple[int | str, ...] = ()
    json: bool = False


LEAST_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Watch:
    """`optprobe top`. glob: which functions, or names of probes, are shown; "" for all."""

    every: float = 1.0
    seconds: float | None = None
    glob: str = ""
    json: bool = False


@dataclass(frozen=True, slots=True)
class Export:
    """`optprobe export`. format: its word. probes: which ones. last: what the last graph or profile has, instead."""

    format: str
    path: str
    probes: Selection
    last: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    timeout: float = 10.0
    json: bool = False


@dataclass(frozen=True, slots=True)
class Recover:
    remove: bool = False
    timeout: float = 10.0
    json: bool = False


@dataclass(frozen=True, slots=True)
class Nothing:
    """The arguments of a command that takes none."""

    json: bool = False


class Line:
    """A typed line. bare: the positions outside quotes and brackets. command: the word before it."""

    def __init__(self, text: str, command: str = "") -> None:
        self.text = text
        self.command = command
        self.bare = frozenset(outside(text))

    def skip(self, at: int) -> int:
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        return at

    def word(self, at: int) -> Fragment:
        """Return the word at `at`, up to white space; a quoted one with its quotes."""
        end = at
        while end < len(self.text) and not (end in self.bare and self.text[end].isspace()):
            end += 1
        return Fragment(self.text, at, end)


def option_at(line: Line, at: int) -> Fragment | None:
    """Return the option that starts at `at` (a bare word with a dash and a letter, or two dashes), if there is one."""
    text = line.text
    if at not in line.bare or text[at] != "-" or (at and not text[at - 1].isspace()):
        return None
    word = line.word(at)
    return word if word.text == DASHES or re.match(r"--?[A-Za-z]", word.text) else None


def take_option(line: Line, word: Fragment, known: Mapping[str, str], options: dict[str, Option]) -> int:
    """Add the option to `options`. Return the end of the option and its argument."""
    name = word.text
    if name not in known:
        raise no_option(word, known)
    if name in options:
        raise fault(f"{name} is given twice", word)
    if not known[name]:
        options[name] = Option(word, word)
        return word.end
    argument = line.word(line.skip(word.end))
    if not argument.text:
        raise fault(f"{name} needs a value", word, f"{name} {known[name]}")
    value = unquoted(argument.text)
    if not value.strip():
        raise fault(f"{name} needs a value", argument, f"{name} {known[name]}")
    options[name] = Option(word, argument, value)
    return argument.end


def parse_selection(text: str, known: Mapping[str, str]) -> Selection:
    """Parse `1 3-5 name $variable`, with options anywhere."""
    line = Line(text)
    wanted: dict[int | str, None] = {}
    options: dict[str, Option] = {}
    at = line.skip(0)
    while at < len(text):
        word = option_at(line, at)
        if word is not None:
            at = line.skip(take_option(line, word, known, options))
            continue
        word = line.word(at)
        wanted.update(dict.fromkeys(_numbers(word)))
        at = line.skip(word.end)
    sort, top = options.get("-sort"), options.get("-top")
    if "-folded" in options:
        for other in ("-json", "-timeline"):
            if other in options:
                raise fault(f"{other} and -folded exclude each other", options[other].where, "report -json has stacks")
    html = options.get("-html")
    if html is not None:
        for other in ("-json", "-timeline", "-folded"):
            if other in options:
                raise fault(f"{other} and -html exclude each other", options[other].where, "a page has all of it")
    if "-last" in options and "-html" in known and html is None:
        raise fault("-last is for -html", options["-last"].where, "optprobe export FORMAT FILE -last")
    if "-last" in options and html is not None and wanted:
        raise fault("-last takes no probes", options["-last"].where)
    return Selection(
        tuple(wanted),
        json="-json" in options,
        clear="-clear" in options,
        # The first N of a report are those with the most hits.
        sort=_sort_field(sort) if sort else "hits" if top else "",
        top=most_rows(top) if top else None,
        whole="-all" in options,
        timeline="-timeline" in options,
        folded="-folded" in options,
        html=html.value if html else "",
        last=html is not None and "-last" in options,
    )


def _sort_field(option: Option) -> str:
    if option.value in SORT_FIELDS:
        return option.value
    close = difflib.get_close_matches(option.value, SORT_FIELDS, 1)
    meant = f"did you mean {close[0]}? " if close else ""
    hint = f"{meant}the fields are {', '.join(SORT_FIELDS)}"
    raise fault(f"a report has no field '{option.value}' to sort by", option.argument, hint)


def most_rows(option: Option) -> int:
    if not _NUMBER.fullmatch(option.value) or not option.value.strip("0"):
        raise fault("-top takes a number from 1 on", option.argument)
    return whole_number(option.typed, _LARGEST_NUMBER)


def parse_run(text: str) -> Run:
    words: list[Fragment] = []
    options = only_options(text, RUN_OPTIONS, words)
    if words and "-follow" not in options:
        raise unexpected(words[0], RUN_OPTIONS)
    if "-follow" in options and "-every" in options:
        raise fault("-every and -follow exclude each other", options["-every"].where, "-every prints reports")
    until = options.get("-until-hits")
    guest = options.get("-guest")
    if "-clear" in options and "-every" not in options:
        raise fault("-clear is for the reports of -every", options["-clear"].where, "optprobe report -clear")
    return Run(
        seconds_or_none(options.get("-for")),
        _until_hits(until) if until else None,
        seconds_or_none(options.get("-timeout")),
        guest.value if guest else "",
        seconds_or_none(options.get("-every")),
        clear="-clear" in options,
        follow="-follow" in options,
        wanted=tuple(dict.fromkeys(number for word in words for number in _numbers(word))),
        json="-json" in options,
    )


def parse_top(text: str) -> Watch:
    words: list[Fragment] = []
    options = only_options(text, TOP_OPTIONS, words)
    if len(words) > 1:
        raise unexpected(words[1], TOP_OPTIONS)
    every = seconds_or_none(options.get("-every"))
    if every is not None and every < LEAST_EVERY:
        raise fault(f"-every takes {LEAST_EVERY} seconds at least", options["-every"].argument)
    return Watch(every or Watch().every, seconds_or_none(options.get("-for")), words[0].text if words else "")


def parse_commit(text: str) -> Commit:
    timeout = seconds_or_none(only_options(text, COMMIT_OPTIONS).get("-timeout"))
    return Commit() if timeout is None else Commit(timeout)


def parse_export(text: str, formats: Sequence[str]) -> Export:
    """Parse `FORMAT FILE [N...|-last]`. A file's name that has spaces is in quotes."""
    usage = "optprobe export FORMAT FILE [N...|-last]"
    line = Line(text)
    word = line.word(line.skip(0))
    if not word.text:
        raise OptprobeError(f"no format; there are {', '.join(formats)}", usage)
    if word.text not in formats:
        close = difflib.get_close_matches(word.text, formats, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise fault(f"no format '{word.text}'", word, f"{meant}the formats are {', '.join(formats)}")
    file = line.word(line.skip(word.end))
    if not unquoted(file.text):
        raise OptprobeError("no file to export to", usage)
    rest, words = text[file.end :], list[Fragment]()
    last = only_options(rest, EXPORT_OPTIONS, words).get("-last")
    if last is not None and words:
        raise fault("-last exports no probes", last.where, usage)
    return Export(word.text, unquoted(file.text), parse_selection(rest, EXPORT_OPTIONS), last is not None)


def unquoted(text: str) -> str:
    """Return a word without the quotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0] else text


def parse_recover(text: str) -> Recover:
    options = only_options(text, RECOVER_OPTIONS)
    return Recover("-remove" in options, seconds_or_none(options.get("-timeout")) or Recover().timeout)


def parse_nothing(text: str) -> Nothing:
    only_options(text, {})
    return Nothing()


def parse_doctor(text: str) -> Nothing:
    return Nothing("-json" in only_options(text, DOCTOR_OPTIONS))


def sides(expression: str) -> tuple[str, str] | None:
    """Return what a comparison compares: ("$optprobe_hits(1)", "1000"); None where the expression is no single
    comparison.
    """
    bare = set(outside(expression))
    found = [match for match in re.finditer(r"==|!=|<=|>=|<<|>>|->|&&|\|\||[<>?]", expression) if match.start() in bare]
    compared = [match for match in found if match[0] in ("==", "!=", "<=", ">=", "<", ">")]
    if len(compared) != 1 or any(match[0] in ("&&", "||", "?") for match in found):
        return None
    return expression[: compared[0].start()].strip(), expression[compared[0].end() :].strip()


def no_option(word: Fragment, known: Mapping[str, str]) -> Exception:
    if not known:
        return fault(f"no option {word.text}", word, "this command takes no options")
    close = difflib.get_close_matches(word.text, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"
    return fault(f"no option {word.text}", word, hint)


def unexpected(word: Fragment, known: Mapping[str, str]) -> Exception:
    takes = " ".join(f"[{f'{name} {value}'.strip()}]" for name, value in known.items())
    return fault(f"'{word.text}' is not expected here", word, takes or "this command takes no arguments")


def only_options(text: str, known: Mapping[str, str], words: list[Fragment] | None = None) -> dict[str, Option]:
    """Return the options. words: gets all else, which is refused without it."""
    line = Line(text)
    options: dict[str, Option] = {}
    at = line.skip(0)
    while at < len(text):
        word = option_at(line, at)
        if word is None:
            word = line.word(at)
            if words is None:
                raise unexpected(word, known)
            words.append(word)
            at = line.skip(word.end)
            continue
        at = line.skip(take_option(line, word, known, options))
    return options


def _numbers(word: Fragment) -> range | tuple[int | str, ...]:
    if _NUMBER.fullmatch(word.text):
        return (whole_number(word, _LARGEST_NUMBER),)
    if found := _RANGE.fullmatch(word.text):
        first, last = (whole_number(within(word, found.span(part)), _LARGEST_NUMBER) for part in (1, 2))
        if first > last:
            raise fault(f"the range {word.text} is upside down", word, f"{last}-{first}")
        if last - first >= _LARGEST_RANGE:
            raise fault(f"the range {word.text} is too large", word)
        return range(first, last + 1)
    if _NAME.fullmatch(word.text):
        return (word.text,)
    raise fault(f"'{word.text}' is neither a number nor a name of a probe", word, "1 2, or 1-3, or a name")


def seconds_or_none(option: Option | None) -> float | None:
    if option is None:
        return None
    try:
        seconds = float(option.value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise fault(f"'{option.value}' is not a number of seconds", option.argument, _without_unit(option))
    if seconds > _MOST_SECONDS:
        raise fault("the time is too long", option.argument, f"at most {_MOST_SECONDS} seconds")
    return seconds


def seconds_of(text: str) -> float:
    """Return the seconds of `-for`. Raises OptprobeError."""
    line = f"-for {text}"
    found = seconds_or_none(Option(Fragment(line, 0, 4), Fragment(line, 5, len(line)), text))
    assert found is not None
    return found


def _without_unit(option: Option) -> str:
    """Return `-for 0.5` for `-for 500ms`; an example where there is no unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", option.value, re.ASCII)
    seconds = _UNITS.get(found[2]) if found is not None and len(found[1]) < 16 else None
    if found is None or seconds is None or not float(found[1]):
        return f"{option.where.text} 2 is two seconds"
    return f"{option.where.text} {float(found[1]) * seconds:.12g}"


def _until_hits(option: Option) -> tuple[int | str, int]:
    found = _UNTIL.fullmatch(option.value)
    if found is None or not found[2].strip("0"):
        raise fault("-until-hits takes a probe and a count", option.argument, "-until-hits 1:1000")
    typed = option.typed
    probe = whole_number(within(typed, found.span(1)), _LARGEST_NUMBER) if found[1].isdecimal() else found[1]
    return probe, whole_number(within(typed, found.span(2)), _MOST_HITS)


def within(where: Fragment, span: tuple[int, int]) -> Fragment:
    """Return a part of `where`. start, end: counted from its start."""
    return Fragment(where.line, where.start + span[0], where.start + span[1])
