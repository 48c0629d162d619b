"""An assignment of an event's fields as a kernel has it, on Unicorn, between a handler and its gates: of any ISA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import unicorn

from gdb_optprobe.guest.linux.event_fields import EventField, EventFormat, FileLayout

CODE, GATES, KERNEL, DATA, STACK = range(0x10_0000, 0x60_0000, 0x10_0000)
COMMITS = GATES + 0x100
RESERVE, COMMIT, ASSIGNS, CALLER = KERNEL, KERNEL + 0x100, KERNEL + 0x200, KERNEL + 0x300
MISSED, HEAP, TOP = DATA, DATA + 0x100, STACK + 0x8000
LAYOUT = FileLayout(call=16, trace=40, filter=24, flags=72, size=128, buffer_file=16, buffer_entry=24)
FIELD = EventField("number", "int", 8, 4, signed=True)
NUMBER, KEPT = 4242, 77
"""The second argument of the assignment, and what a register holds that a call may not change."""


@dataclass(frozen=True)
class Processor:
    """new: makes one. number: Unicorn's of a register. kept: one that a call may not change.

    arguments: the first three of a call. popped: bytes that a return takes off the stack.
    """

    new: Callable[[], Any]
    number: Callable[[str], int]
    pc: str
    sp: str
    kept: str
    arguments: tuple[str, str, str]
    result: str
    popped: int = 0


@dataclass(frozen=True)
class Assigning:
    """A kernel's assignment of an event. code: by address, but for the handler, which has (code, probed, frame).

    state: other registers where the handler is called.
    """

    processor: Processor
    event: EventFormat
    handler: tuple[bytes, int, int]
    code: Mapping[int, bytes]
    state: Mapping[str, int] = field(default_factory=dict)

    def called(self) -> Ran:
        """Return a machine that is about to call the handler, from CALLER."""
        machine, processor = self.processor.new(), self.processor
        for page in (CODE, GATES, KERNEL, DATA, STACK):
            machine.mem_map(page, 0x1_0000)
        for at, held in {CODE: self.handler[0], **self.code}.items():
            machine.mem_write(at, held)
        run = Ran(machine, processor, self.event, CODE + self.handler[1])
        first, second, _ = processor.arguments
        run.set({processor.sp: TOP, first: 1, second: NUMBER, processor.kept: KEPT, **self.state})
        return run


@dataclass
class Ran:
    """probed: the address that a probe is at."""

    machine: Any
    processor: Processor
    event: EventFormat
    probed: int

    def register(self, name: str) -> int:
        return int(self.machine.reg_read(self.processor.number(name)))

    def set(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            self.machine.reg_write(self.processor.number(name), value)

    def word(self, at: int, size: int = 8) -> int:
        return int.from_bytes(self.machine.mem_read(at, size), "little")

    def go(self, start: int, until: int) -> None:
        self.machine.emu_start(start, until, count=1000)

    def has_returned(self) -> bool:
        """Whether the handler's caller has all back."""
        names = self.processor.pc, self.processor.sp, self.processor.kept
        return [*map(self.register, names)] == [CALLER, TOP + self.processor.popped, KEPT]


def check_a_probe_sees_the_entry(run: Ran) -> None:
    """And the caller gets all back."""
    run.go(CODE, run.probed)
    assert run.register(run.processor.pc) == run.probed
    file = run.register(run.processor.sp)
    assert run.word(file + run.event.entry + FIELD.offset, 4) == NUMBER
    assert (run.word(file + LAYOUT.call), run.word(file + LAYOUT.trace)) == (run.event.call, run.event.trace)
    assert run.word(file + LAYOUT.flags) == 0, "no trigger, no filter: the kernel's own functions would do no harm"
    run.go(run.probed, CALLER)
    assert run.has_returned() and run.word(MISSED) == 0


def check_an_entry_without_room_is_counted_and_not_probed(run: Ran) -> None:
    passed: list[int] = []
    run.machine.hook_add(unicorn.UC_HOOK_CODE, lambda _, at, size, data: passed.append(at))
    run.go(CODE, CALLER)
    assert run.has_returned() and run.probed not in passed and run.word(MISSED) == 1


def check_the_kernels_own_files_pass_the_gates(run: Ran, size: int) -> None:
    """A file without our mark: the kernel's functions run, with their arguments."""
    first, second, third = run.processor.arguments
    passed: list[tuple[int, int, int]] = []

    def note(_: object, at: int, size: int, data: object) -> None:
        if at in (RESERVE, COMMIT):
            passed.append((at, run.register(second), run.register(third)))
        if at == RESERVE:  # as the kernel's own function does
            run.machine.mem_write(run.register(first) + LAYOUT.buffer_file, HEAP.to_bytes(8, "little"))
            run.set({run.processor.result: HEAP + 0x400})

    run.machine.hook_add(unicorn.UC_HOOK_CODE, note)
    run.set({first: HEAP, second: 5})
    run.go(ASSIGNS, CALLER)
    assert [at for at, *_ in passed] == [RESERVE, COMMIT]
    assert passed[0][1:] == (HEAP, size) and run.word(HEAP + 0x408, 4) == 5
