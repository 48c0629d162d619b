"""Refuse actions that no pass exists for yet, pointing at them, before anything is looked up in the guest.

What is not compiled is never evaluated in GDB instead: it would stop the guest at every hit.
"""

from __future__ import annotations

import difflib

from gdb_optprobe.handlers.source import Fragment, fault

_ACTIONS = ("count", "sum", "min", "max", "avg", "hist", "lhist", "latency", "record", "print", "stack", "stop")


def check_action(action: Fragment) -> None:
    """Raises OptprobeError for an action that there is not."""
    name = action.first_word()
    if name.text not in _ACTIONS:
        close = difflib.get_close_matches(name.text, _ACTIONS, 1)
        hint = f"did you mean '{close[0]}'?" if close else f"the actions are {', '.join(_ACTIONS)}"
        raise fault(f"no action named '{name.text}'", name, hint)
