"""Recognise the syntax of bpftrace, tracefs, perf and SystemTap, and say how it is written here. No GDB here.

    kprobe:vfs_read /comm == "dd"/ { @[pid] = count(); }     vfs_read if $comm == "dd" do count by $tgid
    r:name vfs_read                                          vfs_read -return
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.handlers.clauses import ACTIONS, is_block
from gdb_optprobe.handlers.source import Fragment, fault

_OF_BPFTRACE: Mapping[str, str] = {
    **dict.fromkeys(("kprobe", "k", "fentry", "kfunc", "f"), ""),
    **dict.fromkeys(("kretprobe", "kr", "fexit", "kretfunc", "fr"), " -return"),
    **dict.fromkeys(("uprobe", "u"), " -user"),
    **dict.fromkeys(("uretprobe", "ur"), " -user -return"),
}
"""The options of `add` for each kind of bpftrace's probes."""
_EVENTS: Mapping[str, str] = {
    **dict.fromkeys(("tracepoint", "t"), "tracepoint"),
    **dict.fromkeys(("rawtracepoint", "rt"), "rawtracepoint"),
}
"""Kinds of events, which are named here as there."""
_NOT_HERE: Mapping[str, str] = {
    **dict.fromkeys(("profile", "p", "interval", "i"), "optprobe run -for SECONDS, then optprobe report"),
    **dict.fromkeys(("software", "s", "hardware", "h"), "probe a function that handles the event"),
}
_NAMES: Mapping[str, str] = {
    "pid": "$tgid",
    "tid": "$pid",
    "uid": "$task->cred->uid.val",
    "gid": "$task->cred->gid.val",
    "comm": "$comm",
    "cpu": "$cpu",
    "nsecs": "$time",
    "curtask": "$task",
    "retval": "$retval",
}
"""bpftrace's names. Its pid is the kernel's tgid."""

_NAME = r"(?!\d)[\w.$*?\[\]-]+"
# The second word decides for the letters: `p:450` is a line of a file p.
_KIND = re.compile(rf"({'|'.join({**_OF_BPFTRACE, **_NOT_HERE, **_EVENTS})}):(?!\d)([^\s{{]+)\s*")
_OF_TRACEFS = re.compile(rf"(p|r\d*)(?::(?:\w+/)?([A-Za-z_]\w*))?(?:\s+((?:{_NAME}:)?{_NAME}(?:\+\w+)?))?(?:\s+\S.*)?")
_NOTHING_NAMED = re.compile(rf"({'|'.join(_OF_BPFTRACE)}|p|r\d*):")
_OF_PERF = re.compile(rf"({_NAME})%return\b.*")
_OF_STAP = re.compile(
    r"(?:probe\s+)?(kernel|module\(\"([\w-]+)\"\))\.function\(\"([^\"@]+)[^\"]*\"\)(\.\w+)?.*", re.DOTALL
)
_FILTER = re.compile(r"\s/(.*?)/\s*(?=\{|$)", re.DOTALL)
_STATEMENT = re.compile(
    r"@\w*(?:\[(?P<keys>[^\[\]]*)\])?\s*(?:=\s*(?P<call>\w+)\((?P<of>.*)\)|(?P<more>\+\+))"
    r"|printf\((?P<printed>.*)\)",
    re.DOTALL,
)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\bargs(?:->|\.)(?=\w)|(?<![\w$.>])[A-Za-z_]\w*')


def check_location(typed: Fragment, command: str) -> None:
    """Raise OptprobeError, with the line as it is written here, where a location is in a peer's syntax."""
    if all(event_name.parse(one) is not None for one in typed.text.split(",")):
        return
    found = _translated(typed.text)
    if found is None:
        return
    peer, where, clauses = found
    if not where:
        raise fault(f"this is the syntax of {peer}, and there is no such probe here", typed, clauses)
    line = f"{typed.line[: typed.start]}{where}{typed.line[typed.end :]}".strip()
    raise fault(f"this is the syntax of {peer}", typed, f"optprobe {command} {line}{clauses}")


def block_fault(typed: Fragment, command: str, has_condition: bool) -> OptprobeError | None:
    """Return the error for actions in bpftrace's syntax (`@[comm] = count()`); None where they are not.

    has_condition: there is one before, in C, which is none of a block in braces.
    """
    if is_block(typed.text):
        if not has_condition:
            return None
        hint = _actions(typed.text) or "in it, if (…) { … } is a statement"
        return fault("a block in braces has no condition before it", typed, hint)
    if not typed.text.startswith("@"):
        return None
    actions = _actions(typed.text)
    before = typed.line[: typed.start]
    hint = f"optprobe {command} {before}{actions or f'{{ {typed.text} }}'}"
    return fault("this is the syntax of bpftrace", typed, hint)


def _translated(text: str) -> tuple[str, str, str] | None:
    """Return the peer, the location with its options, and the clauses after it."""
    if found := _OF_STAP.fullmatch(text):
        module = f"{found[2]}:" if found[2] else ""
        return "SystemTap", f"{module}{found[3]}{' -return' if found[4] == '.return' else ''}", ""
    if found := _OF_PERF.fullmatch(text):
        return "perf", f"{found[1]} -return", ""
    if found := _NOTHING_NAMED.fullmatch(text):
        if found[1] in _OF_BPFTRACE:
            options = _OF_BPFTRACE[found[1]]
            return "bpftrace", f"{'BINARY:' if '-user' in options else ''}FUNCTION{options}", ""
        return "tracefs", f"FUNCTION{' -return' if found[1] != 'p' else ''}", ""
    if (found := _KIND.match(text)) and found[1] in _EVENTS:
        program, block = re.match(r"([^{]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
        return "bpftrace", f"{_EVENTS[found[1]]}:{found[2]}", _clauses(program, block, is_event=True)
    if found := _KIND.match(text):
        text = re.sub(rf",\s*{found[1]}:", ",", text)  # bpftrace repeats the kind with each of several locations
    program, block = re.match(r"([^{]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    clauses = _clauses(program, block)
    if (found := _KIND.match(text)) and len(found[1]) > 1:
        if found[1] in _NOT_HERE:
            return "bpftrace", "", _NOT_HERE[found[1]]
        return "bpftrace", f"{found[2]}{_OF_BPFTRACE[found[1]]}", clauses
    if found := _OF_TRACEFS.fullmatch(text):
        place = found[3] or found[2]
        return ("tracefs", f"{place}{' -return' if found[1] != 'p' else ''}", "") if place else None
    if found := _KIND.match(text):
        if found[1] in _OF_BPFTRACE:
            return "bpftrace", f"{found[2]}{_OF_BPFTRACE[found[1]]}", clauses
        return "bpftrace", "", _NOT_HERE[found[1]]
    return ("bpftrace", program.split()[0], clauses) if clauses and program.split() else None


def _clauses(program: str, block: str, is_event: bool = False) -> str:
    """Return `if …` for a filter between slashes, and `do …` for a block. is_event: `args` has the fields here too."""
    if is_event:
        program, block = (re.sub(r"\bargs\.(?=\w)", "args->", text) for text in (program, block))
    filtered = _FILTER.search(program)
    condition = f" if {_expression(filtered[1].strip(), is_event)}" if filtered and filtered[1].strip() else ""
    actions = _actions(block, is_event)
    return condition + (f" do {actions}" if actions else "")


def _actions(block: str, is_event: bool = False) -> str:
    """Return the actions for bpftrace's statements; "" where one of them is not known."""
    actions = []
    for statement in filter(None, (part.strip() for part in block.strip().strip("{}").split(";"))):
        found = _STATEMENT.fullmatch(statement)
        if found is None:
            return ""
        actions.append(_action(found, is_event))
    return ", ".join(actions) if all(actions) else ""


def _action(found: re.Match[str], is_event: bool) -> str:
    if found["printed"]:
        return f"print({_expression(found['printed'], is_event)})"
    call = "count" if found["more"] else found["call"]
    if call not in ACTIONS:
        return ""
    of = f"({_expression(found['of'], is_event)})" if found["of"] else ""
    keys = _expression(found["keys"] or "", is_event)
    return call + of + (f" by ({keys})" if "," in keys else f" by {keys}" if keys else "")


def _expression(text: str, is_event: bool = False) -> str:
    """Return an expression of bpftrace's with our names."""

    def ours(found: re.Match[str]) -> str:
        word = found[0]
        if word.startswith("args"):
            return word if is_event else ""
        if number := re.fullmatch(r"s?arg(\d)", word):
            return f"$arg{int(number[1]) + 1}"
        return _NAMES.get(word, word)

    return _WORD.sub(ours, text)
