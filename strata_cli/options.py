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
from backends.errors import BadValue, StrataError
from strata_cli import drafting, environment, folders, slop_lists, user_config
from strata_cli.environment import BY_KEY, DRAFTER_FILE, SHARED_KEYS, VARIABLES, Variable
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
    "top-k": ("--top-k",),
    "top-p": ("--top-p",),
    "min-p": ("--min-p",),
    "repeat-penalty": ("--repeat-penalty",),
    "repeat-last-n": ("--repeat-last-n",),
    "presence-penalty": ("--presence-penalty",),
    "frequency-penalty": ("--frequency-penalty",),
    "seed": ("--seed",),
    "logit-bias": ("--logit-bias",),
    "stop": ("--stop",),
    "ignore-eos": ("--ignore-eos/--no-ignore-eos",),
    "spec": ("--spec",),
    "spec-min-p": ("--spec-min-p",),
    "mtp": ("--mtp/--no-mtp",),
    "mtp-model": ("--mtp-model",),
    "draft-vocab": ("--draft-vocab",),
    "slop": ("--slop",),
    "slop-lexicon": ("--slop-lexicon",),
    "slop-openers": ("--slop-openers",),
}
# The fields of a request that these settings give every one of them.
GENERATION = (
    "max_new",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "ignore_eos",
)
FILTERS = ("top-k", "top-p", "min-p")
# Repeatable flags take one item each time; the variable takes all of them at once.
ITEMS: dict[str, Grammar] = {"logit-bias": BIAS, "stop": STOP}
# What each flag takes where that is not what its variable takes.
OWN_GRAMMARS: dict[str, Grammar] = {**ITEMS, "mtp-model": DRAFTER_FILE}
OWN_DOCS = {"mtp-model": "The drafter: a GGUF file with an MTP layer. The variable may name it too."}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the shared flags, the environment and the user config say together.

    model: the GGUF file. config: the engine's part. The rest is the part of each request; generation: `Request`'s fields of GENERATION.
    draft_flags: the flags given that say how to draft, as typed; without a drafter they have no effect. mtp_flag: the one that asks for one.
    lists_missing: why a slop list is not there.
    """

    model: Path
    config: DecodeConfig
    seed: int | None
    generation: Mapping[str, Any]
    draft_flags: tuple[str, ...] = ()
    mtp_flag: str | None = None
    lists_missing: str | None = None

    def request(self, seed: int, prompt: str, system: str | None = None, raw: bool = False) -> Request:
        """The request for one prompt under these settings. Raises BadValue."""
        return Request(prompt=prompt, system=system, raw=raw, seed=seed, **self.generation)


def resolve(flags: Mapping[str, Any], greedy: bool, environ: Mapping[str, str], own: Mapping[str, str] | None = None) -> Settings:
    """Settings from the flags given (by key; the texts as typed), the environment and the user config. Raises BadValue.

    own: a command's own defaults, by key, as texts.
    """
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
    defaults |= {key: BY_KEY[key].parse(text, key) for key, text in (own or {}).items()}
    values = defaults | from_config | from_environment | given
    useless = [f"--{key}" for key in FILTERS if key in given]
    if useless and values["temperature"] == 0:
        warn(f"{', '.join(useless)}: no effect at temperature 0, which takes the likeliest token; --temperature above 0 samples")

    def where(key: str) -> str:
        return source(key, given, from_environment, path)

    model = locate(values["model"], where("model"))
    lists, missing = slop_lists.find(values)
    if missing and values["slop"].active:
        raise StrataError(missing)
    drafts = drafting.choose(values, given, (defaults | from_config | from_environment)["mtp"], model, where)
    return Settings(
        model=model,
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
            spec=values["spec"],
            spec_min_p=values["spec-min-p"],
            spec_p_cum=values["spec-pcum"],
            mtp=drafts.mtp,
            mtp_model=drafts.mtp_model,
            draft_vocab=drafts.draft_vocab,
            slop=values["slop"] if values["slop"].active else None,
            **lists,
            mtp_slop=values["metal-mtp-slop"],
            cache_dir=values["cache"],
        ),
        seed=values["seed"],
        generation={name: values[name.replace("_", "-")] for name in GENERATION},
        draft_flags=tuple(f"--{key} {flags[key]}" for key in ("spec", "spec-min-p", "draft-vocab") if key in given and not drafts.missing),
        lists_missing=missing,
        mtp_flag="--mtp-model" if "mtp-model" in given else "--mtp" if given.get("mtp") else None,
    )


def source(key: str, given: Mapping[str, Any], from_environment: Mapping[str, Any], config_file: str) -> str:
    """Where the value of a key that is not a default comes from, for messages."""
    return f"--{key}" if key in given else BY_KEY[key].name if key in from_environment else f"{config_file}: {key}"


def find_model(flag: str | None, environ: Mapping[str, str]) -> Path:
    """The model's file for a command that has --model alone; the flag as typed. Raises BadValue."""
    return find_settings({"model": flag}, environ)[0]


def find_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[Path, dict[str, Any], frozenset[str]]:
    """The model's file, all values by key, and which of them are no defaults, for a command that has only a few of the shared flags; those as
    typed. Raises BadValue."""
    given = {key: parse_flag(key, text) for key, text in flags.items() if text is not None}
    from_environment, path = environment.read(environ), folders.config_file(environ)
    found = user_config.read(path) | from_environment | given
    values = {variable.key: variable.value for variable in VARIABLES} | found
    return locate(values["model"], source("model", given, from_environment, path)), values, frozenset(found)


def find_data(environ: Mapping[str, str]) -> str | None:
    """The folder that STRATA_DATA or the user config names for the data files. Raises BadValue."""
    named: str | None = (user_config.read(folders.config_file(environ)) | environment.read(environ)).get("data")
    return named


def variable_of(key: str) -> Variable:
    """The variable that says what the flag of this key says."""
    return BY_KEY[SHARED_KEYS.get(key, key)]


def parse_flag(key: str, value: Any) -> Any:
    """The value of one flag as click hands it over: a text, a tuple of texts for a repeatable one, a bool for a switch."""
    flag = FLAGS[key][0].partition("/")[0]
    if isinstance(value, bool):
        return value
    if key not in ITEMS:
        grammar = OWN_GRAMMARS.get(key, variable_of(key).grammar)
        try:
            return grammar.parse(value)
        except ValueError as reason:
            raise BadValue(refuse(flag, value, grammar, reason)) from None
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
        flags, greedy = take_flags(kwargs)
        for line in environment.warnings(os.environ):
            warn(line)
        return command(resolve(flags, greedy, os.environ), *args, **kwargs)

    return shared_flags()(resolved)


def shared_flags(own: Mapping[str, str] | None = None) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """Gives a click command the shared flags, as typed and unresolved: `take_flags` takes them from its parameters. own: as in `resolve`."""

    def decorate(command: Callable[Given, Returned]) -> Callable[Given, Returned]:
        for option in reversed(_options(own or {})):
            command = option(command)
        return command

    return decorate


def take_flags(parameters: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Takes the shared flags out of a command's parameters: as typed, by key, and whether --greedy is among them."""
    return {key: parameters.pop(_parameter(key)) for key in FLAGS}, bool(parameters.pop("greedy"))


def _parameter(key: str) -> str:
    return key.replace("-", "_")


def _options(own: Mapping[str, str]) -> list[Callable[..., Any]]:
    # click gets plain texts and no defaults or variables: it would report where a value came from less exactly than `resolve`.
    options = []
    for key, names in FLAGS.items():
        variable = variable_of(key)
        text = f"{OWN_DOCS.get(key, variable.doc)}  [{variable.name}; default: {own.get(key, variable.default).strip('()')}]"
        switch = "/" in names[0]
        options.append(
            click.option(
                *names,
                _parameter(key),
                default=None,
                multiple=key in ITEMS,
                metavar=None if switch else OWN_GRAMMARS.get(key, variable.grammar).metavar,
                help=("Repeatable. " if key in ITEMS else "") + text,
            )
        )
        if key == "temperature":
            options.append(click.option("--greedy", is_flag=True, help="The same as --temperature 0."))
    return options
