"""Arms: what `--arm "NAME: VAR=x --flag y"` and `--arm "NAME: !command"` mean, checked before anything is measured."""

from __future__ import annotations

import dataclasses
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from backends.config import DecodeConfig
from backends.errors import BadValue
from strata_cli.environment import BY_KEY, BY_NAME, PREFIX, nearest
from strata_cli.grammar import whole_utf8
from strata_cli.options import FLAGS, Settings, resolve, shared_flags, take_flags, variable_of

ALLOWED = '"NAME: VAR=x ... --flag y ...", or "NAME: VAR=x ... !command ..." for another program'
# What `strata bench` takes where nobody says otherwise.
DEFAULTS = {"max-new": "64", "temperature": "0.8", "seed": "1"}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to measure. text: as the user wrote it. environment: of its process. command: the other program's, if it is one.

    flags: Strata's, as typed, by key. settings: what all that comes to; of another program those of `strata bench` itself.
    """

    name: str
    text: str
    environment: Mapping[str, str]
    command: tuple[str, ...] | None
    flags: Mapping[str, Any]
    settings: Settings


def parse_arms(texts: Sequence[str], flags: Mapping[str, Any], environ: Mapping[str, str]) -> list[Arm]:
    """The arms, the first one the baseline. flags: those of `strata bench` itself, as typed, which hold for all. Raises BadValue.

    A seed that is to be random is drawn here, one for all arms: with the same draws they can write the same texts.
    """
    arms = [_parse(text, flags, environ) for text in texts or ("strata:",)]
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise BadValue(f"--arm: two arms are called {name!r}; their names must differ")
    drawn = secrets.randbits(32)
    return [arm if arm.settings.seed is not None else replace(arm, settings=replace(arm.settings, seed=drawn)) for arm in arms]


def _parse(text: str, base: Mapping[str, Any], environ: Mapping[str, str]) -> Arm:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not colon or not name or "\n" in name:
        raise BadValue(f"--arm: {text!r} has no name; allowed: {ALLOWED}")
    try:
        words = shlex.split(whole_utf8(rest))
    except ValueError as reason:
        raise BadValue(f"arm {name!r}: {rest!r}: {reason}; allowed: {ALLOWED}") from None
    own: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        if match[1] in own:
            raise BadValue(f"arm {name!r}: {match[1]} is given twice")
        own[match[1]] = match[2]
        words.pop(0)
    if words and words[0].startswith("!"):
        return _outside(name, rest, own, [word for word in (words[0][1:], *words[1:]) if word], base, environ)
    for variable in own:
        if variable.startswith(PREFIX) and variable not in BY_NAME:
            near = nearest(variable.removeprefix(PREFIX), (known.removeprefix(PREFIX) for known in BY_NAME))
            raise BadValue(f"arm {name!r}: {variable} is no variable of strata" + (f"; nearest: {PREFIX}{near}" if near else ""))
    given = _flags(name, words)
    # What an arm says beats what is said for all, in whichever form either is said.
    settled = {key for key, value in given.items() if value is not None and value != ()}
    said = {variable_of(key).key for key in settled} | {BY_NAME[variable].key for variable in own if variable in BY_NAME and own[variable].strip()}
    flags = {key: given[key] if key in settled else None if variable_of(key).key in said else base[key] for key in FLAGS}
    try:
        settings = resolve(flags, False, {**environ, **own}, DEFAULTS)
    except BadValue as error:
        raise BadValue(f"arm {name!r}: {error}") from None
    return Arm(name, rest, own, None, flags, settings)


def _outside(name: str, text: str, own: dict[str, str], command: list[str], base: Mapping[str, Any], environ: Mapping[str, str]) -> Arm:
    if not command:
        raise BadValue(f"arm {name!r}: there is no command behind the !; allowed: {ALLOWED}")
    if shutil.which(command[0], path={**environ, **own}.get("PATH")) is None:
        raise BadValue(f"arm {name!r}: there is no command {command[0]!r}")
    return Arm(name, text, own, tuple(command), dict(base), resolve(base, False, environ, DEFAULTS))


@click.command("arm", add_help_option=False)
@shared_flags()
def _arm() -> None:
    """Takes an arm's flags apart; it is never run."""


def _flags(name: str, words: Sequence[str]) -> dict[str, Any]:
    try:
        context = _arm.make_context(f"arm {name!r}", list(words))
    except click.ClickException as error:
        raise BadValue(f"arm {name!r}: {error.format_message().rstrip('.')}; allowed: {ALLOWED}, with flags of `strata generate --help`") from None
    flags, greedy = take_flags(dict(context.params))
    if greedy:
        raise BadValue(f"arm {name!r}: --greedy: all arms run the same prompts the same way; give it to `strata bench` itself")
    return flags


def child_environment(arm: Arm, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an arm's process: the user's, without variables of strata that mean nothing, then the arm's own."""
    kept = {name: value for name, value in environ.items() if not name.startswith(PREFIX) or (name in BY_NAME and arm.command is None)}
    return kept | dict(arm.environment)


def describe(settings: Settings) -> dict[str, Any]:
    """An arm's settings, for the report: those that differ from the defaults, save what the prompts' modes decide."""
    config, usual = settings.config, DecodeConfig()
    unused = {"cache_dir"} if config.slop else {"cache_dir", "slop_lexicon", "slop_openers"}
    names = [field.name for field in dataclasses.fields(config) if field.name not in unused]
    shown = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(usual, name)}
    for name, value in settings.generation.items():
        if name not in ("max_new", "temperature") and value != BY_KEY[name.replace("_", "-")].value:
            shown[name] = value
    return {name: value if isinstance(value, (bool, int, float, str)) else str(value) for name, value in shown.items()}
