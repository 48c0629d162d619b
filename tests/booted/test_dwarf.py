"""Where GDB has debug information, names, types and places come from it.

A stock kernel has none, and Debian's is of gigabytes: so a small file of our own is loaded over the guest's functions,
whose parameters it calls by other names. What is in registers and at the frame is the guest's.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from qemu import micro
from qemu.guest import Guest
from tests.booted.addresses import addresses_of
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import Boot
from tests.booted.micro_table import STATES
from tests.booted.test_handlers import records, report
from tests.booted.test_micro_probes import ONE_ROUND, READY
from tests.handlers.oracle import needs_gcc

SOURCE = """
enum kind { PLAIN = 30, ODD };
struct front { unsigned long words[2]; unsigned low : 3; int high : 5;
    union { struct { short deep[4]; }; long whole; }; };
typedef unsigned long bytes_t;
extern long next(struct front *, bytes_t, volatile int *);
enum kind last;
__attribute__((optimize("O0"))) long framed(struct front *thing, char *where, bytes_t bytes, long *at)
{
    volatile int spilled = ODD;
    return next(thing, bytes, &spilled);
}
long early(int descriptor, char *where, bytes_t bytes)
{
    volatile int marker = 1;
    long late = next(0, bytes, &marker);
    return next(0, late, &marker) + late;
}
"""
MIDDLE = 0x13  # of vfs_read, behind its pushes
DD = '$comm == "dd"'
# How far the variable is from where the frame begins.
OFFSET = """\
python
import re
scope = gdb.execute("info scope *vfs_read", to_string=True)
where = re.search(r"Symbol spilled is a complex DWARF expression:\\s+0: DW_OP_fbreg (-[0-9]+)", scope)
gdb.set_convenience_variable("offset", int(where[1]))
end""".splitlines()


def compiled(folder: Path) -> Path:
    source, made = folder / "it.c", folder / "it.o"
    source.write_text(SOURCE)
    options = ("-g", "-gdwarf-5", "-O2", "-c", "-ffunction-sections", "-fomit-frame-pointer", "-fcf-protection=none")
    subprocess.run(["gcc", *options, "-o", made, source], check=True)
    return made


@needs_gcc
def test_names_types_and_places(linux: Guest, tmp_path: Path) -> None:
    framed, early = addresses_of(linux, "vfs_read", "ksys_read")
    sections = f"-s .text.framed {framed:#x} -s .text.early {early:#x}"
    same = {
        "bytes": "$arg3",
        "(unsigned long)thing": "$arg1",
        "thing->words[1]": "*(unsigned long *)($arg1 + 8)",
        "thing->low": "*(unsigned *)($arg1 + 16) & 7",
        "thing->high": "(int)(*(unsigned *)($arg1 + 16) << 24) >> 27",
        "thing->deep[1]": "*(short *)($arg1 + 26)",
        "((struct front *)$arg1)->whole": "*(long *)($arg1 + 24)",
        "sizeof(bytes_t) + sizeof(struct front) + ODD": "8 + 32 + 31",
    }
    attempt = "python\ntry: gdb.execute({!r})\nexcept gdb.error as error: print(error)\nend"
    script: list[str | Workload] = ["set confirm off", "optprobe add vfs_write", "optprobe delete"]
    script += ["set optprobe exit-on-error off", f"add-symbol-file {compiled(tmp_path)} {sections}"]
    of_dd = f"optprobe add vfs_read if {DD} && $arg3 == 7777"
    script += [f"{of_dd} do record({', '.join(both)})" for both in (same, same.values())]
    script += ["optprobe add ksys_read if bytes == 7777 do record(bytes, descriptor == (int)$arg1)"]
    script += [attempt.format("optprobe add ksys_read do hist(late)")]
    script += [attempt.format("optprobe add ksys_read do hist(bites)"), *OFFSET]
    returns = "*(unsigned long *)((char *)&spilled - $offset - 8) - (unsigned long)&ksys_read"
    script += [f"optprobe add vfs_read+{MIDDLE} if {DD} do record({returns})"]
    script += [Workload("dd if=/dev/zero of=/dev/null bs=7777 count=1 2>/dev/null"), report("report")]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    made = {line["number"]: line["values"] for line in records(finished, "report")}
    assert len(made) == 4, finished.output
    ours, theirs, entered, (caller,) = made.values()
    assert ours == theirs and ours[0] == 7777 and ours[-1] == 71
    assert entered == [7777, 1]
    assert 0 < caller < 0x200, "the word above the frame is where vfs_read returns to, in ksys_read"
    assert "'late' is not available at this address" in finished.output
    assert re.search("did you mean 'bytes'. ksys_read has: .*descriptor, where, bytes", finished.output)


@needs_gcc
def test_in_a_guest_without_an_operating_system(boot: Boot, tmp_path: Path) -> None:
    script: list[str | Workload] = ["set confirm off", *READY, "set $place = (long)&hz_add_site"]
    script += [f'eval "add-symbol-file {compiled(tmp_path)} -s .text.early %#lx", $place']
    script += [f"optprobe add *$place if {test}" for test in ("bytes == $rdx", "bytes != $rdx", "(bytes_t)-1 > 0")]
    script += [*ONE_ROUND, keep("list", "optprobe list"), "optprobe delete"]
    finished = batch(boot(micro=True), script, symbols=micro.build("x86_64"))
    assert finished.status == 0, finished.output
    assert [probe["hits"] for probe in finished.json("list")] == [STATES, 0, STATES], finished.output
