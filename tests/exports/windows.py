"""Exported files in viewers that take a window or a browser: KernelShark, speedscope, pprof's pages, d3-flame-graph."""

from __future__ import annotations

import base64
import ctypes
import ctypes.util
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.exports.browser import Browser, Page
from tests.exports.viewers import page

PAGE, WINDOW = (1200, 420), (1200, 700)
"""Sizes of what is seen."""
TIME_ORDER, LEFT_HEAVY, SANDWICH = "time-ordered", "left-heavy", "sandwich"
"""speedscope's views."""
PATIENCE = 60
_FLAME_GRAPH = """\
<meta charset="utf-8"><link rel="stylesheet" href="{graph}.css"><div id="chart"></div>
<script src="{d3}"></script><script src="{graph}.umd.min.js"></script>
<script>
d3.select("#chart").datum({tree}).call(flamegraph.default().width({width}).cellHeight(18).inverted(true));
</script>
"""


def speedscope(browser: Browser, file: Path, view: str, folder: Path) -> Page:
    """Open a file in speedscope. folder: for what hands it over."""
    data, script = base64.b64encode(file.read_bytes()).decode(), folder / f"{file.name}.js"
    script.write_text(f"speedscope.loadFileFromBase64({json.dumps(file.name)}, {json.dumps(data)})")
    index = page("speedscope") / "dist" / "release" / "index.html"
    shown = browser.open(f"{index.as_uri()}#localProfilePath={str(script)[1:]}&view={view}", *PAGE)
    shown.wait_for("document.body.innerText.includes('Sandwich') && !!document.querySelector('canvas, table')")
    return shown


def sandwich(shown: Page) -> Mapping[str, tuple[str, str]]:
    """Return what speedscope's table says of each function: total and own, without shares."""
    rows = shown.wait_for(
        "[...document.querySelectorAll('tr')].map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    # Another table is of the profiles in the file.
    return {row[2]: (_weight(row[0]), _weight(row[1])) for row in rows if row and row[0].endswith("%)")}


def _weight(cell: str) -> str:
    return cell.partition("(")[0].strip()


def titles(shown: Page) -> str:
    """Return what speedscope's bar says: which of how many profiles is seen."""
    found: str = shown.value("document.body.innerText.split('\\n')[1]")
    return found


def flame_graph(browser: Browser, folded: str, folder: Path) -> Page:
    """Open folded stacks in d3-flame-graph."""
    root: dict[str, Any] = {"name": "all", "value": 0, "children": []}
    for line in folded.splitlines():
        path, _, count = line.rpartition(" ")
        at = root
        at["value"] += int(count)
        for name in path.split(";"):
            below = next((one for one in at["children"] if one["name"] == name), None)
            if below is None:
                at["children"].append(below := {"name": name, "value": 0, "children": []})
            below["value"] += int(count)
            at = below
    graph, d3 = page("d3-flame-graph") / "dist" / "d3-flamegraph", page("d3") / "dist" / "d3.min.js"
    tree = json.dumps(root).replace("<", "\\u003c")
    file = folder / "flame.html"
    file.write_text(_FLAME_GRAPH.format(graph=graph.as_uri(), d3=d3.as_uri(), tree=tree, width=PAGE[0] - 20))
    return _with_frames(browser.open(file.as_uri(), *PAGE))


def frames(shown: Page) -> Sequence[str]:
    """Return what the frames of a graph of d3-flame-graph's say where the mouse is over them."""
    found: list[str] = shown.value("[...document.querySelectorAll('g.frame title')].map(one => one.textContent)")
    return found


def _with_frames(shown: Page) -> Page:
    shown.wait_for("document.querySelectorAll('g.frame').length")
    return shown


def pprof_top(file: Path, *options: str) -> Mapping[str, tuple[str, str]]:
    """Return what `go tool pprof -top` says of each function: its own and in all."""
    words = ["go", "tool", "pprof", "-top", "-nodecount=1000", "-nodefraction=0", *options, str(file)]
    with _home() as environment:
        said = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.startswith("File: guest\nType: "), said.stdout + said.stderr
    _, rows = said.stdout.split("cum%\n")
    cells = (line.split(maxsplit=5) for line in rows.splitlines())
    return {name: (own, whole) for own, _, _, whole, _, name in cells}


@contextmanager
def pprof_pages(file: Path) -> Iterator[str]:
    """Serve pprof's pages of a file; yield where."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    words = ["go", "tool", "pprof", "-no_browser", f"-http=127.0.0.1:{port}", str(file)]
    with _home() as environment:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(words, env=environment, start_new_session=True, stdout=quiet, stderr=quiet)
        try:
            _wait_for(lambda: _listens(port))
            yield f"http://127.0.0.1:{port}/ui"
        finally:
            os.killpg(process.pid, 15)
            process.wait(20)


def pprof_flame_graph(browser: Browser, pages: str) -> Page:
    return _with_frames(browser.open(f"{pages}/flamegraph", *PAGE))


def kernelshark_rows(file: Path) -> Sequence[str]:
    """Return what the library below KernelShark reads: task, CPU, event and text of each row."""
    name = ctypes.util.find_library("kshark")
    assert name is not None, "it comes with kernelshark"
    library, pointer = ctypes.CDLL(name), ctypes.c_void_p
    context, rows = pointer(), ctypes.POINTER(pointer)()
    library.kshark_instance.argtypes = [ctypes.POINTER(pointer)]
    library.kshark_open.argtypes = [pointer, ctypes.c_char_p]
    library.kshark_load_entries.argtypes = [pointer, ctypes.c_int, ctypes.POINTER(ctypes.POINTER(pointer))]
    library.kshark_load_entries.restype = ctypes.c_ssize_t
    library.kshark_dump_entry.argtypes, library.kshark_dump_entry.restype = [pointer], ctypes.c_char_p
    library.kshark_free.argtypes = [pointer]
    assert library.kshark_instance(ctypes.byref(context))
    stream = library.kshark_open(context, os.fsencode(file))
    assert stream >= 0, "it does not open the file"
    count = library.kshark_load_entries(context, stream, ctypes.byref(rows))
    found = [library.kshark_dump_entry(rows[at]).decode() for at in range(count)]
    library.kshark_free(context)
    # Stream, time, task, CPU, flags, event, text, visibility.
    cells = (re.split("; ?", row, maxsplit=6) for row in found)
    return [f"{task} {cpu} {event} {text.rpartition(';')[0]}" for _, _, task, cpu, _, event, text in cells]


@contextmanager
def kernelshark(file: Path) -> Iterator[Mapping[str, str]]:
    """Open a file in KernelShark, on a screen that has nothing else; yield the environment of that."""
    reader, writer = os.pipe()
    screen = ("-screen", "0", f"{WINDOW[0]}x{WINDOW[1]}x24", "-nolisten", "tcp", "-ac", "-displayfd", str(writer))
    quiet = subprocess.DEVNULL
    with subprocess.Popen(["Xvfb", *screen], pass_fds=[writer], stdout=quiet, stderr=quiet) as server:
        os.close(writer)
        try:
            with os.fdopen(reader) as told, _home() as environment:
                environment |= {"DISPLAY": f":{told.readline().strip()}", "QT_X11_NO_MITSHM": "1"}
                with _shown(file, environment):
                    yield environment
        finally:
            server.terminate()


@contextmanager
def _shown(file: Path, environment: Mapping[str, str]) -> Iterator[None]:
    # It warns root with a window of its own.
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        copy.write_bytes(file.read_bytes())
        copy.chmod(0o644)
        Path(folder).chmod(0o755)
        words = ["kernelshark", "-i", copy]
        with subprocess.Popen(words, env=environment, stdout=quiet, stderr=quiet, **user) as process:  # type: ignore
            try:
                title = ["xdotool", "search", "--onlyvisible", "--name", f"Kernel Shark .*{re.escape(file.name)}"]
                window = _wait_for(lambda: _said(title, environment)).split()[0]
                size = [*map(str, WINDOW)]
                _said(["xdotool", "windowmove", window, "0", "0", "windowsize", window, *size], environment)
                time.sleep(2)  # it draws
                yield
            finally:
                process.terminate()


def screen(environment: Mapping[str, str], file: Path) -> None:
    """Write what is on a screen to a PNG."""
    subprocess.run(["import", "-window", "root", file], check=True, env=environment)


def _said(words: Sequence[str], environment: Mapping[str, str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, env=environment).stdout


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def _wait_for(ask: Any) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := ask()):
        assert time.monotonic() < end, "it does not come up"
        time.sleep(0.1)
    return found


@contextmanager
def _home() -> Iterator[dict[str, str]]:
    """Yield an environment with a home of its own, so that no setting of the user's is read or written."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield {"PATH": os.environ["PATH"], "HOME": folder, "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": folder}
