"""What a user asks for: the engine's settings (`DecodeConfig`) and one generation (`Request`), and what comes back.

All are frozen and checked on creation, so a value that exists is a value that is allowed. Defaults are part of the public
contract; a snapshot test holds them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral

from backends.decode.slop import Knobs
from backends.decode.window import PCum
from backends.errors import BadValue
from backends.tables import MAX_WINDOW

BACKENDS = ("auto", "cuda", "hip", "opencl", "numpy")
KV_TYPES = ("f16",)
INSTRUCTIONS = ("auto", "portable")
KERNEL_SHAPES = ("auto", "cpu", "gpu")
LAUNCHES = ("auto", "buffer", "queue")
DEFAULT_CTX = 4096
INT_MAX = 2**31 - 1
REPEAT_PENALTY_MIN, PENALTY_MAX = 0.01, 100
BIAS_MAX = 1e9  # far beyond any logit and far from float32's end, so that a sum with a logit stays finite


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        shown = " ".join(repr(value).split())  # an array's has several lines
        raise BadValue(f"{name}: {shown if len(shown) <= 80 else shown[:77] + '...'} is not allowed; allowed: {allowed}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_range(value: object, low: float, high: float) -> bool:
    """Whether it is a number of low..high; NaN is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: object) -> bool:
    """Whether it is valid Unicode."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_path(value: object) -> bool:
    """Whether it can be a path, or is None."""
    return value is None or (isinstance(value, (str, os.PathLike)) and str(value) != "" and "\0" not in str(value))


def _is_list(value: object) -> bool:
    """Whether it holds items; a text does not, although Python could take it apart."""
    return not isinstance(value, (str, bytes)) and (isinstance(value, Sequence) or hasattr(value, "__array__"))


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Settings of an engine; they hold for all its sessions.

    backend: one of BACKENDS. device: a device's name from `strata devices` (None: the first of the backend).
    kv: storage type of the KV cache. ctx: context in tokens (None: the smaller of the model's and
    max(4096, prompt + max_new)). prefill_chunk: prompt rows per submission, 1..512. work_groups: work-groups per launch
    (None: the device's compute units). instructions: "portable" leaves the CPU's fast dot-product instructions unused.
    spec: rows of a window at most, 0..8 (0, 1: plain decoding; None: 4 with a drafter, else 1). spec_min_p: least probability of a draft, 0..1
    (0: off). spec_p_cum: the rule on the product of probabilities; None: there is none. mtp: whether to draft (None: where there is a
    drafter). mtp_model: a GGUF file with the drafter (None: the model's own layer). draft_vocab: a file of token ids that the draft head is
    restricted to. mtp_slop: drafts see the slop policy too. None of them changes a bit of the output.
    slop: knobs of the slop policy (None, or all zero: off); a request can have its own. slop_lexicon, slop_openers: files of words and phrases,
    read when the policy is first on (None: no words).
    kernel_shape: "cpu" or "gpu" forces the kernels' shape ("auto": the device's); between shapes the last bits differ.
    launch: "buffer" needs the driver's command buffers, "queue" leaves them unused. cache_dir: folder for compiled
    programs (None: none are kept). Neither prefill_chunk, work_groups, instructions, launch nor
    cache_dir changes a bit of the output.

    Raises BadValue.
    """

    backend: str = "auto"
    device: str | None = None
    kv: str = "f16"
    ctx: int | None = None
    prefill_chunk: int = 64
    work_groups: int | None = None
    instructions: str = "auto"
    launch: str = "auto"
    kernel_shape: str = "auto"
    spec: int | None = None
    spec_min_p: float = 0.5
    spec_p_cum: PCum | None = None
    mtp: bool | None = None
    mtp_model: str | None = None
    draft_vocab: str | None = None
    slop: Knobs | None = None
    slop_lexicon: str | None = None
    slop_openers: str | None = None
    mtp_slop: bool = False
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        _require(self.backend in BACKENDS, "backend", self.backend, ", ".join(BACKENDS))
        _require(self.kv in KV_TYPES, "kv", self.kv, ", ".join(KV_TYPES))
        _require(self.device is None or _is_text(self.device), "device", self.device, "a name from `strata devices`, or None")
        _require(self.ctx is None or (_is_int(self.ctx) and self.ctx >= 2), "ctx", self.ctx, "an integer of at least 2")
        _require(_is_int(self.prefill_chunk) and 1 <= self.prefill_chunk <= 512, "prefill_chunk", self.prefill_chunk, "1..512")
        _require(
            self.work_groups is None or (_is_int(self.work_groups) and 1 <= self.work_groups <= 1024), "work_groups", self.work_groups, "1..1024"
        )
        _require(self.instructions in INSTRUCTIONS, "instructions", self.instructions, ", ".join(INSTRUCTIONS))
        _require(self.kernel_shape in KERNEL_SHAPES, "kernel_shape", self.kernel_shape, ", ".join(KERNEL_SHAPES))
        _require(self.launch in LAUNCHES, "launch", self.launch, ", ".join(LAUNCHES))
        _require(self.spec is None or (_is_int(self.spec) and 0 <= self.spec <= MAX_WINDOW), "spec", self.spec, f"0..{MAX_WINDOW}")
        _require(_in_range(self.spec_min_p, 0, 1), "spec_min_p", self.spec_min_p, "a number from 0 to 1")
        _require(self.spec_p_cum is None or isinstance(self.spec_p_cum, PCum), "spec_p_cum", self.spec_p_cum, "a PCum, or None")
        _require(self.mtp in (None, True, False), "mtp", self.mtp, "True, False, None")
        _require(self.slop is None or isinstance(self.slop, Knobs), "slop", self.slop, "a Knobs, or None")
        _require(isinstance(self.mtp_slop, bool), "mtp_slop", self.mtp_slop, "True, False")
        paths = {"mtp_model": "a GGUF file, or None", "draft_vocab": "a file of token ids, or None", "cache_dir": "a folder, or None"}
        paths |= dict.fromkeys(("slop_lexicon", "slop_openers"), "a file of words and phrases, or None")
        for name, allowed in paths.items():
            _require(_is_path(getattr(self, name)), name, getattr(self, name), allowed)


@dataclass(frozen=True, slots=True)
class Tune:
    """Window rules of one request (`strata_tune` in a batch); None: the engine's. They never change the text, and act where there are drafts.

    spec_p_cum: cumulative-probability cutoff at every depth. spec_p_cum_deep: the one far down; alone, the other stays the engine's.
    spec_min_p: least probability of a draft. All of 0..1. Raises BadValue.
    """

    spec_p_cum: float | None = None
    spec_p_cum_deep: float | None = None
    spec_min_p: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            _require(value is None or _in_range(value, 0, 1), f"strata_tune.{name}", value, "a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Request:
    """One generation.

    Exactly one of: prompt (a user's message, rendered through the model's chat template unless raw), messages (chat
    turns, each {"role": ..., "content": ...}), token_ids (taken as they are).
    system: a system message before the prompt. max_new: tokens to generate, at least 1, or -1 until END or the context's end.
    temperature: 0 is greedy. Of the other tokens, only with a temperature: top_k keeps the k likeliest (0: all), top_p the fewest that hold
    this part of their probability (1: all), min_p those of at least this part of the likeliest one's probability (0: all), in this order.
    Over the last repeat_last_n tokens (-1: all, 0: none), also when greedy: a token found there has its logit divided by repeat_penalty
    where positive, else multiplied (1: off), then lowered by presence_penalty once and by frequency_penalty for each time.
    seed: 0..2**64-1 (None: one is drawn; the result names it). logit_bias: token id -> amount
    of -1e9..1e9 added to that logit (-inf bans it). stop: texts that end the generation and are left out of it. ignore_eos: END ids do
    not stop (for measurements). slop: knobs of the slop policy (None: the engine's; all zero: off). tune: window rules of this request.
    oracle: drafts come from this continuation, token ids, in place of a drafter; corrupt: every so manyth draft is replaced by a wrong one
    (0: none). Both are for tests and measurements.

    Raises BadValue.
    """

    prompt: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    system: str | None = None
    raw: bool = False
    max_new: int = 512
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    slop: Knobs | None = None
    tune: Tune = Tune()
    oracle: tuple[int, ...] | None = None
    corrupt: int = 0

    def __post_init__(self) -> None:
        given = [name for name in ("prompt", "messages", "token_ids") if getattr(self, name) is not None]
        _require(len(given) == 1, "request", given, "exactly one of prompt, messages, token_ids")
        if self.prompt is not None:
            _require(_is_text(self.prompt), "prompt", self.prompt, "a text of valid Unicode")
        if self.messages is not None:
            _require(_is_list(self.messages) and len(self.messages) > 0, "messages", self.messages, "a list of at least one message")
            for message in self.messages:
                ok = isinstance(message, Mapping) and all(_is_text(message.get(key)) for key in ("role", "content"))
                _require(ok, "messages", message, 'mappings with "role" and "content", both texts of valid Unicode')
        if self.token_ids is not None:
            _require(_is_list(self.token_ids), "token_ids", self.token_ids, "a list of token ids")
            for token in self.token_ids:
                _require(isinstance(token, Integral) and not isinstance(token, bool), "token_ids", token, "token ids, integers")
        _require(self.system is None or (self.prompt is not None and not self.raw), "system", self.system, "only with a prompt that is not raw")
        _require(self.system is None or _is_text(self.system), "system", self.system, "a text of valid Unicode")
        ok = _is_int(self.max_new) and (1 <= self.max_new <= INT_MAX or self.max_new == -1)
        _require(ok, "max_new", self.max_new, f"-1 or an integer from 1 to {INT_MAX}")
        _require(_in_range(self.temperature, 0, 100), "temperature", self.temperature, "a number from 0 to 100")
        ok = _is_int(self.top_k) and 0 <= self.top_k <= INT_MAX
        _require(ok, "top_k", self.top_k, f"an integer from 0 to {INT_MAX}; 0 keeps all")
        for name in ("top_p", "min_p"):
            _require(_in_range(getattr(self, name), 0, 1), name, getattr(self, name), "a number from 0 to 1")
        ok = _in_range(self.repeat_penalty, REPEAT_PENALTY_MIN, PENALTY_MAX)
        _require(ok, "repeat_penalty", self.repeat_penalty, f"a number from {REPEAT_PENALTY_MIN} to {PENALTY_MAX}")
        ok = _is_int(self.repeat_last_n) and -1 <= self.repeat_last_n <= INT_MAX
        _require(ok, "repeat_last_n", self.repeat_last_n, f"-1 or an integer from 0 to {INT_MAX}")
        for name in ("presence_penalty", "frequency_penalty"):
            ok = _in_range(getattr(self, name), -PENALTY_MAX, PENALTY_MAX)
            _require(ok, name, getattr(self, name), f"a number from -{PENALTY_MAX} to {PENALTY_MAX}")
        _require(self.slop is None or isinstance(self.slop, Knobs), "slop", self.slop, "a Knobs, or None")
        _require(isinstance(self.tune, Tune), "tune", self.tune, "a Tune")
        ok = self.oracle is None or (_is_list(self.oracle) and all(isinstance(token, Integral) and token >= 0 for token in self.oracle))
        _require(ok, "oracle", self.oracle, "a list of token ids, or None")
        _require(_is_int(self.corrupt) and self.corrupt >= 0, "corrupt", self.corrupt, "an integer of at least 0")
        _require(self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**64), "seed", self.seed, "an integer from 0 to 2**64-1")
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "a mapping of token ids to amounts")
        for token, amount in self.logit_bias.items():
            _require(_is_int(token) and token >= 0, "logit_bias", token, "token ids of at least 0")
            ok = _in_range(amount, -BIAS_MAX, BIAS_MAX) or amount == -math.inf
            _require(ok, f"logit_bias of token {token}", amount, f"a number from {-BIAS_MAX:g} to {BIAS_MAX:g}, or -inf")
        ok = _is_list(self.stop) and all(_is_text(text) and text for text in self.stop)
        _require(ok, "stop", self.stop, "a list of texts of valid Unicode that are not empty")
        for name in ("raw", "ignore_eos"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True, False")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a generation as it streams: text that is final (whole UTF-8, no part of a stop text) and its token ids."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock milliseconds: prefill (prompt rows) and decode (rounds)."""

    prefill_ms: float
    decode_ms: float


@dataclass(frozen=True, slots=True)
class Speculation:
    """Counts of a generation's rounds and of the drafts its windows verified; by_position[j] = (drafted, accepted) of draft j."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round as it went.

    depth: position of the window's first row. rows: of the window. tokens: the target's picks that were committed, the accepted drafts and
    one more. drafts, probabilities: what the drafter then computed for the next window (token -1: not a number), of which the first
    `kept` are in it; next_depth, product, threshold: that window's depth, the product of their probabilities, and the least product kept
    there (None without that rule). ms: of the round with its read-back.
    """

    depth: int
    rows: int
    tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    probabilities: tuple[float, ...]
    kept: int
    next_depth: int
    product: float
    threshold: float | None
    ms: float


@dataclass(frozen=True, slots=True)
class Result:
    """A finished generation. finish_reason: stop (END or a stop text), length (max_new reached), context (context full)."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    speculation: Speculation
    timings: Timings
    seed: int
    ctx: int
