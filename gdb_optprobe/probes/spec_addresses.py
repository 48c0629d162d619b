"""Where the probes of one `add` go, before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.module_tracker import can_be_pending
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target


def resolve_specs(specs: Sequence[Spec], target: Target, there: int, limit: int) -> list[tuple[Spec, tuple[int, ...]]]:
    """Return the addresses of each spec's location, each address once; none of one that waits, or is a program's.

    there, limit: how many probes there are, and may be. Raises OptprobeError.
    """
    found: list[tuple[Spec, tuple[int, ...]]] = []
    seen: set[int] = set()
    for spec in specs:
        if spec.tier and not spec.in_program and spec.tier not in {tier.value for tier in Tier}:
            raise OptprobeError(f"no tier is called '{spec.tier}'", "there are: " + ", ".join(t.value for t in Tier))
        addresses = () if spec.in_program else _addresses(spec, target)
        new = tuple(address for address in addresses if address not in seen)
        seen |= {*new}
        if new or not addresses:
            found.append((spec, new))
    if there + len(seen) > limit:
        raise OptprobeError(
            f"{','.join(spec.location for spec in specs)} has {len(seen)} addresses and max-probes is {limit}",
            "set optprobe max-probes N, or name fewer",
        )
    return found


def _addresses(spec: Spec, target: Target) -> tuple[int, ...]:
    """Return where a spec's location is now; nowhere where its probe is to wait. Raises OptprobeError."""
    try:
        return target.debugger.resolve(spec.location, spec.glob)
    except OptprobeError:
        if not spec.pending or spec.glob or not can_be_pending(spec.location):
            raise
        return ()
