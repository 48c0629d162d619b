"""How far the kernel has booted (init/main.c).

    start_kernel ─► kernel_init ─► initcalls ─► init text is freed, text is protected ─► rcu_end_inkernel_boot
    one thread,     the first                                                            ─► the first process
    text patched    thread

From the second place on probes may stop the guest. Memory is free for detours from the last one on: until then the
kernel frees, protects and checks the pages of its image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

END = "rcu_end_inkernel_boot"
STATE = "system_state"
ENDED = "rcu_boot_ended"  # kernel/rcu/update.c
Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a kernel has patched its own text: a function's symbol, and what comes then, in words.

    state: the least `system_state` that it is in some time after that, and never before.
    """

    symbol: str
    what: str
    state: int


INITCALLS = Beginning("kernel_init", "its first initcall", 1)
DRIVERS = Beginning("driver_init", "its first driver", 2)
"""Of kernels that patch their text once all CPUs are there, behind the initcalls that come before."""


class Symbols(Protocol):
    def address(self, name: str) -> int | None: ...


def is_behind(beginning: Beginning, symbols: Symbols, read: Read) -> bool | None:
    """Return whether the kernel is done with patching its own text; None where it has no symbol that tells."""
    found = _value(symbols, STATE, read, size=4)
    return found >= beginning.state if found is not None else None


def has_ended(symbols: Symbols, read: Read) -> bool | None:
    """Return whether the kernel has booted; None where it has no symbol that tells."""
    found = _value(symbols, ENDED, read, size=1)
    return bool(found) if found is not None else None


def _value(symbols: Symbols, name: str, read: Read, size: int) -> int | None:
    address = symbols.address(name)
    return int.from_bytes(read(address, size), "little") if address is not None else None
