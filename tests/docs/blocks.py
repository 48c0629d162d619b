"""The generated parts of docs/ and README: Markdown of what the code knows."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gdb_optprobe.detours import refusal
from gdb_optprobe.detours.refusal import Refusal
from gdb_optprobe.guest.scope import OURS
from gdb_optprobe.handlers.clauses import ACTIONS
from gdb_optprobe.handlers.ctype import TYPEDEFS
from gdb_optprobe.handlers.format import KNOWN
from gdb_optprobe.handlers.parser import BINARY, FUNCTIONS, UNARY
from gdb_optprobe.probes.settings import SIZES
from tests.docs.recorder import Registered, registered

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gdb_optprobe"
GOLDEN = ROOT / "tests" / "golden"
ISAS = ("x86-64", "ppc64le", "aarch64")
_FACT = re.compile(r"\{(\w+)\}")
_VALUES = {
    "PARAM_BOOLEAN": "`on`, `off`",
    "PARAM_ZUINTEGER": "a number",
    "PARAM_OPTIONAL_FILENAME": "a path, or nothing",
}


@cache
def interactive() -> Registered:
    return registered()


@cache
def batch() -> Registered:
    return registered(batch=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. A `|` in a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


def listed(texts: Iterable[object]) -> str:
    return ", ".join(map(code, texts))


# commands and settings


def commands() -> str:
    """A table of all commands, then the help of each."""
    found = [(each.name, inspect.getdoc(each) or "") for each in interactive().commands if each.name != "info optprobe"]
    found = [(name, text) for name, text in found if name.startswith("optprobe")]
    rows = [(f"[`{name}`](#{name.replace(' ', '-')})", _first(text)) for name, text in found]
    return "\n\n".join([table(("command", ""), rows), *(_help(name, text) for name, text in found)])


def _help(name: str, text: str) -> str:
    rest = text.partition("\n")[2].strip("\n")
    return f"## `{name}`\n\n{_first(text)}\n\n```text\n{rest}\n```"


def _first(text: str) -> str:
    return text.partition("\n")[0]


def convenience_functions() -> str:
    return table(("function", ""), [_split(inspect.getdoc(each) or "") for each in interactive().functions])


def _split(text: str) -> tuple[str, str]:
    what, _, usage = text.rstrip(".").rpartition(": ")
    return code(usage), what


def settings() -> str:
    rows = []
    for each, in_batch in zip(interactive().parameters, batch().parameters, strict=True):
        default = code(_spelled(each.value))
        if in_batch.value != each.value:
            default += f"; with `-batch` {code(_spelled(in_batch.value))}"
        what = f"{each.set_doc.removeprefix('Set ').rstrip('.')}{_more(each)}"
        rows.append((code(each.name), what[0].upper() + what[1:], _choices(each), default))
    return table(("setting", "", "values", "default"), rows)


def _more(setting: Any) -> str:
    """Return what the class of a setting of its own says."""
    text = " ".join((type(setting).__doc__ or "").split())
    return f". {text.rstrip('.')}" if setting.kind != "PARAM_BOOLEAN" and setting.name not in SIZES else ""


def _choices(setting: Any) -> str:
    if setting.name in SIZES:
        size = SIZES[setting.name]
        return f"{size.least} to {size.most}, {f'multiples of {size.step}' if size.step else 'powers of two'}"
    return listed(setting.choices) or _VALUES.get(setting.kind, "`auto`, `code=START-END data=START-END`")


def _spelled(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


# refusals


def refusals(group: str) -> str:
    """A table of the codes of one group: those below a comment of the enum."""
    members = refusal_groups()[group]
    return table(("code", "reason", "next step"), [(code(each.code), *map(_facts, each.value)) for each in members])


@cache
def refusal_groups() -> Mapping[str, tuple[Refusal, ...]]:
    """Return the codes by the comment that they are below."""
    lines = inspect.getsource(Refusal).splitlines()
    found: dict[str, list[Refusal]] = {}
    group = ""
    for line in lines:
        if line.startswith("    # "):
            group = line.removeprefix("    # ").rstrip(".")
        elif name := re.match(r"    ([A-Z_]+) = ", line):
            found.setdefault(group, []).append(Refusal[name[1]])
    return {group: tuple(members) for group, members in found.items()}


def passing() -> str:
    return listed(code for code in Refusal.__members__ if code in refusal.PASSING)


def _facts(text: str) -> str:
    """Return a text with its facts in italics. A fact right behind a word is a part that may be empty: left out."""
    text = re.sub(r"(?<=\w)\{\w+\}", "", text)
    return _FACT.sub(r"*\1*", text)


# expressions and actions


def actions() -> str:
    return table(("action", "result"), [(code(usage.text), usage.what) for usage in ACTIONS.values()])


def variables() -> str:
    return table(("name", ""), [(code(f"${name}"), what) for name, what in OURS.items()])


def functions() -> str:
    return table(("function", ""), [(code(usage), what) for usage, what in FUNCTIONS.values()])


def operators() -> str:
    """The operators, those that bind strongest first."""
    levels = [("[]", "->", "."), (*UNARY, "(type)", "sizeof"), *reversed(BINARY), ("? :",)]
    return "\n".join(f"{number}. {' '.join(map(code, level))}" for number, level in enumerate(levels, 1))


def conversions() -> str:
    head, _, tail = KNOWN.partition(", with ")
    return f"{' '.join(map(code, head.split()))}, with {tail}"


def types() -> str:
    return listed(TYPEDEFS)


# JSON


def json_keys(command: str) -> str:
    """An example of a command's output, and its keys."""
    from gdb_optprobe.commands.json_schema import COMMANDS, DEFINITIONS

    parts = [f"```json\n{_example(command)}\n```"]
    for name in COMMANDS[command]:
        definition: Any = DEFINITIONS[name]
        rows = list(_rows(definition))
        parts += [f"{definition['description']}.", *([table(("key", "type", ""), rows)] if rows else [])]
    return "\n\n".join(parts)


def definition(name: str) -> str:
    from gdb_optprobe.commands.json_schema import DEFINITIONS

    return table(("key", "type", ""), _rows(DEFINITIONS[name]))


def version() -> str:
    from gdb_optprobe.commands.json_schema import VERSION

    return f"This is version {VERSION} of the format."


def _example(command: str) -> str:
    """Return the first line of the golden file; of a report the first of each type."""
    lines = (GOLDEN / f"{command}.json").read_text().splitlines()
    first = {json.loads(line)["type"]: line for line in reversed(lines)} if command == "report" else {}
    return "\n".join(line for line in lines if line in first.values()) or lines[0]


def _rows(definition: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield a row for each key. Keys of an object inside have its key before them."""
    definition, repeated = _inside(definition)
    prefix = f"{prefix}[]" if repeated and prefix else prefix
    for name, value in definition.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        optional = "" if name in definition["required"] else " May be missing."
        what = value.get("description") or _described(value)
        yield code(path), _type(value), f"{what}.{optional}"
        if "$ref" not in json.dumps(value):
            yield from _rows(value, path)


def _described(value: Any) -> str:
    return f"See [{_name(value)}](#{_name(value)})"


def _name(value: Any) -> str:
    return str(value["$ref"]).rpartition("/")[2]


def _inside(value: Any) -> tuple[Any, bool]:
    """Return the object in a list, or in what may be null, and whether there may be several."""
    if value.get("type") == "array":
        return _inside(value["items"])[0], True
    for each in value.get("anyOf", ()):
        if _inside(each)[0].get("properties"):
            return _inside(each)
    return value, False


def _type(value: Any) -> str:
    if "$ref" in value:
        return f"[{_name(value)}](#{_name(value)})"
    if "const" in value:
        return code(json.dumps(value["const"]))
    if "enum" in value:
        return ", ".join(code(json.dumps(each)) for each in value["enum"])
    if value.get("pattern", "").startswith("^0x"):
        return '`"0x…"`'
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(each) for each in value["anyOf"]))
    if value["type"] == "array":
        return f"list of {_type(value['items'])}"
    return " or ".join([value["type"]] if isinstance(value["type"], str) else value["type"])


# the Python API


def python() -> str:
    """The functions and classes of the API, by their docstrings. The module imports gdb, so it is parsed."""
    tree = ast.parse((PACKAGE / "debugger" / "api.py").read_text())
    nodes = [each for each in tree.body if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name[0] != "_"]
    nodes.sort(key=lambda node: isinstance(node, ast.ClassDef))
    return "\n\n".join(_documented(node) for node in nodes)


def hits() -> str:
    """What handlers are called with."""
    found = []
    for path, name in (("stops", "Hit"), ("return_stops", "EntryHit"), ("return_stops", "ReturnHit")):
        tree = ast.parse((PACKAGE / "probes" / f"{path}.py").read_text())
        found += [_documented(node) for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return "\n\n".join(found)


def _documented(node: ast.ClassDef | ast.FunctionDef) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"### {node.name}\n\n```python\n{_signature(node)}\n```\n\n{_docstring(node)}"
    members = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    rows = [(code(_called(each)), " ".join((ast.get_docstring(each) or "").split())) for each in members]
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    parts = [f"### {node.name}", _docstring(node)]
    if fields:
        listing = "\n".join(f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}" for each in fields)
        parts.append(f"```python\n{listing}\n```")
    return "\n\n".join([*parts, *([table(("member", ""), rows)] if rows else [])])


def _called(node: ast.FunctionDef) -> str:
    is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
    return node.name if is_property else f"{node.name}()"


def _signature(node: ast.FunctionDef) -> str:
    arguments = re.sub(r"(?<=[\w\]])=", " = ", ast.unparse(node.args)).replace("'", '"')
    apart = re.sub(r", (?=\*|\w+:)", ",\n    ", arguments)
    assert node.returns is not None
    return f"{node.name}(\n    {apart},\n) -> {ast.unparse(node.returns)}"


_NAMED = re.compile(r"(\w+(?:, \w+)*): +")
_NEXT = re.compile(r"(?<=\.) +(?=\w+(?:, \w+)*: )")


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return a docstring as Markdown: `name: text` becomes an item of a list."""
    text = ast.get_docstring(node)
    assert text, f"{node.name} has no docstring"
    parts: list[str] = []
    for line in text.splitlines():
        if not parts or not line or _NAMED.match(line) or line.startswith("Raises"):
            parts += _NEXT.split(line)
        else:
            first, *more = _NEXT.split(line.strip())
            parts[-1] = f"{parts[-1]} {first}".strip()
            parts += more
    return re.sub(r"\n{3,}", "\n\n", "\n".join(map(_item, parts))).strip()


def _item(text: str) -> str:
    found = _NAMED.match(text)
    if found is None:
        return f"\n{text}\n"
    names, what = found[1].split(", "), text[found.end() :]
    return f"- {listed(names)}: {what}"


# what it runs on


def support() -> str:
    """The rows of the matrix in support.md by kernel, without the machines and versions of each row."""
    _, matrix, _ = re.split(r"<!-- /?matrix -->", (ROOT / "docs" / "support.md").read_text())
    rows = [line.strip("| ").split(" | ") for line in matrix.splitlines() if " QEMU " in line and line.startswith("|")]
    found: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
    for name, *cells in rows:
        kernel, flavour = name.partition(",")[0].split(" ", 1)
        isa = {"power": "ppc64le", "arm": "aarch64"}.get(flavour, "x86-64")
        found.setdefault((kernel, isa), []).append((name, cells))
    return table(
        ("Linux, of Debian", "ISA", "QEMU", "GDB", "works", "refused", "broken"),
        (
            (
                *kernel,
                _versions("QEMU", tried),
                _versions("GDB", tried),
                *(str(sum(cells.count(word) for _, cells in tried)) for word in ("works", "refused", "broken")),
            )
            for kernel, tried in sorted(found.items(), key=lambda item: (ISAS.index(item[0][1]), _number(item[0][0])))
        ),
    )


def _versions(of: str, tried: Sequence[tuple[str, Sequence[str]]]) -> str:
    found = {version for name, _ in tried for version in re.findall(rf"{of} ([\d.]+)", name)}
    return ", ".join(sorted(found, key=_number))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


BLOCKS: Mapping[str, Callable[..., str]] = {
    "commands": commands,
    "convenience functions": convenience_functions,
    "settings": settings,
    "refusals": refusals,
    "passing": passing,
    "actions": actions,
    "variables": variables,
    "functions": functions,
    "operators": operators,
    "conversions": conversions,
    "types": types,
    "json": json_keys,
    "definition": definition,
    "version": version,
    "python": python,
    "hits": hits,
    "support": support,
}
"""By the name in a page's `<!-- generated: NAME ARGUMENT -->`."""
