"""Why an address gets no better tier, or none at all: the closed list.

A member is a reason's code, its text and the next step. Codes may be added, never renamed: programs read them.
Texts take facts by name, `Refusal.FTRACE_IN_USE.because(site="…")`; addresses come in already spelled with their
symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from gdb_optprobe.errors import OptprobeError


@dataclass(frozen=True, slots=True)
class Reason:
    """A refusal with its facts: `code` for programs, `text` and `hint` for people.

    The words are made when they are read: a sweep over a kernel's code makes millions of reasons, and reads none.
    """

    code: str
    wording: str
    advice: str = ""
    facts: tuple[tuple[str, object], ...] = ()

    @property
    def text(self) -> str:
        return self.wording.format(**dict(self.facts)) if self.facts else self.wording

    @property
    def hint(self) -> str:
        return self.advice.format(**dict(self.facts)) if self.facts else self.advice

    def __str__(self) -> str:
        return f"{self.text}; {self.hint}" if self.hint else self.text

    def behind(self, first: Reason) -> Reason:
        """Return this reason with the text of `first` before it, which has ruled out a better tier, and its hint."""
        return Reason(self.code, f"{first.text}, and {self.text}", first.hint or self.hint)


@dataclass(frozen=True, slots=True)
class Spelled:
    """An address that is spelled with its symbol when it is read."""

    spell: Callable[[int], str]
    address: int

    def __str__(self) -> str:
        return self.spell(self.address)


class Refusal(Enum):
    """The closed list: of each code the text and the hint."""

    # Wishes: of the user, of a handler.
    TIER_FORCED = ("the tier {tier} was asked for", "add the probe without -tier")
    OPTIMIZATION_OFF = ("optimization is switched off", "set optprobe optimization on")
    BOOST_OFF = ("boosting is switched off", "set optprobe boost on")
    EMULATION_OFF = ("emulation is switched off", "set optprobe emulation on")
    TRAP_OFF = ("the trapped tier is switched off", "set optprobe trap on")
    PYTHON_HANDLER = ("a Python handler runs only while the guest is stopped", "use an action in place of the handler")
    POST_HANDLER = ("a post_handler must run right after the instruction", "use a pre_handler or an action")
    USER_BREAKPOINT = ("your breakpoint at {breakpoint} must stop there", "delete the breakpoint")

    # The address.
    NOT_TEXT = ("{address} is not in the guest's code", "probe an address inside a function")
    UNKNOWN_FUNCTION = ("no symbol says which function {address} belongs to", "load symbols for that code")
    NOT_INSTRUCTION_BOUNDARY = ("{address} is in the middle of the instruction at {start}", "probe {start}")
    UNDECODABLE = ("the code at {address} cannot be decoded", "")
    PADDING = ("{address} is padding behind a function's code: nothing leads there", "")
    ENTRY_TEXT = (
        "{address} is entry text, which runs before the kernel's own state is set up",
        "probe the C function it calls",
    )
    EARLY_TEXT = ("{address} runs before the kernel's page tables are set up", "")
    COPIED_TEXT = ("{address} is a template that the kernel copies elsewhere and compares", "")
    RESERVATION = (
        "{address} is between a load that reserves memory and its store, which would fail for ever",
        "probe the load, or behind the store",
    )
    KERNEL_TRAP = ("{address} holds a trap that the kernel knows by its address", "probe what leads there")
    MACHINE_STATE = (
        "the instruction at {address} enters or leaves the kernel, or changes the machine's state",
        "probe an instruction before it",
    )
    MODULE_TEXT = (
        "{address} is in memory for modules, and in no loaded module's text that is known",
        "name what is meant, and have the probe wait for the module: optprobe add MODULE:FUNCTION -pending",
    )
    MODULE_TABLES = (
        "the module of {address} has no BTF: what the kernel rewrites there, or knows by its address, is not known",
        "a breakpoint needs no more than the instruction there",
    )
    MODULE_GONE = (
        "the module {module} was unloaded",
        "load it again: the probe comes back with what it has counted, unless it was given by address",
    )
    PENDING = ("{location} is not there yet{why}", "it comes as soon as its module is loaded")
    KERNEL_PENDING = (
        "{location} waits for the guest's kernel to start{why}",
        "let the guest run: it goes in before the kernel starts drivers, or, where those have started, once it has "
        "booted, and counts nothing of what ran before",
    )
    INIT_TEXT = ("{address} is init text, which is freed once it has run", "")
    FOREIGN_BREAKPOINT = (
        "{address} holds a breakpoint instruction that is not optprobe's",
        "remove the guest's own probe or the other debugger's breakpoint",
    )
    FOREIGN_JUMP = (
        "the jump at {address} leaves for memory that is no known code: a patch of the guest's own",
        "remove the guest's own probe",
    )
    FOREIGN_KPROBE = (
        "the guest's own kprobe at {address} may write here at any time",
        "remove the guest's own probe",
    )
    FOREIGN_PATCH = (
        "{address} holds a patch that is not optprobe's, and the code beneath and behind it is not known{why}",
        "remove the guest's own probe or the other debugger's breakpoint",
    )
    STEP_RUNS_ON = (
        "GDB's step over {insn} at {address} may run on to a store elsewhere, and miss hits meanwhile",
        "probe another instruction",
    )

    # The bytes the branch would cover.
    TOO_SHORT = ("the instruction has {size} bytes and the branch needs {needed}", "probe {near} instead")
    FUNCTION_END = ("the branch would reach beyond the end of {function}", "probe an earlier instruction")
    LANDINGS_UNKNOWN = (
        "what leads into {function} cannot be found out: {missing}",
        "probe an instruction of at least {needed} bytes",
    )
    JUMP_INTO_REGION = ("a {kind} at {source} lands at {target}, inside the bytes the branch would cover", "")
    RETURN_INTO_REGION = ("the call at {source} returns to {target}, inside the bytes the branch would cover", "")
    INDIRECT_JUMP = (
        "the indirect jump at {source} may land inside the bytes the branch would cover",
        "probe an instruction of at least {needed} bytes",
    )
    EXCEPTION_TABLE = ("the kernel recovers from a fault of the instruction at {address} by its address", "")
    RESTARTED = (
        "{address} is in a sequence that the kernel starts again, by its address, when an interrupt comes in it",
        "probe an instruction before or behind it",
    )
    FTRACE_IN_USE = ("a tracer of the guest's own is attached at {site}", "switch the guest's tracer off")
    FTRACE_SITE = ("the bytes reach into the tracer's site at {site}", "probe {site} instead")
    FTRACE_CHANGED = (
        "the tracer's site at {site} holds neither a nop nor a call that its record explains",
        "remove the guest's own probe, or that of an earlier GDB",
    )
    JUMP_LABEL = ("the kernel rewrites the jump label at {address} at any time", "")
    STATIC_CALL = ("the kernel rewrites the static call at {address} at any time", "")
    BARRIER = ("the kernel switches the barrier at {address} on and off at any time", "probe the next instruction")
    LOCK_PREFIX = ("the kernel rewrites the lock prefix at {address} when a second CPU comes", "")
    BUG_TABLE = ("the kernel recognises the trap at {address} by its address", "")
    OVERLAPS_PROBE = (
        "probe {number} at {other} stops the guest there, and its instruction must stay in place",
        "delete probe {number}",
    )

    # The instructions it would move.
    TRAP_INSTRUCTION = ("{insn} at {address} is a trap", "")
    SYSTEM_INSTRUCTION = ("{insn} at {address} enters or leaves the kernel", "")
    LANDING_PAD = ("the landing pad at {address} must be found by indirect branches as it is", "probe {next} instead")
    INTERRUPT_SHADOW = ("{insn} at {address} holds off interrupts for one instruction", "")
    NOT_RELOCATABLE = ("{insn} at {address} {hazard}", "")
    OUT_OF_REACH = (
        "{insn} at {address} refers to memory that cannot be reached from a detour",
        "set optprobe arena to a range that is nearer",
    )
    NOT_EMULATED = ("{insn} is not an instruction that is emulated", "")

    # Return probes.
    RETURN_NOT_ENTRY = ("{address} is not where a function is entered", "probe the function itself")
    RETURN_UNTRACED = (
        "{function} has no tracer's site, and nothing shows that it is entered by calls and returns to its caller",
        "probe its entry: without -return",
    )
    RETURN_NEVER = ("{function} never returns", "probe its entry: without -return")
    RETURN_ELSEWHERE = ("{function} returns on another stack than its caller's", "probe its entry: without -return")
    RETURN_NOT_BUILT = ("return probes are not built for this guest yet: {missing}", "")

    # Tracepoints.
    TRACEPOINTS_MISSING = (
        "no function can be registered on a tracepoint: {why}",
        "probe a function that passes the event; system calls are tracepoint:syscalls:sys_enter_NAME",
    )
    EVENT_FIELDS_MISSING = (
        "how the kernel assigns the fields of {event} is not known: {why}",
        "rawtracepoint:NAME has the arguments, by their names and as $arg1, …",
    )

    # The moment and the memory.
    NOT_QUIESCENT = ("{owner} is inside the bytes now, at {pc}", "let the guest run: it is tried again at every stop")
    STACKS_UNKNOWN = (
        "a branch over several instructions needs every thread's stack, and {missing}",
        "probe an instruction of at least {needed} bytes",
    )
    ARENA_MISSING = ("there is no memory for detours: {why}", "set optprobe arena code=START-END data=START-END")
    BOOTING = (
        "the guest's kernel is booting: none of its memory is free for detours yet",
        "let the guest run: it is tried again before the first process runs",
    )
    ARENA_FULL = (
        "the memory for detours is full ({used} of {size} bytes in use)",
        "delete probes, or set optprobe arena",
    )
    ARENA_OUT_OF_REACH = (
        "no free memory for detours is within reach of {address}",
        "set optprobe arena to a range that is nearer",
    )
    TRAP_PATH = ("{address} runs between a trap and its handler, or reads what a trap overwrites", "")
    MODULE_TRAP = (
        "at {address}, in a module, a trap of another module's own may come before it is seen that this one is gone",
        "",
    )
    TRAP_TIER_MISSING = (
        "traps cannot be handled in this guest: {missing}",
        "probe an instruction that a branch fits on: optprobe explain tells the nearest",
    )
    TEXT_CHANGED = (
        "the bytes at {address} are not what they were when the probe was planned",
        "undo what else patches them first",
    )

    # The guest, GDB and QEMU as such, for `doctor`.
    GUEST_MISSING = ("the guest cannot be asked: {why}", "target remote PATH-OF-THE-GDB-SOCKET (or :PORT)")
    NOT_LINUX = (
        "GDB's symbol file is of no Linux kernel: nothing of an operating system is known",
        "symbol-file without a name, where the guest is a Linux",
    )
    SYMBOLS_MISSING = ("the symbols are not known: {why}", "symbol-file FILE")
    TYPES_MISSING = (
        "the types are not known: {why}",
        "symbol-file VMLINUX with debug information tells parameters and members",
    )
    UNWINDING_MISSING = (
        "stacks cannot be unwound: {why}",
        "a vmlinux with debug information lets GDB unwind; probes need no unwinding",
    )
    TASKS_MISSING = ("the threads cannot be listed: {why}", "probe instructions as long as a branch")
    CURRENT_MISSING = ("the running thread is not known: {why}", "use registers in place of $task, $comm and $pid")
    FTRACE_MISSING = (
        "the function tracer's records are not known: {why}",
        "entries are probed where their own instructions allow it",
    )
    READS_MISSING = (
        "memory that may not be there cannot be read: {why}",
        "use registers, $task and the kernel's own variables",
    )
    PROGRAMS_MISSING = ("programs cannot be probed: {why}", "probe the kernel's function that serves the program")
    MODULES_MISSING = ("the loaded modules are not known: {why}", "probe the kernel's own text")
    GUARDIAN_MISSING = (
        "nothing frees the guest should GDB die: {why}",
        "connect by a Unix socket or TCP; add probes that never stop the guest",
    )
    GDB_UNFIT = ("this GDB lacks something: {why}", "scripts/setup")
    QEMU_UNFIT = ("this QEMU lacks something: {why}", "QEMU 7.2 or later, with -gdb or -s")
    UNEXPECTED = ("an internal error: {error}", "report this line with the first one")

    @property
    def code(self) -> str:
        return self.name

    def because(self, **facts: object) -> Reason:
        """Return the reason with the facts that its text names."""
        text, hint = self.value
        return Reason(self.name, text, hint, tuple(facts.items()))


PASSING = frozenset(
    reason.name
    for reason in (
        Refusal.FTRACE_IN_USE,
        Refusal.FTRACE_CHANGED,
        Refusal.FOREIGN_BREAKPOINT,
        Refusal.FOREIGN_JUMP,
        Refusal.FOREIGN_KPROBE,
        Refusal.FOREIGN_PATCH,
        Refusal.UNDECODABLE,
    )
)
"""Codes of what the guest does to its own text, and may undo while it runs: the site is planned again at every stop.

A breakpoint of the guest's own in the middle of a function may hide which instruction is under it.
"""


NO_MEMORY = frozenset(
    reason.name
    for reason in (Refusal.ARENA_MISSING, Refusal.ARENA_FULL, Refusal.ARENA_OUT_OF_REACH, Refusal.BOOTING)
)
"""Codes of a tier that the address would have with more memory."""


class Refused(OptprobeError):
    """No probe of any tier is possible (or not now): `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text, reason.hint)
        self.reason = reason


def reason_of(error: OptprobeError, otherwise: Refusal) -> Reason:
    """Return the reason of a Refused; of any other error `otherwise`, with its message as the fact `why`."""
    if isinstance(error, Refused):
        return error.reason
    found = otherwise.because(why=error.message)
    # A hint is no template.
    return replace(found, advice=error.hint.replace("{", "{{").replace("}", "}}")) if error.hint else found
