"""Measure the cost of a probe on a program that calls its function `test`, which begins with a push, a million times.

The experiment of the commit that had Linux's uprobes emulate `push` (x86/uprobes, 2024), for programs of both word
sizes: a probe on the function and on its return, instructions emulated or not, and Linux's own events beside. On
ppc64le the function begins with mflr, on aarch64 with stp.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .cache import say
from .costs.measure import Reading, middle
from .costs.table import aligned, number
from .debugger import Debugger, DebuggerError
from .guest import Guest, GuestError
from .reads import STARTS, Reads
from .rsp_proxy import RspProxy

__all__ = ["BITS", "Calls", "Row", "as_json", "report"]

BITS: Mapping[str, tuple[int, ...]] = {"x86_64": (64, 32), "ppc64le": (64,), "aarch64": (64,)}
"""Of programs, by the guest's architecture."""
TRACING = "/sys/kernel/tracing"
EVENT = "optprobe_own/event"
TRAPS = 200
"""Calls for which every trap is logged."""
_SOURCE = """
.globl _start
_start: mov ARGUMENT, %{r}si
        xor %ebx, %ebx
digit:  movzbl (%{r}si), %eax
        sub $48, %eax
        cmp $9, %eax
        ja again
        imul $10, %ebx
        add %eax, %ebx
        inc %{r}si
        jmp digit
again:  call test
        dec %ebx
        jnz again
        EXIT
.type test, @function
test:   push %{r}bp
        mov %{r}sp, %{r}bp
        pop %{r}bp
        ret
.size test, . - test
"""
_POWER = """
.abiversion 2
.globl _start
_start: ld 4, 16(1)
        li 14, 0
digit:  lbz 5, 0(4)
        addi 5, 5, -48
        cmplwi 5, 9
        bgt again
        mulli 14, 14, 10
        add 14, 14, 5
        addi 4, 4, 1
        b digit
again:  bl test
        addi 14, 14, -1
        cmpdi 14, 0
        bne again
        li 3, 0
        li 0, 1
        sc
.type test, @function
test:   mflr 0
        mtlr 0
        blr
.size test, . - test
"""
_EXITS = {64: "mov $60, %eax; xor %edi, %edi; syscall", 32: "mov $1, %eax; int $0x80"}
_ARGUMENTS = {64: "16(%rsp)", 32: "8(%esp)"}
_ARM = """
.globl _start
_start: ldr x1, [sp, #16]
        mov x19, #0
digit:  ldrb w2, [x1], #1
        sub w2, w2, #48
        cmp w2, #9
        b.hi ready
        mov x3, #10
        madd x19, x19, x3, x2
        b digit
ready:  cbz x19, over
again:  bl test
        subs x19, x19, #1
        b.ne again
over:   mov x0, #0
        mov x8, #93
        svc #0

.globl test
.type test, %function
test:   stp x29, x30, [sp, #-16]!
        ldp x29, x30, [sp], #16
        ret
.size test, . - test
"""
_FORMATS = {64: ("--64", "elf_x86_64"), 32: ("--32", "elf_i386")}
_TEST = {
    "x86_64": ("554889e55dc3", "5589e55dc3"),
    "ppc64le": ("a602087ca603087c2000804e",),
    "aarch64": ("fd7bbfa9fd7bc1a8c0035fd6",),
}
"""The function's code, of programs of each size."""
_TRAPS = {
    "x86_64": re.compile(r"^\s*\d+: v=0[13] .* cpl=3 ", re.M),
    "ppc64le": re.compile(r"^Raise exception at [0-7][0-9a-f]{15} => (?:PROGRAM|TRACE) ", re.M),
    "aarch64": re.compile(
        r"^Taking exception \d+ \[(?:Undefined Instruction|Breakpoint|Debug.*)\].*\n\.\.\.from EL0 ", re.M
    ),
}
"""Lines of QEMU's log of exceptions for breakpoints and single steps of user mode."""
NOTES = """\
Each figure is that of one call of test(), above a run without a probe but for µs, which is all that a call takes.
  traps         that the processor takes, of {traps} calls
  instructions  of the guest (-icount shift=0,sleep=off; {append})
  µs            of the host's processor"""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of probe on a program of `bits`, or none. traps: None where they were not counted."""

    bits: int
    name: str
    traps: float | None
    instructions: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of probe."""

    name: str
    probe: Callable[[str], AbstractContextManager[None]]


class Calls:
    """The experiment in a guest with a clock that counts instructions. calls: in each run."""

    def __init__(self, guest: Guest, debugger: Debugger, proxy: RspProxy, calls: int, times: int = 2) -> None:
        self._guest, self._debugger, self._proxy = guest, debugger, proxy
        self._arch = guest.options.arch
        self._calls, self._times = calls, times

    def run(self, sizes: Sequence[int] = ()) -> list[Row]:
        """Return all rows of programs of these word sizes, in their order; of all sizes by default."""
        return [row for bits in sizes or BITS[self._arch] for row in self._rows(bits)]

    def _rows(self, bits: int) -> Iterator[Row]:
        path = f"/calls{bits}"
        reads = Reads(self._guest, self._debugger, self._proxy, f"{path} $1")
        put(reads.guest, program(bits, self._arch), path)
        unprobed = self._measure(reads, f"{bits} bits, no probe")
        yield Row(bits, "no probe", 0.0, 0.0, unprobed.seconds)
        for kind in self._kinds(reads):
            with kind.probe(path):
                found = self._measure(reads, f"{bits} bits, {kind.name}")
                traps = self._traps(reads, path)
            yield Row(bits, kind.name, traps, found.instructions - unprobed.instructions, found.seconds)

    def _measure(self, reads: Reads, name: str) -> Reading:
        say(f"{name}: {self._times} × {self._calls:,} calls")
        return middle(reads.repeat(self._calls, self._times))

    def _kinds(self, reads: Reads) -> Sequence[_Kind]:
        ours = [
            _Kind(f"{name}{', emulation off' if not emulation else ''}", self._ours(clause, emulation))
            for name, clause in (("uprobe", ""), ("uretprobe", "-return"))
            for emulation in (True, False)
        ]
        theirs = (("Linux's event", "p"), ("Linux's event, return", "r"))
        return [*ours, *(_Kind(name, self._linux(reads, sort)) for name, sort in theirs)]

    def _ours(self, clause: str, emulation: bool) -> Callable[[str], AbstractContextManager[None]]:
        @contextmanager
        def probed(path: str) -> Iterator[None]:
            self._debugger(f"set optprobe emulation {'on' if emulation else 'off'}")
            self._debugger(f"optprobe add -user {path}:test {clause}")
            yield
            (probe,) = json.loads(self._debugger("optprobe list -json"))
            wanted = self._all_calls()
            if probe["hits"] != wanted:
                raise DebuggerError(f"the probe on {path} counted {probe['hits']} of {wanted} calls")
            self._debugger("optprobe delete")
            self._debugger("set optprobe emulation on")

        return probed

    def _linux(self, reads: Reads, sort: str) -> Callable[[str], AbstractContextManager[None]]:
        @contextmanager
        def probed(path: str) -> Iterator[None]:
            bits = 64 if path.endswith("64") else 32
            offset = offset_of(program(bits, self._arch), self._arch)
            reads.guest(f"echo '{sort}:{EVENT} {path}:{offset:#x}' > {TRACING}/uprobe_events")
            reads.guest(f"echo 1 > {TRACING}/events/{EVENT}/enable")
            yield
            (line,) = reads.guest(f"cat {TRACING}/uprobe_profile").splitlines()
            if int(line.split()[-1]) != self._all_calls():
                raise GuestError(f"Linux's event on {path} counted {line.split()[-1]} of {self._all_calls()} calls")
            off = f"echo 0 > {TRACING}/events/{EVENT}/enable; echo > {TRACING}/uprobe_events; echo > {TRACING}/trace"
            reads.guest(off)

        return probed

    def _all_calls(self) -> int:
        """Return the number of calls in a probe's whole life."""
        return self._times * (STARTS + 1 + self._calls) + TRAPS

    def _traps(self, reads: Reads, path: str) -> float:
        """Count traps per call by QEMU's log of exceptions: breakpoints and single steps of user mode."""
        with tempfile.NamedTemporaryFile(prefix="optprobe-traps-") as log:
            self._debugger(f"monitor logfile {log.name}")
            self._debugger("monitor log int")
            reads.guest(f"{path} {TRAPS}")
            self._debugger("monitor log none")
            text = Path(log.name).read_text(errors="replace")
        return len(_TRAPS[self._arch].findall(text)) / TRAPS


def program(bits: int, arch: str) -> bytes:
    """Return an ELF program that calls test() as often as its argument says."""
    if arch == "ppc64le":
        return _built(_POWER, ["powerpc64le-linux-gnu-as"], ["powerpc64le-linux-gnu-ld"])
    if arch == "aarch64":
        return _built(_ARM, ["aarch64-linux-gnu-as"], ["aarch64-linux-gnu-ld"])
    source = _SOURCE.replace("ARGUMENT", _ARGUMENTS[bits]).replace("EXIT", _EXITS[bits])
    assembler, linker = _FORMATS[bits]
    return _built(source.replace("{r}", "r" if bits == 64 else "e"), ["as", assembler], ["ld", "-m", linker])


def _built(source: str, assembler: Sequence[str], linker: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, assembled, linked = (f"{folder}/calls{suffix}" for suffix in (".s", ".o", ""))
        Path(text).write_text(source)
        subprocess.run([*assembler, "-o", assembled, text], check=True)
        subprocess.run([*linker, "-static", "-o", linked, assembled], check=True)
        return Path(linked).read_bytes()


def offset_of(data: bytes, arch: str) -> int:
    """Return the offset of test() in the file: its code occurs once."""
    return next(at for code in _TEST[arch] if (at := data.find(bytes.fromhex(code))) >= 0)


def put(guest: Callable[[str], str], data: bytes, path: str) -> None:
    """Write a program into the guest's file system."""
    text = base64.b64encode(data).decode()
    guest(f"rm -f {path} {path}.b64")
    for start in range(0, len(text), 2000):
        guest(f"echo {text[start : start + 2000]} >> {path}.b64")
    guest(f"base64 -d {path}.b64 > {path}; rm {path}.b64; chmod +x {path}")


def report(rows: Sequence[Row], append: str) -> list[str]:
    """Return a table, and the share of Linux's instructions that our probes take."""
    cells = [["", "traps", "instructions", "µs"]]
    for row in rows:
        traps = "-" if row.traps is None else f"{row.traps:.1f}"
        cells.append([f"{row.bits} bits, {row.name}", traps, f"{row.instructions:,.1f}", number(row.seconds * 1e6)])
    return [*aligned(cells), "", NOTES.format(traps=TRAPS, append=append), "", *_verdict(rows)]


def _verdict(rows: Sequence[Row]) -> Iterator[str]:
    took = {(row.bits, row.name): row.instructions for row in rows}
    for bits in dict.fromkeys(row.bits for row in rows):
        for ours, theirs in (("uprobe", "Linux's event"), ("uretprobe", "Linux's event, return")):
            if (bits, ours) not in took:
                continue
            one, other = took[bits, ours], took[bits, theirs]
            met = "met" if one <= other / 2 else "MISSED"
            yield f"Target, at most half of {theirs} for a {ours} of {bits} bits: {met}, {one:.0f} of {other:.0f}."


def as_json(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """Return the rows as JSON values."""
    return [
        {
            "type": "program",
            "bits": row.bits,
            "name": row.name,
            "traps": row.traps,
            "instructions": round(row.instructions, 2),
            "host_us": round(row.seconds * 1e6, 4),
        }
        for row in rows
    ]
