"""The `strata` command: its subcommands, and what becomes of a failure.

Exit codes: 0 done, 1 the run failed, 2 a bad flag, value or variable, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from backends.errors import StrataError
from strata_cli.messages import complain

# name: (module, what `strata --help` says). A module is imported when its command runs, so that the help stays fast.
COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("strata_cli.generate", "Generate text from a prompt."),
    "devices": ("strata_cli.devices", "List the devices that can run a model."),
    "env": ("strata_cli.env", "List the settings and where each value comes from."),
}


class _Commands(click.Group):
    """A group whose subcommands are imported on use: module strata_cli.NAME holds a click command called `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import strata_cli

        click.echo(f"strata {strata_cli.__version__}")
        ctx.exit()


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version and exit.")
@click.option("--traceback", is_flag=True, hidden=True, expose_value=False, help="Show where an internal error happened.")
@click.pass_context
def strata(ctx: click.Context) -> None:
    """Run language models on your own machine.

    Results go to stdout, everything else to stderr. `strata COMMAND --help` shows a command's flags with their variables.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. No failure leaves it as an exception."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_stdout()
    code = 1
    try:
        code = _run(args)
        _flush_stdout()
    except StrataError as error:
        complain(f"strata: error: {error}")
        code = error.exit_code
    except BrokenPipeError:
        code = 1  # the reader has what it wanted
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except click.ClickException as error:
        complain(f"strata: error: {_describe(error)}")
        code = error.exit_code
    except OSError as error:
        complain(f"strata: error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except MemoryError:
        complain("strata: error: out of memory")
    except Exception as error:
        _internal_error(error, "--traceback" in args)
    finally:
        _abandon_stdout()
    return code


def _run(args: list[str]) -> int:
    try:
        code: Any = strata.main(args=args, prog_name="strata", standalone_mode=False)
    except SystemExit as leave:  # click's answer to a broken pipe
        code = leave.code
    except click.Abort as abort:  # and to Ctrl-C, but also to an end of file that nobody expected
        raise abort.__cause__ or abort from None
    return code if isinstance(code, int) else 0


def _describe(error: click.ClickException) -> str:
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
