"""What leaves the process, as text in files: JSON, saved files, names, the journal and what else is in guest memory.

Other programs, and a later GDB in the same guest, read it. Names inside may change: then these files stay as they are.
They are no Python, so that a script which renames things does not reach them.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def golden(name: str) -> str:
    """Return the text that is to leave."""
    return (FOLDER / name).read_text(encoding="utf-8")
