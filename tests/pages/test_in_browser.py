"""A page in a real browser: its script runs under its policy, no other does, and a flame graph zooms."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gdb_optprobe.exports.recording import Stack
from gdb_optprobe.pages.flame import flame, frames, tree
from gdb_optprobe.pages.page import Figure, Page, Paragraph, Section, encode
from tests.exports.browser import chromium
from tests.pages.reading import read

STACKS = [Stack(("a", "b", "c"), 6), Stack(("a", "b"), 2), Stack(("e", "b"), 2)]
EVIL = "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
KEPT = "<title>kept</title>"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def page() -> bytes:
    figure = Figure(flame("stacks", EVIL, frames(tree(STACKS), 100)[0], str), "stacks")
    return encode(Page("kept", [("evil", EVIL)], [Section("Stacks", [figure, Paragraph(EVIL)])]))


def opened(data: bytes, folder: Path) -> str:
    """Return what a browser makes of a page, once its scripts have run."""
    try:
        browser = chromium()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    (folder / "page.html").write_bytes(data)
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user")
    words = [browser, *options, "--dump-dom", (folder / "page.html").as_uri()]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.mark.thorough
def test_the_page_s_own_script_runs_and_no_other(tmp_path: Path) -> None:
    data = page()
    shown = opened(data, tmp_path)
    text = read(shown.encode()).text
    assert "Whole graph" in text and "all: 10, 100.0 %" in text, "what the script has added"
    assert KEPT in shown and EVIL in text
    inserted = data.decode().replace("<main>", f"<main>{EVIL}")
    assert KEPT in opened(inserted.encode(), tmp_path), "not even where markup of the guest's came in"
    assert KEPT not in opened(POLICY.sub("", inserted).encode(), tmp_path), "which would run without the policy"


@pytest.mark.thorough
def test_a_box_that_is_clicked_is_as_wide_as_the_page(tmp_path: Path) -> None:
    click = """<script>
        const box = name => [...document.querySelectorAll(".flame svg")].find(one => one.textContent.startsWith(name));
        box("b: 8").querySelector("rect").dispatchEvent(new MouseEvent("click", {bubbles: true}));
        const graph = document.querySelector(".flame");
        graph.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true}));
    </script></body>"""
    text = POLICY.sub("", page().decode()).replace("</body>", click)
    shown = opened(text.encode(), tmp_path)
    boxes = {
        title: (re.findall(r'\bwidth="(.+?)"', own)[0], re.findall(r'\bclass="(.+?)"', own))
        for own, title in re.findall(r"<svg ([^>]*)><title>([^<:]*): ", shown)
    }
    assert boxes["all"] == ("100%", ["above"]) and boxes["a"] == ("100%", ["above"])
    assert boxes["c"] == ("75%", ["current"]) and boxes["e"][1] == ["away"]
    assert re.search(r'<svg [^>]*width="100%"[^>]*><title>b: 8', shown)
    assert "c: 6, 60.0 %</span>" in shown
