"""One running guest as probes see it: the interface of LinuxGuest (linux/linux.py) and BareGuest (bare.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.lasting_text import LastingText, ShelvedText
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.handler_text import HandlerText
from gdb_optprobe.guest.linux.tracepoints import Tracepoints
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.text import EnteredFunction, Function, IdleSites, Place, Text
from gdb_optprobe.isa.base import Insn, Pointer
from gdb_optprobe.isa.record import Isa


@dataclass(frozen=True, slots=True)
class WalkedCode:
    """What leads from code to its caller, as the hits' walker takes it. of: the module that has the code."""

    entry: int
    of: Hashable


class Guest(ABC):
    """One stopped guest. The methods that have a body answer for a guest of which nothing more is known."""

    machine: Machine
    isa: Isa
    text: Text

    def forget(self) -> None:
        """Drop what may have changed when the guest ran."""
        return

    def is_same_kernel(self) -> bool | None:
        """Return whether a vCPU still runs the same kernel; None where that is not known. Raises Unreadable."""
        return None

    def moment(self) -> object:
        """Return an object that stays equal until a vCPU may have run; where that is not known, one that is never
        equal.
        """
        return object()

    # stacks ----------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def stacks_missing(self) -> str:
        """Return why not all stacks are known, in words; "" where they are."""

    def saved(self) -> Iterable[SavedWords]:
        """Return everywhere a PC may be saved now. Raises OptprobeError."""
        return ()

    def has_hidden_stacks(self) -> bool:
        """Return whether a thread may have return addresses that are not in `saved`. Raises OptprobeError."""
        return True

    def step_out(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Single-step every vCPU that is in one of `ranges` until it is not."""
        return

    def backtrace(self, registers: Mapping[str, int], stack: bytes) -> Iterable[tuple[int, bool]]:
        """Return the PCs of a hit's frames, innermost first, and whether each is a next instruction, no return address.

        stack: memory from the stack pointer of `registers` on, as it was at the hit. (0, True) where it ends too early.
        """
        return ()

    @property
    def trace_printer(self) -> int | None:
        """Return where the guest begins to print the trace of a stack; its thread is the first argument, or 0 for the
        one that runs. None where that is not known.
        """
        return None

    @property
    def page_faults(self) -> Sequence[tuple[str, str]]:
        """Return functions of which one is called for each page fault of a program, with the argument that points to
        the registers of what faults.
        """
        return ()

    def clock(self) -> Callable[[int], int] | None:
        """Return what makes ticks of the guest's clock nanoseconds since boot, as its log has them; None if not known.
        """
        return None

    def walked_code(self, address: int) -> WalkedCode | None:
        """Return how a hit finds the caller of code at an address that it does not know; None where it cannot."""
        return None

    def file(self, name: str, now: int | None) -> str | None:
        """Return the text of a file of the guest's that follows from its memory; None of any other.

        now: nanoseconds since the guest's start; None where they are not known. Raises OptprobeError.
        """
        return None

    def control_group(self, number: int) -> str | None:
        """Return the path of a control group; None where there is none of that number. Raises OptprobeError."""
        return None

    # names -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def symbol(self, address: int) -> str:
        """Return "vfs_read+0x13", or "" where no symbol is known."""

    def symbols(self, addresses: Sequence[int]) -> list[str]:
        """Return what `symbol` does, of thousands of ascending addresses."""
        return [self.symbol(address) for address in addresses]

    def known_symbol(self, address: int) -> str:
        """Return what `symbol` does as far as that is known without the guest, which may run."""
        return ""

    def completions(self, prefix: str) -> Sequence[str]:
        """Return the names of functions that begin with `prefix`."""
        return ()

    @abstractmethod
    def names_at(self, address: int) -> NamesAt:
        """Return the meaning of names at an address of the guest's text."""

    @abstractmethod
    def names_at_return(self, address: int) -> NamesAt | None:
        """Return the meaning of names after the return of the function entered at `address`; None for no entry."""

    def names_stopped_at(self, address: int) -> NamesAt:
        """Return the meaning of names where the selected vCPU is stopped, in the kernel or in a program."""
        return self.names_at(address)

    def names_at_stop(self) -> NamesAt | None:
        """Return what names mean where the host runs a program while the guest is stopped: of the first CPU's thread.

        None where the guest has no threads.
        """
        return None

    def events(self, event: EventName) -> Sequence[EventName]:
        """Return the events that a name means, which may have wildcards, ascending. Raises OptprobeError."""
        raise OptprobeError(f"this guest has no events: no {event}", "probe a function")

    def event_addresses(self, event: EventName) -> tuple[int, ...]:
        """Return where an event of the kernel's can be probed, ascending. Raises OptprobeError."""
        raise OptprobeError(f"this guest has no events: no {event}", "probe a function")

    @property
    def tracepoints(self) -> Tracepoints:
        """Return the kernel's tracepoints. Raises OptprobeError."""
        raise OptprobeError("this guest has no tracepoints", "probe a function")

    @property
    def handlers(self) -> HandlerText:
        """Return the functions of the arena that the kernel calls."""
        return HandlerText(self.isa)

    def event_at(self, event: EventName, address: int) -> EventName:
        """Return which of the events that `event` matches is probed at `address`."""
        return event

    def event_names_at(self, event: EventName, address: int, returned: bool = False) -> NamesAt:
        """Return what names mean where an event occurs, its fields by `args`. returned: `address` was entered, and has
        returned. Raises OptprobeError.
        """
        raise OptprobeError(f"this guest has no events: no {event}", "probe a function")

    def interrupt_bounds(self) -> tuple[int, int] | None:
        """Return the functions that handlers of interrupts call first and last; None where they are not known."""
        return None

    def parameters(self, address: int) -> Sequence[str]:
        """Return the names of the parameters of the function at `address`, for completion; none where not known."""
        return ()

    # control flow ----------------------------------------------------------------------------------------------------

    @property
    def hidden_returns(self) -> tuple[int, ...]:
        """Return the addresses that calls return to while a tracer of the guest's own follows them."""
        return ()

    def is_entered_by_calls(self, function: Function) -> bool:
        """Return whether only calls enter the function, at its start, and it returns to its caller."""
        return True

    def entry(self, function: int) -> int:
        """Return the address of a probe on the function with its symbol at `function`."""
        return function

    def pointer(self, insn: Insn) -> Pointer | None:
        """Return where an instruction calls or jumps through a pointer; None where it does not, or that is not known.
        """
        return self.isa.pointer(insn)

    def why_bypassed(self, address: int) -> str:
        """Return why calls of the function with its entry at `address` may not pass there, in words; else ""."""
        return ""

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """Return the sites at `addresses` that no tracer uses and that nothing else rewrites.

        kept_off: sites that we still keep a tracer off, though no branch is there.
        All is asked at once that the planner asks of one: the kind of text, the guest's tables, its kprobes, the bytes.
        Where functions are entered at an instruction before the tracer's site, that is returned, as what is `idle`.
        """
        return IdleSites()

    def steady(self, places: Sequence[tuple[int, int]]) -> Sequence[bytes | None]:
        """Return the bytes of each of the ascending places; None where the guest may rewrite them, or knows one by its
        address.

        All is asked at once that the planner asks of one: the kind of text, the guest's tables, its kprobes.
        """
        return [None] * len(places)

    def own_kprobes(self) -> Collection[int]:
        """Return where the guest has kprobes of its own."""
        return ()

    def bounds(self, address: int) -> tuple[int, int] | None:
        """Return start and end of the function around `address`; None where none is known."""
        found = self.text.function(address)
        return (found.start, found.end) if found is not None else None

    def place(self, address: int) -> Place | None:
        """Return the function around `address`, or the part of one; None where none is known."""
        found = self.text.function(address)
        return Place(found.name, found.start, found.end) if found is not None else None

    def code(self, places: Sequence[Place]) -> Sequence[bytes | None]:
        """Return the original code of each, where that of many can be read together; else None."""
        return [None] * len(places)

    def entries(self, functions: Collection[int]) -> Iterator[int]:
        """Return the `entry` of each."""
        return map(self.entry, functions)

    def is_traceable(self, start: int, end: int) -> bool:
        """Return whether a tracer's site overlaps [start, end)."""
        return bool(self.text.ftrace_sites(start, end))

    def read_ahead(self, functions: int) -> None:
        """Read the text at once that plans of so many functions are about to be made from."""
        return

    def lasting_text(self) -> LastingText | None:
        """Return the text about which facts are kept for later boots; None where it is not proven to be the same."""
        return None

    def shelved_text(self) -> ShelvedText | None:
        """Return the text about which facts are kept that are proven by its bytes; None where nothing is kept."""
        return None

    def functions_entered(self, sites: Sequence[int]) -> Sequence[EnteredFunction]:
        """Return the functions of which the entry is one of `sites`, ascending; the code of all is read together."""
        return ()

    def trap_calls(self) -> TrapCalls:
        """Return the calls of the guest's handler of traps. Raises OptprobeError where they are not known."""
        raise OptprobeError("this guest's handler of traps is not known")

    # user programs ---------------------------------------------------------------------------------------------------

    @property
    def user_kernel(self) -> UserKernel:
        """Return what probes on programs need of the kernel. Raises OptprobeError."""
        raise _no_programs()

    @property
    def programs(self) -> Programs:
        """Return how programs are looked into. Raises OptprobeError."""
        raise _no_programs()

    def program_names_at(self, address: int, is_entry: bool, bits: int) -> NamesAt:
        """Return what names mean at an address of a program of so many bits. is_entry: a function starts there."""
        raise _no_programs()

    def program_names_at_return(self, bits: int) -> NamesAt:
        """Return what names mean where a function of a program of so many bits has returned."""
        raise _no_programs()


def _no_programs() -> OptprobeError:
    return OptprobeError(
        "programs are probed in a Linux guest, and GDB's symbol file is of no Linux kernel",
        "symbol-file without a name, then add-symbol-file FILE for symbols of a program",
    )
