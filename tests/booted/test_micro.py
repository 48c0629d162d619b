"""The bare-metal guest runs its whole table and leaves outputs."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from qemu import micro
from qemu.debugger import gdb_program
from qemu.guest import Guest
from tests.booted.conftest import Boot
from tests.booted.micro_table import run_until_trouble

STATES = 4
ENTRY, RESULT = struct.Struct("<5Q24x"), 512
RSP, FLAGS, RUNS, TICKS = 4, 16, 17, 18


@dataclass(frozen=True)
class Hazard:
    """An entry of the guest's table with what its four runs left: quadwords of the result records."""

    name: str
    code: int
    site: int
    end: int
    needs: int
    results: tuple[tuple[int, ...], ...]


def run_rounds(guest: Guest, folder: Path, rounds: int) -> list[Hazard]:
    """Let the guest run its table and read the outcome, with a stock GDB as a user would."""
    commands = [
        f"target remote {guest.gdb_socket}",
        "output/d ((char*)&hazards_end - (char*)&hazards)",
        f"set var *(long*)&go = {rounds}",
        "tbreak done if *(long*)&go == 0",
        "continue",
        f"dump binary memory {folder}/table &hazards &hazards_end",
        f"dump binary memory {folder}/names (char*)&hazards_end ((char*)&hazards_end)+8192",
        f"dump binary memory {folder}/results &results ((char*)&results)+{RESULT * STATES * 256}",
        "info address hazards_end",
    ]
    arguments = [part for command in commands for part in ("-ex", command)]
    elf = str(micro.build(guest.options.arch))
    run = subprocess.run(
        [gdb_program(), "-nx", "-batch", elf, *arguments], capture_output=True, text=True, timeout=60
    )
    assert "done" in run.stdout or "wait_for_go" in run.stdout, run.stdout + run.stderr
    names_at = int(run.stdout.split("hazards_end")[-1].split("0x")[1].split()[0].rstrip("."), 16)
    names, results = (folder / "names").read_bytes(), (folder / "results").read_bytes()
    found = []
    entries = ENTRY.iter_unpack((folder / "table").read_bytes())
    for number, (name, code, site, end, needs) in enumerate(entries):
        text = names[name - names_at :].split(b"\0")[0].decode()
        at = RESULT * STATES * number
        left = tuple(struct.unpack_from("<64Q", results, at + RESULT * state) for state in range(STATES))
        found.append(Hazard(text, code, site, end, needs, left))
    return found


@pytest.mark.parametrize("cpu", ["qemu64", "max"])
def test_every_hazard_leaves_outputs(boot: Boot, tmp_path: Path, cpu: str) -> None:
    guest = boot(micro=True, cpu=cpu)
    hazards = run_rounds(guest, tmp_path, rounds=2)
    assert len(hazards) > 150
    for hazard in hazards:
        runs = [result[RUNS] for result in hazard.results]
        assert runs == ([0] * STATES if hazard.needs and cpu == "qemu64" else [2] * STATES), hazard.name
        assert hazard.code <= hazard.site < hazard.end, hazard.name
    assert guest.healthy


def test_outputs_that_the_manual_fixes(boot: Boot, tmp_path: Path) -> None:
    named = {hazard.name: hazard for hazard in run_rounds(boot(micro=True), tmp_path, rounds=1)}
    rax = {name: [result[0] for result in hazard.results] for name, hazard in named.items()}
    call = named["call_rel"]
    assert rax["call_rel"] == [call.site + 5] * STATES, "a callee sees the original return address"
    assert rax["call_next"] == [named["call_next"].site + 5] * STATES
    assert rax["rip_lea_next"] == [named["rip_lea_next"].site + 7] * STATES
    assert rax["mov_imm64"] == [0x123456789ABCDEF0] * STATES
    stack = [result[RSP] for result in named["ret"].results]
    assert rax["push_rsp"] == [rsp - 8 for rsp in stack]
    assert [result[RSP] for result in named["ret_imm16"].results] == [rsp + 16 for rsp in stack]
    for name, size in (("call_stack_indexed", 4), ("call_rsp", 2), ("call_memory", 2)):
        assert rax[name] == [named[name].site + size] * STATES, name
    assert [result[FLAGS] >> 9 & 1 for result in named["sti"].results] == [1] * STATES
    assert rax["interrupt_behind_sti"] == [1] * STATES, "one instruction ran before it"
    assert rax["interrupt_behind_popf"] == [0] * STATES
    assert rax["trap_behind_popf"] == [1] * STATES
    assert [result[FLAGS] & 1 for result in named["stc"].results] == [1] * STATES


def test_ticks_count_instructions_under_icount(boot: Boot, tmp_path: Path) -> None:
    hazards = run_rounds(boot(micro=True, icount="shift=0,sleep=off"), tmp_path, rounds=1)
    ticks = {hazard.name: [result[TICKS] for result in hazard.results] for hazard in hazards}
    assert {count - ticks["ret"][0] for count in ticks["nop1"]} == {4}
    first, second = ticks["loop_self"][0], ticks["loop_self"][1]
    assert second - first == 3, "three more turns of one instruction"


def test_an_exception_is_seen(boot: Boot) -> None:
    run_until_trouble(boot(micro=True), "set var *(unsigned char*)&leaf = 6")
