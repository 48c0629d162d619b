"""Blocks of counts in a journal that lies: an error says what is wrong, or all of it is taken over, or out."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest

from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.examples import examples
from tests.fake_guest import CODE, DATA, START, FakeGuest
from tests.probes.test_batch import AT, GLOB, functions
from tests.probes.test_batch_life import Guests, untraced

KEYED = Spec("f*", glob=True, actions=("count by $rbx", "max($rdx)"))
ITEMS = Item.COUNTS, Item.ALONE, Item.BLOCK, Item.OUT
VALUES = (None, True, False, 0, 1, -1, 5, 24, 1 << 16, 1 << 32, 1 << 64, 1 << 70, 0.5, "", "zz", "0f", "0f1f440000")
VALUES = (*VALUES, "cc" * 16, [], [1], {}, {"location": "f1"}, START, CODE, DATA, AT[0], AT[5], CODE + 24, DATA + 8)


def mutated(value: Any, random: Random) -> Any:
    """Return `value` with one of its parts changed."""
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        if random.random() < 0.15:
            return value[:at] if random.random() < 0.5 else [*value, *value[at:]]
        return [*value[:at], mutated(value[at], random), *value[at + 1 :]]
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice([*value, "enabled", "do", "if", "kind", "data", "at", "off"])
        return {**value, key: mutated(value.get(key), random)}
    if isinstance(value, int) and random.random() < 0.5:
        return value + random.choice((-8, -1, 1, 8, 24, 32))
    return random.choice(VALUES)


def left_by_a_liar(guest: FakeGuest, journal: Journal, random: Random) -> FakeGuest:
    """Return a copy of a guest with blocks of which the journal has something else."""
    state = deepcopy(journal.state)
    blocks = [key for key in state if key.split()[0] in ITEMS]
    for key in random.sample(blocks, random.randint(1, min(2, len(blocks)))):
        item, at = key.split()
        match random.randrange(6):
            case 0:
                journal.put(random.choice(ITEMS), int(at, 16) + random.choice((1, 24)), state[key])
            case 1:
                journal.drop(Item(item), int(at, 16))
            case 2:
                item, step = random.choice(((Item.ALONE, 1), (Item.OUT, 8), (Item.OUT, 24)))
                for one in range(int(at, 16), int(at, 16) + step * 80, step):
                    journal.put(item, one, 1)
            case _:
                journal.put(Item(item), int(at, 16), mutated(state[key], random))
    journal.flush()
    found = guest.copy()
    for key in {*journal.state} - state.keys():
        item, at = key.split()
        journal.drop(Item(item), int(at, 16))
    for key, value in state.items():
        item, at = key.split()
        journal.put(Item(item), int(at, 16), value)
    return found


@pytest.mark.parametrize(("made", "spec"), [(functions, GLOB), (untraced, GLOB), (functions, KEYED)])
@pytest.mark.parametrize("takes_out", [False, True])
def test_a_journal_that_lies_about_blocks(made: Guests, spec: Spec, takes_out: bool) -> None:
    guest = made()
    session = guest.session()
    session.add(spec)
    assert session.registry.blocks
    session.disable([7, 8])
    assert session.optimizer.arena is not None
    taken = 0
    for seed in range(max(20, examples(60))):  # of few, all may be refused
        left = left_by_a_liar(guest, session.optimizer.arena.journal, Random(seed))
        next_one = left.session()
        try:
            if takes_out:
                adopt.remove(next_one, 0)
            else:
                adopt.recover(next_one)
                next_one.check()
                next_one.reports()
                next_one.delete()
            taken += 1
        except OptprobeError as error:
            assert "\n" not in error.message
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert taken, "some are not refused"
