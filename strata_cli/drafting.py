"""What drafts: the flags and variables of the drafter, and the one that comes with Strata for the bundled model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.errors import BadValue, StrataError
from strata_cli.environment import nearest
from strata_cli.folders import data_folder
from strata_cli.messages import warn
from strata_cli.model import is_bundled

if TYPE_CHECKING:
    from backends.config import Request
    from backends.engine import Engine
    from strata_cli.options import Settings

DRAFTERS, VOCABULARIES = "drafters", "draft-vocab"
BUNDLED_DRAFTER, BUNDLED_VOCABULARY = "smollm2-135m-instruct-mtp-q8_0.gguf", "smollm2-en.bin"
NO_VOCABULARY = "none"


@dataclass(frozen=True, slots=True)
class Drafting:
    """`DecodeConfig`'s fields of these names. missing: there should be a drafter and is none, which has been said."""

    mtp: bool | None
    mtp_model: str | None
    draft_vocab: str | None
    missing: bool = False


def choose(values: Mapping[str, Any], given: Mapping[str, Any], below: bool | str | None, model: Path, where: Callable[[str], str]) -> Drafting:
    """What is to draft for a model.

    values: of all settings; given: of the flags, by key; below: what the sources under the flags say of mtp; where: a key's source, for messages.
    Raises BadValue.
    """
    mtp, file = _wanted(given, below)
    vocabulary = values["draft-vocab"]
    ids = None if vocabulary in (None, NO_VOCABULARY) else str(find_vocabulary(vocabulary, values["data"], where("draft-vocab")))
    plain = mtp is False or (values["spec"] is not None and values["spec"] <= 1)
    if file is not None:
        return Drafting(mtp, file, ids or (_its_vocabulary(file, values["data"]) if vocabulary is None else None))
    if plain or not is_bundled(model):
        return Drafting(mtp, None, ids)
    try:
        drafter = _data_file(values["data"], DRAFTERS, BUNDLED_DRAFTER)
        if vocabulary is None:
            ids = str(_data_file(values["data"], VOCABULARIES, BUNDLED_VOCABULARY))
    except StrataError as error:
        if mtp:
            raise BadValue(f"{where('mtp')}: the bundled model's drafter is not there: {error}") from None
        warn(f"no drafter for the bundled model, decoding plainly: {error}")
        return Drafting(False, None, None, missing=True)
    return Drafting(mtp, str(drafter), ids)


def _its_vocabulary(file: str, data: str | None) -> str | None:
    """The draft vocabulary of the bundled drafter, if that is what a user named."""
    try:
        if os.path.samefile(file, _data_file(data, DRAFTERS, BUNDLED_DRAFTER)):
            return str(_data_file(data, VOCABULARIES, BUNDLED_VOCABULARY))
    except (StrataError, OSError):
        pass
    return None


def _wanted(given: Mapping[str, Any], below: bool | str | None) -> tuple[bool | None, str | None]:
    """Whether to draft, and with which file."""
    if "mtp-model" in given:
        if given.get("mtp") is False:
            raise BadValue("--no-mtp and --mtp-model are both given; leave one out")
        return True, given["mtp-model"]
    named = below if isinstance(below, str) else None
    if "mtp" in given:
        return (True, named) if given["mtp"] else (False, None)
    return (True, named) if isinstance(below, str) else (below, None)


def find_vocabulary(name: str, data: str | None, where: str) -> Path:
    """The file of a draft vocabulary that is called `name`, a file or one of the data files. where: the flag or variable. Raises BadValue."""
    path = os.path.expanduser(name)
    if "\0" not in path and os.path.isfile(path):
        return Path(path)
    try:
        known = {file.stem: file for file in sorted((data_folder(data) / VOCABULARIES).glob("*.bin"))}
    except StrataError:
        known = {}
    if name in known:
        return known[name]
    near = nearest(name, known)
    bundled = f", or of the bundled ones {', '.join(known)}" if known else ""
    raise BadValue(f"{where}: there is no file {name!r}" + (f"; nearest: {near}" if near else "") + f"; allowed: a file of token ids{bundled}")


def _data_file(named: str | None, *parts: str) -> Path:
    path = data_folder(named).joinpath(*parts)
    if not path.is_file():
        raise StrataError(f"{path}: no such file; STRATA_DATA names another folder")
    return path


def warn_of_flags(settings: Settings, engine: Engine) -> None:
    """One warning where flags say how to draft and nothing drafts. Where the engine itself has said that, none."""
    config = settings.config
    flags = [flag for flag in settings.draft_flags if flag not in ("--spec 0", "--spec 1", "--spec auto")]
    if engine.drafter is not None or not flags:
        return
    if config.spec is not None and config.spec <= 1:
        reason = f"a window of {config.spec} decodes plainly"
    elif config.mtp is False:
        reason = "drafting is off"
    elif config.spec is None:
        reason = "the model has no MTP layer to draft with"
    else:
        return
    warn(f"{', '.join(flags)}: no effect, {reason}")


def described(settings: Settings, engine: Engine, request: Request) -> dict[str, Any]:
    """The settings of drafts as they acted, as JSON values."""
    config, drafts = settings.config, engine.drafter is not None
    return {
        "spec": engine.window if request.oracle is None else config.spec,
        "spec_min_p": config.spec_min_p,
        "spec_p_cum": None if config.spec_p_cum is None else str(config.spec_p_cum),
        "mtp": drafts,
        "mtp_model": config.mtp_model if drafts else None,
        "draft_vocab": config.draft_vocab if drafts else None,
    }
