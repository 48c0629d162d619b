"""`scripts/guest`, without a guest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from qemu import guest_program


def test_an_interrupted_command_is_said_to_run_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(command: str, timeout: float) -> None:
        assert command == "yes | dd of=/dev/null"
        raise KeyboardInterrupt

    guest = SimpleNamespace(stopped=False, run=interrupted)
    monkeypatch.setattr("qemu.guest_program.Guest.find", lambda place: guest)
    assert guest_program.main(["run", "yes | dd of=/dev/null"]) == 130
    assert capsys.readouterr().err.startswith("optprobe: interrupted; the command still runs in the guest")


@pytest.mark.parametrize("words", [["--extra", "-enable-kvm"], ["--extra=-enable-kvm"]])
def test_an_argument_of_qemu_s_may_begin_with_a_dash(words: list[str]) -> None:
    assert guest_program.parser().parse_args(guest_program.with_extra(["start", *words, "--smp", "1"])).extra == [
        "-enable-kvm"
    ]
    run = ["run", "tool", "--extra", "-x"]
    assert guest_program.with_extra(run) == run, "it is of the command in the guest"
