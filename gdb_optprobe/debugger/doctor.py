"""The facilities of the guest, the guardian, this GDB and this QEMU, and why some do not work. It changes nothing."""

from __future__ import annotations

import platform
import re

import capstone
import gdb

from gdb_optprobe import __version__
from gdb_optprobe.debugger import guardian_process
from gdb_optprobe.debugger.attach import Attachment, attachments, stopped_guest
from gdb_optprobe.debugger.parameters import current_settings
from gdb_optprobe.detours.refusal import Refusal, Refused, reason_of
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest_text import one_line, until_zero
from gdb_optprobe.isa import assemble
from gdb_optprobe.probes import facilities
from gdb_optprobe.probes.views import DoctorView, GuestView

BANNER = "linux_banner"
BEGINS = b"Linux version "
UNKNOWN_BANNER = "a Linux kernel without a banner"
LARGEST_BANNER = 512
CONSTANTS = 1 << 16
CODE = 4096
"""Bytes of code by which a way to read memory is proven."""
OLDEST_QEMU = (7, 2)


def version() -> DoctorView:
    """Return the versions, which are known without a guest."""
    return DoctorView(__version__, gdb.VERSION, platform.python_version(), "", GuestView(), ())


def examine() -> DoctorView:
    """Return all facilities. A failure is part of the answer."""
    attachment: Attachment | None = None
    qemu = _qemu_version()
    try:
        attachment = attachments.seen()
        guest = facilities.of_guest(attachment.session, attachment.linux)
    except OptprobeError as error:
        guest = facilities.of_no_guest(error)
    except Exception as error:
        guest = facilities.of_no_guest(OptprobeError(f"{type(error).__name__}: {error}"))
    others = (
        facilities.asked("guardian", Refusal.GUARDIAN_MISSING, _guardian),
        facilities.asked("gdb", Refusal.GDB_UNFIT, _gdb),
        facilities.asked("qemu", Refusal.QEMU_UNFIT, lambda: _qemu(qemu)),
        facilities.asked("live", Refusal.QEMU_UNFIT, lambda: _live(attachment)),
    )
    return DoctorView(__version__, gdb.VERSION, platform.python_version(), qemu, _guest(attachment), (*guest, *others))


def at_a_glance() -> GuestView:
    """Return what is known of the guest, and nothing of one that cannot be attached to."""
    try:
        return _guest(attachments.seen())
    except OptprobeError:
        return GuestView()


def _guest(attachment: Attachment | None) -> GuestView:
    try:
        architecture = gdb.selected_inferior().architecture().name()
        vcpus = len(gdb.selected_inferior().threads())
    except gdb.error:
        return GuestView()
    if not vcpus:
        return GuestView()
    linux = attachment.linux if attachment is not None else None
    if linux is None:
        return GuestView(architecture, vcpus)
    return GuestView(architecture, vcpus, _banner(linux), linux.arch.event_costs)


def _banner(linux: LinuxGuest) -> str:
    """Return the kernel's banner. Where only functions have symbols, look for it among the first constants."""
    found = linux.kernel.symbols.address(BANNER)
    start = found or linux.recovered.image.rodata.start
    try:
        data = linux.kernel.read(start, start + (LARGEST_BANNER if found else CONSTANTS))
    except OptprobeError:
        return UNKNOWN_BANNER
    at = data.find(BEGINS)
    # Without its line end.
    return until_zero(data[at : at + LARGEST_BANNER].partition(b"\n")[0]).strip() if at >= 0 else UNKNOWN_BANNER


def _monitored(command: str) -> str:
    """Return the answer of QEMU's monitor to a constant `command`; "" where the target has no monitor."""
    try:
        return one_line(" ".join((gdb.execute(f"monitor {command}", to_string=True) or "").split()))
    except gdb.error:
        return ""


def _qemu_version() -> str:
    if gdb.selected_inferior().connection is None:
        return ""
    # A packager's addition follows the number without a space.
    found = re.fullmatch(r"(\d+(?:\.\d+)+)(.*)", _monitored("info version"))
    if found is None:
        return ""
    return f"{found[1]} ({found[2]})" if found[2] else found[1]


def _connection() -> gdb.RemoteTargetConnection:
    """Return the connection. Raises Refused where no stopped guest is connected."""
    try:
        return stopped_guest()
    except OptprobeError as error:
        raise Refused(reason_of(error, Refusal.GUEST_MISSING)) from None


def _guardian() -> str:
    if not current_settings().guardian:
        raise OptprobeError("it is switched off", "set optprobe guardian on")
    if why := guardian_process.why_not(_connection().details or ""):
        raise OptprobeError(why)
    return "it is there" if attachments.guard.is_running else "it starts with the first probe"


def _gdb() -> str:
    """Return the versions of the libraries in GDB's Python."""
    keystone = assemble.loaded()
    numbers = (capstone.cs_version()[:2], keystone.ks_version()[:2])
    return "capstone {}.{}, keystone {}.{}".format(*(part for pair in numbers for part in pair))


def _qemu(version: str) -> str:
    """Return how QEMU runs the guest. Raises OptprobeError where physical memory cannot be read: all else needs it."""
    if _connection().send_packet("qqemu.PhyMemMode") not in (b"0", b"1"):
        raise OptprobeError("the target has no access to physical memory", "connect to QEMU's own gdbstub")
    found = tuple(map(int, version.split(".")[:2])) if re.match(r"\d+\.\d+\.", version) else OLDEST_QEMU
    if found < OLDEST_QEMU:
        raise OptprobeError(f"it is of version {version}")
    kvm = "KVM, which is not tested" if "kvm support: enabled" in _monitored("info kvm") else "TCG"
    return f"physical memory can be read; the guest runs by {kvm if version else 'an unknown accelerator'}"


def _live(attachment: Attachment | None) -> str:
    """Return how what probes gather is read while the guest runs: of data that are there, or the running code."""
    _connection()
    if attachment is None:
        raise OptprobeError("there is no guest that is known")
    session = attachment.session
    at = int(gdb.newest_frame().pc())
    text = attachment.linux.recovered.image.text.start if attachment.linux is not None else at
    found, why = session.target.debugger.live_memory(session.data_spans or ((text, text + CODE),))
    if found is None:
        return f"at short stops: {why}"
    found.close()
    return f"by {found.name}, which does not stop it"
