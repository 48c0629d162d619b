"""Kprobes from outside the guest. Inside GDB, `from gdb_optprobe import kprobe, kretprobe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdb_optprobe.debugger.api import kprobe as kprobe
    from gdb_optprobe.debugger.api import kretprobe as kretprobe

__all__ = ["__version__", "kprobe", "kretprobe"]

__version__ = "0.1"


def __getattr__(name: str) -> Any:
    """Import the API when it is first used. It needs the module `gdb`; the layers below do not."""
    if name not in ("kprobe", "kretprobe"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gdb_optprobe.debugger import api

    return getattr(api, name)
