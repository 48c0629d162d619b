"""Every output with -json is what docs/reference/schema.json says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gdb_optprobe.commands.json_schema import COMMANDS, DEFINITIONS, schema
from tests.docs.build import SCHEMA
from tests.docs.validate import check, faults
from tests.golden import FOLDER, golden

ANY = json.loads(SCHEMA.read_text())


def test_every_golden_output_has_a_definition() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_golden_output_is_valid(command: str) -> None:
    check(golden(f"{command}.json"), *COMMANDS[command])


def test_every_key_of_the_schema_is_written() -> None:
    """And none is described that no command writes, but for the collector's runs, which are rare."""
    written: set[str] = set()

    def visit(value: Any) -> None:
        for each in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
            visit(each)
        written.update(value if isinstance(value, dict) else ())

    for path in FOLDER.glob("*.json"):
        for line in path.read_text().splitlines():
            visit(json.loads(line))
    described: set[str] = set()

    def describe(rule: Any) -> None:
        described.update(rule.get("properties", {}) if isinstance(rule, dict) else ())
        for each in rule if isinstance(rule, list) else rule.values() if isinstance(rule, dict) else ():
            describe(each)

    describe(DEFINITIONS)
    assert described - written <= {"memory", "branch"}


LINE = golden("list.json").splitlines()[0]


@pytest.mark.parametrize(
    ("typed", "wrong", "fault"),
    [
        ('"hits": 0', '"hits": "0"', "[0].hits: '0' is no integer"),
        ('"hits": 0', '"hits": true', "[0].hits: True is no integer"),
        ('"hits": 0, ', "", "[0]: no hits"),
        ('"hits": 0', '"hits": 0, "hist": 0', "[0]: hist is not in the schema"),
        ('"tier": "optimized"', '"tier": "best"', "[0].tier: 'best' is none of"),
        ('"address": "0xffffffff81840000"', '"address": "81840000"', "[0].detour.address: '81840000' does not match"),
        ('"reason": null', '"reason": 1', "[0].reason: 1 is no"),
    ],
)
def test_the_validator_tells_what_is_wrong(typed: str, wrong: str, fault: str) -> None:
    assert LINE.count(typed) == 1
    (found,) = faults(json.loads(LINE.replace(typed, wrong)), {"$ref": "#/$defs/list"}, schema())
    assert found.startswith(fault)


def test_a_line_of_any_command_is_valid_as_such() -> None:
    rule = {"anyOf": ANY["anyOf"]}
    for path in FOLDER.glob("*.json"):
        for line in path.read_text().splitlines():
            assert not list(faults(json.loads(line), rule, ANY)), line
