"""Sourced into GDB by tests: `guest-call FUNCTION [ARGUMENT...]` calls a guest's function and prints the result."""

from __future__ import annotations

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.guest.call import CELL_SIZE, call, thunk
from gdb_optprobe.guest.linux import preemption

LARGEST_THUNK = 256


class GuestCall(gdb.Command):
    """Call a function of the guest natively, from a thread that may sleep."""

    def __init__(self) -> None:
        super().__init__("guest-call", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        name, *words = argument.split()
        session = current_session()
        attachment = attachments.current
        assert attachment is not None and attachment.linux is not None
        kernel, machine, isa = attachment.linux.kernel, attachment.machine, session.target.isa
        arena = session.optimizer.take_arena()
        assert arena is not None
        safe_point = kernel.address("schedule_timeout")
        code = arena.allocate_code(LARGEST_THUNK, safe_point, isa.branch_reach)
        cell = arena.allocate_data(CELL_SIZE, safe_point, isa.branch_reach)
        made = thunk(code.address, cell.address, kernel.address(name), safe_point)
        machine.write(made.address, made.data)
        result = call(
            machine,
            made,
            [int(word, 0) for word in words],
            20,
            lambda vcpu: preemption.may_sleep(machine, kernel, vcpu),
        )
        arena.wipe([code], machine)
        arena.code.give_back(code)
        arena.data.give_back(cell)
        gdb.write(f"returned {result:#x}\n")


GuestCall()
