"""Parse the arguments of commands that take a location. No GDB here.

    LOCATION[,LOCATION…] [OPTIONS] [entry [if EXPR] [do ACTION, …]] [if EXPR] [do ACTION, …]

LOCATION ends at the first option or at a bare word `if`, `do` or `entry`. `if` and `do` are C keywords, so they end an
expression and an action too; `entry` is an ordinary name of kernel parameters, so it ends nothing but LOCATION.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gdb_optprobe.commands.options import DASHES, Line, Option, no_option, option_at, take_option
from gdb_optprobe.commands.peers import block_fault, check_location
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.clauses import check_action, is_block
from gdb_optprobe.handlers.source import Fragment, fault, split, whole_number
from gdb_optprobe.probes.event_probes import kind_of
from gdb_optprobe.probes.spec import Kind, Spec

TIERS = tuple(tier.value for tier in Tier)
# The argument of each option of `add`; "" for none.
ADD_OPTIONS: Mapping[str, str] = {
    "-name": "NAME",
    "-tier": "TIER",
    "-pending": "",
    "-glob": "",
    "-return": "",
    "-maxactive": "N",
    "-overwrite": "",
    "-user": "",
    "-file": "PATH",
    "-pid": "N",
    "-json": "",
}

RECORDING = ("record", "print", "stack")
"""Actions that fill the ring."""
_MOST = dict.fromkeys(("-maxactive", "-pid"), (1 << 31) - 1)

_KINDS = {
    (False, False): Kind.KPROBE,
    (False, True): Kind.KRETPROBE,
    (True, False): Kind.UPROBE,
    (True, True): Kind.URETPROBE,
}
"""By (-user, -return)."""

_KEYWORD = re.compile(r"(?<!\S)(if|do|entry)(?=[\s(]|$)")
_CLAUSE = re.compile(r"(?<![\w$])(if|do)(?!\w)")
_JSON_AFTER_ACTION = re.compile(r"(?!.*\sby\b)(?:\w+(?:\s*\(.*\))?|\{.*\})\s+(?=-json$)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_LOCATIONS = "a location is a symbol, file:line, *ADDRESS or symbol+offset"
_NAMED = "a name is a letter or '_', then letters, digits, '_', '.' and '-'"
_AFTER_ACTION = re.compile(r"(?!.*\sby\b)(?:\w+(?:\s*\(.*\))?|\{.*\})\s+(-[a-z]+)(?=\s|$).*", re.DOTALL)
_WITH_ARGUMENT = re.compile(r"(?<=\s)(-[a-z]+)\s+[\w\"/]")
_UNKNOWN = re.compile(r"(?<=[\w)\]]\s)(?!-sizeof\b)(-[a-z]+)\s+(?!(?:by|if|do)\b)[\w\"]")
"""What is no difference, as no operator is behind it: an option that is not known."""
_DIFFERENCE = re.compile(r"(?<=\s)-([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Clause:
    """One `[if EXPR] [do ACTION, …]`."""

    condition: Fragment | None = None
    actions: tuple[Fragment, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Locations with the options before and after them."""

    locations: tuple[Fragment, ...]
    options: Mapping[str, Option] = field(default_factory=dict)

    @property
    def json(self) -> bool:
        return "-json" in self.options

    @property
    def glob(self) -> bool:
        return any(self._is_glob(location.text) for location in self.locations)

    @property
    def tier(self) -> str:
        return self.value("-tier")

    def specs(self) -> tuple[Spec, ...]:
        """Return a spec for each location. Raises OptprobeError, which points at options that exclude each other."""
        user = "-user" in self.options
        for name in ("-file", "-pid"):
            if name in self.options and not user:
                raise fault(f"{name} needs -user", self.options[name].where)
        file, name = self.value("-file"), self.value("-name")
        return tuple(
            Spec(
                location=each.text,
                kind=self._kind(each),
                tier=self.tier,
                name=name,
                glob=self._is_glob(each.text),
                file=file,
            )
            for each in self.locations
        )

    def _kind(self, location: Fragment) -> Kind:
        """Return the kind of the probes at a location. Raises OptprobeError where `-return` has no meaning there."""
        user, returns = "-user" in self.options, "-return" in self.options
        of_event = kind_of(location.text) if not user else None
        if of_event is not None and returns:
            where = self.options["-return"].where
            raise fault("-return is of functions, and this is an event", where, "sys_exit_… is of a call's return")
        return of_event or _KINDS[user, returns]

    @property
    def returns(self) -> bool:
        """Whether all probes are on returns."""
        if "-return" in self.options:
            return True
        return "-user" not in self.options and all(kind_of(each.text) is Kind.KRETPROBE for each in self.locations)

    def _is_glob(self, location: str) -> bool:
        return "-glob" in self.options or ("-user" not in self.options and is_glob(location))

    def value(self, option: str) -> str:
        return self.options[option].value if option in self.options else ""


@dataclass(frozen=True, slots=True)
class Add:
    """`optprobe add`, parsed. entry: the clause that a return probe runs at the function's entry."""

    place: Place
    clause: Clause
    entry: Clause | None = None
    json: bool = False

    def specs(self) -> tuple[Spec, ...]:
        """Return the specs for the session. Raises OptprobeError, which points at the fault."""
        places = self.place.specs()
        returns = self.place.returns
        if not returns and "-maxactive" in self.place.options:
            raise fault("-maxactive needs -return", self.place.options["-maxactive"].where)
        for action in self.clause.actions:
            check_action(action)
            if not returns and action.first_word().text == "latency":
                raise fault("latency needs -return", action)
        if "-overwrite" in self.place.options and not self._records():
            raise fault("-overwrite needs record, print or stack", self.place.options["-overwrite"].where)
        return tuple(map(self._whole, places))

    def _records(self) -> bool:
        """Return whether an action fills the ring."""
        actions = (*self.clause.actions, *(self.entry.actions if self.entry else ()))
        return any(is_block(action.text) or action.first_word().text in RECORDING for action in actions)

    def _whole(self, place: Spec) -> Spec:
        return replace(
            place,
            condition=self.clause.condition.text if self.clause.condition else "",
            condition_at=self.clause.condition,
            actions=tuple(action.text for action in self.clause.actions) or ("count",),
            actions_at=self.clause.actions,
            pending="-pending" in self.place.options,
            entry_condition=self.entry.condition if self.entry else None,
            entry_actions=self.entry.actions if self.entry else (),
            maxactive=int(self.place.value("-maxactive") or 0),
            overwrite="-overwrite" in self.place.options,
            pid=int(self.place.value("-pid") or 0),
        )


def parse_add(text: str, command: str = "add") -> Add:
    """Parse what `add` takes. command: that which it was typed for."""
    line = Line(text, command)
    place, at = _place(line, ADD_OPTIONS)
    entry = None
    found = _KEYWORD.match(text, at)
    if found and found[0] == "entry":
        if not place.returns:
            raise fault("'entry' needs -return", Fragment(text, *found.span()), "quote a location of that name")
        entry, at = _clause(line, line.skip(found.end()))
    clause, at = _clause(line, at)
    if at < len(text):
        found = _CLAUSE.match(text, at)
        where = Fragment(text, *found.span()) if found else line.word(at)
        second = clause.actions if where.text == "do" else clause.condition
        raise fault(f"a second '{where.text}'" if second else f"'{where.text}' comes too late", where, _ORDER)
    clause, json = _json_after_actions(clause)
    for part in (entry, clause):
        if part is not None:
            _check_no_options(part, line)
    return Add(place, clause, entry, json or place.json)


_ORDER = "the order is LOCATION OPTIONS if EXPR do ACTION, …"


def _check_no_options(clause: Clause, line: Line) -> None:
    """Raise OptprobeError, which points, where a clause has an option, as in `do record(x) -overwrite`.

    `x -pid` is a difference, so an option that has no operand before it, or has a word behind it, alone is one.
    """
    for part in (*filter(None, [clause.condition]), *clause.actions):
        late = [found] if (found := _AFTER_ACTION.fullmatch(part.text)) and part is not clause.condition else []
        for found in (*late, *_WITH_ARGUMENT.finditer(part.text)):
            start, end = (part.start + at for at in found.span(1))
            takes = ADD_OPTIONS.get(found[1])
            if start in line.bare and takes is not None and (takes or found in late):
                raise fault(f"'{found[1]}' comes too late", Fragment(part.line, start, end), _ORDER)
        for found in _UNKNOWN.finditer(part.text):
            start, end = (part.start + at for at in found.span(1))
            if start in line.bare and found[1] not in ADD_OPTIONS:
                raise no_option(Fragment(part.line, start, end), ADD_OPTIONS)


@contextmanager
def hinting_at_options(add: Add) -> Iterator[None]:
    """Add to an error about a name, as in `if x > 1 -overwrite`, that it would be an option elsewhere."""
    try:
        yield
    except OptprobeError as error:
        clauses = (add.clause, *filter(None, [add.entry]))
        parts = [part for one in clauses for part in (*filter(None, [one.condition]), *one.actions)]
        names = [found[1] for part in parts for found in _DIFFERENCE.finditer(part.text)]
        if (name := next((name for name in names if f"named '{name}'" in error.message), None)) is not None:
            said = f"-{name} is a subtraction here: an option comes before if and do"
            error.hint = said if f"-{name}" in ADD_OPTIONS or not error.hint else f"{error.hint}; {said}"
        raise


def parse_break(text: str) -> Add:
    """Parse `break`, which is `add … do stop`. Actions after `do` run before the stop."""
    add = parse_add(text, "break")
    return replace(add, clause=replace(add.clause, actions=(*add.clause.actions, Fragment.whole("stop"))))


def parse_dprintf(text: str) -> Add:
    """Parse `dprintf LOCATION,"format",EXPR…`, which is `add LOCATION do print("format",EXPR…)`."""
    location, *arguments = split(Fragment.whole(text))
    if not arguments or not arguments[0].text.startswith('"'):
        where = arguments[0] if arguments else Fragment(text, len(text.rstrip()), len(text.rstrip()) + 1)
        raise fault("a format in double quotes is missing", where, 'optprobe dprintf LOCATION,"format",EXPR…')
    for argument in arguments:
        if not argument.text:
            raise fault("an argument is missing here", Fragment(text, argument.start, argument.start + 1))
    if len(location.text.split()) == 1:
        check_location(location, "dprintf")
    return parse_add(f"{location.text} do print({', '.join(argument.text for argument in arguments)})")


def is_glob(location: str) -> bool:
    """Return whether a location is a glob: with `*`, `?` or `[` outside quotes, but not an address expression `*…`."""
    if location.startswith("*"):
        return False
    return any(character in "*?[" for character in re.sub(r"'[^']*'|\"[^\"]*\"", "", location)[1:])


def _place(line: Line, known: Mapping[str, str]) -> tuple[Place, int]:
    """Return LOCATION with its options, and the start of the rest."""
    options: dict[str, Option] = {}
    at, more = _options(line, 0, known, options)
    start, at = at, _end_of_location(line, at, more)
    location = Fragment(line.text, start, at).stripped()
    if not location.text:
        raise _no_location(line, start)
    if not location.text.strip("'\""):
        raise fault("the location is empty", location, _LOCATIONS)
    if more:
        at, more = _options(line, at, known, options)
        if at < len(line.text) and not _KEYWORD.match(line.text, at):
            word = line.word(at)
            raise fault(f"'{word.text}' is neither an option nor part of the location", word, _ORDER)
    _check_options(options)
    if "-user" not in options:
        check_location(location, line.command)
    return Place(_locations(location, "-user" in options), options), at


def _locations(typed: Fragment, user: bool) -> tuple[Fragment, ...]:
    """Split at commas outside quotes and brackets; a comma in a program's path does not count."""
    locations: list[Fragment] = []
    for part in split(typed):
        if not part.text:
            raise fault("a location is missing here", Fragment(part.line, part.start, part.start + 1))
        if user and locations and ":" not in locations[-1].text:
            part = Fragment(part.line, locations.pop().start, part.end)
        locations.append(part)
    return tuple(locations)


def _no_location(line: Line, start: int) -> OptprobeError:
    hint = _LOCATIONS
    if not line.text.strip():
        return OptprobeError("no location", hint)
    end = len(line.text.rstrip())
    if start < end:
        word = line.word(start)
        return fault(f"no location before '{word.text}'", word, hint)
    return fault("no location", Fragment(line.text, end, end + 1), hint)


def _options(line: Line, at: int, known: Mapping[str, str], options: dict[str, Option]) -> tuple[int, bool]:
    """Take options from `at`. Return their end, and whether more may follow (there was no `--`)."""
    at = line.skip(at)
    while (word := option_at(line, at)) is not None:
        if word.text == DASHES:
            return line.skip(word.end), False
        at = line.skip(take_option(line, word, known, options))
    return at, True


def _end_of_location(line: Line, at: int, options: bool) -> int:
    while at < len(line.text):
        if at in line.bare and (_KEYWORD.match(line.text, at) or (options and option_at(line, at))):
            return at
        at += 1
    return at


def _check_options(options: Mapping[str, Option]) -> None:
    for name, option in options.items():
        if name == "-tier" and option.value not in TIERS:
            raise fault(f"no tier named '{option.value}'", option.argument, f"the tiers are {', '.join(TIERS)}")
        if name == "-name" and not _NAME.fullmatch(option.value):
            raise fault(f"'{option.value}' cannot be a name", option.argument, _NAMED)
        if name in _MOST:
            if not (option.value.isascii() and option.value.isdecimal() and option.value.strip("0")):
                raise fault(f"{name} takes a number from 1 on", option.argument)
            whole_number(option.typed, _MOST[name])


def _clause(line: Line, at: int) -> tuple[Clause, int]:
    condition: Fragment | None = None
    actions: tuple[Fragment, ...] = ()
    found = _CLAUSE.match(line.text, at)
    if found and found[0] == "if":
        condition, at = _until_clause(line, found)
        if not condition.text:
            raise fault("an expression is missing after 'if'", Fragment(line.text, *found.span()))
        found = _CLAUSE.match(line.text, at)
    if found and found[0] == "do":
        part, at = _until_clause(line, found)
        if not part.text:
            raise fault("an action is missing after 'do'", Fragment(line.text, *found.span()))
        if (error := block_fault(part, line.command, condition is not None)) is not None:
            raise error
        actions = split(part)
        for action in actions:
            if not action.text:
                raise fault("an action is missing here", Fragment(line.text, action.start, action.start + 1))
    return Clause(condition, actions), at


def _until_clause(line: Line, keyword: re.Match[str]) -> tuple[Fragment, int]:
    """Return the text after the keyword, and the start of the next bare `if` or `do`."""
    for found in _CLAUSE.finditer(line.text, keyword.end()):
        if found.start() in line.bare:
            return Fragment(line.text, keyword.end(), found.start()).stripped(), found.start()
    return Fragment(line.text, keyword.end(), len(line.text)).stripped(), len(line.text)


def _json_after_actions(clause: Clause) -> tuple[Clause, bool]:
    """Take `-json` after the actions (`do count -json`) as the option: there is no operand to subtract it from."""
    if not clause.actions:
        return clause, False
    last = clause.actions[-1]
    found = _JSON_AFTER_ACTION.match(last.text)
    if found is None:
        return clause, False
    kept = Fragment(last.line, last.start, last.start + found.end()).stripped()
    return Clause(clause.condition, (*clause.actions[:-1], kept)), True
