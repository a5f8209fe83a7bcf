"""Drafts from a continuation that is known already: `--spec-oracle`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.errors import BadValue
from strata_cli.options import Settings
from strata_cli.prompt import decode_text

if TYPE_CHECKING:
    from backends.model.tokenizer import Tokenizer

FLAG = "--spec-oracle"


@dataclass(frozen=True, slots=True)
class Oracle:
    """A continuation as a file has it: token ids, or a text."""

    path: str
    ids: tuple[int, ...] | None
    text: str

    @classmethod
    def read(cls, path: str) -> Oracle:
        """A file with the JSON object that `strata generate --json` prints, or another with token_ids; any other file is a text. Raises BadValue."""
        try:
            with open(path, "rb") as file:
                content = file.read()
        except (OSError, ValueError) as error:  # ValueError: a NUL character
            raise BadValue(f"{FLAG}: {path}: {getattr(error, 'strerror', None) or error}") from None
        text = decode_text(content, f"{FLAG}: {path}", "a continuation")
        found = _json(text)
        if isinstance(found, dict) and "token_ids" in found:
            ids = found["token_ids"]
            if not isinstance(ids, list) or not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
                raise BadValue(f"{FLAG}: {path}: its token_ids are not a list of token ids")
            if not ids:
                raise BadValue(f"{FLAG}: {path}: its token_ids are empty")
            return cls(path, tuple(ids), "")
        if not text:
            raise BadValue(f"{FLAG}: {path}: the file is empty")
        return cls(path, None, text)

    def settings(self, settings: Settings) -> Settings:
        """The settings of a run that drafts from this: without an MTP layer. Raises BadValue where they leave no place for drafts."""
        if settings.mtp_flag is not None:
            raise BadValue(f"{FLAG} and {settings.mtp_flag} are both given; only one of them can draft, leave one out")
        if settings.config.spec is not None and settings.config.spec <= 1:
            raise BadValue(f"{FLAG}: a window of {settings.config.spec} has no room for drafts; --spec 2 to 8 has")
        from backends.engine import DEFAULT_WINDOW

        config = dataclasses.replace(settings.config, mtp=False, spec=settings.config.spec or DEFAULT_WINDOW)
        return dataclasses.replace(settings, config=config)

    def token_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The continuation in the model's tokens. Raises BadValue for an id that is not its."""
        ids = self.ids if self.ids is not None else tuple(tokenizer.encode(self.text, special=True))
        for token in ids:
            if token >= tokenizer.n_vocab:
                raise BadValue(f"{FLAG}: {self.path}: token id {token} is not allowed; allowed: 0 to {tokenizer.n_vocab - 1}")
        return ids


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
