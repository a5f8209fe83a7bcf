"""The flags that decoding commands share, resolved into one frozen `Settings`: flag > environment > user config > default."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from backends.config import DecodeConfig, Request
from backends.errors import BadValue
from strata_cli import environment, folders, user_config
from strata_cli.environment import BY_KEY, VARIABLES
from strata_cli.grammar import BIAS, STOP, Grammar, merge_biases, refuse
from strata_cli.messages import warn
from strata_cli.model import locate

# Flags by key, with their aliases; the other variables of the table are for experts and have none.
FLAGS: dict[str, tuple[str, ...]] = {
    "model": ("--model", "-m"),
    "backend": ("--backend",),
    "device": ("--device",),
    "kv": ("--kv",),
    "ctx": ("--ctx", "-c", "--max-context"),
    "max-new": ("--max-new", "-n"),
    "temperature": ("--temperature", "--temp"),
    "seed": ("--seed",),
    "logit-bias": ("--logit-bias",),
    "stop": ("--stop",),
    "ignore-eos": ("--ignore-eos/--no-ignore-eos",),
}
# Repeatable flags take one item each time; the variable takes all of them at once.
ITEMS: dict[str, Grammar] = {"logit-bias": BIAS, "stop": STOP}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the shared flags, the environment and the user config say together.

    model: the GGUF file. config: the engine's part. The rest is the part of each request.
    """

    model: Path
    config: DecodeConfig
    max_new: int
    temperature: float
    seed: int | None
    logit_bias: Mapping[int, float]
    stop: tuple[str, ...]
    ignore_eos: bool

    def request(self, seed: int, prompt: str, system: str | None = None, raw: bool = False) -> Request:
        """The request for one prompt under these settings. Raises BadValue."""
        return Request(
            prompt=prompt,
            system=system,
            raw=raw,
            max_new=self.max_new,
            temperature=self.temperature,
            seed=seed,
            logit_bias=self.logit_bias,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
        )


def resolve(flags: Mapping[str, Any], greedy: bool, environ: Mapping[str, str]) -> Settings:
    """Settings from the flags given (by key; the texts as typed), the environment and the user config. Raises BadValue."""
    given = {key: parse_flag(key, value) for key, value in flags.items() if value is not None and value != ()}
    if greedy:
        if given.get("temperature", 0) > 0:
            raise BadValue(f"--greedy: it means --temperature 0, but --temperature {flags['temperature']} is given too; leave one out")
        given["temperature"] = 0.0
    # Both are read whole before a flag can override them: a malformed value is never passed over in silence.
    from_environment = environment.read(environ)
    path = folders.config_file(environ)
    from_config = user_config.read(path)
    defaults = {variable.key: variable.value for variable in VARIABLES} | {"cache": folders.cache_folder(environ)}
    values = defaults | from_config | from_environment | given
    where = "--model" if "model" in given else BY_KEY["model"].name if "model" in from_environment else f"{path}: model"
    return Settings(
        model=locate(values["model"], where),
        config=DecodeConfig(
            backend=values["backend"],
            device=values["device"],
            kv=values["kv"],
            ctx=values["ctx"],
            prefill_chunk=values["prefill-chunk"],
            work_groups=values["work-groups"],
            instructions=values["instructions"],
            launch=values["launch"],
            kernel_shape=values["kernel-shape"],
            cache_dir=values["cache"],
        ),
        max_new=values["max-new"],
        temperature=values["temperature"],
        seed=values["seed"],
        logit_bias=values["logit-bias"],
        stop=values["stop"],
        ignore_eos=values["ignore-eos"],
    )


def parse_flag(key: str, value: Any) -> Any:
    """The value of one flag as click hands it over: a text, a tuple of texts for a repeatable one, a bool for a switch."""
    flag = FLAGS[key][0].partition("/")[0]
    if isinstance(value, bool):
        return value
    if key not in ITEMS:
        return BY_KEY[key].parse(value, flag)
    item = value[-1]
    try:
        items = []
        for item in value:
            items.append(ITEMS[key].parse(item))
        return merge_biases(items) if key == "logit-bias" else tuple(items)
    except ValueError as reason:
        raise BadValue(refuse(flag, item, ITEMS[key], reason)) from None


Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def shared_options(command: Callable[Concatenate[Settings, Given], Returned]) -> Callable[Given, Returned]:
    """Give a click command the shared flags; its function gets the resolved `Settings` as its first argument."""

    @functools.wraps(command)
    def resolved(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        flags = {key: kwargs.pop(_parameter(key)) for key in FLAGS}
        greedy = bool(kwargs.pop("greedy"))
        for line in environment.warnings(os.environ):
            warn(line)
        return command(resolve(flags, greedy, os.environ), *args, **kwargs)

    wrapped: Callable[Given, Returned] = resolved
    for option in reversed(list(_options())):
        wrapped = option(wrapped)
    return wrapped


def _parameter(key: str) -> str:
    return key.replace("-", "_")


def _options() -> list[Callable[..., Any]]:
    # click gets plain texts and no defaults or variables: it would report where a value came from less exactly than `resolve`.
    options = []
    for key, names in FLAGS.items():
        variable = BY_KEY[key]
        text = f"{variable.doc}  [{variable.name}; default: {variable.default.strip('()')}]"
        switch = "/" in names[0]
        options.append(
            click.option(
                *names,
                _parameter(key),
                default=None,
                multiple=key in ITEMS,
                metavar=None if switch else ITEMS.get(key, variable.grammar).metavar,
                help=("Repeatable. " if key in ITEMS else "") + text,
            )
        )
        if key == "temperature":
            options.append(click.option("--greedy", is_flag=True, help="The same as --temperature 0."))
    return options
