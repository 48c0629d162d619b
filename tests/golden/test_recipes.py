"""The scripts of offcpu, profile, latency and calls: `-script` prints them, for others to change and to run."""

from __future__ import annotations

from gdb_optprobe.commands import recipes
from gdb_optprobe.handlers.script.compile import compile_script
from tests.golden import golden
from tests.handlers.script.kernel import FakeKernel

SCRIPTS = (
    recipes.offcpu(by_stack=False), recipes.offcpu(by_stack=True), recipes.profile(99),
    recipes.latency("vfs_read", 500), recipes.calls("ext4:ext4_sync_file"),
)  # fmt: skip


def test_scripts() -> None:
    assert "\n".join(SCRIPTS) == golden("recipes.txt")


def test_scripts_are_of_the_language() -> None:
    for text in SCRIPTS:
        assert compile_script(text, FakeKernel()).probes, text
