"""The lines of a batch: what a request may hold, and what becomes of one that may not be."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from backends.config import Request, Tune
from backends.errors import BadValue
from strata_cli.batch_input import Line, read_lines, request_seed
from strata_cli.options import Settings, resolve


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    model = tmp_path / "model.gguf"
    model.touch()
    flags = {"model": str(model), "max-new": "9", "temperature": "0.5", "stop": ("from the flag",), "logit-bias": ("1=2",)}
    return resolve(flags, False, {"XDG_CONFIG_HOME": str(tmp_path)})


def _request(settings: Settings, line: str | bytes | dict[str, Any]) -> Request:
    content = json.dumps(line).encode() if isinstance(line, dict) else line.encode() if isinstance(line, str) else line
    return Line(1, "a", content).request(settings, 7)


def test_flags_are_the_defaults(settings: Settings) -> None:
    request = _request(settings, {"id": "a", "prompt": "hi"})
    assert (request.prompt, request.max_new, request.temperature, request.stop) == ("hi", 9, 0.5, ("from the flag",))
    assert request.seed == request_seed(7, "a")
    assert request.tune == Tune()


def test_every_key_of_a_line_wins(settings: Settings) -> None:
    keys = {
        "max_new": -1,
        "temperature": 1,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0,
        "repeat_penalty": 1.5,
        "repeat_last_n": -1,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "ignore_eos": True,
        "seed": 2**64 - 1,
        "raw": True,
    }
    more = {"stop": "x", "logit_bias": {"5": -100, "6": "-inf"}, "strata_tune": {"spec_p_cum": 0.25, "spec_p_cum_deep": 1, "spec_min_p": 0}}
    request = _request(settings, {"id": 1, "prompt": " hi\n", **keys, **more})
    assert {key: getattr(request, key) for key in keys} == keys
    assert (request.stop, request.logit_bias, request.tune) == (("x",), {5: -100, 6: -math.inf}, Tune(0.25, 1, 0))
    assert request.prompt == " hi\n"
    assert _request(settings, {"id": 1, "prompt": "hi", "stop": []}).stop == ()
    assert _request(settings, {"id": 1, "prompt": "hi", "system": "be nice"}).system == "be nice"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert _request(settings, {"id": 1, "messages": turns}).messages == tuple(turns)
    assert math.copysign(1, _request(settings, '{"id": 1, "prompt": "x", "temperature": -0.0}').temperature) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON: Expecting property name"),
        ("nothing", "not JSON: Expecting value at character 1 of the line"),
        ('{"id": 1, "prompt": "x"} {}', "not JSON: Extra data"),
        (b'{"id": 1, "prompt": "\xff"}', "not UTF-8 at byte 21 of the line (0xff)"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "not a JSON object: [1]; allowed: {"),
        ('{"prompt": "x"}', "id is missing"),
        ('{"id": null, "prompt": "x"}', "id: null is not allowed; allowed: a text"),
        ('{"id": true, "prompt": "x"}', "id: true is not allowed"),
        ('{"id": 1.0, "prompt": "x"}', "id: 1.0 is not allowed"),
        ('{"id": "", "prompt": "x"}', 'id: "" is not allowed'),
        ('{"id": "\\ud800", "prompt": "x"}', 'id: "\\ud800" is not allowed'),
        ('{"id": 1, "id": 2, "prompt": "x"}', 'the key "id" is given twice'),
        ('{"id": 1, "prompt": "x", "prompt": "y"}', 'the key "prompt" is given twice'),
        ('{"id": 1, "prompt": "x", "temperature": NaN}', "NaN is not allowed; allowed: JSON's numbers"),
        ('{"id": 1, "prompt": "x", "logit_bias": {"5": -Infinity}}', "-Infinity is not allowed"),
        ('{"id": 1, "prompt": "x", "seed": 1' + "0" * 5000 + "}", "an integer of 5001 digits is not allowed"),
        ('{"id": 1}', "prompt or messages is missing"),
        ('{"id": 1, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}', "prompt and messages are both given; leave one out"),
        ('{"id": 1, "prompt": " \\n"}', "the prompt is empty"),
        ('{"id": 1, "prompt": null}', "prompt: null is not allowed; allowed: a text"),
        ('{"id": 1, "prompt": "\\udc80"}', 'prompt: "\\udc80" is not allowed; allowed: a text of valid Unicode'),
        ('{"id": 1, "prompt": "x", "temprature": 1}', 'unknown key "temprature"; nearest: temperature'),
        ('{"id": 1, "prompt": "x", "model": "y"}', 'unknown key "model"; known: id, prompt, '),
        ('{"id": 1, "prompt": "x", "max_new": 0}', "max_new: 0 is not allowed; allowed: -1 or an integer from 1"),
        ('{"id": 1, "prompt": "x", "max_new": 1e3}', "max_new: 1000.0 is not allowed; allowed: -1 or an integer from 1"),
        ('{"id": 1, "prompt": "x", "top_k": true}', "top_k: true is not allowed; allowed: an integer from 0"),
        ('{"id": 1, "prompt": "x", "temperature": "hot"}', 'temperature: "hot" is not allowed; allowed: a number from 0 to 100'),
        ('{"id": 1, "prompt": "x", "temperature": 1e999}', "temperature: inf is not allowed"),
        ('{"id": 1, "prompt": "x", "seed": null}', "seed: null is not allowed; allowed: an integer from 0"),
        ('{"id": 1, "prompt": "x", "seed": -1}', "seed: -1 is not allowed"),
        ('{"id": 1, "prompt": "x", "raw": 1}', "raw: 1 is not allowed; allowed: true, false"),
        ('{"id": 1, "prompt": "x", "raw": true, "system": "y"}', "system: 'y' is not allowed; allowed: only with a prompt that is not raw"),
        ('{"id": 1, "messages": [{"role": "user", "content": "x"}], "raw": true}', "raw: it leaves out the chat template"),
        ('{"id": 1, "messages": []}', "messages: [] is not allowed"),
        ('{"id": 1, "messages": [{"role": "user"}]}', 'messages: {"role": "user"} is not allowed; allowed: objects with'),
        ('{"id": 1, "messages": [{"role": "user", "content": "x", "nam": "y"}]}', 'messages: unknown key "nam"; known: role, content'),
        ('{"id": 1, "prompt": "x", "stop": [""]}', 'stop: [""] is not allowed'),
        ('{"id": 1, "prompt": "x", "stop": [1]}', "stop: [1] is not allowed; allowed: a text that is not empty, or a list of such"),
        ('{"id": 1, "prompt": "x", "logit_bias": [5]}', "logit_bias: [5] is not allowed; allowed: an object"),
        ('{"id": 1, "prompt": "x", "logit_bias": {"x": 1}}', 'logit_bias: "x" is not allowed; allowed: token ids'),
        ('{"id": 1, "prompt": "x", "logit_bias": {"5": 1, "05": 2}}', "logit_bias: token 5 is given twice"),
        ('{"id": 1, "prompt": "x", "logit_bias": {"5": -1e999}}', 'logit_bias of token "5": -Infinity is not allowed'),
        ('{"id": 1, "prompt": "x", "logit_bias": {"5": "inf"}}', 'logit_bias of token "5": "inf" is not allowed'),
        ('{"id": 1, "prompt": "x", "strata_tune": null}', "strata_tune: null is not allowed; allowed: an object with spec_p_cum, "),
        (
            '{"id": 1, "prompt": "x", "strata_tune": {"spec_p_cum": null}}',
            "strata_tune.spec_p_cum: null is not allowed; allowed: a number from 0 to 1",
        ),
        ('{"id": 1, "prompt": "x", "strata_tune": {"spec_p_cum": "0.5"}}', 'strata_tune.spec_p_cum: "0.5" is not allowed'),
        ('{"id": 1, "prompt": "x", "strata_tune": {"spec_min_p": true}}', "strata_tune.spec_min_p: true is not allowed"),
        ('{"id": 1, "prompt": "x", "strata_tune": {"spec_min_p": NaN}}', "NaN is not allowed"),
        (
            '{"id": 1, "prompt": "x", "strata_tune": {"spec_min_p": 1.01}}',
            "strata_tune.spec_min_p: 1.01 is not allowed; allowed: a number from 0 to 1",
        ),
        ('{"id": 1, "prompt": "x", "strata_tune": {"spec_pcum": 1}}', 'strata_tune: unknown key "spec_pcum"; nearest: spec_p_cum'),
    ],
)
def test_bad_lines(settings: Settings, line: str | bytes, says: str) -> None:
    with pytest.raises(BadValue) as caught:
        _request(settings, line)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_a_requests_seed() -> None:
    """As documented, so that any program can tell it."""
    assert request_seed(7, "a") == int.from_bytes(hashlib.sha256(b'[7,"a"]').digest()[:8], "big")
    assert request_seed(2**64 - 1, "é") == int.from_bytes(hashlib.sha256(b'[18446744073709551615,"\\u00e9"]').digest()[:8], "big")
    seeds = {request_seed(seed, name) for seed in (1, 2) for name in (1, "1", 2, "2")}
    assert len(seeds) == 8 and all(0 <= seed < 2**64 for seed in seeds)


def test_lines(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes('\ufeff{"id": "a"}\r\n\n \t\r\n{"id": 2}\nnothing\n{"id": "\u2028"}'.encode())
    lines = read_lines(str(file))
    assert [(line.number, line.id) for line in lines] == [(1, "a"), (4, 2), (5, None), (6, "\u2028")]
    digests = [line.digest for line in lines]
    file.write_bytes(b'\n  {"id": "a"}\n{"id":2}')
    again = [line.digest for line in read_lines(str(file))]
    assert again[0] == digests[0] and again[1] != digests[1]


def test_an_id_is_kept_where_the_rest_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": "a", "x": NaN}\n{"id": "b", "x": 1, "x": 2}\n{"id": "c", "id": "c"}\n{"id": 1' + "0" * 50 + "}\n")
    assert [line.id for line in read_lines(str(file))] == ["a", "b", None, None]


def test_the_same_id_twice(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": 1}\n{"id": "1"}\n\n{"id": 1, "nothing": 2}\n')
    with pytest.raises(BadValue, match=r"in\.jsonl: lines 1 and 4 have the same id 1; each needs its own"):
        read_lines(str(file))
