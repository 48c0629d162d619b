"""Draw the pictures of docs/guide/export.md: a guest is probed, its calls and stacks exported, the files opened.

scripts/viewers --pictures runs it. Each run draws another guest's times.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from qemu.guest import Guest, Options
from tests.booted.batch import ROOT, batch
from tests.exports import windows
from tests.exports.browser import Browser, browser
from tests.exports.viewers import viewer

IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000
COLOURS = 64
PIPE = "dd if=/dev/zero bs=4096 count=6 2>/dev/null | cat >/dev/null"
WORK = (
    "dd if=/dev/zero of=/dev/null bs=1 count=250000 2>/dev/null; "
    "dd if=/dev/zero of=/dev/null bs=64k count=2000 2>/dev/null; find / -xdev >/dev/null"
)
WAITING = (
    "for i in 1 2 3; do (sleep 0.1; echo x) | cat >/dev/null; "
    "dd if=/dev/zero bs=64k count=64 2>/dev/null | wc -c; done"
)
READS = f"optprobe graph vfs_read -depth 5 -guest '{PIPE}' if $comm == \"dd\" || $comm == \"cat\""
CATS = "for i in 1 2 3 4 5 6; do sleep 0.1; cat /init >/dev/null; done"
# A call in which the host has taken the CPU away would show little else.
OPEN = f"optprobe graph do_sys_openat2 -depth 6 -count 1 -max-time 500us -guest '{CATS}' if $comm == \"cat\""
_LINES = 24
_TERMINAL = """\
<meta charset="utf-8"><style>
  body { margin: 0; background: #0d1117; color: #c9d1d9 } b { color: #ffffff }
  pre { margin: 14px; font: 13px/15px "DejaVu Sans Mono", monospace }
</style>"""


def gather(folder: Path) -> None:
    """Write the files that are to be opened."""

    def export(word: str, name: str) -> str:
        return f"optprobe export {word} {folder}/{name} -last"

    script = [
        *(OPEN, OPEN),  # where calls through pointers lead is known to the second one
        export("speedscope", "graph.speedscope.json"),
        *(READS, READS),
        *(export("trace.dat", "graph.dat"), export("uftrace", "graph.uftrace")),
        f"optprobe profile -hz 999 -table -guest '{WORK}'",
        *(export("speedscope", "profile.speedscope.json"), export("pprof", "profile.pb.gz")),
        f"optprobe offcpu -by stack -guest '{WAITING}'",
        export("folded", "waits.folded"),
    ]
    with Guest.start(Options()) as guest:
        finished = batch(guest, script)
    assert finished.status == 0, finished.output


def drawn(folder: Path, chromium: Browser) -> Iterator[tuple[str, bytes]]:
    """Yield the pictures by their names."""
    graph, profile = folder / "graph.speedscope.json", folder / "profile.speedscope.json"
    yield "speedscope", windows.speedscope(chromium, graph, windows.TIME_ORDER, folder).settled()
    yield "speedscope-profile", windows.speedscope(chromium, profile, windows.LEFT_HEAVY, folder).settled()
    with windows.pprof_pages(folder / "profile.pb.gz") as pages:
        yield "pprof", windows.pprof_flame_graph(chromium, pages).settled()
    waits = (folder / "waits.folded").read_text()
    yield "d3-flame-graph", windows.flame_graph(chromium, waits, folder).settled()
    data, dat = folder / "graph.uftrace", folder / "graph.dat"
    read = ("--no-pager", "--color=no", "-d", str(data))
    yield "uftrace", _terminal(
        chromium, folder, ("uftrace report -d reads", viewer("uftrace", "report", *read), 9),
        ("uftrace replay -d reads", viewer("uftrace", "replay", *read), _LINES),
    )  # fmt: skip
    report = viewer("trace-cmd", "report", "-i", str(dat))
    yield "trace-cmd", _terminal(chromium, folder, ("trace-cmd report -i reads.dat", report, _LINES))
    with windows.kernelshark(dat) as environment:
        windows.screen(environment, folder / "seen.png")
    yield "kernelshark", (folder / "seen.png").read_bytes()


def _terminal(chromium: Browser, folder: Path, *commands: tuple[str, str, int]) -> bytes:
    """Return a picture of commands, and of so many lines of what each prints."""
    text = ""
    for command, printed, most in commands:
        first = "\n".join(line[:118] for line in printed.splitlines()[:most])
        text += f"$ <b>{escape(command)}</b>\n{escape(first)}\n…\n"
    page = folder / "terminal.html"
    page.write_text(f"{_TERMINAL}<pre>{text}</pre>")
    width, height = 980, 28 + 15 * text.count("\n")
    shown = chromium.open(page.as_uri(), width, height)
    shown.wait_for("!!document.querySelector('pre')")
    return shown.settled()


def reduce(picture: Path) -> None:
    """Leave few colours."""
    few = ("+dither", "-colors", str(COLOURS), "-define", "png:color-type=3")
    subprocess.run(["mogrify", "-strip", *few, picture], check=True)
    assert picture.stat().st_size <= LARGEST, f"{picture.name} has {picture.stat().st_size} bytes"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        folder = Path(name)
        gather(folder)
        for of, data in drawn(folder, chromium):
            picture = IMAGES / f"export-{of}.png"
            picture.write_bytes(data)
            reduce(picture)
            print(f"written: {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
