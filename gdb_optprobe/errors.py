"""The error that every layer raises for the user: one line, one next step."""


class OptprobeError(Exception):
    """A failure that a user can act on.

    message: what was wrong, naming it, without the leading ``optprobe:``.
    hint:    what to do next; empty where the message says it all.
    status:  of GDB, where the failure ends it.
    """

    status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class Unreadable(OptprobeError):
    """Guest memory at an address cannot be read or written (not mapped, or no such physical memory)."""

    def __init__(self, address: int, size: int) -> None:
        super().__init__(f"cannot access {size} bytes of guest memory at {address:#x}")
        self.address = address
        self.size = size


WAIT = "continue until it has booted; or the same with -pending, which waits for it"


class NotBooted(OptprobeError):
    """The guest's kernel has not started, or has not come far enough to be probed."""

    def __init__(self, message: str, hint: str = WAIT) -> None:
        super().__init__(message, hint)


class NeedsStop(Exception):
    """What is asked for needs the guest stopped, and it runs.

    No OptprobeError: it is no answer, so nothing takes it for one. What was begun is done again at a stop.
    """


class Unreachable(OptprobeError):
    """The debugger cannot ask the guest anything now."""
