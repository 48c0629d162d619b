"""Records are imported when one is asked for, and no other with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gdb_optprobe.guest.linux.arch import registry as linux_arches
from gdb_optprobe.guest.linux.arch.registry import ARCHES
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.registry import ISAS, by_name
from gdb_optprobe.on_demand import OnDemand, of_name

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = """
import json, sys
from gdb_optprobe.guest.linux.arch import registry as arches
from gdb_optprobe.isa.registry import by_name
before = [*sys.modules]
isa = by_name(sys.argv[1])
assert arches.of(isa).isa is isa
print(json.dumps([before, [*sys.modules]]))
"""


def records_of(module: str) -> str:
    """Return the ISA in the folder of which a module is; "" where it is in none."""
    _, _, inside = module.partition("gdb_optprobe.isa.")
    if not inside:
        _, _, inside = module.partition("gdb_optprobe.guest.linux.arch.")
    folder = inside.partition(".")[0]
    return folder if (ROOT / "gdb_optprobe" / "isa" / folder).is_dir() else ""


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_a_session_imports_its_own_isa_alone(isa: Isa) -> None:
    command = [sys.executable, "-c", IMPORTED, isa.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, after = (set(map(records_of, modules)) - {""} for modules in json.loads(done.stdout))
    assert before == set() and len(after) == 1


def test_the_tables_name_each_record_as_it_names_itself() -> None:
    assert [of_name(isa.name, ISAS) for isa in ISAS] == [(isa,) for isa in ISAS]
    assert [of_name(arch.isa.name, ARCHES) for arch in ARCHES] == [(arch,) for arch in ARCHES]
    assert [by_name(isa.name) for isa in ISAS] == [*ISAS]
    assert [linux_arches.of(isa) for isa in ISAS] == [*ARCHES]


def test_it_is_a_sequence() -> None:
    table = OnDemand({"e": "math:e", "pi": "math:pi", "inf": "math:inf"})
    assert len(table) == 3 and [*table] == [table[0], table[1], table[-1]] == [*table[:]]
    assert table.named("pi") == table[1] and table.named("tau") is None
    assert of_name("pi", table) == (table[1],) and of_name("tau", table) is table
    assert of_name("pi", [1, 2]) == [1, 2]
    with pytest.raises(IndexError):
        table[3]


def test_a_record_that_cannot_be_imported_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    table = OnDemand({"it": "imported_later:IT"})
    with pytest.raises(ModuleNotFoundError):
        table.named("it")
    (tmp_path / "imported_later.py").write_text("IT = 'is there'\n")
    monkeypatch.syspath_prepend(tmp_path)  # the folder's content is read again
    assert table.named("it") == "is there"
    del sys.modules["imported_later"]
