"""`strata env`: every setting with its value and where that comes from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from backends.errors import BadValue
from strata_cli import environment, folders, user_config
from strata_cli.environment import VARIABLES, Variable
from strata_cli.messages import complain, warn
from strata_cli.options import FLAGS
from strata_cli.output import write_json, write_stdout, write_table

BAD_VALUE = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as found. value: the one in force, as its user wrote it; malformed: it is not allowed.

    error: what is wrong with it, or with one that it overrides.
    """

    variable: Variable
    value: str
    source: str
    malformed: bool
    error: str | None


@click.command("env", short_help="List the settings and where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """List every STRATA_* variable: name, value, where the value comes from, default, and what is allowed.

    Exits with 2 if a value is malformed.
    """
    path = folders.config_file(os.environ)
    file: dict[str, Any] = {}
    file_error: str | None = None
    try:
        file = user_config.load(path)
    except BadValue as error:
        file_error = str(error)
    rows = [find(variable, os.environ, path, file) for variable in VARIABLES]
    errors = [text for text in (file_error, *(row.error for row in rows)) if text]
    if as_json:
        config = {"path": path, "exists": os.path.exists(path), "error": file_error}
        write_json({"variables": [_as_object(row) for row in rows], "unknown": environment.unknown(os.environ), "user_config": config})
    else:
        table = [
            (row.variable.name, row.value, row.source + " (malformed)" * row.malformed, row.variable.default, row.variable.grammar.allowed)
            for row in rows
        ]
        write_table(("variable", "value", "source", "default", "allowed"), table)
        write_stdout(f"user config: {path}" + ("" if os.path.exists(path) else " (none)") + "\n")
    for line in environment.warnings(os.environ):
        warn(line)
    for line in errors:
        complain(f"strata: error: {line}")
    return BAD_VALUE if errors else 0


def find(variable: Variable, environ: Mapping[str, str], path: str, file: Mapping[str, Any]) -> Row:
    """The value in force for one variable. A malformed one in the user config is an error even where the environment overrides it."""
    value, source, errors = variable.default, "default", []
    if variable.key == "cache":
        value = folders.cache_folder(environ)
    if variable.key in file:
        entry = file[variable.key]
        text = user_config.as_text(variable.key, entry)
        value, source = str(entry) if text is None else text, "user config"
        errors.append(_error(lambda: user_config.parse(path, variable.key, entry)))
    set_texts = environment.raw(environ)
    if variable.key in set_texts:
        value, source = set_texts[variable.key], "environment"
        errors.append(_error(lambda: variable.parse(value, variable.name)))
    return Row(variable, value, source, bool(errors and errors[-1]), next((text for text in reversed(errors) if text), None))


def _error(parse: Callable[[], Any]) -> str | None:
    try:
        parse()
    except BadValue as error:
        return str(error)
    return None


def _as_object(row: Row) -> dict[str, Any]:
    names = FLAGS.get(row.variable.key)
    return {
        "name": row.variable.name,
        "flag": names[0].partition("/")[0] if names else None,
        "key": row.variable.key,
        "allowed": row.variable.grammar.allowed,
        "default": row.variable.default,
        "value": row.value,
        "source": row.source,
        "malformed": row.malformed,
        "error": row.error,
    }
