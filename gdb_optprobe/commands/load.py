"""The file that GDB sources: it makes the command `optprobe` known. In a checkout scripts/optprobe.py runs it.

GDB's Python is another than pip's, so it finds only the packages of NAMES here: these are pure Python and ctypes, and
run with every version; markupsafe has an extension module too, and does without. Others beside them may hold extension
modules of pip's Python.

    checkout/.packages    capstone, jinja2, keystone, markupsafe, pygments, by scripts/setup
    checkout              gdb_optprobe
    site-packages         all of them, by pip
"""

# It is parsed by every Python that a GDB has: nothing here is newer than 3.6.
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import gdb

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (str(ROOT / ".packages"), str(ROOT))
NAMES = ("capstone", "gdb_optprobe", "jinja2", "keystone", "markupsafe", "pygments")


class OptprobePackages:
    """Finds the packages of NAMES, before those of other versions that GDB's Python may have."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        return PathFinder.find_spec(name, list(FOLDERS)) if name in NAMES else None


def load() -> None:
    check_versions()
    # The class is another one when the file is sourced again.
    if not any(type(finder).__name__ == OptprobePackages.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, OptprobePackages())
    check_packages()
    check_loaded()
    from gdb_optprobe.commands import register

    register()


def check_versions() -> None:
    version = gdb.VERSION.split(".")[0]
    if version.isdecimal() and int(version) < 13:
        raise gdb.GdbError(f"optprobe: GDB 13 or later is needed; this is {gdb.VERSION}")
    # Linters know only the Pythons we run on; GDB's may be another.
    if sys.version_info < (3, 11):  # noqa: UP036
        found = sys.version.split()[0]
        raise gdb.GdbError(f"optprobe: a GDB with Python 3.11 or later is needed; this one has {found}")


def check_packages() -> None:
    try:
        import capstone

        if capstone.CS_API_MAJOR != 5:
            raise ImportError(f"{capstone.__file__} is of version {capstone.CS_API_MAJOR}, 5 is needed")
    except Exception as error:
        raise gdb.GdbError(f"optprobe: capstone cannot be imported ({error}); {advice()}") from None


def check_loaded() -> None:
    loaded = sys.modules.get("gdb_optprobe")
    if loaded is not None and Path(str(loaded.__file__)).resolve().parents[1] != ROOT:
        raise gdb.GdbError(f"optprobe: {loaded.__file__} is loaded already; for the one in {ROOT} start GDB with -nx")


def advice() -> str:
    if (ROOT / "scripts" / "setup").exists():
        return f"run {ROOT}/scripts/setup"
    return f"pip install --target {ROOT} 'capstone>=5,<6' 'jinja2>=3.1,<4' 'keystone-engine>=0.9.2' pygments"


def source() -> None:
    try:
        load()
    except gdb.GdbError as error:
        # Raised here, it would come with a traceback.
        gdb.write(f"{error}\n", gdb.STDERR)
        # In batch mode GDB forgets every failure but the last command's, so this one ends it, as all our failures do.
        if batch_mode():
            gdb.execute("quit 1")


def batch_mode() -> bool:
    """As gdb_optprobe.debugger.parameters has it, which may be what cannot be imported."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"-batch" in words or b"--batch" in words


source()
