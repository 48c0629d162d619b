"""Refuse what no compiler pass exists for yet, pointing at it, before anything is looked up in the guest.

A condition or an action that is not compiled is never evaluated in GDB instead: it would stop the guest at every hit.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gdb_optprobe.handlers.source import Fragment, fault

_LATER = ("hist", "latency", "print", "stop")
_ACTIONS = ("count", *_LATER)
_INSTEAD = {"stop": "GDB's own break stops there, at every hit", "print": "GDB's own dprintf prints, at every hit"}


def check(condition: Fragment | None, actions: Sequence[Fragment]) -> None:
    """Raises OptprobeError for the first thing that cannot be compiled."""
    if condition is not None:
        raise fault("conditions are not compiled yet", condition, "without one, the probe counts every hit")
    for action in actions:
        _check_action(action)


def check_text(condition: str, actions: Sequence[str]) -> None:
    """The same for parts that come one by one, from Python."""
    check(Fragment.whole(condition) if condition.strip() else None, [Fragment.whole(action) for action in actions])


def _check_action(action: Fragment) -> None:
    name = action.first_word()
    if name.text not in _ACTIONS:
        close = difflib.get_close_matches(name.text, _ACTIONS, 1)
        hint = f"did you mean '{close[0]}'?" if close else f"the actions are {', '.join(_ACTIONS)}"
        raise fault(f"no action named '{name.text}'", name, hint)
    if name.text in _LATER:
        raise fault(f"the action '{name.text}' is not compiled yet", action, _INSTEAD.get(name.text, "do count"))
    rest = Fragment(action.line, name.end, action.end).stripped()
    if rest.text:
        raise fault("count by a key is not compiled yet" if _is_by(rest) else "count takes nothing", rest, "do count")


def _is_by(rest: Fragment) -> bool:
    return rest.first_word().text == "by"
