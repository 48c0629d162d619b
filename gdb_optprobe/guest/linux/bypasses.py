"""Functions that the kernel bypasses: a probe there counts fewer calls than expected, or none.

    __tracepoint_NAME ─► iterator: __traceiter_NAME            called where several functions are attached
                         funcs ──► func, data, priority; …; 0
    __SCK__tp_func_NAME ─► func: what the tracepoint's static call leads to: a single function is called directly
    __SCK__NAME ─────────► func: what any static call leads to now (include/linux/static_call_types.h)

The kernel does not keep the initial target of a static call: a function is taken for it if both have one name.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel

ITERATOR, TRACEPOINT, KEY, ATTACHED = "__traceiter_", "__tracepoint_", "__SCK__", "__SCK__tp_func_"
NOTHING = "__static_call_return0"
PREFIXES = ("", "__", "raw_", "native_")
"""What names of functions have before that of a static call. That of one which leads to native_… may be called pv_…."""
ROW, MOST = 24, 64


def may_be(kernel: Kernel, name: str) -> bool:
    """Return whether there is anything to find out about the function `name`: symbols tell, without memory."""
    return name.startswith(ITERATOR) or next(_keys(kernel, name), None) is not None


def note(kernel: Kernel, name: str, start: int) -> str:
    """Return why calls of the function `name` at `start` may bypass it, in words; "" where nothing is known."""
    try:
        if name.startswith(ITERATOR):
            return _iterator(kernel, name, start)
        return _replaced(kernel, name, start)
    except OptprobeError as error:
        return f"whether the kernel bypasses {name} is not known: {error.message}"


def _iterator(kernel: Kernel, name: str, start: int) -> str:
    event = name.removeprefix(ITERATOR)
    directly = kernel.symbols.address(f"{ATTACHED}{event}") is not None
    count = _attached(kernel, event, start)
    if count is not None and count > (1 if directly else 0):
        return ""
    several = "several functions are" if directly else "a function is"
    single = ", and calls a single one directly" if directly else ""
    now = "" if count is None else f"; now there {'are none' if not count else 'is one'}"
    return f"the kernel calls {name} only while {several} attached to the tracepoint {event}{single}{now}"


def _attached(kernel: Kernel, event: str, iterator: int) -> int | None:
    """Return the number of functions attached to the tracepoint; None where it is not known."""
    at = kernel.symbols.address(f"{TRACEPOINT}{event}")
    if at is None or kernel.structures is None:
        return None
    if kernel.word(at + kernel.offset("tracepoint", "iterator")) != iterator:
        return None
    row = kernel.word(at + kernel.offset("tracepoint", "funcs"))
    count = 0
    while row and count < MOST and kernel.word(row + ROW * count):
        count += 1
    return count


def _replaced(kernel: Kernel, name: str, start: int) -> str:
    for call, key in _keys(kernel, name):
        if found := _elsewhere(kernel, kernel.word(key), start):
            return f"where the kernel makes the static call {call}, {found}, not {name}: only direct calls count"
    return ""


def _keys(kernel: Kernel, name: str) -> Iterator[tuple[str, int]]:
    """Yield the static calls that may have the function `name` for their initial target, with their keys."""
    for stem in dict.fromkeys(name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)):
        for call in (stem, f"pv_{stem}"):
            key = kernel.symbols.address(f"{KEY}{call}")
            if key is not None:
                yield call, key


def _elsewhere(kernel: Kernel, target: int, start: int) -> str:
    """Return what a static call to `target` does, in words; "" where that is the function at `start`."""
    if target == start:
        return ""
    found = kernel.symbols.at(target) if target else None
    if found is None or found.name == NOTHING:
        return "nothing is called now"
    return f"{found.name} is called now" if not found.offset else ""
