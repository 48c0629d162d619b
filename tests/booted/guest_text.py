"""Sourced into GDB by tests: `guest-text` finds out all about the guest's text anew and prints it as JSON.

landings:  how many start in the text, and a checksum over all of them.
sources:   some jumps that land inside other functions, as "name+offset", for kprobes of the guest's.
compared:  how many branches between functions were decoded one by one, from functions spread over all the text.
missing:   those of them that nothing knows about where they land.
areas:     what some functions are; `complete`: whether all is known of what leads into some others.
marks:     what the guest rewrites.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.text import Jump
from gdb_optprobe.isa.base import Flow

EVERY = 20
AREAS = ("vfs_read", "startup_64", "verify_cpu", "relocate_kernel", "swap_pages", "core_restore_code", "ftrace_caller")
COMPLETE = ("vfs_read", "copy_user_generic_string", "retbleed_return_thunk", "srso_safe_ret")


def facts() -> dict[str, Any]:
    current_session()
    assert attachments.current is not None and attachments.current.linux is not None
    linux = attachments.current.linux
    text = KernelText(linux.kernel, linux.isa)
    symbols = linux.recovered.symbols
    landings = text.all_entries()
    crossing = list(_crossing(text))
    jumps = [jump for jump in landings.within(0, 2**64) if jump.kind == Flow.JUMP.value]
    trampolines = linux.kernel.range("__static_call_text_start", "__static_call_text_end")
    start = linux.kernel.address("_text")
    end = linux.kernel.address("_etext")
    rows = [(j.source - start, j.target - start, j.kind) for j in landings.within(0, 2**64) if j.source < end]
    return {
        "landings": [len(rows), zlib.crc32(repr(rows).encode())],
        "sources": [_named(jump.source) for jump in jumps[:: len(jumps) // 16]],
        "compared": len(crossing),
        "missing": [repr(jump) for jump in crossing if not _known(text, jump)],
        "areas": {name: text.area(at).value for name in AREAS if (at := symbols.address(name)) is not None},
        "complete": {name: _is_complete(text, at) for name in COMPLETE if (at := symbols.address(name)) is not None},
        "marks": {
            "trampoline": [mark.fact.name for mark in text.marks(trampolines[0], trampolines[0] + 5)],
            "dispatcher": [
                mark.fact.name for at in symbols.lookup("bpf_dispatcher_xdp_func") for mark in text.marks(at, at + 5)
            ],
        },
    }


def _crossing(text: KernelText) -> Iterator[Jump]:
    """Direct branches from one function into the middle of another, decoded function by function."""
    assert attachments.current is not None and attachments.current.linux is not None
    symbols = attachments.current.linux.recovered.symbols
    first, last = attachments.current.linux.kernel.range("_stext", "_etext")
    for symbol in list(symbols.functions())[::EVERY]:
        function = text.function(symbol.address) if first <= symbol.address < last else None
        for insn in function.hot if function is not None else ():
            bounds = symbols.function_bounds(insn.target) if insn.target is not None else None
            if insn.target is not None and bounds is not None and bounds[0] not in (insn.target, symbol.address):
                yield Jump(insn.address, insn.target, insn.flow.value)


def _known(text: KernelText, jump: Jump) -> bool:
    function = text.function(jump.target)
    return function is None or jump in function.whole.jumps


def _is_complete(text: KernelText, address: int) -> bool:
    function = text.function(address)
    return function is not None and function.whole.complete


def _named(address: int) -> str:
    assert attachments.current is not None and attachments.current.linux is not None
    return str(attachments.current.linux.recovered.symbols.at(address))


class GuestText(gdb.Command):
    """Print what is known of the guest's text."""

    def __init__(self) -> None:
        super().__init__("guest-text", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        gdb.write(json.dumps(facts()) + "\n")


GuestText()
