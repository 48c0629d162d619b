"""How QEMU is called for one architecture, and what Debian calls its parts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MACHINES", "Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One architecture of guest.

    qemu:     the emulator.
    board:    arguments that choose the board.
    cpu:      the default `-cpu`.
    console:  the guest's device for the kernel log, on QEMU's first serial port.
    channel:  the guest's device for commands, on the second.
    debian:   Debian's name of the architecture.
    package:  the kernel booted when none is named.
    """

    qemu: str
    board: tuple[str, ...]
    cpu: str
    console: str
    channel: str
    debian: str
    package: str


MACHINES = {
    "x86_64": Machine(
        qemu="qemu-system-x86_64",
        board=("-machine", "pc"),
        cpu="qemu64",
        console="ttyS0",
        channel="ttyS1",
        debian="amd64",
        package="linux-image-cloud-amd64",
    ),
}
