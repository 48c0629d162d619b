"""Find tables of jump targets that compilers put into a function's text, behind the jump that uses them.

    bctr
    .long  case_0 - here      offsets from the table's own address, within the function: no instruction has a word so
    .long  case_1 - here      small or so large
    …
A word of a table is data, though it may look like an instruction: it must not be patched.
"""

from __future__ import annotations

from gdb_optprobe.isa.ppc64le.fields import signed
from gdb_optprobe.isa.words import places_of

BCTR = (0x4E80_0420).to_bytes(4, "little")


def jump_tables(code: bytes, address: int) -> dict[int, tuple[int, ...]]:
    """Return the tables of the function at `address`: by the address of each, the targets of its words in order."""
    found: dict[int, tuple[int, ...]] = {}
    end = 0
    for at in places_of(BCTR, code):
        if at >= end and (targets := _targets(code, at + 4)):
            found[address + at + 4] = tuple(address + target for target in targets)
            end = at + 4 + 4 * len(targets)
    return found


def switches(code: bytes, address: int) -> dict[int, range]:
    """Return, by jumps of the function at `address`, where the tables are that they use.

    Zeros behind a function's last jump are padding: a case is never in the table.
    """
    places = {table: (range(table, table + 4 * len(to)), to) for table, to in jump_tables(code, address).items()}
    return {
        table - 4: place for table, (place, to) in places.items() if len(to) > 1 and not any(at in place for at in to)
    }


def _targets(code: bytes, table: int) -> list[int]:
    found: list[int] = []
    for at in range(table, len(code) & ~3, 4):
        target = table + signed(int.from_bytes(code[at : at + 4], "little"), 32)
        if target & 3 or not 0 <= target < len(code):
            break
        found.append(target)
    return found
