"""What becomes of a run of `strata`: its exit code, its failures, Ctrl-C.

Exit codes: 0 done, 1 the run failed, 2 a bad flag, value or variable, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from backends.errors import StrataError
from strata_cli.messages import complain

if TYPE_CHECKING:
    import click

INTERRUPTED = 130
PATIENCE_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. No failure leaves it as an exception.

    arguments: None for those of the process, which then is the program `strata` and ends here if Ctrl-C ended the run.
    """
    if arguments is not None:
        return _guarded(list(arguments))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started this wants no Ctrl-C here
        signal.signal(signal.SIGINT, _Interrupts())
    code = _guarded(sys.argv[1:])
    if code == INTERRUPTED:
        # Not through the interpreter's end: it waits for threads that may have lost their work, and a driver that is still
        # compiling then takes the process down.
        os._exit(code)
    if isinstance(signal.getsignal(signal.SIGINT), _Interrupts):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late to change what the run was
    return code


class _Interrupts:
    """Handles SIGINT: the first interrupts the run, which then shows what it has; a second one after `PATIENCE_S` ends the process."""

    def __init__(self) -> None:
        self._first: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
            raise KeyboardInterrupt
        if now - self._first > PATIENCE_S:
            os._exit(INTERRUPTED)


def _guarded(args: list[str]) -> int:
    code = 1
    try:
        import click

        try:
            _prepare_stdout()
            code = _run(args)
            _flush_stdout()
        except click.Abort:
            code = INTERRUPTED
        except click.ClickException as error:
            complain(f"strata: error: {_describe(error)}")
            code = error.exit_code
    except StrataError as error:
        complain(f"strata: error: {error}")
        code = error.exit_code
    except BrokenPipeError:
        code = 1  # the reader has what it wanted
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        complain(f"strata: error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except MemoryError:
        complain("strata: error: out of memory; a smaller --ctx or model needs less")
    except Exception as error:
        if isinstance(error, RuntimeError) and "start new thread" in str(error):  # Python has no class for it
            complain("strata: error: the system starts no more threads: out of memory, or a limit of the user's processes")
        else:
            _internal_error(error, "--traceback" in args)
    finally:
        _abandon_stdout()
    return code


def _run(args: list[str]) -> int:
    import click

    from strata_cli.commands import strata

    try:
        code: Any = strata.main(args=args, prog_name="strata", standalone_mode=False)
    except SystemExit as leave:  # click's answer to a broken pipe
        code = leave.code
    except click.Abort as abort:  # and to Ctrl-C, but also to an end of file that nobody expected
        raise abort.__cause__ or abort from None
    return code if isinstance(code, int) else 0


def _describe(error: click.ClickException) -> str:
    import click

    if isinstance(error, click.exceptions.NoArgsIsHelpError) and isinstance(error.ctx.command, click.Group):
        text = f"a command is missing; allowed: {', '.join(error.ctx.command.list_commands(error.ctx))}"
    else:
        text = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f"; see `{error.ctx.command_path} --help`"
    return text


def _internal_error(error: Exception, show: bool) -> None:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    if show:
        for line in "".join(traceback.format_exception(error)).rstrip().split("\n"):
            complain(line)
    complain(
        f"strata: internal error: {type(error).__name__}: {error}{place}; please report it"
        + ("" if show else " with the output of `strata --traceback ...`")
    )


def _prepare_stdout() -> None:
    # A pipe or file gets UTF-8 everywhere; a terminal keeps its own encoding, and what that lacks is shown as a mark.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        if sys.stdout.isatty():
            reconfigure(errors="replace")
        else:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _abandon_stdout() -> None:
    # What a full disk or a gone reader left in the buffer would fail once more when Python closes stdout, with a message of its
    # own. Whatever was deliverable has been flushed by now.
    try:
        _flush_stdout()
    except (OSError, ValueError):
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            pass
