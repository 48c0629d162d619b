"""Sourced into GDB by tests: `guest-evaluate FUNCTION ACTION` interprets an action where the guest stands.

FUNCTION is the one at whose entry the selected vCPU is. Printed is JSON: the data of a record or a key, as hexadecimal
digits; null for a fault.
"""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.scope import Site, kernel_scope
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.handlers.compile import compile_handler
from gdb_optprobe.handlers.interpreter import Hit, run
from gdb_optprobe.handlers.source import Fragment


class GuestEvaluate(gdb.Command):
    def __init__(self) -> None:
        super().__init__("guest-evaluate", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        function, action = argument.split(maxsplit=1)
        session = current_session()
        assert attachments.current is not None and attachments.current.linux is not None
        linux, isa = attachments.current.linux, session.target.guest.isa
        linux.forget()
        vcpu = linux.machine.selected()
        registers = linux.machine.registers(vcpu, isa.registers)
        site = Site(registers[isa.pc], function, entry=True)
        try:
            types = BtfTypes(linux.structures.btf)
        except OptprobeError:
            types = None
        scope = kernel_scope(linux.kernel, linux.arch.current(linux.kernel), types, abi.of(isa), site)
        per_cpu = PerCpu.of(linux.kernel).bases[vcpu.number] if types is not None else 0
        try:
            program = compile_handler(None, [Fragment.whole(action)], scope)
        except OptprobeError as error:
            raise gdb.GdbError(f"{error.message}\nHINT: {error.hint}") from None
        outcome = run(program, Hit(registers, linux.memory.read, per_cpu))
        gdb.write(json.dumps(outcome.done[0].data.hex() if outcome.done else None) + "\n")


GuestEvaluate()
