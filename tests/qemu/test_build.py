"""Kernels built here: every option of a fragment must come out, and none is built twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from qemu import build, matrix

TINY = "CONFIG_SMP=y\n# CONFIG_BPF is not set\nCONFIG_KALLSYMS=y\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTPROBE_CACHE", str(tmp_path))
    return tmp_path / "kernels" / "built"


def test_an_option_that_is_lost_is_told() -> None:
    assert build.lost_options(TINY, TINY) == []
    assert build.lost_options(TINY, "CONFIG_SMP=y\n# CONFIG_KALLSYMS is not set\n") == ["CONFIG_KALLSYMS=y"]


def test_each_recipe_has_its_options() -> None:
    for recipe in build.RECIPES:
        assert f'CONFIG_LOCALVERSION="-{recipe.name}"' in recipe.options
        assert all(line.startswith(("#", "CONFIG_")) for line in recipe.options.splitlines())


def test_no_other_kernels() -> None:
    with pytest.raises(build.BuildError, match="tiny"):
        build.build("huge")


def test_what_the_cache_has_is_taken_while_its_options_are_the_same(cache: Path) -> None:
    place = cache / "tiny"
    place.mkdir(parents=True)
    for name in ("vmlinuz", "vmlinux", "System.map", "config"):
        (place / f"{name}-6.12-tiny").write_bytes(b"")
    assert not list(build.built_kernels())
    (place / "options").write_text(build.recipe("tiny").options)
    found = build.build("tiny")
    assert found.kernel.release == "6.12-tiny" and found.vmlinux == place / "vmlinux-6.12-tiny"
    assert [each.recipe.name for each in build.built_kernels()] == ["tiny"]
    (place / "options").write_text("CONFIG_SMP=y\n")
    assert not list(build.built_kernels())


def test_missing_tools_are_told_with_the_line_that_installs_them(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(build.BuildError, match=r"apt-get install .*flex bison"):
        build.build("tiny")


def test_where_gdb_has_the_vmlinux_the_kernel_is_where_it_was_linked_for() -> None:
    rows = [row for row in matrix.built_rows() if row.vmlinux]
    assert len(rows) == len(build.RECIPES)
    assert all(row.append.split().count("nokaslr") == 1 for row in rows)
