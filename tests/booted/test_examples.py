"""What docs/examples adds to other programs' guests gives a socket that GDB takes. No kernel runs in these."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qemu.debugger import Debugger, DebuggerError
from qemu.snapshots import write_image
from tests.docs.blocks import ROOT

EXAMPLES = ROOT / "docs" / "examples"
# The guest of the page in virtme-ng's and libvirt's place: one that never runs.
STOPPED = ["qemu-system-x86_64", "-nodefaults", "-nographic", "-S"]


def page(name: str) -> str:
    return (EXAMPLES / name).read_text()


def cloud_image() -> list[str]:
    (line,) = re.findall(r"\$ (qemu-system-x86_64 (?:.*\\\n)+.*)", page("cloud-image.md"))
    return [*shlex.split(line.replace("\\\n", "")), "-S"]


def libvirt() -> list[str]:
    (xml,) = re.findall(r"```xml\n(.*?)```", page("libvirt.md"), re.DOTALL)
    added = ElementTree.fromstring(xml).iter("{http://libvirt.org/schemas/domain/qemu/1.0}arg")
    return [*STOPPED, *(argument.attrib["value"] for argument in added)]


def virtme_ng() -> list[str]:
    return [*STOPPED, *re.findall(r" -o=([^\s`]+)", page("virtme-ng.md"))]


MONITOR = [*STOPPED, "-serial", "none", "-monitor", "stdio"]


def at_the_monitor() -> str:
    """The line for a QEMU that runs already."""
    (line,) = re.findall(r"--hmp probed (gdbserver \S+:1234)", page("libvirt.md"))
    return f"{line}\n"


@pytest.mark.parametrize(
    ("words", "typed"), [(cloud_image(), ""), (libvirt(), ""), (virtme_ng(), ""), (MONITOR, at_the_monitor())]
)
def test_gdb_connects_and_a_probe_comes_too_early(words: list[str], typed: str, tmp_path: Path) -> None:
    write_image(tmp_path / "image.qcow2")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    unix = tmp_path / "gdb"

    def here(text: str) -> str:
        """Put files and ports of the test in place of the page's."""
        text = re.sub(r"/tmp/\w+\.sock", str(unix), text).replace(":1234", f":{port}")
        return text.replace("tcp:127.0.0.1:2222", "tcp::0").replace("image.qcow2", str(tmp_path / "image.qcow2"))

    given = here(" ".join(words) + typed)
    remote = str(unix) if str(unix) in given else f"127.0.0.1:{port}"
    with subprocess.Popen(
        [here(word) for word in words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as qemu:
        try:
            qemu.stdin.write(here(typed))
            qemu.stdin.flush()
            # GDB tries again at a port, but not at a path.
            while remote == str(unix) and not unix.exists() and qemu.poll() is None:
                time.sleep(0.01)
            assert qemu.poll() is None, qemu.stderr.read()
            with Debugger(remote) as gdb, pytest.raises(DebuggerError, match="optprobe add vfs_read: "):
                gdb("optprobe add vfs_read")
        finally:
            qemu.terminate()
