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
