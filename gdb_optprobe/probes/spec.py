"""What a user asked for, before anything is looked up in the guest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

Handler = Callable[[Any], object]


class Kind(Enum):
    """What sort of probe: the kernel's own names."""

    KPROBE = "kprobe"
    KRETPROBE = "kretprobe"
    UPROBE = "uprobe"
    URETPROBE = "uretprobe"


@dataclass(frozen=True, slots=True)
class Spec:
    """One `optprobe add`, parsed.

    location:  as typed: a linespec, `*EXPR`, `symbol+offset`, or a glob (`glob` true).
    condition: the expression after `if`, as typed; empty for none.
    actions:   the actions after `do`, each as typed; `count` where none was given.
    tier:      the name of the only tier that is wanted ("-tier"); empty for the best.
    name:      the user's name for the probe ("-name").
    pending:   keep the probe waiting for a symbol that is not there yet.
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
