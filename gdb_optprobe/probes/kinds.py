"""The two kinds of places that probes are at: the kernel, and programs. Both have the same verbs."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.probes.kprobes import Kprobes
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.user.uprobes import Uprobes


@dataclass(frozen=True, slots=True)
class Kinds:
    """What carries out the verbs."""

    kprobes: Kprobes
    uprobes: Uprobes

    def of(self, spec: Spec) -> Kprobes | Uprobes:
        """Return it for probes of this kind."""
        return self.uprobes if spec.in_program else self.kprobes
