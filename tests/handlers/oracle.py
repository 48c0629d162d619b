"""A C compiler as the judge: the same expressions, on the same memory, with the types that it says itself (BTF).

The structs below are compiled, and their BTF is what our typing sees. (GCC 12's turns the dimensions of a matrix round,
and has no enumerators above 2**31.) What may fault is volatile, so that the compiler leaves no fault out. Their memory
lies at one address in the judge's process and in the interpreter's. What C leaves open or traps on is spelled out by
macros, as program.py has it.
"""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.linux.current import unknown
from gdb_optprobe.guest.scope import KernelScope, Site
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.isa import x86_64

X86_64 = abi.of(x86_64.X86_64)

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: install gcc")

BASE, SIZE = 0x1000_0000, 0x2000
MASK = (1 << 64) - 1
PARAMETERS = ("p", "c", "h", "u", "n", "i")
DECLARATIONS = """
enum level { LOW = -3, MIDDLE, HIGH = 70000 };
enum plain { ZERO, ONE, LARGE = 0x7ffffff0 };
typedef unsigned long u64;
typedef signed char s8;
struct inner { short x; unsigned char y[4]; volatile struct s *back; };
struct s {
    signed char sc; unsigned char uc; short sh; unsigned short us;
    int in; unsigned int ui; long lo; unsigned long ul; _Bool bo; char ch;
    enum level lv; enum plain pl;
    unsigned int b3 : 3; int b5 : 5; unsigned int b31 : 31; int b32 : 32; unsigned int u32 : 32;
    unsigned long b33 : 33; long b40 : 40; _Bool bb : 1; signed char b7 : 7; unsigned short b9 : 9;
    int array[4]; short matrix[4][4]; struct inner inner[4]; char name[16];
    volatile struct s *next; volatile int *ip; volatile unsigned short *usp; void *vp; volatile char *volatile *cpp;
    union { int whole; unsigned char parts[4]; };
    struct { long deep; } named;
};
struct packed { char a; int b : 20; unsigned long c : 44; long d : 63; char e; } __attribute__((packed));
long probe(struct s *p, signed char c, unsigned short h, unsigned int u, long n, int i)
{ struct packed *k = 0; enum plain q = ZERO; u64 a = 0; s8 b = 0; return p->in + (long)k + q + a + b; }
"""
_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
static int fault;
static sigjmp_buf out;
#define DIV(a, b, op, odd) ({ __auto_type _x = +(a); __auto_type _y = +(b); __typeof__(_x / _y) _l = _x, _r = _y; \
    fault |= !_r; !_r ? 0 * _l : _r == (__typeof__(_r))-1 && (__typeof__(_r))-1 < 0 ? odd : _l op _r; })
#define QUOTIENT(a, b) DIV(a, b, /, -_l)
#define REMAINDER(a, b) DIV(a, b, %, 0 * _l)
#define LEFT(a, b) ({ __auto_type _v = +(a); unsigned long _c = (unsigned long)+(b); \
    _c >= 8 * sizeof(_v) ? 0 * _v : _v << _c; })
#define RIGHT(a, b) ({ __auto_type _v = +(a); unsigned long _c = (unsigned long)+(b); \
    _c >= 8 * sizeof(_v) ? (__typeof__(_v))(_v < 0 ? -1 : 0) : _v >> _c; })
static void caught(int number) { fault = 1; siglongjmp(out, 1); }
#define SAY(e) do { fault = 0; unsigned long v = 0; \
    if (!sigsetjmp(out, 1)) v = (unsigned long)+(e); \
    printf("%d %lu %zu %d\\n", fault, v, sizeof(+(e)), (__typeof__(+(e)))-1 < 0); } while (0)
"""


@dataclass(frozen=True)
class Answer:
    """What an expression is, promoted; value None for a fault."""

    value: int | None
    size: int
    signed: bool


@dataclass(frozen=True)
class State:
    memory: bytes
    registers: Mapping[str, int]

    def read(self, address: int, size: int) -> bytes:
        if not BASE <= address <= address + size <= BASE + len(self.memory):
            raise Unreadable(address, size)
        return self.memory[address - BASE : address - BASE + size]


class _NoSymbols:
    def lookup(self, name: str) -> Sequence[int]:
        return ()

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return None


def compiled(source: str, *options: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder, "it.c"), Path(folder, "it")
        file.write_text(source)
        command = ["gcc", "-w", "-O0", "-fwrapv", *options, "-o", str(output), str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + source
        if "-c" in options:
            return output.read_bytes()
        return subprocess.run([str(output)], capture_output=True, check=True).stdout


@functools.cache
def types() -> BtfTypes:
    return BtfTypes(Btf(_section(compiled(DECLARATIONS, "-c", "-gbtf"), b".BTF")))


def scope() -> KernelScope:
    return KernelScope(Site(0x1234, "probe", entry=True), _NoSymbols(), types(), X86_64, unknown("no threads here"))


def answers(expressions: Sequence[str], state: State) -> list[Answer]:
    """What the compiler says of each."""
    place = ", ".join(str(byte) for byte in state.memory)
    values = [state.registers[name] for name in X86_64.arguments]
    names = zip(
        ("struct s *p", "signed char c", "unsigned short h", "unsigned int u", "long n", "int i"), values, strict=True
    )
    lines = [
        DECLARATIONS,
        _MAIN,
        f"static const unsigned char memory[] = {{ {place} }};",
        *(f"static void test_{number}(struct s *p, signed char c, unsigned short h, unsigned int u, long n, int i)"
          f" {{ SAY({text}); }}" for number, text in enumerate(expressions)),
        "int main(void) {",
        "int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;",
        f"char *at = mmap((void *){BASE}, {SIZE}, PROT_READ | PROT_WRITE, how, -1, 0);",
        f"if (at != (char *){BASE}) return 1;",
        "memcpy(at, memory, sizeof memory); signal(SIGSEGV, caught); signal(SIGBUS, caught);",
        *(f"{declaration} = ({declaration.rpartition(' ')[0]}{' *' * ('*' in declaration)}){value}UL;"
          for declaration, value in names),
        *(f"test_{number}(p, c, h, u, n, i);" for number in range(len(expressions))),
        "return 0; }",
    ]  # fmt: skip
    found = []
    for line in compiled("\n".join(lines)).decode().splitlines():
        fault, value, size, signed = map(int, line.split())
        found.append(Answer(None if fault else value, size, bool(signed)))
    return found


def _section(elf: bytes, wanted: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<2H", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * number) for number in range(count)]
    strings = elf[headers[names][4] :]
    return next(elf[h[4] : h[4] + h[5]] for h in headers if strings[h[0] :].split(b"\0")[0] == wanted)
