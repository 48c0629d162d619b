"""Call a function of the guest, natively: the guest itself saves, calls, restores and goes on.

    safe point (a function's first instruction)        thunk (code)                   cell (data)
    ┌──────────────┐   we set one vCPU's PC            ┌─────────────────────────┐    ┌────────────┐
    │ …            │ ────────────────────────────────► │ save all registers      │    │ six        │
    │              │                                   │ load arguments ◄────────┼────┤ arguments  │
    │              │                                   │ call function           │    │ result     │
    │              │                                   │ store result, restore ──┼───►│ done mark  │
    │              │ ◄─────────────────────────────────┤ done: jmp safe point    │    └────────────┘
    └──────────────┘                                   └─────────────────────────┘
Whatever happens to the debugger in the middle, the guest finishes the call and runs the safe point's own code. The
function may sleep and come back on another vCPU: only the calling thread ever reaches `done`, and the vCPU that is seen
there is the one whose PC goes back. Segment bases and control registers are never touched.

A safe point must be one where the thread may sleep, such as the entry of `schedule_timeout`, which an idle guest
reaches too; it is passed over while interrupts are off or preemption is disabled there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.machine import Machine, Vcpu

INTERRUPTS = 1 << 9  # eflags.IF
ARGUMENTS, RESULT, DONE, CELL_SIZE = 0, 48, 56, 64
TRIES = 64

# pushfq; push %rax … %r15 (but %rsp)
_SAVE = bytes.fromhex("9c 50 51 52 53 55 56 57 4150 4151 4152 4153 4154 4155 4156 4157")
_RESTORE = bytes.fromhex("415f 415e 415d 415c 415b 415a 4159 4158 5f 5e 5d 5b 5a 59 58 9d")
# mov disp(%rip) to %rdi, %rsi, %rdx, %rcx, %r8, %r9: the C calling convention (System V ABI, AMD64 3.2.3)
_LOADS = tuple(bytes.fromhex(code) for code in ("488b3d", "488b35", "488b15", "488b0d", "4c8b05", "4c8b0d"))


class CallFailed(OptprobeError):
    """The guest was not brought to call a function. unfinished: it is still at it, and the thunk is still in use."""

    def __init__(self, message: str, hint: str = "", unfinished: bool = False) -> None:
        super().__init__(message, hint)
        self.unfinished = unfinished


@dataclass(frozen=True, slots=True)
class Thunk:
    """Code for one call. done: the address of its last instruction, where everything is as it was at `safe_point`."""

    address: int
    data: bytes
    done: int
    cell: int
    safe_point: int


def thunk(address: int, cell: int, function: int, safe_point: int) -> Thunk:
    """The thunk at `address` that calls `function` with what `cell` holds and goes to `safe_point`. Raises CallFailed.

    The call is direct, so that `function` needs no landing pad (IBT).
    """
    code = bytearray()

    def relative(opcode: bytes, target: int, behind: bytes = b"") -> None:
        end = address + len(code) + len(opcode) + 4 + len(behind)
        try:
            code.extend(opcode + (target - end).to_bytes(4, "little", signed=True) + behind)
        except OverflowError:
            raise CallFailed(f"{target:#x} cannot be reached from a call thunk at {address:#x}") from None

    code += _SAVE
    code += bytes.fromhex("4889e5 4883e4f0 fc")  # mov %rsp, %rbp; and $-16, %rsp; cld
    for number, load in enumerate(_LOADS):
        relative(load, cell + ARGUMENTS + 8 * number)
    relative(b"\xe8", function)
    relative(bytes.fromhex("488905"), cell + RESULT)  # mov %rax, result(%rip)
    code += bytes.fromhex("4889ec") + _RESTORE  # mov %rbp, %rsp
    relative(bytes.fromhex("48c705"), cell + DONE, behind=(1).to_bytes(4, "little"))  # movq $1, done(%rip)
    done = address + len(code)
    relative(b"\xe9", safe_point)
    return Thunk(address, bytes(code), done, cell, safe_point)


def call(
    machine: Machine,
    to: Thunk,
    args: Sequence[int],
    timeout: float,
    may_sleep: Callable[[Vcpu], bool] = lambda vcpu: True,
) -> int:
    """What the function returns. The thunk must stand in guest memory already, its cell must be 64 writable bytes.

    may_sleep: asked of a vCPU at the safe point, whether its thread may sleep now (guest/linux/preemption.py).
    Raises CallFailed.
    """
    if len(args) > len(_LOADS):
        raise CallFailed(f"{len(args)} arguments do not fit into registers")
    if machine.read(to.address, len(to.data)) != to.data:
        raise CallFailed(f"the thunk at {to.address:#x} is not what was written there")
    deadline = time.monotonic() + timeout
    vcpu = _safe_vcpu(machine, to, deadline, may_sleep)
    words = [*args, *[0] * (len(_LOADS) - len(args)), 0, 0]
    machine.write(to.cell, b"".join((word % (1 << 64)).to_bytes(8, "little") for word in words))
    machine.write_registers(vcpu, {"rip": to.address})
    back = machine.run_until([to.done], max(deadline - time.monotonic(), 0.1))
    if back is None:
        raise CallFailed(
            f"the guest has not come back from a call within {timeout:g} s; it will go on by itself when it does",
            "let the guest run on, then try again",
            unfinished=True,
        )
    cell = machine.read(to.cell, CELL_SIZE)
    # All is restored at `done`; with the PC at the safe point nobody is in the thunk any more.
    machine.write_registers(back, {"rip": to.safe_point})
    if int.from_bytes(cell[DONE : DONE + 8], "little") != 1:
        raise CallFailed("the guest came back from a call without having made it")
    return int.from_bytes(cell[RESULT : RESULT + 8], "little")


def _safe_vcpu(machine: Machine, to: Thunk, deadline: float, may_sleep: Callable[[Vcpu], bool]) -> Vcpu:
    for _ in range(TRIES):
        left = deadline - time.monotonic()
        vcpu = machine.run_until([to.safe_point], left) if left > 0 else None
        if vcpu is None:
            raise CallFailed(
                f"no thread of the guest reached {to.safe_point:#x}, where a function could be called",
                "let the guest do something, then try again",
            )
        flags = machine.registers(vcpu, ["eflags"])["eflags"]
        if flags & INTERRUPTS and may_sleep(vcpu):
            return vcpu
    raise CallFailed(f"every thread that reached {to.safe_point:#x} had interrupts or preemption off")
