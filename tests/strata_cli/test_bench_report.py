"""What the report of `strata bench` says: each value whose it is, every name and text as it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strata_cli.benchmark.header import command_line
from strata_cli.benchmark.plot import draw
from strata_cli.benchmark.tables import _code, _figure
from tests.conftest import skip_or_fail
from tests.strata_cli.conftest import WORDS, Bench
from tests.strata_cli.test_bench import ANSWER, program, report


def lines(outcome: Any, start: str) -> list[str]:
    """The report's lines that begin so."""
    assert outcome.code == 0, outcome.err
    return [line for line in outcome.out.splitlines() if line.startswith(start)]


def test_what_arms_ask_for_differently_stands_with_each(bench: Bench, tmp_path: Path) -> None:
    arms = ("--arm", "a:", "--arm", "b: -n 9 --temp 0.5 --seed 7", "--arm", f"c: {program(tmp_path, ANSWER)}", "--arm", "d: -n -1")
    found = report(bench(*arms, "--json"))
    assert [found["settings"][name] for name in ("max_new", "temperature", "seed")] == [None, None, None]
    assert [[arm[name] for name in ("max_new", "temperature", "seed")] for arm in found["arms"]] == [
        [64, 0.8, 1],
        [9, 0.5, 7],
        [64, 0.8, 1],
        [-1, 0.8, 1],
    ]
    shown = bench(*arms)
    assert lines(shown, "prompts: ") == ["prompts: prompt 1; greedy and sampled"]
    assert lines(shown, "arm a: ")[0].startswith("arm a: as it is, up to 64 tokens each, temperature 0.8, seed 1 and up; ")
    assert ", up to 9 tokens each, temperature 0.5, seed 7 and up; " in lines(shown, "arm b: ")[0]
    assert ", until the end, temperature 0.8, seed 1 and up" in lines(shown, "arm d: ")[0]


def test_what_arms_ask_for_alike_is_said_once(bench: Bench) -> None:
    arms = ("--arm", "a:", "--arm", "b: --seed 7")
    found = report(bench(*arms, "--json"))
    assert [found["settings"][name] for name in ("max_new", "temperature", "seed")] == [64, 0.8, None]
    assert lines(bench(*arms), "prompts: ") == ["prompts: prompt 1; greedy and sampled (temperature 0.8); up to 64 tokens each"]
    greedy = bench(*arms, "--greedy")
    assert lines(greedy, "prompts: ") == ["prompts: prompt 1; greedy; up to 64 tokens each"]
    assert lines(greedy, "arm b: ") == ["arm b: --seed 7"]


@pytest.mark.parametrize("arms", [("--seed", "random"), ("--seed", "5", "--arm", "a: --seed random", "--arm", "b: STRATA_SEED=random")])
def test_a_random_seed_is_drawn_and_shown(bench: Bench, arms: tuple[str, ...]) -> None:
    """One for all arms that want any, another one each time."""
    arms = (*arms, "--arm", "c: FAKE=other --seed random", "--mode", "sampled")
    seeds = set()
    for _ in range(2):
        found = report(bench(*arms, "--json"))
        seed = found["settings"]["seed"]
        assert isinstance(seed, int) and {arm["seed"] for arm in found["arms"]} == {seed}
        assert found["runs"][0]["arm"] != "c" or found["runs"][0]["prompts"][0]["text"].endswith(f"seed{seed}")
        seeds.add(seed)
    assert len(seeds) == 2
    assert "seed None" not in bench(*arms).out


@pytest.mark.parametrize(
    ("own", "base", "ctx"),
    [("--ctx 8", (), 4096), ("-n 5000", (), 4096), ("", ("-n", "5000"), 5012), ("--ctx 8", ("-c", "99"), 99), ("", ("-c", "99"), 99)],
)
def test_another_programs_context_is_that_of_all(bench: Bench, tmp_path: Path, own: str, base: tuple[str, ...], ctx: int) -> None:
    """Not another arm's, whose flags may leave no room for what is asked of this one."""
    kept = tmp_path / "job.json"
    peer = program(tmp_path, f"open({str(kept)!r}, 'w').write(json.dumps(job))\n", ANSWER)
    outcome = bench("--arm", f"a: {own}", "--arm", f"peer: {peer}", "--greedy", *base)
    assert outcome.code == 0, outcome.err
    assert json.loads(kept.read_text(encoding="utf-8"))["ctx"] == ctx


def test_tokens_per_round_are_of_answers_with_rounds(bench: Bench, tmp_path: Path) -> None:
    body = """
        for i, p in enumerate(job["prompts"]):
            found = {"id": p["id"], "mode": p["mode"], "token_ids": [1] * 10, "decode_ms": 3.0}
            print(json.dumps(found | ({} if i else {"speculation": {"rounds": 5, "drafted": 5, "accepted": 5, "by_position": [[5, 5]]}})))
    """
    found = report(bench("--arm", f"peer: {program(tmp_path, body)}", "--json"))
    assert found["arms"][0]["speculation"]["tokens_per_round"] == 2


def test_a_text_that_was_not_given(bench: Bench, tmp_path: Path) -> None:
    other = ANSWER.replace("for word in p", "and 7 for word in p")
    peers = ("--arm", f"peer: {program(tmp_path, other)}")
    found = report(bench("--arm", "a:", *peers, "--greedy", "--json"))
    (difference,) = found["arms"][1]["beside"]["texts"]["differences"]
    assert (difference["position"], difference["ours"], difference["theirs"]) == (0, WORDS[:80], None)
    (line,) = lines(bench("--arm", "a:", *peers, "--greedy"), "prompt-1 ")
    assert line.endswith(f"  (begins with) '{WORDS}'  (no text given)") and "(ends)" not in line


HOSTILE = ["a\nb", "`tick`", "``", "it's \\n", "a\r\u2028b\x85\x1b[31m", "é\U0001f600", "\U000e0001", "x|y", "$(id)", "bytes \udcff", ""]


def test_the_command_is_one_line_that_a_shell_takes_back() -> None:
    if not shutil.which("bash"):
        skip_or_fail("it needs bash")
    text = command_line([sys.executable, "-c", "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))", *HOSTILE])
    assert len(text.splitlines()) == 1 and "\x1b" not in text
    done = subprocess.run(["bash", "-c", text], capture_output=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout == "|".join(HOSTILE).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("text", HOSTILE[1:3])
def test_hostile_prompts_break_no_line(bench: Bench, text: str) -> None:
    for prompt in (f"{text} one\ntwo", f"{text} \u2028 x"):
        for form in ("--markdown", "--greedy"):
            outcome = bench("--prompt", prompt, form, prompt=())
            assert outcome.code == 0
            first, second = outcome.out.splitlines()[:2]
            assert first.removeprefix("- ").startswith("command: ") and second.removeprefix("- ").startswith("date: ")
            assert first.count("$'") == 1


@pytest.mark.parametrize(("text", "code"), [("a", "`a`"), ("a `b` c", "`` a `b` c ``"), ("``", "``` `` ```"), ("```x`", "```` ```x` ````")])
def test_code_in_markdown(text: str, code: str) -> None:
    assert _code(text) == code


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (0.12345, "0.1235"), (999.94, "999.9"), (9999.4, "9999"), (9999.5, "10000"), (9999.99, "10000"), (123456.7, "123457")],
)
def test_figures(value: float | None, text: str) -> None:
    assert _figure(value) == text


@pytest.mark.parametrize("name", ["_hidden", "a $\\frac$ b", "$x^2$", "__", "100% {x} \\n", "\\"])
def test_names_in_a_plot_are_what_they_are(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from matplotlib.figure import Figure

    found = report(bench("--arm", f"{name}:", "--arm", "_b: FAKE=slow", "--json", "--greedy"))
    kept: list[Any] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: (kept.append(self), save(self, *args, **options)))
    draw(found | {"models": [{"path": "/x/a $\\frac$ b.gguf"}]}, str(tmp_path / "x.svg"))
    left, right = kept[0].axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == [name, "_b"]
    assert [text.get_text() for text in right.get_yticklabels()] == ["_b"]
    assert right.get_xlabel() == f"times as fast as {name}, interval, and each round"
    assert not any(text.get_parse_math() for text in [*left.get_legend().get_texts(), *right.get_yticklabels(), right.xaxis.label])


def test_an_empty_document_fills_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "walk.txt").write_text("\n", encoding="utf-8")
    outcome = bench("--depth", "5", "--greedy", env={"STRATA_DATA": str(tmp_path)})
    assert outcome.code == 1 and "walk.txt: it is empty" in outcome.error


def test_a_depth_that_fits_nowhere_is_refused_before_it_is_made(bench: Bench, tmp_path: Path) -> None:
    outcome = bench("--depth", "2000000000", "--arm", "a: FAKE=small", "--greedy")
    assert outcome.code == 2
    assert outcome.error == "arm 'a': --depth 2000000000: the prompt has 2000000000 tokens, the context is 2"
