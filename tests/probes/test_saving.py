"""The file that `optprobe save` writes."""

from __future__ import annotations

from gdb_optprobe.probes.saving import with_variables


def test_variables_that_probes_name() -> None:
    """GDB has a `$retval` of its own once a return has stopped the guest: here it is ours."""
    lines = ("# head", "optprobe add f -return if $retval == $wanted && $pid == 1")
    values = {"retval": 777, "wanted": 5}
    assert with_variables(lines, values.get) == (lines[0], "set $wanted = 5", lines[1])
