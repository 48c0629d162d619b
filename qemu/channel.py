"""Commands in the guest; what they print as text."""

from __future__ import annotations

from gdb_optprobe.guest import channel
from gdb_optprobe.guest.channel import ChannelError

__all__ = ["ChannelError", "Command"]


class Command(channel.Command):
    """A running command in the guest."""

    def wait(self, timeout: float = 60.0) -> tuple[int, str]:
        """Return its `outcome`, the output as text."""
        status, output = self.outcome(timeout)
        return status, output.decode(errors="replace")
