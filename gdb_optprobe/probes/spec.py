"""What a user asked for, before anything is looked up in the guest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.handlers.clauses import is_block
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.probes.shared_records import SharedRecords

Handler = Callable[[Any], object]


class Kind(Enum):
    """What sort of probe: the kernel's own names."""

    KPROBE = "kprobe"
    KRETPROBE = "kretprobe"
    UPROBE = "uprobe"
    URETPROBE = "uretprobe"
    TRACEPOINT = "tracepoint"

    @property
    def in_program(self) -> bool:
        """Whether it is on a user's program."""
        return self in (Kind.UPROBE, Kind.URETPROBE)

    @property
    def is_return(self) -> bool:
        return self in (Kind.KRETPROBE, Kind.URETPROBE)


WHOLE = ("*", "'*'", '"*"')
"""The glob of every function, as it may be typed."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One `optprobe add`, parsed.

    location:  as typed: a linespec, `*EXPR`, `symbol+offset`, an event, or a glob (`glob` true).
    condition: the expression after `if`, as typed; empty for none.
    actions:   the actions after `do`, each as typed; `count` where none was given.
    tier:      the name of the only tier that is wanted ("-tier"); empty for the best.
    name:      the user's name for the probe ("-name").
    pending:   keep the probe waiting for a symbol that is not there yet.
    entry_condition, entry_actions: of a return probe, what it does where the function is entered.
    pre_handler, post_handler: of Python's, before the instruction (a return probe's: at the entry), and behind it.
    return_handler: of Python's, where the function has returned.
    maxactive: of a return probe, how many calls at once it sees; 0 for as many as there are.
    overwrite: whether a full ring keeps its newest records, not its oldest.
    file, pid: of a probe on a program, where GDB has the same file; the only process, 0 for all.
    program:   of a script, what a hit does, already compiled; condition and actions mean nothing then.
    entry:     with it, of a return probe, what its entry does. records: the ring that both write to.
    condition_at, actions_at: their places in a typed line; None and empty where they are passed one by one.
    """

    location: str
    kind: Kind = Kind.KPROBE
    condition: str = ""
    actions: tuple[str, ...] = ("count",)
    tier: str = ""
    name: str = ""
    glob: bool = False
    pending: bool = False
    pre_handler: Handler | None = None
    post_handler: Handler | None = None
    return_handler: Handler | None = None
    condition_at: Fragment | None = None
    actions_at: tuple[Fragment, ...] = ()
    entry_condition: Fragment | None = None
    entry_actions: tuple[Fragment, ...] = ()
    maxactive: int = 0
    overwrite: bool = False
    file: str = ""
    pid: int = 0
    program: Program | None = None
    entry: EntryProgram | None = None
    records: SharedRecords | None = None

    @property
    def event(self) -> EventName | None:
        """The event of the kernel's that its location names; None where it names a place in the code."""
        return event_name.parse(self.location) if not self.in_program else None

    @property
    def is_exact(self) -> bool:
        """Whether it is an instruction that the user named: a script has the addresses of functions."""
        return self.location.startswith("*") and self.program is None

    @property
    def in_program(self) -> bool:
        """Whether it is on a user's program."""
        return self.kind.in_program

    @property
    def is_return(self) -> bool:
        return self.kind.is_return

    @property
    def has_python_handler(self) -> bool:
        return any(each is not None for each in (self.pre_handler, self.post_handler, self.return_handler))

    @property
    def is_plain_count(self) -> bool:
        """Whether every hit is counted, and that is all."""
        if self.entry_condition is not None or self.entry_actions or self.program is not None:
            return False
        return not self.condition.strip() and all(action.strip() == "count" for action in self.actions)

    @property
    def is_plain_latency(self) -> bool:
        """Whether the time of every call is gathered, and that is all."""
        if not self.is_return or self.entry_condition is not None or self.entry_actions:
            return False
        return not self.condition.strip() and [action.strip() for action in self.actions] == ["latency"]

    @property
    def block(self) -> str:
        """Return the block in braces that is all it does; "" where it does something else."""
        parts = (self.condition.strip(), self.entry_condition, self.entry_actions, self.program)
        return self.actions[0] if len(self.actions) == 1 and is_block(self.actions[0]) and not any(parts) else ""

    @property
    def has_script(self) -> bool:
        """Whether a hit runs what a script, or a block of statements, was compiled to."""
        return self.program is not None or bool(self.block)

    @property
    def counts_hits(self) -> bool:
        """Whether the hits where its condition holds are counted, and that is all."""
        return replace(self, condition="").is_plain_count

    @property
    def is_typed(self) -> bool:
        """Whether it is a condition and actions alone, of the hits at one place."""
        return self.program is None and self.entry_condition is None and not self.entry_actions

    @property
    def is_recorded(self) -> bool:
        """Whether hits at one place are recorded in a ring that probes share."""
        return self.records is not None and not self.is_return

    @property
    def is_whole_kernel(self) -> bool:
        """Whether it is on every function: those at which a hit would stop the guest are left out."""
        return self.glob and not self.in_program and self.location.strip() in WHOLE and not self.tier

    @property
    def condition_part(self) -> Fragment | None:
        """Where the condition was typed, so that an error can point."""
        if not self.condition.strip():
            return None
        return self.condition_at or Fragment.whole(self.condition)

    @property
    def action_parts(self) -> tuple[Fragment, ...]:
        """Where the actions were typed."""
        return self.actions_at or tuple(Fragment.whole(action) for action in self.actions)
