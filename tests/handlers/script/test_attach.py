"""Where the probes of a script are attached, where several of its attach points lead to one function."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script.compile import NotAttached, compile_script
from gdb_optprobe.handlers.script.scope import Matched, Unmatched
from tests.handlers.script.kernel import FakeKernel


class OneLibrary(FakeKernel):
    """libpthread has no functions of its own: libc has them."""

    def matches(
        self, provider: str, target: str, name: str, offset: int, has_args: bool = False
    ) -> Sequence[Matched] | Missing:
        file = "/lib/libc.so.6" if target in ("libc", "libpthread") else target
        return super().matches(provider, file, name, offset, has_args)


def attached(text: str) -> list[str]:
    return [each.name for each in compile_script(text, OneLibrary()).probes]


def test_a_function_that_two_libraries_lead_to_is_attached_once() -> None:
    name = "uprobe:/lib/libc.so.6:pthread_create"
    assert attached("uprobe:libpthread:pthread_create, uprobe:libc:pthread_create { @++; }") == [name]
    assert attached("uprobe:libc:a, uprobe:libpthread:* { @++; }") == [
        "uprobe:/lib/libc.so.6:a",
        "uprobe:/lib/libc.so.6:b",
    ]


def test_what_a_list_names_twice_is_attached_twice() -> None:
    assert len(attached("uprobe:libc:f, uprobe:libc:f { @++; }")) == 2
    assert len(attached("kprobe:f, kprobe:f { @++; }")) == 2
    assert len(attached("uprobe:libc:f { @a++; } uprobe:libpthread:f { @b++; }")) == 2


class Near(FakeKernel):
    """It has no function of a name, and one that is nearly the same."""

    def matches(
        self, provider: str, target: str, name: str, offset: int, has_args: bool = False
    ) -> Sequence[Matched] | Missing:
        if name == "vfs_raed":
            return Unmatched("", "did you mean vfs_read?")
        if name == "vfs_asm":
            return Unmatched("it has no symbol there")
        return super().matches(provider, target, name, offset, has_args)


def test_a_function_that_is_not_there_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(NotAttached) as refused:
        compile_script("kprobe:vfs_raed { @++; }", Near())
    assert refused.value.message.startswith("No probes to attach: nothing matches 'kprobe:vfs_raed'")
    assert refused.value.hint == "did you mean vfs_read?"
    script = compile_script("kprobe:vfs_raed, kprobe:vfs_read { @++; }", Near())
    assert [each.name for each in script.probes] == ["kprobe:vfs_read"]
    assert script.warnings == ("could not attach probe kprobe:vfs_raed, skipping.",)


def test_one_that_is_left_out_has_its_reason() -> None:
    script = compile_script("kprobe:vfs_asm, kprobe:vfs_read { @++; }", Near())
    assert script.warnings == ("could not attach probe kprobe:vfs_asm, skipping: it has no symbol there",)
