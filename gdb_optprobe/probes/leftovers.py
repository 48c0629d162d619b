"""Check what an earlier GDB left in the guest, and remove its branches. Threads inside its detours continue there.

    Left ──► everything is checked ──► branches go ──► detours are left, memory stays
                   an error: nothing was changed              a thread may be inside
If this GDB is killed in between, the journal still describes everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gdb_optprobe.detours import patch, quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents, PatchedText, restoring_patches
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes.journal_records import ProbeRecord, read_block, read_probe
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.rethook_records import read_rethooks
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user import trap_records as user_notes
from gdb_optprobe.probes.user.trap_records import TrapRecord
from gdb_optprobe.probes.user.uprobes import Uprobes
from gdb_optprobe.probes.user.uretprobe import LAYOUT

TRIES, PAUSE = 20, 0.05
LEFT = "probes of an earlier GDB are in this guest"
CALLS = "calls that an earlier GDB's return probes on programs saw may be under way in this guest"
RECOVER = "optprobe recover, or optprobe recover -remove"
NO_ROOM = "too full for what would take the probes over; nothing was changed"
FIRST_GDB = "the version of optprobe that added them takes them over with less, or reboot the guest"


def clear_leftovers(target: Target, optimizer: Optimizer, users: Uprobes) -> None:
    """Remove what leads to an earlier GDB's code, where it left no probe. Active calls continue.

    Raises OptprobeError where there are probes, or where it cannot be removed.
    """
    left = target.arena_source.left()
    if left is None:
        return
    if left.probes or left.live_blocks:
        raise OptprobeError(LEFT, RECOVER)
    left, _, undone = read_leftovers(target, optimizer, users)
    arena = adopt_arena(left, undone, target, optimizer, users)
    kept = (optimizer.traps.dispatcher, users.rethooks, optimizer.tracepoints)
    arena.release_data([memory for each in kept for memory in each.memory])
    optimizer.rethooks.end_adopted(arena)
    with suppress(OptprobeError):  # a handler that stays does nothing, and goes with the next one
        optimizer.tracepoints.release_unused(arena)
    optimizer.write_records()


def read_leftovers(
    target: Target, optimizer: Optimizer, users: Uprobes
) -> tuple[ArenaContents, Sequence[ProbeRecord], Sequence[Patch]]:
    """Return what is left, its probe records, and the patches that undo its branches. Nothing of it is changed.

    Raises OptprobeError where there are no probes: what else is left is given back then, as far as it can be.
    """
    left = target.arena_source.left()
    if left is None:
        optimizer.end_earlier()
        raise OptprobeError("no probes of an earlier GDB are in this guest")
    found, traps = read_records(left)
    # From here on this GDB runs the guest and changes it.
    target.debugger.guard()
    if traps:
        _wait_for_writers(left, target, users)
    texts, ways = restoring_patches(left, target.guest.machine, target.guest.isa)
    return left, found, (*texts, *ways)


def read_records(left: ArenaContents) -> tuple[Sequence[ProbeRecord], Sequence[TrapRecord]]:
    """Return the records of probes and of traps in programs. Raises Damaged where they contradict each other."""
    found = [read_probe(number, value, left) for number, value in sorted((left.probes or {}).items())]
    blocks = [read_block(block, left) for block in left.live_blocks]
    read_rethooks(left, None)
    traps = user_notes.read_traps(left.users or {})
    calls = {trap.calls: left.data_at(trap.calls) for trap in traps if trap.calls}
    if any(memory is None or memory.size < LAYOUT.size for memory in calls.values()):
        raise Damaged("calls of programs have no memory")
    maps = {one.maps.address for one in (*found, *blocks) if one.maps is not None}
    own = [*(one.data for one in found if one.data is not None), *(data.address for data in _counters(left))]
    users = Counter((*own, *maps, *(left.points or ()), *calls))
    if shared := [at for at, number in users.items() if number > 1]:
        raise Damaged(f"memory at {shared[0]:#x} is noted of two")
    return found, traps


def _counters(left: ArenaContents) -> Iterator[Slot]:
    """Yield the counters of members of blocks, in pieces."""
    return (data for block in left.live_blocks for _, data in block.pieces())


def _wait_for_writers(left: ArenaContents, target: Target, users: Uprobes) -> None:
    """Run the guest in slices until no thread is in the earlier GDB's code that writes traps into programs.

    Raises OptprobeError where a thread stays there, or where the threads cannot be enumerated.
    """
    own, run = users.mmap_hooked(), target.debugger.run
    routines = [(at.address, at.end) for at, detour in left.detours.items() if detour.head in (at.address, *own)]
    for _ in range(TRIES):
        try:
            if not quiescence.busy(routines, target.guest.saved()):
                return
            why = "a thread runs code of the earlier GDB's just now"
        except OptprobeError as error:
            # A thread that is just ending is on no list; once it has run on, all are found.
            why = error.message
        run(PAUSE)
    raise OptprobeError(f"{why}, and so {TRIES} times while the guest ran", "continue for a moment, then try again")


def adopt_arena(
    left: ArenaContents, undone: Sequence[Patch], target: Target, optimizer: Optimizer, users: Uprobes
) -> Arena:
    """Take the arena over and remove the branches from the text.

    Raises OptprobeError. All is then forgotten, as if this GDB had died: the next command reads the guest and its
    journal anew.
    """
    try:
        return _replace_text(left, undone, target, optimizer, users)
    except BaseException:
        target.debugger.forget()
        raise


def _replace_text(
    left: ArenaContents, undone: Sequence[Patch], target: Target, optimizer: Optimizer, users: Uprobes
) -> Arena:
    arena, traps = optimizer.take_arena(), user_notes.read_traps(left.users or {})
    _check_memory(left, traps, arena, optimizer, users)
    if traps:
        # No thread is in the code that writes traps into new mappings: after this, none comes there.
        first = users.mmap_patches(undone)
        patch.apply(first, target.guest.machine)
        undone = [change for change in undone if change not in first]
    gone = users.remove_traps(traps, arena)
    ours = users.adopt_trampolines(gone, undone, arena)
    in_blocks = _in_blocks(left)
    patch.apply(
        [change for change in undone if change.address not in ours and change.address not in in_blocks],
        target.guest.machine,
    )
    _take_out_blocks(left, [change for change in undone if change.address in in_blocks], target)
    for text in left.texts:
        _release_tracer(text, target)
        arena.journal.drop(Item.TEXT, text.address)
    for number in left.users or {}:
        arena.journal.drop(Item.USER, number)
    # Its patches are at the same addresses: their new records stay.
    optimizer.traps.adopt(left.texts, arena)
    users.adopt_traps(gone, arena)
    optimizer.tracepoints.adopt(left, arena)
    return arena


def _in_blocks(left: ArenaContents) -> frozenset[int]:
    """Return the sites of the counts that are in blocks."""
    return frozenset(block.sites[index] for block in left.blocks for index in block.members)


def _take_out_blocks(left: ArenaContents, undone: Sequence[Patch], target: Target) -> None:
    """Take the branches of blocks out of the text, and let the tracer in again. Raises OptprobeError."""
    patch.apply_in_runs(sorted(undone, key=lambda change: change.address), target.guest.machine)
    for block in (one for one in left.live_blocks if one.traced):
        target.tracer.release_all([block.sites[index] for index in block.members])


def _check_memory(
    left: ArenaContents, traps: Sequence[TrapRecord], arena: Arena, optimizer: Optimizer, users: Uprobes
) -> None:
    """Raises OptprobeError where there is no memory for all that is put in place of an earlier GDB's."""
    try:
        optimizer.traps.check_memory(left.texts, arena)
        if traps:
            users.check_memory(traps, arena)
    except Refused as refused:
        raise OptprobeError(f"{refused.reason.text}: {NO_ROOM}", FIRST_GDB) from None


def _release_tracer(text: PatchedText, target: Target) -> None:
    if text.traced:
        for site in target.guest.text.ftrace_sites(text.address, text.address + 1):
            target.tracer.release(site)
