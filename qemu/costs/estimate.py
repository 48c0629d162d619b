"""The cost of a hit: (with the probe − without) / hits. A time below the clock's noise is estimated by instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .measure import Reading, least, middle, spread

# A difference of host times counts as measured if it is so many times the spread of repeated readings.
CLEAR = 3.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one hit.

    instructions: of the guest; None where the guest was stopped, see `cost`.
    seconds:      on the host.
    estimated:    `seconds` is the instructions' share of the time that the unprobed workload takes.
    """

    name: str
    instructions: float | None
    stops: float
    packets: float
    seconds: float
    estimated: bool = False


def cost(name: str, probed: Sequence[Reading], unprobed: Sequence[Reading]) -> Cost:
    """Return the cost of one hit, where each event of the workload is one.

    A stop makes QEMU's virtual clock jump to the guest's next timer, so guest time says nothing about instructions
    then; a probe that stops the guest has it run none of its own, or one.

    The guest has work of its own at times, some 100,000 instructions, which some runs have more of: the least counts.

    Two instructions among a thousand are lost in the noise of a host's clock, but not in the guest's, which counts
    instructions; so a host time that is not clearly above the noise is the instructions' share.
    """
    now, before = middle(probed), middle(unprobed)
    stopped = round(now.stops, 1) > 0
    instructions = None if stopped else least(probed).instructions - least(unprobed).instructions
    seconds = now.seconds - before.seconds
    noise = spread([one.seconds for one in probed]) + spread([one.seconds for one in unprobed])
    estimated = instructions is not None and seconds < CLEAR * noise
    if estimated and instructions is not None:
        seconds = instructions * before.seconds / before.instructions
    return Cost(name, instructions, now.stops, now.packets, seconds, estimated)
