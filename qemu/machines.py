"""QEMU's command line for one architecture, and Debian's names for it."""

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
    second:   arguments that make it of the character device `channel`.
    binutils: what the names of its assembler and linker begin with; nothing for the host's own.
    debian:   Debian's name of the architecture.
    package:  the kernel booted when none is named.
    memory:   where physical memory starts.
    control:  registers with the page tables, by GDB's names; none where QEMU's monitor prints them.
    """

    qemu: str
    board: tuple[str, ...]
    cpu: str
    console: str
    channel: str
    second: tuple[str, ...]
    binutils: str
    debian: str
    package: str
    memory: int = 0
    control: tuple[str, ...] = ()


SERIAL = ("-serial", "chardev:channel")

MACHINES = {
    "x86_64": Machine(
        qemu="qemu-system-x86_64",
        board=("-machine", "pc"),
        cpu="qemu64",
        console="ttyS0",
        channel="ttyS1",
        second=SERIAL,
        binutils="",
        debian="amd64",
        package="linux-image-cloud-amd64",
    ),
    "ppc64le": Machine(
        qemu="qemu-system-ppc64",
        # QEMU's own small firmware: SLOF takes five seconds to find the kernel it was given. All else is as users
        # have it, though QEMU warns of the mitigations that TCG has not, at the start and at every snapshot.
        board=("-machine", "pseries,x-vof=on"),
        cpu="power10",
        console="hvc0",
        channel="hvc1",
        second=SERIAL,
        binutils="powerpc64le-linux-gnu-",
        debian="ppc64el",
        package="linux-image-powerpc64le",
    ),
    "aarch64": Machine(
        qemu="qemu-system-aarch64",
        board=("-machine", "virt"),
        # It is up in half the time that `max` takes, and its kernel runs with page-table isolation.
        cpu="cortex-a72",
        console="ttyAMA0",
        channel="ttyS0",
        # The board has one serial port.
        second=("-device", "pci-serial,chardev=channel"),
        binutils="aarch64-linux-gnu-",
        debian="arm64",
        package="linux-image-cloud-arm64",
        memory=1 << 30,
        control=("TTBR1_EL1", "TCR_EL1"),
    ),
}
