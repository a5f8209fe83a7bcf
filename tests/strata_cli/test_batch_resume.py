"""A batch that was cut short goes on with the same results, or not at all."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.errors import BadValue
from strata_cli.batch_input import request_seed
from strata_cli.batch_manifest import model_identity
from strata_cli.batch_output import ResultFile, open_results
from tests.strata_cli.conftest import Cli
from tests.strata_cli.test_batch import GOOD, records, run, write_requests
from tests.tiny import write_tiny_llama

ROOT = Path(__file__).parent.parent.parent
FAKE = [sys.executable, "-m", "tests.strata_cli.run_fake"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals and limits")
SAME = ("id", "text", "token_ids", "finish_reason", "usage", "error")


def _same(path: str | Path) -> list[dict[str, Any]]:
    """The results without what differs from run to run: times."""
    return [{key: record.get(key) for key in SAME} for record in records(path)]


def _manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{path}.manifest.json").read_text(encoding="utf-8"))
    return found


def test_again_does_nothing(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert run(cli, [*GOOD, "nothing"]).code == 1
    before = (out.read_bytes(), Path(f"{out}.manifest.json").read_bytes())
    cli.script.opened.clear()
    outcome = run(cli, [*GOOD, "nothing"])
    assert (outcome.code, outcome.err) == (1, f"nothing to do: {out} holds all 4 results, 1 with errors\n")
    assert cli.script.opened == []
    assert (out.read_bytes(), Path(f"{out}.manifest.json").read_bytes()) == before


@pytest.mark.parametrize("missing", [1, 2, 30, -2])
def test_a_torn_last_line_is_written_again(cli: Cli, tmp_path: Path, missing: int) -> None:
    """Cut at any byte; where only the newline is gone nothing is made again, and -2 cuts into the line before."""
    out = tmp_path / "out.jsonl"
    run(cli, GOOD)
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(whole[:-missing] if missing > 0 else b"".join(lines[:2])[:-2])
    cli.script.requests.clear()
    assert run(cli, GOOD).code == 0
    assert out.read_bytes() == whole
    assert len(cli.script.requests) == {1: 0, -2: 2}.get(missing, 1)


def test_a_letter_cut_in_two(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    cli.script.pieces = ["€"]
    run(cli, GOOD)
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.rindex("€".encode()) + 1])
    run(cli, GOOD)
    assert out.read_bytes() == whole


def test_the_seed_is_drawn_once(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    cli.script.errors = {"three": KeyboardInterrupt()}
    run(cli, GOOD)
    seed = _manifest(out)["seed"]
    cli.script.errors = {}
    assert run(cli, GOOD).err.endswith(f"seed {seed}\n")
    assert [request.seed for request in cli.script.requests] == [request_seed(seed, name) for name in ("a", 2, 2, "c")]
    assert run(cli, GOOD, "--seed", str(seed)).code == 0
    assert f": --seed: {seed} -> {seed + 1}; " in run(cli, GOOD, "--seed", str(seed + 1)).error
    run(cli, GOOD, out="other.jsonl")
    assert _manifest(tmp_path / "other.jsonl")["seed"] != seed


def test_changed_settings_are_refused(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(cli, GOOD, "--seed", "7")
    before = out.read_bytes()
    args = ["-n", "3", "--temp", "0.7", "--stop", "x", "--logit-bias", "5=-inf", "-c", "64", "--seed", "8"]
    outcome = run(cli, [*GOOD, {"id": "new", "prompt": "five"}], *args)
    assert outcome.code == 2
    assert outcome.error == (
        f"-o: {out} was begun with other settings: --ctx: auto -> 64; --max-new: 512 -> 3; --temperature: 0 -> 0.7; "
        f'--logit-bias: {{}} -> {{"5": "-inf"}}; --stop: [] -> ["x"]; --seed: 7 -> 8; use the old ones, or choose another file'
    )
    assert out.read_bytes() == before


def test_a_changed_model_is_refused(cli: Cli, tmp_path: Path) -> None:
    run(cli, GOOD)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"x")
    outcome = run(cli, GOOD, "-m", str(other))
    assert outcome.code == 2
    assert "--model: model.gguf (0 bytes, sha256 e3b0c442...) -> other.gguf (1 bytes, sha256 2d711642...)" in outcome.error
    other.write_bytes(b"")
    assert run(cli, GOOD, "-m", str(other)).code == 0  # the same file by another name


def test_another_device_is_refused(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(cli, GOOD)
    found = _manifest(out)
    Path(f"{out}.manifest.json").write_text(json.dumps(found | {"device": "cuda/0: Other"}), encoding="utf-8")
    outcome = run(cli, [*GOOD, {"id": "new", "prompt": "five"}])
    assert outcome.code == 2 and f"device: cuda/0: Other -> {found['device']}" in outcome.error
    assert len(records(out)) == 3


def test_settings_that_never_change_the_text_may_change(cli: Cli, tmp_path: Path) -> None:
    run(cli, GOOD)
    cli.script.opened.clear()
    env = {"STRATA_PREFILL_CHUNK": "8", "STRATA_WORK_GROUPS": "3", "STRATA_LAUNCH": "queue", "STRATA_INSTRUCTIONS": "portable", "STRATA_CACHE": "off"}
    source = write_requests(tmp_path / "in.jsonl", [*GOOD, {"id": "new", "prompt": "five"}])
    assert cli("batch", "-m", cli.model, source, "-o", str(tmp_path / "out.jsonl"), env=env).code == 0
    assert cli.script.opened[0][1].prefill_chunk == 8


def test_requests_may_be_added_and_unfinished_ones_changed(cli: Cli, tmp_path: Path) -> None:
    cli.script.errors = {"three": KeyboardInterrupt()}
    run(cli, GOOD)
    requests = [GOOD[0], {"id": 3, "prompt": "other"}, {"id": "new", "prompt": "five"}]
    assert run(cli, requests).code == 0
    assert [record["id"] for record in records(tmp_path / "out.jsonl")] == ["a", 3, "new"]
    assert run(cli, requests).err.startswith("nothing to do")


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([{"id": "a", "prompt": "ONE"}, *GOOD[1:]], "line 1, the request 'a', has changed since "),
        ([GOOD[0], {"id": "2", "prompt": "three"}, GOOD[2]], "line 2 has the id '2', the result in its place in "),
        ([GOOD[1], GOOD[0], GOOD[2]], "line 1 has the id 2, the result in its place in "),
        (["", *GOOD[:2]], "has 3 results, "),
        ([*GOOD[:2], "nothing"], "line 3 has the id None, the result in its place in "),
    ],
)
def test_finished_requests_may_not_change(cli: Cli, tmp_path: Path, requests: Sequence[Any], says: str) -> None:
    run(cli, GOOD)
    before = (tmp_path / "out.jsonl").read_bytes()
    outcome = run(cli, requests)
    assert outcome.code == 2
    assert says in outcome.error and outcome.error.endswith("with new ids, or choose another -o")
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_files_that_are_something_else(cli: Cli, tmp_path: Path) -> None:
    out, manifest = tmp_path / "out.jsonl", tmp_path / "out.jsonl.manifest.json"
    run(cli, GOOD)
    whole = manifest.read_text(encoding="utf-8")
    for content in ("", "{", "[]", "{}", '{"strata_batch": 2}', whole.replace('"seed"', '"sed"'), whole.replace('"sha256"', '"sha"')):
        manifest.write_text(content, encoding="utf-8")
        outcome = run(cli, GOOD)
        assert outcome.code == 2 and "it is no manifest" in outcome.error
        assert manifest.read_text(encoding="utf-8") == content
    manifest.write_text(whole, encoding="utf-8")
    for line in ("torn", "[]", '{"id": 1}', '{"id": 1, "text": "", "error": ""}'):
        out.write_text(line + "\n" + line, encoding="utf-8")
        outcome = run(cli, GOOD)
        assert outcome.code == 2 and "line 1 is no result of a batch" in outcome.error
        assert out.read_text(encoding="utf-8") == line + "\n" + line


TORN = [b"{", b'{"id"', b'{"id": 3', b'{"id": 3, "text": "so', b"\0" * 4096, b'{"id": "b\0\0\0', b'{"i\0\0']
FOREIGN = [b"my only copy of something else", b"x", b'{"ID": 3', b"{'id': 3", b"\0x", b"\0{"]


@pytest.mark.parametrize(("content", "torn"), [*((content, True) for content in TORN), *((content, False) for content in FOREIGN)])
@pytest.mark.parametrize("before", [0, 1])
def test_only_a_torn_result_is_cut_off(cli: Cli, tmp_path: Path, content: bytes, torn: bool, before: int) -> None:
    """The beginning of a result, or the zeros that a file system may leave of one; whatever else ends without a newline is somebody's."""
    out = tmp_path / "out.jsonl"
    run(cli, GOOD)
    whole = out.read_bytes()
    first = b"".join(whole.splitlines(keepends=True)[:before])
    out.write_bytes(first + content)
    outcome = run(cli, GOOD)
    if torn:
        assert (outcome.code, out.read_bytes()) == (0, whole)
    else:
        assert outcome.code == 2 and f"line {before + 1} is no result of a batch; the file stays as it is" in outcome.error
        assert out.read_bytes() == first + content


@pytest.mark.parametrize(("change", "says"), [({"new_option": [1]}, "new_option: [1] -> (none)"), ({"top_k": ...}, "--top-k: (none) -> 40")])
def test_a_manifest_of_another_version_is_refused(cli: Cli, tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """With what differs, also where this version does not know it or did not write it."""
    out = tmp_path / "out.jsonl"
    run(cli, GOOD)
    found = _manifest(out)
    options = {name: value for name, value in (found["options"] | change).items() if value is not ...}
    Path(f"{out}.manifest.json").write_text(json.dumps(found | {"options": options}), encoding="utf-8")
    outcome = run(cli, GOOD)
    assert outcome.code == 2 and f"was begun with other settings: {says}; " in outcome.error


def test_ctrl_c_at_any_moment_counts_what_is_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a result and its count; while the model is hashed, with results of before and without."""
    out = tmp_path / "out.jsonl"

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def says(count: int) -> tuple[int, str]:
        return 130, f"interrupted: {count} of 3 requests are finished in {out}; the same command goes on from there\n"

    for target, count in (
        ("strata_cli.batch_manifest.model_identity", 0),
        ("strata_cli.batch_progress.BatchProgress.finish_request", 1),
        ("strata_cli.batch_manifest.model_identity", 1),
        ("strata_cli.batch_output.ResultFile.resume", 1),
        ("strata_cli.batch_progress.BatchProgress.finish_request", 2),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, interrupt)
            outcome = run(cli, GOOD, "-q")
        assert (outcome.code, outcome.err) == says(count)
    with monkeypatch.context() as patch:
        out.write_bytes(out.read_bytes()[:-1])  # all of a result but its newline
        patch.setattr("strata_cli.batch_manifest.model_identity", interrupt)
        outcome = run(cli, GOOD, "-q")
        assert (outcome.code, outcome.err) == says(2)
    assert run(cli, GOOD).code == 0 and len(records(out)) == 3


@posix
def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch opens OUT, the other, which came to nothing, removes it, and only then the first one locks."""
    out = str(tmp_path / "out.jsonl")
    nothing = open_results(out, "in.jsonl")
    lock = ResultFile._lock

    def late(self: ResultFile) -> None:
        nothing.close()
        monkeypatch.setattr(ResultFile, "_lock", lock)
        lock(self)

    monkeypatch.setattr(ResultFile, "_lock", late)
    results = open_results(out, "in.jsonl")
    assert isinstance(results, ResultFile)
    with pytest.raises(BadValue, match="another batch is writing to it"):
        open_results(out, "in.jsonl")
    results.resume()
    results.write({"id": 1, "text": "x"})
    results.close()
    assert records(out) == [{"id": 1, "text": "x"}]


def test_without_results_it_starts_anew(cli: Cli, tmp_path: Path) -> None:
    """Removing OUT is how one starts over, with the manifest still there."""
    out = tmp_path / "out.jsonl"
    run(cli, GOOD)
    out.unlink()
    assert run(cli, GOOD[:1], "-n", "3").code == 0
    assert [record["id"] for record in records(out)] == ["a"]
    assert _manifest(out)["options"]["max_new"] == 3


def test_what_a_new_start_draws(cli: Cli, tmp_path: Path) -> None:
    """Without OUT the seed stays, without the manifest too another one is drawn."""
    out = tmp_path / "out.jsonl"
    run(cli, GOOD)
    seed = _manifest(out)["seed"]
    out.unlink()
    run(cli, GOOD)
    assert _manifest(out)["seed"] == seed
    out.unlink()
    Path(f"{out}.manifest.json").unlink()
    run(cli, GOOD)
    assert _manifest(out)["seed"] != seed


@posix
def test_a_link_leads_to_the_same_batch(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "out.jsonl")
    run(cli, GOOD, out="link.jsonl")
    assert run(cli, GOOD).err.startswith("nothing to do")


def test_the_hash_of_a_large_model_sees_its_whole_length(tmp_path: Path) -> None:
    path, size = tmp_path / "large.gguf", (300 << 20) + 12345
    with open(path, "wb") as file:
        file.truncate(size)  # a hole: it takes no room
    first = model_identity(path)
    assert first["bytes"] == size
    for at in (0, (64 << 20) - 1, size - 1):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"x")
        assert model_identity(path)["sha256"] != first["sha256"]
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(b"\0")
    with open(path, "r+b") as file:  # anything that is longer than the gaps
        file.seek(200 << 20)
        file.write(b"x" * (1 << 18))
    assert model_identity(path)["sha256"] != first["sha256"]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _killed_and_resumed(command: Sequence[str], out: Path, total: int, kills: int) -> list[int]:
    """Run a batch with SIGKILL at random moments, then to its end; how many results there were at each kill."""
    generator = random.Random(5)
    counts = []
    for at in sorted(generator.sample(range(1, total * 9 // 10), kills)):
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while _lines(out) < at and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(generator.uniform(0, 0.02))
            process.kill()
        counts.append(_lines(out))
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0
    return counts


@posix
def test_killed_at_random_moments(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "in.jsonl", [{"id": index, "prompt": f"word {index}"} for index in range(100)])
    model, out = tmp_path / "model.gguf", tmp_path / "out.jsonl"
    model.touch()
    command = [*FAKE, "--slow", "batch", "-m", str(model), requests, "-o", str(out)]
    counts = _killed_and_resumed(command, out, 100, 5)
    assert all(0 < count < 100 for count in counts)
    assert [record["id"] for record in records(out)] == list(range(100))
    assert not list(tmp_path.glob("*.tmp"))


@posix
def test_two_at_once(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "in.jsonl", [{"id": 1, "prompt": "x"}])
    model, out = tmp_path / "model.gguf", tmp_path / "out.jsonl"
    model.touch()
    command = ["batch", "-m", str(model), requests, "-o", str(out)]
    with subprocess.Popen([*FAKE, "--endless", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True) as first:
        while not Path(f"{out}.manifest.json").exists() and first.poll() is None:
            time.sleep(0.01)
        second = subprocess.run([*FAKE, *command], cwd=ROOT, capture_output=True, text=True)
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=60)
    assert second.returncode == 2
    assert second.stderr == f"strata: error: -o: {out}: another batch is writing to it; wait for its end, or choose another file\n"
    assert first.returncode == 130
    assert err == f"interrupted: 0 of 1 requests are finished in {out}; the same command goes on from there\n"
    assert subprocess.run([*FAKE, *command], cwd=ROOT, capture_output=True).returncode == 0


@posix
@pytest.mark.parametrize("redirected", ["batch -m {model} {source} -o - >> {source}", "batch -m {model} - -o {source} < {source}"])
def test_redirections_onto_the_requests(tmp_path: Path, redirected: str) -> None:
    source = Path(write_requests(tmp_path / "in.jsonl", GOOD))
    before = source.read_bytes()
    (tmp_path / "model.gguf").touch()
    command = f"{shlex.join(FAKE)} {redirected.format(model=tmp_path / 'model.gguf', source=source)}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "it would overwrite the requests" in done.stderr and done.stderr.count("\n") == 1
    assert source.read_bytes() == before


@posix
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write that reaches it ends short."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))

    requests = write_requests(tmp_path / "in.jsonl", [{"id": index, "prompt": "x"} for index in range(30)])
    model, out = tmp_path / "model.gguf", tmp_path / "out.jsonl"
    model.touch()
    command = [*FAKE, "batch", "-m", str(model), requests, "-o", str(out)]
    full = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=limit)
    kept = out.read_bytes()
    done = len(records(out))
    assert 0 < done < 30
    assert full.returncode == 1
    assert full.stderr.startswith(f"strata: error: cannot write to {out}: ") and full.stderr.count("\n") == 1
    assert f"; {done} of 30 requests are finished in {out}; the same command goes on from there" in full.stderr
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
    assert out.read_bytes().startswith(kept)
    assert [record["id"] for record in records(out)] == list(range(30))


@posix
def test_no_room_for_the_manifest(tmp_path: Path) -> None:
    import resource

    requests = write_requests(tmp_path / "in.jsonl", GOOD)
    (tmp_path / "model.gguf").touch()
    command = [*FAKE, "batch", "-m", str(tmp_path / "model.gguf"), requests, "-o", str(tmp_path / "out.jsonl")]
    limits = (100, resource.RLIM_INFINITY)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
    assert done.returncode == 1
    assert done.stderr.startswith("strata: error: cannot write ") and done.stderr.count("\n") == 1 and "0 of 3 requests" in done.stderr
    assert not list(tmp_path.glob("out*"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, cache_dir: str) -> Callable[..., list[str]]:
    """The command of a sampled batch on a tiny model and the real engine."""
    folder = tmp_path_factory.mktemp("real")
    model = write_tiny_llama(folder / "tiny.gguf", n_vocab=320)

    def command(*args: str) -> list[str]:
        environ = [f"{name}={value}" for name, value in {"STRATA_CACHE": cache_dir, "XDG_CONFIG_HOME": str(folder)}.items()]
        return ["env", *environ, sys.executable, "-m", "strata_cli", "batch", "-m", str(model), *args, "--temp", "1.5", "--seed", "7", "-n", "12"]

    return command


def _requests(count: int) -> list[dict[str, Any]]:
    """Greedy and sampled ones of several lengths, some of which cannot run."""
    made: list[dict[str, Any]] = [
        {"id": f"r{index}", "prompt": "the cat sat " * (1 + index % 7), "max_new": 3 + index % 11} for index in range(count)
    ]
    for index in range(0, count, 5):
        made[index]["temperature"] = 0
    return made


@posix
def test_a_requests_text_does_not_depend_on_its_place(real: Callable[..., list[str]], tmp_path: Path) -> None:
    requests = [*_requests(12), {"id": "long", "prompt": "x " * 5000, "raw": True}]
    for name, order in (("there", requests), ("back", requests[::-1])):
        source = write_requests(tmp_path / f"{name}.in", order)
        assert subprocess.run(real(source, "-o", str(tmp_path / name)), cwd=ROOT, capture_output=True).returncode == 1
    there = _same(tmp_path / "there")
    assert there == _same(tmp_path / "back")[::-1]
    assert "the model's context is 256" in there[-1]["error"]
    assert len({str(record["token_ids"]) for record in there}) > 6


@pytest.mark.slow
@posix
def test_a_real_batch_killed_at_random_moments(real: Callable[..., list[str]], tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", _requests(200))
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert subprocess.run(real(source, "-o", str(whole)), cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0
    counts = _killed_and_resumed(real(source, "-o", str(cut)), cut, 200, 5)
    assert all(0 < count < 200 for count in counts)
    assert [record["id"] for record in records(cut)] == [f"r{index}" for index in range(200)]
    assert _same(cut) == _same(whole)
    again = subprocess.run(real(source, "-o", str(cut)), cwd=ROOT, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, f"nothing to do: {cut} holds all 200 results\n")
