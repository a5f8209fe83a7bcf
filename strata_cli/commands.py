"""The subcommands of `strata` and its own flags. Apart from `main`, so that Ctrl-C is minded before click is imported."""

from __future__ import annotations

import importlib

import click

# name: (module, what `strata --help` says). A module is imported when its command runs, so that the help stays fast.
COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("strata_cli.generate", "Generate text from a prompt."),
    "batch": ("strata_cli.batch", "Answer a file of requests, a line each."),
    "bench": ("strata_cli.bench", "Measure settings and programs beside each other."),
    "draft-vocab": ("strata_cli.draft_vocab", "Build or show a draft vocabulary: the tokens that drafts are picked from."),
    "slop": ("strata_cli.slop", "Show or count what the slop policy (--slop) sees in a text."),
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
