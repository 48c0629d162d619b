"""Sourced into GDB by tests: `guest-call FUNCTION [ARGUMENT...]` calls a guest's function and prints the result."""

from __future__ import annotations

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import page_tables
from gdb_optprobe.guest.linux.arch.x86_64.padding import free_slot
from gdb_optprobe.guest.linux.arch.x86_64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.native_call import Caller
from gdb_optprobe.isa.x86_64.calling import CALLING


class GuestCall(gdb.Command):
    """Call a function of the guest natively, from a thread that may sleep."""

    def __init__(self) -> None:
        super().__init__("guest-call", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        name, *words = argument.split()
        current_session()
        attachment = attachments.current
        assert attachment is not None and attachment.linux is not None
        kernel, machine = attachment.linux.kernel, attachment.machine
        start, end = free_slot(machine, kernel, page_tables(machine, kernel)).thunk
        before = kernel.read(start, end)
        caller = Caller(machine, kernel.memory, CALLING, SafePoints(machine, kernel, VCPUS), (start, end))
        caller.reach(20)
        result = caller.call(kernel.address(name), [int(word, 0) for word in words], 20)
        assert kernel.read(start, end) == before
        gdb.write(f"returned {result:#x}\n")


GuestCall()
