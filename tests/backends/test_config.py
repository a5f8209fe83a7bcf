"""What a request and an engine's settings may be: whatever else is given ends in one line that names it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.config import DecodeConfig, Request
from backends.errors import BadValue

HALF = "a\ud800"  # half of a surrogate pair
NUMBERS = [None, True, "1", math.nan, math.inf, -1, 10**400, 2**64, [1], np.int64(3)]

BAD_REQUESTS: dict[str, list[Any]] = {
    "prompt": [5, b"x", ["x"], HALF],
    "messages": [(), "hi", 5, (5,), ("hi",), ({},), ({"role": "user"},), ({"role": "user", "content": None},), ({"role": 5, "content": HALF},)],
    "token_ids": [5, "12", b"12", {1: 2}, (1.0,), (True,), (None,), ("1",), np.array([1.0])],
    "system": [5, ("x",), HALF],
    "raw": [None, 0, 1, "no"],
    "ignore_eos": [None, 0, 1, "no"],
    "max_new": [*(value for value in NUMBERS if value != -1), 0, -2, 2**31, 3.0],
    "temperature": [*NUMBERS, 100.1, np.float32(1)],
    "seed": [*NUMBERS[1:], 1.0],
    "logit_bias": [None, 5, [(1, 2.0)], {"1": 1.0}, {True: 1.0}, {-1: 1.0}, {1.0: 1.0}, *({1: amount} for amount in NUMBERS if amount != -1)],
    "stop": [None, 5, "abc", b"abc", ("",), (b"x",), (5,), (HALF,)],
}
BAD_REQUESTS["logit_bias"] += [{1: 1.1e9}, {1: -1.1e9}]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_REQUESTS.items() for value in values], ids=repr)
def test_bad_requests(name: str, value: Any) -> None:
    given = {} if name in ("messages", "token_ids") else {"prompt": "hi"}
    with pytest.raises(BadValue, match=f"^{name}.*is not allowed.*; allowed: .") as error:
        Request(**{**given, name: value})
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "", "stop": ["\n", "é"], "logit_bias": {0: -math.inf, 1: 1e9, 2: -3}},
        {"prompt": "\0😀", "system": "", "max_new": -1, "temperature": 100, "seed": 2**64 - 1},
        {"messages": [{"role": "user", "content": ""}]},
        {"token_ids": [1, 2]},
        {"token_ids": np.array([1, 2])},
    ],
)
def test_allowed_requests(given: dict[str, Any]) -> None:
    Request(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backend", None),
        ("device", 5),
        ("kv", "f32"),
        ("ctx", True),
        ("ctx", 1),
        ("prefill_chunk", 0),
        ("prefill_chunk", 513),
        ("work_groups", 1025),
        ("instructions", []),
        ("launch", 1),
        ("cache_dir", 5),
        ("cache_dir", ""),
        ("cache_dir", "a\0"),
    ],
)
def test_bad_settings(name: str, value: Any) -> None:
    with pytest.raises(BadValue, match=f"^{name}: .* is not allowed; allowed: ."):
        DecodeConfig(**{name: value})


def test_a_cache_folder_may_be_a_path() -> None:
    DecodeConfig(cache_dir=Path("x"))  # type: ignore[arg-type]
