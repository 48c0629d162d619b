"""The house is as CONTRIBUTING.md draws it: imports run one way, GDB stays at the top, no module has state."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gdb_optprobe"

# Higher imports lower. Two layers of one height may import each other one way only.
HEIGHT = {
    "commands": 6,
    "debugger": 5,
    "recovery": 4,
    "exports": 4,
    "pages": 4,
    "probes": 3,
    "detours": 2,
    "handlers": 1,
    "guest": 1,
    "maps": 0,
    "isa": 0,
    "errors": -1,
    "garbage": -1,
    "guest_text": -1,
    "host_files": -1,
    "budget": -1,
    "interrupts": -1,
    "lazy_dataclasses": -1,
    "on_demand": -1,
}
KNOWS_GDB = ("commands", "debugger")
OF_GDB = ("parameters.py", "event_loop.py", "interrupter.py")
"""What they hold there is one of in a GDB, whatever it is connected to."""
_MUTABLE = ("list", "dict", "set", "bytearray", "defaultdict", "Counter", "deque", "OrderedDict")
_MUTATORS = (
    "append",
    "add",
    "update",
    "extend",
    "insert",
    "pop",
    "remove",
    "discard",
    "clear",
    "setdefault",
    "popitem",
)


def files(*below: str) -> list[Path]:
    folders = [PACKAGE / name for name in below] if below else [PACKAGE]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), named(path))


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    return tuple(ast.walk(tree(path)))


def imported(path: Path, statements: Sequence[ast.AST] | None = None) -> Iterator[str]:
    """The full names of all that a file imports, or that some of its statements do."""
    for node in statements or nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts
            parts = [*package[: len(package) + 1 - node.level], node.module] if node.level else [node.module]
            module = ".".join(part for part in parts if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def layers_used(path: Path) -> set[str]:
    names = (name.split(".") for name in imported(path))
    return {name[1] for name in names if name[0] == "gdb_optprobe" and len(name) > 1} & HEIGHT.keys()


LAYERED = [path for path in files() if layer(path) != "__init__"]


def test_imports_run_one_way() -> None:
    assert {layer(path) for path in LAYERED} <= HEIGHT.keys(), "a folder that is no layer of CONTRIBUTING.md"
    upward = {
        named(path): found
        for path in LAYERED
        if (found := sorted(used for used in layers_used(path) if HEIGHT[used] > HEIGHT[layer(path)]))
    }
    assert upward == {}


def test_layers_of_one_height_do_not_import_each_other_both_ways() -> None:
    pairs = {(layer(path), used) for path in LAYERED for used in layers_used(path) if used != layer(path)}
    both = {(one, other) for one, other in pairs if (other, one) in pairs}
    assert not both


def test_files_do_not_import_each_other_in_circles() -> None:
    """Inside a function, or for a type's sake, neither. A package's own file only gives out what its files hold."""
    by_name = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in LAYERED}
    own = {name: path for name, path in by_name.items() if path.name != "__init__.py"}
    TopologicalSorter({name: {*imported(path)} & own.keys() for name, path in own.items()}).prepare()


def test_gdb_is_imported_at_the_top_only() -> None:
    below = [path for path in LAYERED if layer(path) not in KNOWS_GDB]
    assert [named(path) for path in below if any(name.split(".")[0] == "gdb" for name in imported(path))] == []


def test_the_package_itself_does_not_import_gdb() -> None:
    path = PACKAGE / "__init__.py"
    at_once = imported(path, tree(path).body)
    assert not [name for name in at_once if name == "gdb" or name.startswith("gdb_optprobe.")]


def test_qemu_imports_its_own_files_relatively() -> None:
    """Installed it has another name, `gdb_optprobe_qemu`: PyPI's `qemu.qmp` owns `qemu`."""
    absolute = re.compile(r"^\s*(?:from|import) qemu\b", re.MULTILINE)
    assert [named(path) for path in (ROOT / "qemu").rglob("*.py") if absolute.search(path.read_text())] == []


NAMES_ISAS = re.compile(r"x86|amd64|i386|ppc64|powerpc|aarch64|arm64", re.IGNORECASE)
SOURCE = re.compile(r"arch/\w+/[\w./-]+")
"""A file of Linux's, which a docstring may give as the source of a rule."""
ISA_FOLDER = re.compile(r"gdb_optprobe\.(?:isa|guest\.linux\.arch)\.([a-z0-9]+_?\d+[a-z]*)(?:\.|$)")
ISA_FOLDERS = (PACKAGE / "isa", PACKAGE / "guest/linux/arch")


def knows_isa(path: Path) -> bool:
    """Return whether a file is an ISA's own, or the list of all."""
    below = [path.relative_to(folder).parts for folder in ISA_FOLDERS if folder in path.parents]
    return any(len(parts) > 1 or parts == ("registry.py",) for parts in below)


def test_no_other_file_names_an_isa() -> None:
    """A new ISA is two folders, and a line in each registry."""
    texts = {named(path): SOURCE.sub("", path.read_text()) for path in files() if not knows_isa(path)}
    named_in = {path: NAMES_ISAS.findall(text) for path, text in texts.items()}
    assert {path: found for path, found in named_in.items() if found} == {}


def test_only_a_registry_imports_the_folders_of_isas() -> None:
    """Within one ISA's folders all may import each other."""
    for path in (path for path in files() if path.name != "registry.py"):
        folders = {found for name in imported(path) if (found := ISA_FOLDER.match(name))}
        assert not folders or knows_isa(path), named(path)
        assert {found[1] for found in folders} <= set(path.relative_to(PACKAGE).parts), named(path)


def test_no_state_at_module_level() -> None:
    """Tables are constants: upper case, and never changed. Everything else belongs to a Session."""
    found = {named(path): [*state(tree(path))] for path in LAYERED if path.name not in OF_GDB}
    assert {path: what for path, what in found.items() if what} == {}


def state(module: ast.Module) -> Iterator[str]:
    mutable = dict(mutable_globals(module))
    yield from (name for name in mutable if not name.isupper() and not name.startswith("__"))
    yield from (f"changes {name}" for name in sorted(set(changed_names(module)) & mutable.keys()))
    yield from ("global" for node in ast.walk(module) if isinstance(node, ast.Global))


def mutable_globals(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if is_mutable(value):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in _MUTABLE
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def changed_names(module: ast.Module) -> Iterator[str]:
    """Names that functions write into: `NAME[…] = …`, `del NAME[…]`, `NAME.append(…)`."""
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            yield node.value.id
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
            and isinstance(node.func.value, ast.Name)
        ):
            yield node.func.value.id


# the guest's text ----------------------------------------------------------------------------------------------------

CHARACTERS = ("chr", "fsdecode", "unquote")
"""What else makes characters of numbers and bytes."""
DECODES = {
    "gdb_optprobe/guest_text.py": "the one place",
    "gdb_optprobe/debugger/machine.py": "hex digits of QEMU's stub, which become bytes",
    "gdb_optprobe/debugger/parameters.py": "GDB's own command line",
    "gdb_optprobe/recovery/guardian.py": "packets of QEMU's stub; it prints nothing",
    "gdb_optprobe/pages/page.py": "a hash, in base64",
    "gdb_optprobe/guest/cache.py": "a file on the host, of names that were printable when they were written",
}
LOADS = {
    "gdb_optprobe/maps/journal_format.py": "checked by probes/fields.py before it is used",
    "gdb_optprobe/guest/cache.py": "a file on the host",
    "gdb_optprobe/recovery/guardian.py": "addresses, from the GDB that has started it",
    "gdb_optprobe/debugger/qemu_memory.py": "QEMU's answers: whether there is an error, which is made printable",
}
"""Who reads JSON, whose strings hold anything."""


def is_decoding(node: ast.AST) -> bool:
    """Whether a call makes characters of bytes: `.decode("latin-1")`, `str(data, "utf-8")`, `chr(7)`."""
    if not isinstance(node, ast.Call):
        return False
    encodes = not node.args or isinstance(node.args[0], ast.Constant) or any(k.arg == "errors" for k in node.keywords)
    if isinstance(node.func, ast.Attribute):
        return (node.func.attr == "decode" and encodes) or node.func.attr in CHARACTERS
    if isinstance(node.func, ast.Name):
        return node.func.id in CHARACTERS or (node.func.id == "str" and len(node.args) + len(node.keywords) > 1)
    return False


def test_bytes_of_the_guests_become_characters_in_one_place() -> None:
    """Raw text is bytes, which mypy keeps from the output: only guest_text.py makes characters of them."""
    for path in files():
        found = [node for node in nodes(path) if is_decoding(node)]
        assert not found or named(path) in DECODES, (named(path), [ast.unparse(node) for node in found])
        calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
        loads = calls & {"json.loads", "json.load", "pickle.loads", "marshal.loads"}
        assert not loads or named(path) in LOADS, (named(path), loads)


@pytest.mark.thorough
def test_mypy_keeps_raw_text_of_the_guests_from_the_output(tmp_path: Path) -> None:
    raw = tmp_path / "raw.py"
    raw.write_text(
        "from gdb_optprobe.commands.render_text import Text\n"
        "from gdb_optprobe.errors import OptprobeError\n"
        "from gdb_optprobe.guest_text import printable\n"
        "def shown(out: Text, comm: bytes) -> OptprobeError:\n"
        "    out.lines([printable(comm)])\n"
        "    out.lines([comm])\n"
        "    out.lines([f'{comm}'])\n"
        "    out.lines(['{}'.format(comm)])\n"
        "    return OptprobeError(comm)\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "setup.cfg", str(raw)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    refused = re.findall(r"raw\.py:(\d+): error", found)
    assert sorted(set(refused)) == ["6", "7", "8", "9"], found


EVALUATES = ("execute", "parse_and_eval", "decode_line", "lookup_type", "Breakpoint", "parameter")
"""Functions of GDB's that carry out, or evaluate, what they are given."""
CARRIES_OUT = {"carry_out", *(f"gdb.{name}" for name in EVALUATES)}
GIVEN = {
    # Typed, or from a journal and checked by probes/fields.py: names and numbers then.
    ("commands/expect.py", "args.expression"),
    ("commands/expect.py", "side"),
    ("debugger/locations.py", "expression"),
    ("debugger/locations.py", "text"),
    # Names that the lexer took out of typed text: one word each.
    ("debugger/dwarf.py", "f'{keyword} {name}'.strip()"),
    # Files of ours, by paths on the host.
    ("debugger/memory_dump.py", "f'monitor pmemsave {address:#x} {size:#x} \"{path}\"'"),
    ("debugger/program_frames.py", "f'add-symbol-file {quoted(path)} -s .text {start:#x}'"),
    ("debugger/kernel_symbols.py", "load_command(str(path), (origin[0], origin[1]), slide)"),
    ("debugger/kernel_symbols.py", "f'add-symbol-file {quoted(str(path))} -s .text {ASIDE:#x}'"),
    ("debugger/kernel_symbols.py", "f'remove-symbol-file {which}'"),
    ("debugger/kernel_types.py", "f'add-symbol-file {quoted(str(path))} -s .text {ASIDE:#x}'"),
    # Constants of the callers'.
    ("debugger/kernel_types.py", "f'struct {WITNESS}'"),
    ("debugger/doctor.py", "f'monitor {command}'"),
    ("debugger/live_reader.py", "f'monitor {command}'"),  # a command's name and a number
    ("debugger/machine.py", "command"),  # what `carry_out` is given
    ("debugger/machine.py", "f'${name}'"),  # of the ISA's record
    ("debugger/machine.py", "f'${name} = {value:#x}'"),
    ("debugger/machine.py", "f'monitor cpu {number}'"),
    ("debugger/machine.py", "f'monitor p ${name}'"),  # of the ISA's record
    ("debugger/machine.py", "f'monitor cpu {(chosen[1] if chosen else 0)}'"),  # digits
    ("debugger/machine.py", "f'maint flush {cache}'"),
    ("debugger/parameters.py", "f'optprobe {name}'"),
    ("debugger/parameters.py", "f'show optprobe {name}'"),
    ("debugger/stops.py", "f'show user {name}'"),
    ("debugger/stops.py", r"f'define {name}\n{action}\nend'"),
    ("debugger/kernel_symbols.py", "f'(unsigned long)&{name}'"),
    ("debugger/kernel_symbols.py", "f\"set confirm {('on' if confirm else 'off')}\""),
}
"""All that GDB is given but constants and numbers, by file. None of it is text of the guest's."""
FORMATS = (
    "self.wording.format(**dict(self.facts))",
    "self.advice.format(**dict(self.facts))",
    "words.format(**dict.fromkeys(facts, ''))",
)
"""Of detours/refusal.py's own list."""
OF_FIELDS = "lazy_dataclasses.py", "exec(source, known)"
"""What is made of the names of our own fields, as the standard library makes it."""
RUNS = ("eval", "exec", "system", "popen", "getoutput", "getstatusoutput")


def numbers_alone(node: ast.expr) -> bool:
    """A constant, or one with hexadecimal numbers in it: `f'*{address:#x}'`."""
    if isinstance(node, ast.JoinedStr):
        parts = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        return all(part.format_spec is not None and ast.unparse(part.format_spec) == "f'#x'" for part in parts)
    return isinstance(node, ast.Constant)


def test_gdb_is_given_nothing_of_the_guests_to_carry_out() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), ast.unparse(node.args[0]))
        for path in files(*KNOWS_GDB)
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CARRIES_OUT
        if node.args and not numbers_alone(node.args[0])
    }
    assert found == GIVEN


def test_no_shell_no_eval_and_no_format_that_is_not_ours() -> None:
    calls = ((path, each) for path in files() for each in nodes(path) if isinstance(each, ast.Call))
    for path, node in calls:
        if (str(path.relative_to(PACKAGE)), ast.unparse(node)) == OF_FIELDS:
            continue
        function = node.func
        called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        assert called not in RUNS or ast.unparse(function) == "self.exec", ast.unparse(node)
        assert not any(keyword.arg == "shell" for keyword in node.keywords), ast.unparse(node)
        if called in ("format", "format_map") and isinstance(function, ast.Attribute):
            assert isinstance(function.value, ast.Constant) or ast.unparse(node) in FORMATS, ast.unparse(node)
