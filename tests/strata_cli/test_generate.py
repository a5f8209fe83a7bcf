"""`strata generate`: prompts, text, JSON, statistics, and every way a run can end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.config import Speculation
from backends.errors import BadValue, StrataError
from strata_cli.messages import harmless
from tests.strata_cli.conftest import Cli


def test_text_and_statistics(cli: Cli) -> None:
    outcome = cli.generate("one two three", "--seed", "7")
    assert outcome.code == 0
    assert outcome.out == "Hello, world\n"
    assert outcome.err == "prompt 20.0 tok/s, decode 60.0 tok/s, 1.00 tokens per round, seed 7\n"
    assert cli.script.closed == 1


def test_statistics_with_drafts_and_a_limit(cli: Cli) -> None:
    cli.script.speculation = Speculation(rounds=2, drafted=3, accepted=1, by_position=((2, 1), (1, 0)))
    cli.script.finish_reason = "length"
    outcome = cli.generate("hi", "--seed", "7", "-n", "3")
    assert outcome.err == "decode 60.0 tok/s, drafts accepted 1 of 3 (33.3%), 1.50 tokens per round, seed 7, stopped at --max-new 3\n"


def test_a_full_context_is_said(cli: Cli) -> None:
    cli.script.finish_reason = "context"
    assert cli.generate("hi").err.endswith(", stopped at the end of the context, --ctx 4096\n")


def test_nothing_generated_still_ends_the_line(cli: Cli) -> None:
    cli.script.pieces = []
    outcome = cli.generate("hi")
    assert (outcome.code, outcome.out) == (0, "\n")


def test_a_seed_is_drawn_and_shown(cli: Cli) -> None:
    first, second = cli.generate("hi"), cli.generate("hi")
    seeds = [request.seed for request in cli.script.requests]
    assert seeds[0] != seeds[1]
    assert f"seed {seeds[0]}" in first.err and f"seed {seeds[1]}" in second.err


def test_json(cli: Cli) -> None:
    cli.script.speculation = Speculation(rounds=2, drafted=3, accepted=1, by_position=((2, 1), (1, 0)))
    cli.script.pieces = ["h\x1bé"]
    outcome = cli.generate("one two", "--json", "--seed", "7", "--logit-bias", "5=-inf", "--system", "be nice", "--stop", "x")
    assert outcome.code == 0
    assert outcome.out.endswith("}\n") and outcome.out.count("\n") == 1
    found = json.loads(outcome.out, parse_constant=pytest.fail)
    assert (found["text"], found["token_ids"], found["finish_reason"]) == ("h\x1bé", [0], "stop")
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert found["speculation"] == {"rounds": 2, "drafted": 3, "accepted": 1, "by_position": [[2, 1], [1, 0]]}
    assert found["timings"].pop("load_ms") >= 0
    assert found["timings"] == {"prefill_ms": 100.0, "decode_ms": 50.0, "prompt_tok_s": 10.0, "decode_tok_s": 20.0}
    assert found["settings"] == {
        "model": cli.model,
        "device": "opencl cpu/0: Test CPU (2 units, Test OpenCL)",
        "backend": "auto",
        "kv": "f16",
        "ctx": 4096,
        "max_new": 512,
        "temperature": 0.0,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 7,
        "logit_bias": {"5": "-inf"},
        "stop": ["x"],
        "ignore_eos": False,
        "raw": False,
        "system": "be nice",
        "prefill_chunk": 64,
        "work_groups": None,
        "instructions": "auto",
        "launch": "auto",
        "kernel_shape": "auto",
        "spec": 1,
        "spec_min_p": 0.5,
        "spec_p_cum": None,
        "mtp": False,
        "mtp_model": None,
        "draft_vocab": None,
        "slop": "off",
        "slop_lexicon": None,
        "slop_openers": None,
        "mtp_slop": False,
        "spec_oracle": False,
        "spec_corrupt": 0,
    }


def test_prompt_sources(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufefffrom a file\r\n".encode())
    cli.generate("as argument")
    cli.generate("-", stdin=b"from stdin\n\n")
    cli.generate(stdin="ünï\0\n".encode())
    cli.generate("-f", str(file))
    cli.generate("-f", "-", stdin=b"from stdin again")
    cli.generate("--raw", "as it is\n")
    cli.generate("--", "--raw")
    cli.generate("-", stdin=b"typed", terminal=True)
    prompts = [request.prompt for request in cli.script.requests]
    assert prompts == ["as argument", "from stdin\n", "ünï\0", "from a file", "from stdin again", "as it is\n", "--raw", "typed"]
    assert [request.raw for request in cli.script.requests] == [False] * 5 + [True] + [False] * 2


@pytest.mark.parametrize(
    ("args", "stdin", "says"),
    [
        (["", "-n", "4"], b"", "the prompt is empty"),
        ([" \n\t"], b"", "the prompt is empty"),
        ([], b"", "the prompt is empty"),
        (["-"], b"\n", "the prompt is empty"),
        (["hi", "-f", "x"], b"", "PROMPT and -f FILE are both given; leave one out"),
        (["-f", "/nowhere/x"], b"", "-f: /nowhere/x: No such file or directory"),
        (["-f", "/"], b"", "-f: /: Is a directory"),
        (["-"], b"ab\xc3(", "standard input: not UTF-8 at byte 2 (0xc3); the prompt must be UTF-8 text"),
        (["ab\udcffc"], b"", "PROMPT: not UTF-8 at byte 2"),
        (["hi", "--system", "é\udcff"], b"", "--system: not UTF-8 at byte 2"),
        (["hi", "--stop", "\udcff"], b"", "--stop: '\\udcff' is not allowed (not UTF-8 at byte 0)"),
        (["hi", "--raw", "--system", "x"], b"", "--system: it needs the chat template"),
        (["hi", "there"], b"", "Got unexpected extra argument"),
        (["hi", "--max-neww", "3"], b"", "--max-new"),
        (["hi", "--seed"], b"", "'--seed' requires an argument"),
    ],
)
def test_bad_input(cli: Cli, args: list[str], stdin: bytes, says: str) -> None:
    outcome = cli.generate(*args, stdin=stdin)
    assert outcome.code == 2
    assert says in outcome.error
    assert outcome.out == ""
    assert cli.script.opened == []


def test_bad_file_is_named(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes("naïve".encode("latin-1"))
    assert cli.generate("-f", str(file)).error.startswith(f"-f: {file}: not UTF-8 at byte 2 (0xef)")


def test_no_prompt_at_a_terminal(cli: Cli) -> None:
    outcome = cli.generate(terminal=True)
    assert outcome.code == 2
    assert "`strata generate PROMPT`" in outcome.error and "-f FILE" in outcome.error


def test_a_terminal_obeys_nothing(cli: Cli) -> None:
    cli.script.pieces = ["a\x1b", "[2J\x07\x9b2J\x7f\r\n", "\tb\x00é"]
    outcome = cli.generate("hi", terminal=True)
    assert outcome.out == "a␛[2J␇\ufffd2J␡\n\tb␀é\n"
    piped = cli.generate("hi")
    assert piped.out == "a\x1b[2J\x07\x9b2J\x7f\r\n\tb\x00é\n"


def test_harmless_leaves_no_control_character() -> None:
    text = harmless("".join(map(chr, range(0x110000))))
    assert [c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0] == ["\t", "\n"]


def test_notices_are_warnings(cli: Cli) -> None:
    cli.script.notices = ["running on NumPy, slowly"]
    outcome = cli.generate("hi")
    assert outcome.code == 0
    assert outcome.err.startswith("strata: warning: running on NumPy, slowly\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (StrataError("model.gguf: truncated"), 1, "strata: error: model.gguf: truncated"),
        (StrataError("two\nlines \x1b[2J"), 1, "strata: error: two lines ␛[2J"),
        (BadValue("the prompt has 9 tokens, --ctx 8"), 2, "strata: error: the prompt has 9 tokens, --ctx 8"),
        (MemoryError(), 1, "strata: error: out of memory; a smaller --ctx or model needs less"),
        (
            RuntimeError("can't start new thread"),
            1,
            "strata: error: the system starts no more threads: out of memory, or a limit of the user's processes",
        ),
        (PermissionError(13, "Permission denied", "x.gguf"), 1, "strata: error: Permission denied: x.gguf"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failure_to_open(cli: Cli, error: BaseException, code: int, line: str) -> None:
    cli.script.open_error = error
    outcome = cli.generate("hi")
    assert (outcome.code, outcome.out, outcome.err.strip()) == (code, "", line)


def test_internal_error(cli: Cli) -> None:
    cli.script.open_error = KeyError("x")
    outcome = cli.generate("hi")
    assert outcome.code == 1
    assert outcome.err.startswith("strata: internal error: KeyError: 'x' (fake_backend.py:")
    assert outcome.err.count("\n") == 1 and "please report it" in outcome.err
    assert "Traceback" in cli("--traceback", "generate", "-m", cli.model, "hi").err


def test_failure_on_the_way_keeps_the_text(cli: Cli) -> None:
    cli.script.error, cli.script.fail_after = StrataError("NaN at position 5"), 2
    outcome = cli.generate("hi", "--seed", "7")
    assert outcome.code == 1
    assert outcome.out == "Hello,\n"
    statistics, error = outcome.err.splitlines()
    assert statistics.endswith("seed 7, failed after 2 tokens")
    assert error == "strata: error: NaN at position 5"
    assert cli.script.closed == 1
    found = json.loads(cli.generate("hi", "--json").out)
    assert (found["text"], found["finish_reason"], found["token_ids"]) == ("Hello,", "error", [0, 1])


def test_failure_before_any_text_prints_none(cli: Cli) -> None:
    cli.script.error, cli.script.fail_after = BadValue("the prompt has 5000 tokens"), 0
    for args in ([], ["--json"]):
        outcome = cli.generate("hi", *args)
        assert (outcome.code, outcome.out, outcome.error) == (2, "", "the prompt has 5000 tokens")


def test_interrupt_keeps_the_text(cli: Cli) -> None:
    cli.script.error, cli.script.fail_after = KeyboardInterrupt(), 2
    outcome = cli.generate("hi", "--seed", "7")
    assert (outcome.code, outcome.out) == (130, "Hello,\n")
    assert outcome.err.endswith("seed 7, interrupted after 2 tokens\n")
    outcome = cli.generate("one two", "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 130
    assert (found["text"], found["finish_reason"], found["usage"]["prompt_tokens"]) == ("Hello,", "interrupted", 2)


def test_interrupt_before_any_text_prints_none(cli: Cli) -> None:
    cli.script.error, cli.script.fail_after = KeyboardInterrupt(), 0
    outcome = cli.generate("hi")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")
