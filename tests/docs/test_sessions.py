"""What the pages show is compared with what is printed: in words and in figures that do not differ from run to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.sessions import PAGES, Block, Step, blocks, difference, steps

PAGE = """
```gdb
(gdb) optprobe add vfs_read
Probe 1
(gdb) continue
guest# dd bs=1
^C
```

*Not run by the suite: it needs two machines.*

```console
$ scripts/guest start
up
```

*x86-64 only*

```gdb
(gdb) bt
```
"""


def parsed(tmp_path: Path, text: str) -> list[Block]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return list(blocks(page))


def test_blocks_of_a_page(tmp_path: Path) -> None:
    first, second, third = parsed(tmp_path, PAGE)
    assert first.steps == (
        Step("gdb", "optprobe add vfs_read", (), False, ("Probe 1",), range(3, 4)),
        Step("gdb", "continue", ("dd bs=1",), True, (), range(5, 7)),
    )
    assert (first.where, first.left_out, first.x86_only) == ("page.md:2", "", False)
    assert (second.steps[0].machine, second.left_out) == ("host", "it needs two machines.")
    assert third.x86_only


def test_a_block_of_commands_has_its_language(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page.md:1: a block"):
        parsed(tmp_path, "```\n(gdb) bt\n```\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_can_be_read(page: Path) -> None:
    assert list(blocks(page))


def test_no_page_with_commands_is_left_out() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert {page for page in pages if list(blocks(page))} == {*PAGES}


def test_blocks_that_are_not_run_are_these() -> None:
    left_out = [(page.name, block.left_out.split()[0]) for page in PAGES for block in blocks(page) if block.left_out]
    assert left_out == [
        ("cookbook.md", "tests/booted/test_matrix.py"),
        ("cookbook.md", "tests/booted/test_shared_maps.py"),
        ("cookbook.md", "tests/booted/test_shared_maps.py"),
        ("cookbook.md", "tests/booted/test_early.py"),
        ("returns.md", "tests/booted/test_returns_profile.py"),
    ]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("at 0xffffffff8134cc50 <vfs_read+0x13>: 5 bytes", "at 0xc000000000000008 <vfs_read+0x8>: 1,234.5 bytes"),
        ("…\nlast", "first\nsecond\nlast"),
        ("Probe 1 at …: optimized", "Probe 1 at 0x1 <f>: optimized"),
        ("[1K, 2K)  7 |@@@@ |\nend", "[4, 8) 1 |@ |\n[8, 16) 1000 |@@@|\nend"),
        ("a   b\n\nc", "a b\nc"),
        ("  [dd]: 1\n  [init]: 2", "  [init]: 9\n  [dd]: 9"),
        ("0x10  f0 48 ff 05 00  lock", "0x20  f0 48 ff fe fc  lock"),
        ("at [0, 3]: 7", "at [1, 0]: 1"),
        ("[dd]: 754 ns", "[dd]: 3 ns"),
        ("0 missed", "0 missed"),
    ],
)
def test_the_same(shown: str, printed: str) -> None:
    assert difference(shown.split("\n"), printed.split("\n")) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "on_its_machine"),
    [
        ("[dd]: 500", "[dd]: 501", False),
        ("max(count): 700", "max(count): 701", False),
        ("    [64, 128)  500 |@@@ |", "    [64, 128)  499 |@@@ |", False),
        ("    [64]: 500", "    [65]: 500", False),
        ("Probe 1 at", "Probe 2 at", True),
        ("Probes 1-452: 452 addresses, 452 optimized", "Probes 1-453: 453 addresses, 453 optimized", True),
        ("5 bytes patched", "4 bytes patched", True),
        ("costs 3 instructions where", "costs 4 instructions where", True),
        ("false, about 97 otherwise", "false, about 98 otherwise", True),
        ("0 3 or ~97 instructions", "0 3 or ~98 instructions", True),
        ("Thread 2 hit optprobe 1,", "Thread 1 hit optprobe 2,", True),
    ],
)
def test_figures_that_are_compared(shown: str, printed: str, on_its_machine: bool) -> None:
    typed = parsed_numbers("(gdb) optprobe add f if n > 64 && n < 700\n(gdb) continue\nguest# dd bs=1 count=500")
    for line in (shown, printed):
        assert not difference([line], [line], typed, is_its_machine=on_its_machine)
    assert difference([shown], [printed], typed, is_its_machine=on_its_machine)
    assert not difference([shown], [printed])


def parsed_numbers(block: str) -> frozenset[str]:
    return Block(Path(), 1, "", False, tuple(steps(block.splitlines(), 0))).typed


def test_a_line_that_is_continued() -> None:
    (step,) = steps(["$ qemu \\", "    -m 512 \\", "    -S", "up"], 0)
    assert (step.command, step.shown, step.place) == ("qemu -m 512 -S", ("up",), range(3, 4))


def test_figures_that_are_typed() -> None:
    assert parsed_numbers("(gdb) x/10i f\n(gdb) c\nguest# dd bs=4k count=100; /tmp/calls") == {"100", "500"}


def test_a_bar_of_times_is_no_figure() -> None:
    assert not difference(["  [1ns, 2ns)  500 |@ |"], ["  [1ns, 2ns)  9 |@ |"], {"500"})


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("optimized", "trapped"),
        ("1 missed", "0 missed"),
        ("0 hits", "12 hits"),
        ("0x0", "0xc0"),
        ("one\ntwo", "one"),
        ("…\nlast", "last\nand more"),
        ("vfs_read", "vfs_write"),
        ("do_sys_openat2", "do_sys_openat"),
        ("hits 5 |@@@|", "hits 5"),
        ("  [dd]: 1\n  [dd]: 2", "  [init]: 9\n  [dd]: 9"),
        ("", "optprobe: no such probe"),
    ],
)
def test_another_thing(shown: str, printed: str) -> None:
    assert difference(shown.split("\n"), printed.split("\n"))
