"""A probe on a program as one row of the listing."""

from __future__ import annotations

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.probes import present
from gdb_optprobe.probes.gathered import Gathered
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.probes import Point
from gdb_optprobe.probes.views import DetourView, ProbeView


def probe(probe: Probe, point: Point, found: Gathered, target: Target) -> ProbeView:
    """address: the one that the program was linked for. needs_gdb: never; but new processes wait for one."""
    stands = point.placed is not None
    detour = point.placed.detour if point.placed is not None else None
    code = target.isa.decode(detour.data, detour.address) if detour is not None else ()
    count, most = len(code), sum(map(present.cost_of, code))
    return ProbeView(
        number=probe.number,
        name=probe.spec.name,
        kind=probe.spec.kind.value,
        location=probe.spec.location,
        address=probe.address,
        symbol=point.program.spell(probe.address),
        tier=Tier.TRAPPED.value,
        state="armed" if probe.enabled else "disabled",
        tags=() if probe.enabled else ("DISABLED",),
        enabled=probe.enabled,
        needs_gdb=False,
        reason=None,
        patch_size=int(stands),
        original_bytes=point.insn.data,
        patched_bytes=point.trap if stands else b"",
        detour=DetourView(detour.address, detour.size, count, most, most, detour.head) if detour else None,
        condition=probe.spec.condition,
        actions=probe.spec.actions,
        hits=found.head[0],
        missed=0,
        active=0,
        dropped=found.dropped,
        faults=found.head[1] if len(found.head) > 1 else 0,
        stops=0,
        objects=tuple(present.objects(probe.handler, found, target)),
        records=tuple(present.record(probe, row, target) for row in found.records),
    )
