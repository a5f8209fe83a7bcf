"""The names and defaults that users rely on, as tests/golden/cli_surface.json keeps them.

After a change that is meant: python -m tests.strata_cli.surface
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from strata_cli.commands import COMMANDS, strata
from strata_cli.environment import VARIABLES
from strata_cli.options import FLAGS, variable_of

GOLDEN = Path(__file__).parent.parent / "golden" / "cli_surface.json"


def surface() -> dict[str, Any]:
    """Every command with its flags, and every variable, with defaults."""
    shared = {key.replace("-", "_"): key for key in FLAGS}
    commands: dict[str, Any] = {}
    for name, command in _commands():
        own = getattr(importlib.import_module(COMMANDS[name.partition(" ")[0]][0]), "DEFAULTS", {})
        flags = {}
        for parameter in command.params:
            names = " ".join([*parameter.opts, *parameter.secondary_opts])
            if parameter.name in shared:
                flags[names] = own.get(shared[parameter.name], variable_of(shared[parameter.name]).default)
            elif isinstance(parameter.default, str):
                flags[names] = parameter.default
            else:
                flags[names] = "off" if getattr(parameter, "is_flag", False) else "(none)"
        commands[name] = flags
    return {"commands": commands, "variables": {variable.name: variable.default for variable in VARIABLES}}


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Every command, a group's as "group command"."""
    for name in COMMANDS:
        command = strata.get_command(click.Context(strata), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {own}", command.commands[own]) for own in command.commands)
        else:
            yield name, command


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(surface(), indent=2) + "\n", encoding="utf-8")
