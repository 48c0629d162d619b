"""Validate JSON against a schema: the part of JSON Schema that docs/reference/schema.json uses, and speedscope's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.docs.build import SCHEMA

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$ref", "anyOf", "const", "description", "enum", "items", "pattern", "properties", "required", "title", "type"),
}


def check(text: str, *names: str) -> None:
    """Check that each line of `text` is what one of the definitions says. An unknown key is an error too."""
    schema = json.loads(SCHEMA.read_text())
    for line in text.splitlines():
        found = {name: list(faults(json.loads(line), {"$ref": f"#/$defs/{name}"}, schema)) for name in names}
        assert not all(found.values()), f"{line}: {found}"


def faults(value: Any, rule: Any, schema: Any, where: str = "") -> Iterator[str]:
    """Yield where `value` is not what `rule` says, and what is wrong there."""
    assert rule.keys() <= _KNOWN, f"this validator does not know {rule.keys() - _KNOWN}"
    if "$ref" in rule:
        _, place, name = rule["$ref"].split("/")
        yield from faults(value, schema[place][name], schema, where)
    if "anyOf" in rule:
        tried = [list(faults(value, each, schema, where)) for each in rule["anyOf"]]
        if all(tried):
            yield from min(tried, key=len)
    if "type" in rule and not _is_of(value, rule["type"]):
        yield f"{where}: {value!r} is no {rule['type']}"
    if "enum" in rule and value not in rule["enum"]:
        yield f"{where}: {value!r} is none of {rule['enum']}"
    if "const" in rule and value != rule["const"]:
        yield f"{where}: {value!r} is not {rule['const']!r}"
    if "pattern" in rule and isinstance(value, str) and not re.search(rule["pattern"], value):
        yield f"{where}: {value!r} does not match {rule['pattern']}"
    if "items" in rule and isinstance(value, list):
        for number, each in enumerate(value):
            yield from faults(each, rule["items"], schema, f"{where}[{number}]")
    if "properties" in rule and isinstance(value, dict):
        yield from (f"{where}: no {name}" for name in rule["required"] if name not in value)
        for name, each in value.items():
            if name not in rule["properties"]:
                yield f"{where}: {name} is not in the schema"
            else:
                yield from faults(each, rule["properties"][name], schema, f"{where}.{name}")


def _is_of(value: object, types: str | list[str]) -> bool:
    """Return whether a value has one of the types. True is no number."""
    names = [types] if isinstance(types, str) else types
    return any(
        isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names
    )
