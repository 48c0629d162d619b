"""Compile a script: all of it is checked before anything is attached.

    text ─► lines ─► tokens ─► tree ─► for each attach point's matches a program, and what all of them share
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ir import Constant, If, Map, Program
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script import lexer, parser, tree
from gdb_optprobe.handlers.script.attach import AttachPoint, attach_point
from gdb_optprobe.handlers.script.body import Site
from gdb_optprobe.handlers.script.declared import Declared, Known, MapType
from gdb_optprobe.handlers.script.expressions import BUILTINS
from gdb_optprobe.handlers.script.place import wrong
from gdb_optprobe.handlers.script.preprocessor import preprocess
from gdb_optprobe.handlers.script.requests import Request
from gdb_optprobe.handlers.script.scope import Kernel, Matched, Unmatched, Unsupported
from gdb_optprobe.handlers.script.settings import Settings, configured
from gdb_optprobe.handlers.script.statements import Statements
from gdb_optprobe.handlers.script.types import Nothing

MOST_WALKS = 12
"""Walks that find types: each settles at least one map or variable that depends on the one before."""
LONGEST_NAME = 63
"""Characters of a probe's name in blocks, at least, so that those of several functions have keys of one type."""
HAS_TYPES = "BPFTRACE_HAVE_BTF"
_ATTACHED_BY_NAME = ("kprobe", "kretprobe", "uprobe", "uretprobe")
"""Providers of probes that bpftrace attaches by a name without a look at what there is."""


class NotAttached(OptprobeError):
    """A function that the guest does not have, and no other probe: bpftrace ends with the status of -1."""

    status = 255


@dataclass(frozen=True, slots=True)
class Attached:
    """One place where a probe of the script is attached, and what a hit does. address, location: as Matched's."""

    point: AttachPoint
    name: str
    program: Program
    address: int = 0
    location: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """probes: in the script's order, BEGIN and END among them. maps: by name with its at-sign, the types of each.

    requests: what the records of the ring ask, by their kind. warnings: of what is odd but right.
    """

    probes: tuple[Attached, ...]
    maps: dict[str, MapType]
    requests: tuple[Request, ...]
    settings: Settings
    warnings: tuple[str, ...] = ()

    def of(self, provider: str) -> tuple[Attached, ...]:
        """Return the probes of a provider, such as BEGIN."""
        return tuple(each for each in self.probes if each.point.provider == provider)

    @property
    def program_maps(self) -> tuple[Map, ...]:
        """Return the session's maps that the programs use."""
        return tuple(dict.fromkeys(map_ for each in self.probes for map_ in each.program.maps))


@dataclass(frozen=True, slots=True)
class _Probe:
    """A probe of the tree, and where it is attached. sample: a match to find types by, also where there is none.

    longest: characters of a match's name, at least; the length is one of `probe`'s type.
    """

    number: int
    node: tree.Probe
    matches: tuple[tuple[AttachPoint, Matched], ...]
    sample: tuple[AttachPoint, Matched]
    longest: int = 0


def compile_script(
    text: str,
    kernel: Kernel,
    parameters: Sequence[str] = (),
    settings: Settings | None = None,
    unsafe: bool = False,
    known: Known | None = None,
) -> Script:
    """Compile a script. Raises OptprobeError, pointing at the first fault.

    parameters: of `$1`, …. settings: the defaults, which the script's own replace. unsafe: `system` is allowed.
    known: of a session, where the probes stay in it.
    """
    defined = frozenset((HAS_TYPES,) if kernel.has_types() else ())
    found = preprocess(text, defined, kernel.has_header)
    script = parser.parse(lexer.tokens(found.lines, found.macros), parameters, BUILTINS.__contains__)
    declared = _declared(kernel, configured(settings or Settings(), script.settings), parameters, unsafe, known)
    for definition in script.definitions:
        declared.define(definition)
    probes = _matched(script, declared)
    _find_types(probes, declared)
    declared.final = True
    for probe in probes:
        if not probe.matches:
            _program(probe, *probe.sample, declared)  # its errors count too
    programs = tuple(
        Attached(point, match.name, _program(probe, point, match, declared), match.address, match.location)
        for probe in probes
        for point, match in probe.matches
    )
    maps = {name: found for name, found in sorted(declared.maps.items()) if not isinstance(found.value, Nothing)}
    if known is not None:
        maps = {name: found for name, found in maps.items() if name in _named(script)}
    return Script(programs, maps, tuple(declared.requests), declared.settings, tuple(declared.warnings))


def compile_block(
    text: str, provider: str, match: Matched, kernel: Kernel, settings: Settings, known: Known
) -> tuple[Program, dict[str, MapType]]:
    """Compile one block in braces for a probe that stays. Return its program, and the types of its maps.

    Raises OptprobeError, pointing at the first fault.
    """
    found = preprocess(f"do {text}", frozenset(), kernel.has_header)
    script = parser.parse(lexer.tokens(found.lines, found.macros), (), BUILTINS.__contains__)
    if len(script.probes) > 1 or script.definitions or script.settings:
        raise wrong("one block in braces is all that a probe does", script.probes[-1].where)
    declared = _declared(kernel, settings, (), False, known)
    node = script.probes[0]
    sample = AttachPoint(node.where, provider), match
    probe = _Probe(0, node, (sample,), sample, LONGEST_NAME)
    _find_types([probe], declared)
    declared.final = True
    program = _program(probe, *sample, declared)
    return program, {name: declared.maps[name] for name in _named(script)}


def _declared(
    kernel: Kernel, settings: Settings, parameters: Sequence[str], unsafe: bool, known: Known | None
) -> Declared:
    if known is None:
        return Declared(kernel, settings, parameters, unsafe)
    maps = {name: replace(found) for name, found in known.maps.items()}
    return Declared(kernel, settings, parameters, unsafe, stays=True, maps=maps, requests=known.requests)


def _named(script: tree.Script) -> set[str]:
    """Return the names of the maps in a script."""
    return {node.name for probe in script.probes for node in _nodes(probe) if isinstance(node, tree.Map)}


def _has_args(probe: tree.Probe) -> bool:
    """Return whether a probe uses a field of `args`."""
    return any(isinstance(node, tree.Name) and node.name == "args" for node in _nodes(probe))


def _nodes(probe: tree.Probe) -> Iterator[tree.Node]:
    """Yield all expressions and statements of a probe."""
    for each in (probe.predicate, *probe.body):
        if each is not None:
            yield from tree.nodes(each)


def _matched(script: tree.Script, declared: Declared) -> tuple[_Probe, ...]:
    """Return the probes with all their matches. A missing one is left out, with a warning, where others match."""
    found = []
    specials: list[str] = []
    total = 0
    first_missing: OptprobeError | None = None
    for number, probe in enumerate(script.probes):
        matches: list[tuple[AttachPoint, Matched]] = []
        points, has_args = [*map(attach_point, probe.points)], _has_args(probe)
        for point in points:
            if point.provider in ("BEGIN", "END"):
                if point.provider in specials:
                    raise wrong(f"More than one {point.provider} probe defined", point.where)
                specials.append(point.provider)
            here = declared.kernel.matches(point.provider, point.target, point.name, point.offset, has_args)
            if isinstance(here, Unsupported):
                raise _missing(point, here)
            if isinstance(here, Missing) or not here:
                missing = _missing(point, here if isinstance(here, Missing) else None)
                if declared.settings.missing_probes == "error":
                    raise missing
                first_missing = first_missing or missing
                if declared.settings.missing_probes == "warn":
                    why = f": {here.message}" if isinstance(here, Missing) and here.message else "."
                    declared.warnings.append(f"could not attach probe {point}, skipping{why}")
                continue
            # libc has what libpthread had: a list that names both has the function once, as in bpftrace.
            there = {each.name for other, each in matches if other.target != point.target}
            in_programs = point.provider in ("uprobe", "uretprobe")
            matches += [(point, each) for each in here if not in_programs or each.name not in there]
            declared.warnings += dict.fromkeys(each.note for each in here if each.note)
        total += len(matches)
        if total > declared.settings.max_probes:
            most = declared.settings.max_probes
            message = f"{total} probes are more than max_probes, {most}"
            raise wrong(message, probe.points[0].where, "config = { max_probes = N }")
        first = points[0]
        nowhere = declared.kernel.unmatched(first.provider, first.target, first.name)
        sample = matches[0] if matches else (first, Matched(str(first), nowhere))
        found.append(_Probe(number, probe, tuple(matches), sample))
    if not total:
        assert first_missing is not None
        raise first_missing
    return tuple(found)


def _missing(point: AttachPoint, why: Missing | None) -> OptprobeError:
    if why is not None and not isinstance(why, Unmatched):
        return wrong(why.message, point.where, why.hint)
    error = wrong(f"No probes to attach: nothing matches '{point}'", point.where, why.hint if why is not None else "")
    named = point.provider in _ATTACHED_BY_NAME and not point.has_wildcard
    return NotAttached(error.message, error.hint) if named else error


def _find_types(probes: Sequence[_Probe], declared: Declared) -> None:
    """Walk the probes until no type changes. The last walk finds all errors again."""
    for _ in range(MOST_WALKS):
        declared.changed = False
        for probe in probes:
            with suppress(OptprobeError):
                _program(probe, *probe.sample, declared)
        if not declared.changed:
            return


def _program(probe: _Probe, point: AttachPoint, match: Matched, declared: Declared) -> Program:
    found = _ungated(probe, point, match, declared)
    if match.gate is None:
        return found
    gate = match.gate(f"{probe.number} {match.name}")
    if not gate.statements and isinstance(gate.passes, Constant) and gate.passes.value:
        return found
    body = found.actions if found.condition is None else (If(found.condition, found.actions),)
    return Program(None, (*gate.statements, If(gate.passes, body)), quiet=True)


def _ungated(probe: _Probe, point: AttachPoint, match: Matched, declared: Declared) -> Program:
    """Return what a hit does that the probe's gate has let through."""
    longest = max(probe.longest, *(len(each.name) for _, each in probe.matches), 0)
    body = Statements(declared, Site(probe.number, match.name, longest, point.provider, match.hit))
    node = probe.node
    if node.predicate is None:
        body.carry_out(node.body)
        return Program(None, tuple(body.statements), quiet=True)
    test = body.truth(node.predicate, "predicate")
    before = tuple(body.statements)
    with body.apart() as statements:
        body.carry_out(node.body)
    if not before:
        return Program(test, tuple(statements), quiet=True)
    return Program(None, (*before, If(test, tuple(statements))), quiet=True)
