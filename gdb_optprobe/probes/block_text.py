"""The branches of blocks in the text: written together, and taken away together.

    members' places ──► runs ──► compared, written, read back         thousands of places, each compared by itself
           the same again, the other way ──► the runs of the last time    a run at a time, if no byte differs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.patch import Exchange
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.probes.count_block import CountBlock

Change = tuple[tuple[int, int], bytes, bytes]
"""A place in the text, as (start, end), what it holds before and what it holds after."""
Changes = tuple[Sequence[tuple[int, int]], Sequence[bytes], Sequence[bytes]]


@dataclass
class BlockText:
    """_blocks: those of the last change, with their numbers of members then. _is_in: whether it wrote their branches.
    _done: what it changed.
    """

    _blocks: Sequence[tuple[CountBlock, int]] = field(default=(), repr=False)
    _is_in: bool = False
    _done: Exchange = field(default_factory=Exchange, repr=False)

    def write(self, blocks: Sequence[CountBlock], memory: Memory) -> None:
        """Write the branches of the members. Raises OptprobeError, the text as it was."""
        self._change(blocks, True, memory)

    def take_away(self, blocks: Sequence[CountBlock], memory: Memory) -> None:
        """Write what was there before. Raises OptprobeError, the text as it was."""
        self._change(blocks, False, memory)

    def forget(self) -> None:
        """Drop what is known of the last change: megabytes."""
        self._blocks, self._done = (), Exchange()

    def _change(self, blocks: Sequence[CountBlock], is_in: bool, memory: Memory) -> None:
        last = self._done if is_in != self._is_in and self._are_last(blocks) else None
        self.forget()
        done = patch.take_back(last, memory) if last is not None else None
        if done is None:
            places, texts, branches = _changes(blocks)
            done = patch.exchange_in_runs(places, *((texts, branches) if is_in else (branches, texts)), memory)
        self._blocks, self._is_in, self._done = [(block, len(block)) for block in blocks], is_in, done

    def _are_last(self, blocks: Sequence[CountBlock]) -> bool:
        """Return whether the last change was of the same blocks, with the same members."""
        return len(blocks) == len(self._blocks) and all(
            block is last and len(block) == members
            for block, (last, members) in zip(blocks, self._blocks, strict=True)
        )


def _changes(blocks: Sequence[CountBlock]) -> Changes:
    """Return the places of all members, ascending, what the text holds there without their branches, and these."""
    if len(blocks) == 1:  # its members are in order
        return blocks[0].places(), blocks[0].texts(), blocks[0].branches(blocks[0].isa)
    ordered = sorted(change for block in blocks for change in _changes_of(block))
    places, texts, branches = zip(*ordered, strict=True) if ordered else ((), (), ())
    return places, texts, branches


def _changes_of(block: CountBlock) -> Iterator[Change]:
    return zip(block.places(), block.texts(), block.branches(block.isa), strict=True)
