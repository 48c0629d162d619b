"""Files of ours on a machine with other users: whose they are, who may read and write them."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import default_cache
from gdb_optprobe.guest.linux.user import program
from gdb_optprobe.host_files import folder, new_folder, read_regular, replace
from qemu.cache import cache_directory, guests_directory, say

ROOT = Path(__file__).resolve().parents[1]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


# folders


def test_a_new_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    assert mode(folder(tmp_path / "a" / "b")) == 0o700
    assert folder(tmp_path / "a" / "b", alone=True).is_dir()


def test_a_folder_of_files_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    new_folder(tmp_path / "a", {"x": b"1", "y": b"2"})
    assert {one.name: one.read_bytes() for one in (tmp_path / "a").iterdir()} == {"x": b"1", "y": b"2"}
    assert mode(tmp_path / "a") == 0o700
    with pytest.raises(OSError):
        new_folder(tmp_path / "b", {"x": b"1", "no/y": b"2"})
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").touch()
    for there in ("a", "link", "file"):
        with pytest.raises(OptprobeError, match="is there already; name a new folder"):
            new_folder(tmp_path / there, {})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "file", "link"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_folder_that_another_user_made_first_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    made = tmp_path / "optprobe-1000"
    made.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OptprobeError, match="belongs to another user; name a folder of your own"):
        folder(made, alone)


@pytest.mark.parametrize(("wide", "alone"), [(0o770, False), (0o707, False), (0o1777, False), (0o755, True)])
def test_a_folder_that_others_may_write_to_is_refused_with_the_next_step(
    tmp_path: Path, wide: int, alone: bool
) -> None:
    made = tmp_path / "cache"
    made.mkdir()
    made.chmod(wide)
    with pytest.raises(OptprobeError, match=f"by other users; chmod go-{'rwx' if alone else 'w'} {made}"):
        folder(made, alone)
    made.chmod(0o700)
    assert folder(made, alone) == made


def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    there.mkdir(mode=0o700)
    link.symlink_to(there)
    assert folder(link) == link, "a cache may be on another disk"
    with pytest.raises(OptprobeError, match="is a link"):
        folder(link, alone=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OptprobeError, match="is a link, which another user may have made"):
        folder(link)


def test_a_folder_whose_place_others_may_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below a /tmp without its sticky bit, or behind a link of another user's."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(OptprobeError, match=f"in {shared} every user may exchange what is there; chmod \\+t"):
        folder(shared / "mine")
    with pytest.raises(OptprobeError, match="every user may exchange"):
        folder(shared / "a" / "b")
    shared.chmod(0o1777)
    assert folder(shared / "mine").is_dir()
    link = shared / "link"
    link.symlink_to(tmp_path)
    seen = Path.lstat

    def of_another(path: Path) -> os.stat_result:
        known = seen(path)
        return os.stat_result((*known[:4], 4711, *known[5:])) if path == link else known

    monkeypatch.setattr(Path, "lstat", of_another)
    with pytest.raises(OptprobeError, match=f"{link} is a link of another user's"):
        folder(link / "mine")


@pytest.mark.parametrize("wide", [0o777, 0o770])
def test_a_cache_that_others_may_change_is_neither_read_nor_written(tmp_path: Path, wide: int) -> None:
    root = tmp_path / "cache"
    cache = default_cache({"OPTPROBE_CACHE": str(root)})
    shelf = cache.shelf("ab" * 20, "cd" * 32)
    shelf.store("name", b"fact")
    made = cache.store_file(b"an ELF file")
    assert made is not None and cache.file(made.stem) == made and mode(made) == 0o600
    assert cache.refused is None and shelf.load("name") == b"fact"
    root.chmod(wide)
    assert "may be written to by other users" in str(cache.refused)
    assert cache.file(made.stem) is None and cache.store_file(b"another") is None
    shelf.store("name", b"other")
    assert [*made.parent.iterdir()] == [made] and mode(root) == wide
    root.chmod(0o700)
    assert cache.file(made.stem) == made and shelf.load("name") == b"fact"


def test_a_file_beside_the_cache_is_gone_at_the_end(shared: Path) -> None:
    program = "from gdb_optprobe.host_files import until_exit; print(until_exit(b'x', '.elf').read_bytes())"
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, env=os.environ | {"TMPDIR": str(shared)}, capture_output=True, check=True)
    assert done.stdout == b"b'x'\n" and not [*shared.iterdir()]


def test_guests_sockets_are_never_where_another_user_can_reach_them(shared: Path) -> None:
    made = guests_directory()
    assert made.parent == shared and mode(made) == 0o700
    made.chmod(0o755)
    with pytest.raises(PermissionError, match="chmod go-rwx"):
        guests_directory()
    made.rmdir()
    (shared / "elsewhere").mkdir(mode=0o700)
    made.symlink_to(shared / "elsewhere")
    with pytest.raises(PermissionError, match="is a link"):
        guests_directory()


def test_a_cache_that_others_may_change_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPROBE_CACHE", str(tmp_path / "cache"))
    assert mode(cache_directory()) == 0o700
    cache_directory().chmod(0o775)
    with pytest.raises(PermissionError, match="chmod go-w"):
        cache_directory()


# saved files


def test_a_saved_file_takes_the_old_ones_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "probes.gdb"
    replace(path, b"one\n")
    assert path.read_bytes() == b"one\n" and mode(path) == 0o600
    path.chmod(0o664)
    with path.open("rb") as old:
        replace(path, b"two\n")
        assert old.read() == b"one\n", "who reads has one or the other"
    assert path.read_bytes() == b"two\n" and mode(path) == 0o644

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        replace(path, b"three\n")
    assert path.read_bytes() == b"two\n" and [*tmp_path.iterdir()] == [path]


def test_saving_follows_no_link_and_replaces_no_device(tmp_path: Path) -> None:
    victim, link, dangling, pipe = (tmp_path / name for name in ("victim", "link", "dangling", "pipe"))
    victim.write_bytes(b"of value")
    link.symlink_to(victim)
    dangling.symlink_to(tmp_path / "made by whom")
    os.mkfifo(pipe)
    for path in (link, dangling, pipe, tmp_path, Path("/dev/null"), Path("/dev/stdout")):
        with pytest.raises(OptprobeError, match=r"is a link|is no file that can be replaced"):
            replace(path, b"new")
    assert victim.read_bytes() == b"of value" and not (tmp_path / "made by whom").exists()


def test_a_file_that_another_user_left_for_us_is_not_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "probes.gdb"
    trap.write_bytes(b"shell true\n")
    trap.chmod(0o666)
    before = trap.stat().st_ino
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    replace(trap, b"optprobe add vfs_read\n")
    assert trap.stat().st_ino != before and mode(trap) == 0o600


# files whose name a journal may give


def test_a_program_of_the_hosts_is_a_file_and_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(bytes(1 << 20))
    for path in (pipe, Path("/dev/zero"), Path("/dev/tty"), tmp_path, Path("/nowhere"), Path("a\0"), Path("\ud800")):
        with pytest.raises(OptprobeError):
            program._contents(path)
    assert read_regular(file, 1 << 20) == bytes(1 << 20)
    with pytest.raises(OptprobeError, match="has over 0 MiB"):
        read_regular(file, (1 << 20) - 1)


def test_a_small_file_takes_no_memory_for_the_largest(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 10))
    tracemalloc.start()
    try:
        assert read_regular(tmp_path / "file", 1 << 26) == bytes(1 << 10)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_larger_than_memory_is_one_clear_error(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.truncate(1 << 31)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 28), limits[1]))
    try:
        with pytest.raises(OptprobeError, match="no memory for the 2048 MiB"):
            read_regular(tmp_path / "file", 1 << 32)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_the_home_of_a_user_that_is_none_is_one_clear_error() -> None:
    for use in (
        lambda: program._contents(Path("~nosuchuser/x")),
        lambda: default_cache({"OPTPROBE_CACHE": "~nosuchuser/x"}),
    ):
        with pytest.raises(OptprobeError, match="home folder"):
            use()


# what guests print


def test_a_guests_log_reaches_the_terminal_as_text(shared: Path, capfd: pytest.CaptureFixture[str]) -> None:
    say("it did not come up:\n    \x1b]0;owned\x07 panic")
    assert capfd.readouterr().err == "optprobe: it did not come up:\n    \\033]0;owned\\007 panic\n"
    place = guests_directory() / "hostile"
    place.mkdir()
    (place / "console.log").write_bytes(b"Linux\r\n\x1b[2J\xff\xc2\x9b1m\n")
    script = [sys.executable, str(ROOT / "scripts" / "guest"), "log", "--name", "hostile"]
    shown = subprocess.run(script, capture_output=True, check=True, env=os.environ | {"TMPDIR": str(shared)})
    assert shown.stdout == b"Linux\n\\033[2J\\xff\\302\\2331m\n"
