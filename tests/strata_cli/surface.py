"""The names and defaults that users rely on, as tests/golden/cli_surface.json keeps them.

After a change that is meant: python -m tests.strata_cli.surface
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from strata_cli.commands import COMMANDS, strata
from strata_cli.environment import VARIABLES
from strata_cli.options import FLAGS

GOLDEN = Path(__file__).parent.parent / "golden" / "cli_surface.json"


def surface() -> dict[str, Any]:
    """Every command with its flags, and every variable, with defaults."""
    shared = {key.replace("-", "_"): key for key in FLAGS}
    defaults = {variable.key: variable.default for variable in VARIABLES}
    commands: dict[str, Any] = {}
    for name in COMMANDS:
        command = strata.get_command(click.Context(strata), name)
        assert command is not None
        flags = {}
        for parameter in command.params:
            names = " ".join([*parameter.opts, *parameter.secondary_opts])
            if parameter.name in shared:
                flags[names] = defaults[shared[parameter.name]]
            else:
                flags[names] = "off" if getattr(parameter, "is_flag", False) else "(none)"
        commands[name] = flags
    return {"commands": commands, "variables": {variable.name: variable.default for variable in VARIABLES}}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(surface(), indent=2) + "\n", encoding="utf-8")
