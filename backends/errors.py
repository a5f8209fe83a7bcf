"""The two ways a run can fail that a user can act on.

Everything below the command line raises one of these for a user's mistake or a broken file, with a message of one line that
names the thing, the value and what is allowed. The command line turns them into exit codes (docs/cli.md).
"""


def shown(text: str) -> str:
    """A text as messages show it: quoted, cut where it is long."""
    return repr(text) if len(text) <= 80 else repr(text[:77]) + "..."


class StrataError(Exception):
    """A run failed (exit code 1): a broken file, a missing driver, a device that gave up."""

    exit_code = 1


class BadValue(StrataError):
    """A flag, variable, request key or argument has a value that is not allowed (exit code 2)."""

    exit_code = 2


class ModelError(StrataError):
    """A model file is not one this engine can run: truncated, corrupt, an unknown architecture or tensor type."""


class DeviceError(StrataError):
    """No usable device, a driver that is missing or broken, or device memory that ran out."""


class OutOfMemory(DeviceError):
    """Memory ran out. reason: the message without the advice, for a message that knows better what to advise."""

    def __init__(self, reason: str, advice: str = "a smaller --ctx or model needs less") -> None:
        super().__init__(f"{reason}; {advice}")
        self.reason = reason
