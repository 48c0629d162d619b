"""How far the kernel has booted (init/main.c).

    start_kernel ─► kernel_init ─► initcalls ─► init text is freed, text is protected ─► rcu_end_inkernel_boot
    one thread,     the first                                                            ─► the first process
    text patched    thread

From the second place on probes may stop the guest. Memory is free for detours from the last one on: until then the
kernel frees, protects and checks the pages of its image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

BEFORE_INITCALLS = "kernel_init"
END = "rcu_end_inkernel_boot"
STATE = "system_state"
ENDED = "rcu_boot_ended"  # kernel/rcu/update.c
Read = Callable[[int, int], bytes]


class Symbols(Protocol):
    def address(self, name: str) -> int | None: ...


def has_initcalls_begun(symbols: Symbols, read: Read) -> bool | None:
    """Return whether the kernel is done with patching its own text; None where it has no symbol that tells."""
    return _is_set(symbols, STATE, read, size=4)


def has_ended(symbols: Symbols, read: Read) -> bool | None:
    """Return whether the kernel has booted; None where it has no symbol that tells."""
    return _is_set(symbols, ENDED, read, size=1)


def _is_set(symbols: Symbols, name: str, read: Read, size: int) -> bool | None:
    address = symbols.address(name)
    return any(read(address, size)) if address is not None else None
