"""`strata bench`: arms, prompts, the report, and every way a run can end."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from strata_cli.benchmark import process
from strata_cli.benchmark.plot import draw
from strata_cli.benchmark.prompts import KINDS, SETS, collect
from strata_cli.benchmark.tables import markdown
from tests.strata_cli.conftest import ROOT, WORDS, Bench, Cli, Outcome
from tests.strata_cli.run_fake_bench import COMMAND

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


def report(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out, parse_constant=pytest.fail)
    return found


def program(folder: Path, *body: str) -> str:
    """A command that runs `body` with the job as `job`."""
    path = folder / "program.py"
    path.write_text("import json, os, sys, time\njob = json.load(sys.stdin)\n" + "".join(map(textwrap.dedent, body)), encoding="utf-8")
    return f"!{sys.executable} {path}"


ANSWER = """
for p in job["prompts"]:
    ids = [len(word) for word in p["prompt"].split()]
    print(json.dumps({"id": p["id"], "mode": p["mode"], "token_ids": ids, "decode_ms": 10.0 * len(ids)}))
"""


def test_two_arms(bench: Bench, cli: Cli, tmp_path: Path) -> None:
    found = report(bench("--arm", "a:", "--arm", "b: FAKE=slow STRATA_PREFILL_CHUNK=16 --kv f16", "--json", rounds="4"))
    assert [(run["arm"], run["round"]) for run in found["runs"]] == [(arm, r) for r in range(4) for arm in "abba"]
    assert [run["number"] for run in found["runs"]] == list(range(16))
    assert [prompt["mode"] for prompt in found["runs"][0]["prompts"]] == ["greedy", "sampled"]
    a, b = found["arms"]
    assert a["beside"] is None and found["baseline"] == "a"
    assert a["decode_tok_s"] == {"median": 200.0, "runs": [200.0] * 8}
    beside = b["beside"]
    assert beside["decode"]["ratio"] == pytest.approx(5.0 / 5.5) and beside["decode"]["verdict"] == "slower"
    assert (beside["decode"]["wins"], beside["decode"]["losses"], beside["decode"]["ties"]) == (0, 16, 0)
    assert beside["prefill"]["ties"] == 8
    assert beside["windows"]["4"]["ratio"] == pytest.approx(1.4 / 1.9)
    assert beside["texts"] == {"identical": 2, "of": 2, "differences": []}
    assert b["settings"] == {"prefill_chunk": 16} and b["environment"] == {"FAKE": "slow", "STRATA_PREFILL_CHUNK": "16"}
    assert a["speculation"] is None and a["repeated"] == {"identical": 2, "of": 2}
    assert found["models"] == [{"path": cli.model, "bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]
    assert {"processor", "cores", "memory", "system", "load"} == set(found["machine"])
    assert a["about"]["device"].startswith("opencl cpu/0") and found["command"].startswith("strata bench -m ")
    assert "| b | decode | 0.909 | 0.909 to 0.909 | slower | 0/16/0 | 2/2 |" in markdown(found).splitlines()
    draw(found, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_three_arms_go_there_and_back(bench: Bench) -> None:
    found = report(bench("--arm", "a:", "--arm", "b:", "--arm", "c:", "--json", "--greedy"))
    assert [run["arm"] for run in found["runs"]] == list("abccba")


def test_no_arm_measures_what_is_set(bench: Bench) -> None:
    outcome = bench("--mode", "greedy")
    assert outcome.code == 0 and "strata  200" in outcome.out and "Beside" not in outcome.out


def test_tables(bench: Bench) -> None:
    outcome = bench("--arm", "a:", "--arm", "b: FAKE=other")
    assert outcome.code == 0
    for text in ("machine: ", "sha256 ", "device: ", "arm b: FAKE=other", "95% interval", "Milliseconds for a window", "4 rows / 1 row"):
        assert text in outcome.out
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("b    decode")]
    assert line.split()[2:] == ["1.000", "-", "too", "few", "rounds", "to", "say", "0/0/4", "1/2"]
    assert "An interval takes at least 4 rounds" in outcome.out
    assert "Drafts accepted" not in outcome.out
    (difference,) = [line for line in outcome.out.splitlines() if line.startswith("prompt-1 ")]
    assert difference.split() == ["prompt-1", "sampled", "11", "'twelve'", "'seed1'"]
    assert outcome.err.splitlines()[0] == "round 1 of 1, a: 200.0 tok/s" and len(outcome.err.splitlines()) == 4


def test_tables_on_a_terminal(cli: Cli, bench: Bench) -> None:
    outcome = cli("bench", "-m", cli.model, "--rounds", "1", "--prompt", WORDS, "--arm", "a [x]:", "--arm", "b:", terminal=True)
    assert outcome.code == 0 and "a [x]" in outcome.out


def test_drafts(bench: Bench) -> None:
    outcome = bench("--arm", "plain:", "--arm", "drafting: FAKE=drafts")
    lines = outcome.out.splitlines()
    start = lines.index("Drafts accepted")
    assert lines[start + 1].split() == ["arm", "accepted", "tokens", "per", "round", "draft", "1", "draft", "2"]
    assert lines[start + 2].split() == ["drafting", "75.0%", "of", "16", "6.00", "100.0%", "of", "8", "50.0%", "of", "8"]


def test_markdown(bench: Bench) -> None:
    outcome = bench("--arm", "a|x:", "--arm", "b: FAKE=slow", "--markdown")
    assert outcome.out.startswith("- command: `strata bench -m ") and "--arm 'a|x:'" in outcome.out
    assert "| b | decode | 0.909 | - | too few rounds to say | 0/4/0 | 2/2 |" in outcome.out.splitlines()
    assert "a\\|x" in outcome.out and "- date: 2" in outcome.out


def test_an_outside_command(bench: Bench, cli: Cli, tmp_path: Path) -> None:
    body = ANSWER + 'print(json.dumps({"about": {"version": "1"}, "load_ms": 7, "window_ms": {"1": [2.0, 4.0, 3.0]}, "job": job}))\n'
    found = report(bench("--arm", f"peer: PEER=5 {program(tmp_path, body)}", "--arm", "strata:", "--json", "-n", "99", "--top-k", "7"))
    peer, strata = found["arms"]
    assert peer["environment"] == {"PEER": "5"} and peer["about"] == {"version": "1"} and peer["settings"] is None
    assert peer["load_ms"]["median"] == 7 and peer["window_ms"]["1"]["median"] == 3 and peer["prefill_tok_s"]["median"] is None
    assert strata["beside"]["decode"]["ratio"] == pytest.approx(2) and strata["beside"]["prefill"] is None
    assert strata["beside"]["texts"]["identical"] == 2 and strata["beside"]["windows"]["8"] is None
    assert found["runs"][0]["prompts"][0]["text"] is None


def test_the_job_of_an_outside_command(bench: Bench, cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "job.json"
    body = f"open({str(kept)!r}, 'w').write(json.dumps([job, dict(os.environ)]))\n" + ANSWER
    outcome = bench("--arm", f"peer: {program(tmp_path, body)}", "-n", "99", "--top-k", "7", env={"STRATA_MIN_P": "0.1", "OTHER": "x"})
    assert outcome.code == 0, outcome.err
    job, environment = json.loads(kept.read_text(encoding="utf-8"))
    assert (job["model"], job["ctx"], job["windows"], job["repeats"]) == (cli.model, 4096, [1, 2, 4, 8], 15)
    greedy, sampled = job["prompts"]
    assert greedy["token_ids"] == sampled["token_ids"] == list(range(12))
    assert greedy == sampled | {"mode": "greedy", "temperature": 0}
    assert (sampled["temperature"], sampled["seed"], sampled["max_new"], sampled["top_k"], sampled["min_p"]) == (0.8, 1, 99, 7, 0.1)
    assert environment["OTHER"] == "x" and not [name for name in environment if name.startswith("STRATA_")]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("print('hello there')", "it printed 'hello there' where one JSON object a line belongs"),
        ("print('[1]')", "it printed '[1]' where"),
        ("sys.stdout.buffer.write(b'\\xff\\n')", "it printed '\ufffd' where"),
        ("pass", "it ended after 0 of 2 prompts"),
        ("sys.exit('no such model\\n')", "no such model (exit code 1)"),
        ("sys.exit(3)", "it gave no reason (exit code 3)"),
        ("print('{}'); print('x'); sys.exit('because')", "because (exit code 1)"),
        ("os.kill(os.getpid(), 9)", "killed by signal SIGKILL"),
        ('print(json.dumps({"id": "x", "mode": "greedy"}))', "it printed an object for 'x', 'greedy' where that for 'prompt-1', 'greedy' belongs"),
        ('print(json.dumps({"id": "prompt-1", "mode": "greedy", "decode_ms": 1}))', "prompt 'prompt-1': token_ids is null"),
        ('print(json.dumps({"id": "prompt-1", "mode": "greedy", "token_ids": [1], "decode_ms": -1}))', "prompt 'prompt-1': decode_ms is -1"),
        ('print(json.dumps({"id": "prompt-1", "mode": "greedy", "token_ids": [1], "decode_ms": float("nan")}))', "decode_ms is NaN"),
        (
            'print(json.dumps({"id": "prompt-1", "mode": "greedy", "token_ids": [1], "decode_ms": 1, "speculation": {"by_position": [1]}}))',
            "speculation is",
        ),
        ('print(json.dumps({"window_ms": {"1": []}}))', 'window_ms is {"1": []}'),
        (ANSWER + ANSWER, "it printed more than one object for a prompt"),
    ],
)
def test_an_outside_command_that_fails(bench: Bench, tmp_path: Path, body: str, says: str) -> None:
    outcome = bench("--arm", f"peer: {program(tmp_path, body)}", "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error.startswith("arm 'peer', round 1: ") and says in outcome.error


def test_an_arm_that_hangs(bench: Bench, tmp_path: Path) -> None:
    """It ends, with what it started. The limit leaves a busy machine time for the stand-in's own process."""
    body = "import subprocess; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    outcome = bench("--arm", f"peer: {program(tmp_path, body)}", "--timeout", "10")
    assert outcome.code == 1
    assert outcome.error == "arm 'peer', round 1: not done after 10 s; --timeout SECONDS waits longer"


@posix
@pytest.mark.parametrize(
    ("fake", "code", "says"),
    [
        ("killed", 1, "arm 'b', round 1: killed by signal SIGKILL, perhaps for want of memory"),
        ("fails", 1, "arm 'b', round 1: the device gave up"),
        ("'no device'", 1, "arm 'b': no such device"),
        ("small", 2, "arm 'b': the prompt has 12 tokens, the context is 2"),
    ],
)
def test_an_arm_that_fails(bench: Bench, fake: str, code: int, says: str) -> None:
    outcome = bench("--arm", "a:", "--arm", f"b: FAKE={fake}")
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.splitlines()[-1].startswith(f"strata: error: {says}") and outcome.err.count("strata: error: ") == 1


def test_what_an_arm_warns_of_is_said_once(bench: Bench) -> None:
    outcome = bench("--arm", "a: FAKE=notice")
    assert outcome.err.count("strata: warning: arm 'a': running on NumPy, slowly\n") == 1
    assert "warning: arm 'a': running on NumPy" in outcome.out


def test_complete_rounds_survive_a_failure(bench: Bench, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    body = f"n = os.path.getsize({str(counter)!r}) if os.path.exists({str(counter)!r}) else 0\nopen({str(counter)!r}, 'a').write('x')\n"
    outcome = bench("--arm", f"peer: {program(tmp_path, body + 'if n == 3: sys.exit(1)' + ANSWER)}", rounds="4")
    assert outcome.code == 1
    assert "rounds: 1 of the 4 wanted: the run was cut short" in outcome.out
    assert outcome.err.splitlines()[-1] == "strata: error: arm 'peer', round 2: it gave no reason (exit code 1)"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--arm", "FAKE=x"], "--arm: 'FAKE=x' has no name; allowed: "),
        (["--arm", ": --kv f16"], "--arm: ': --kv f16' has no name"),
        (["--arm", ""], "--arm: '' has no name"),
        (["--arm", "a:", "--arm", "a :"], "--arm: two arms are called 'a'; their names must differ"),
        (["--arm", "a: --kv int3"], "arm 'a': --kv: 'int3' is not allowed; allowed: f16"),
        (["--arm", "a: STRATA_KV=int3"], "arm 'a': STRATA_KV: 'int3' is not allowed; allowed: f16"),
        (["--arm", "a:", "--arm", "b: STRATA_MAXNEW=9"], "arm 'b': STRATA_MAXNEW is no variable of strata; nearest: STRATA_MAX_NEW"),
        (["--arm", "a: X=1 X=2"], "arm 'a': X is given twice"),
        (["--arm", "a: --kw f16"], "arm 'a': No such option"),
        (["--arm", "a: prompt"], "arm 'a': Got unexpected extra argument (prompt)"),
        (["--arm", "a: 'x"], "arm 'a': \"'x\": No closing quotation"),
        (["--arm", "a: --greedy"], "arm 'a': --greedy: all arms run the same prompts the same way"),
        (["--arm", "a: --temperature 0"], "arm 'a': sampled prompts need a temperature above 0; `strata bench --greedy`"),
        (["--arm", "a: -m nowhere.gguf"], "arm 'a': --model: there is no file and no installed model package 'nowhere.gguf'"),
        (["--arm", "a: !"], "arm 'a': there is no command behind the !"),
        (["--arm", "a: !no-such-program -x"], "arm 'a': there is no command 'no-such-program'"),
        (["--rounds", "0"], "--rounds: '0' is not allowed; allowed: an integer from 1 to 1000"),
        (["--rounds", "x"], "--rounds: 'x'"),
        (["--depth", "-1"], "--depth: '-1'"),
        (["--windows", "1,9"], "--windows: '1,9' is not allowed; allowed: rows from 1 to 8 with commas, or off"),
        (["--timeout", "0"], "--timeout: '0'"),
        (["--mode", "fast"], "--mode: 'fast' is not allowed; allowed: both, greedy, sampled"),
        (["--mode", "sampled", "--greedy"], "--greedy: it means --mode greedy"),
        (["--json", "--markdown"], "--json and --markdown are both given; leave one out"),
        (["--prompts", "stroy"], "--prompts: 'stroy' is neither a prompt set nor a file; nearest: story; allowed: story, code,"),
        (["--prompts", "/"], "--prompts: '/' is neither"),
        (["--prompt", " "], "--prompt: the prompt is empty"),
        (["--plot", "x.pdf"], "--plot: 'x.pdf' is not allowed; allowed: a file that ends in .png or .svg"),
        (["--plot", "/nowhere/x.png"], "--plot: /nowhere/x.png: no file can be written there"),
    ],
)
def test_bad_input(bench: Bench, monkeypatch: pytest.MonkeyPatch, args: list[str], says: str) -> None:
    monkeypatch.setattr(process, "run", lambda *_: pytest.fail("it measured"))
    outcome = bench(*args)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error.startswith(says)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt"', "line 2: not JSON"),
        ("a.jsonl", b'{"prompt": 5}', "line 1: not a JSON object of texts; allowed: id, kind, prompt, system"),
        ("a.jsonl", b'{"promt": "x"}', "line 1: 'promt' is no key"),
        ("a.jsonl", b'{"id": "x"}', "line 1: the prompt is empty"),
        ("a.jsonl", b"\n", "holds no prompt"),
        ("a.txt", b"na\xefve", "not UTF-8 at byte 2"),
        ("a.txt", b" \n", "the prompt is empty"),
        ("a.jsonl", b'{"prompt": "x", "id": "1"}\n{"prompt": "y", "id": "1"}', "the id '1' is there twice"),
    ],
)
def test_bad_prompt_files(bench: Bench, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome = bench(prompt=("--prompts", str(path)))
    assert outcome.code == 2 and outcome.error.startswith("--prompts: ") and says in outcome.error


def test_prompt_files(tmp_path: Path) -> None:
    lines, text = tmp_path / "mine.jsonl", tmp_path / "letter.txt"
    lines.write_text('{"prompt": "x"}\n\n{"prompt": "y", "id": "why", "kind": "k", "system": "s"}\n', encoding="utf-8")
    text.write_text("Dear\nyou\n", encoding="utf-8")
    found = [(p.id, p.kind, p.prompt, p.system) for p in collect([str(lines), str(text)], ["last"], None)]
    assert found == [
        ("mine-1", "mine", "x", None),
        ("why", "k", "y", "s"),
        ("letter.txt", "letter", "Dear\nyou", None),
        ("prompt-1", "prompt", "last", None),
    ]


def test_the_bundled_sets(bench: Bench, tmp_path: Path) -> None:
    prompts = {name: collect([name], [], None) for name in SETS}
    assert collect([], [], None) == [prompt for kind in KINDS for prompt in prompts[kind]] == collect([",".join(KINDS)], [], None)
    assert all(4 <= len(prompts[kind]) <= 6 for kind in KINDS)
    assert all(len(prompts[name]) == 20 for name in ("persona", "coding", "control"))
    assert all(prompt.system for prompt in prompts["persona"])
    every = list(itertools.chain.from_iterable(prompts.values()))
    assert len({prompt.id for prompt in every}) == len({prompt.prompt for prompt in every}) == len(every)
    outcome = bench(prompt=("--prompts", "story"), env={"STRATA_DATA": str(tmp_path)})
    assert outcome.code == 1 and "story.jsonl: no such file" in outcome.error and "STRATA_DATA" in outcome.error


def test_depth_fills_the_context(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "walk.txt").write_text("a bb ccc", encoding="utf-8")
    found = report(bench("--depth", "5", "--json", "--greedy", env={"STRATA_DATA": str(tmp_path)}))
    assert found["runs"][0]["prompts"][0]["text"] == f"a bb ccc a bb {WORDS}"
    assert found["settings"]["depth"] == 5


def test_what_an_arm_says_beats_what_all_are_told(bench: Bench) -> None:
    arms = ("--arm", "base:", "--arm", "variable: STRATA_MAX_NEW=10", "--arm", "flag: -n 11", "--arm", "both: STRATA_MAX_NEW=10 -n 11")
    found = report(bench("-n", "9", *arms, "--json", "--greedy", env={"STRATA_MAX_NEW": "8", "STRATA_NO_SUCH": "1"}))
    lengths = {run["arm"]: len(run["prompts"][0]["token_ids"]) for run in found["runs"]}
    assert lengths == {"base": 9, "variable": 10, "flag": 11, "both": 11}
    assert found["settings"]["max_new"] is None and [arm["max_new"] for arm in found["arms"]] == [9, 10, 11, 11]
    assert [arm["beside"]["texts"]["differences"][0]["position"] for arm in found["arms"][1:]] == [9, 9, 9]


def test_seeds_differ_between_prompts(bench: Bench) -> None:
    found = report(bench("--arm", "a: FAKE=other", "--prompt", "x y", "--seed", "18446744073709551615", "--mode", "sampled", "--json"))
    assert [prompt["text"].split()[-1] for prompt in found["runs"][0]["prompts"]] == ["seed18446744073709551615", "seed0"]


def test_plot(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    assert bench("--greedy", "--plot", str(path)).code == 0
    assert path.read_bytes().startswith(b"<?xml")


def test_plot_without_matplotlib(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = bench("--plot", str(tmp_path / "x.png"))
    assert outcome.code == 1
    assert outcome.error == "--plot: it needs matplotlib: pip install 'strata[plot]', or 'matplotlib>=3.9'; nothing was measured"


@posix
def test_interrupt(tmp_path: Path, cli: Cli) -> None:
    command = [*COMMAND, "--parent", "bench", "-m", cli.model, "--rounds", "500", "--prompt", WORDS, "--greedy", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        next(line for line in running.stderr if line.startswith("round 2 of"))
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    found = json.loads(out)
    assert 1 <= found["rounds"]["complete"] < 500 and len(found["runs"]) == 2 * found["rounds"]["complete"]
    assert err.splitlines()[-1] == f"interrupted after {found['rounds']['complete']} of 500 rounds"


@posix
def test_interrupt_before_the_first_round_is_complete(tmp_path: Path, cli: Cli) -> None:
    command = [*COMMAND, "--parent", "bench", "-m", cli.model, "--prompt", WORDS, "--greedy", "--arm", "a:", "--arm", "b: FAKE=hang"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "interrupted after 0 of 6 rounds\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", [[], ["--json"], ["--markdown"]])
def test_full_disk(cli: Cli, form: list[str]) -> None:
    command = [*COMMAND, "--parent", "bench", "-m", cli.model, "--rounds", "1", "--prompt", WORDS, *form]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr.splitlines()[-1] and done.stderr.count("strata: error") == 1


def test_on_the_engine(cli: Cli, tmp_path: Path) -> None:
    """The whole way, on a tiny model: what does not change the text changes no text, and every figure is there."""
    from tests.tiny import write_tiny_llama

    model = write_tiny_llama(tmp_path / "tiny.gguf", n_vocab=320)
    arms = ["--arm", "a:", "--arm", "b: STRATA_PREFILL_CHUNK=3 --seed 9"]
    options = ["--backend", "numpy", "--ctx", "256", "-n", "9", "--rounds", "1", "--depth", "20", "--windows", "1,2", "--ignore-eos", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "strata_cli", "bench", "-m", str(model), "--prompt", "Say hello.", "--prompt", "Go on", *arms, *options],
        cwd=ROOT,
        env={**os.environ, "STRATA_CACHE": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    a, b = found["arms"]
    assert a["repeated"] == b["repeated"] == {"identical": 4, "of": 4}
    assert b["beside"]["texts_by_mode"]["greedy"] == {"identical": 2, "of": 2} and b["beside"]["texts_by_mode"]["sampled"]["identical"] < 2
    assert all(arm["window_ms"]["2"]["median"] > 0 and arm["prefill_tok_s"]["median"] > 0 for arm in found["arms"])
    assert [len(prompt["token_ids"]) for prompt in found["runs"][0]["prompts"]] == [9] * 4
    assert all(prompt["prompt_tokens"] > 20 for prompt in found["runs"][0]["prompts"])


def test_the_makefiles_arms(bench: Bench) -> None:
    """`make bench` passes flags and arms that exist."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    (line,) = [line for line in text.splitlines() if "-m strata_cli bench" in line]
    line = line.split("; ")[-2].partition("bench ")[2].partition(" $(ARGS)")[0].replace("$(THREADS)", "2")
    words = shlex.split(line.replace("$(PEER_VENV)/bin/python tests/bench/peer_llama_cpp.py", sys.executable).replace('-m "$$model"', ""))
    outcome = bench(*words, "--plot", "x.pdf", prompt=())
    assert outcome.error.startswith("--plot: 'x.pdf'")
