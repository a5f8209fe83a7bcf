"""The command as a process: its start, and the ends that only a real stdout or a real signal can bring about."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from strata_cli.commands import COMMANDS, strata
from strata_cli.main import PATIENCE_S
from tests.strata_cli.conftest import Cli

ROOT = Path(__file__).parent.parent.parent
FAKE = [sys.executable, "-m", "tests.strata_cli.run_fake"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX pipes and signals")


def test_version_and_help(cli: Cli) -> None:
    version = cli("--version")
    assert (version.code, version.err) == (0, "")
    assert version.out.startswith("strata ")
    for args in (["--help"], ["-h"], []):
        text = cli(*args)
        assert text.code == 0
        assert all(name in text.out for name in COMMANDS)


def test_an_unexpected_end_of_file_is_no_interrupt(cli: Cli) -> None:
    cli.script.open_error = EOFError("no data left")
    outcome = cli.generate("hi")
    assert outcome.code == 1
    assert "internal error: EOFError" in outcome.err


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(cli: Cli, name: str) -> None:
    command = strata.get_command(click.Context(strata), name)
    assert command is not None
    assert command.short_help == COMMANDS[name][1]
    assert cli(name, "--help").code == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [(["nothing"], "No such command 'nothing'"), (["--nothing"], "--nothing"), (["env", "x"], "unexpected extra argument")],
)
def test_usage_errors(cli: Cli, args: list[str], says: str) -> None:
    outcome = cli(*args)
    assert outcome.code == 2
    assert says in outcome.error
    assert outcome.out == ""


def test_the_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from strata_cli.main import main; main(['--help']); main(['generate', '--help']);"
        "print(sorted({'numpy', 'pyopencl', 'rich', 'tokenizers', 'jinja2', 'backends.engine', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def _model(folder: Path) -> list[str]:
    (folder / "model.gguf").touch()
    return ["generate", "-m", str(folder / "model.gguf"), "hi"]


@posix
def test_reader_leaves(tmp_path: Path) -> None:
    with subprocess.Popen([*FAKE, "--endless", *_model(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"some text\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


@posix
@pytest.mark.parametrize("args", [["--help"], ["env"], ["devices", "--json"]])
def test_reader_was_never_there(args: list[str]) -> None:
    with subprocess.Popen([*FAKE, *args], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [None, ["--help"], ["env"], ["devices", "--json"]])
def test_full_disk(tmp_path: Path, args: list[str] | None) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*FAKE, *(args or _model(tmp_path))], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("strata: error: ")
    assert done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


@posix
def test_closed_stdout_and_stderr(tmp_path: Path) -> None:
    command = shlex.join([*FAKE, *_model(tmp_path)])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "strata: error: cannot write to stdout: it is closed\n")
    quiet = subprocess.run(["sh", "-c", f"{command} 2>&-"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (quiet.returncode, quiet.stdout) == (0, "some text\n\n")


@posix
def test_interrupt(tmp_path: Path) -> None:
    command = [*FAKE, "--endless", *_model(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        start = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (start + out).replace("some text\n", "") == "\n"
    assert err.count("\n") == 1 and "interrupted after" in err


@posix
@pytest.mark.parametrize("mode", ["--endless", "--stuck"])
def test_interrupted_again_and_again(tmp_path: Path, mode: str) -> None:
    """A second Ctrl-C in the same second takes nothing away; a later one ends a run that cannot end by itself, threads or not."""
    with subprocess.Popen([*FAKE, mode, *_model(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "some text\n"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        line = process.stderr.readline() or process.stderr.readline()
        line = line if line.strip() else process.stderr.readline()
        assert "interrupted after" in line
        if mode == "--stuck":
            time.sleep(PATIENCE_S + 0.1)
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


@posix
def test_streams_that_do_not_wait(tmp_path: Path) -> None:
    """Whoever starts a program may leave it such pipes: a prompt that comes late is read whole, and no text is lost on a slow reader."""
    for_prompt, prompt = os.pipe()
    text, for_text = os.pipe()
    os.set_blocking(for_prompt, False)
    os.set_blocking(for_text, False)
    command = [*FAKE, *_model(tmp_path)[:-1], "--json", "--system", "x" * 100_000, "--stop", "y" * 100_000]
    with subprocess.Popen(command, cwd=ROOT, stdin=for_prompt, stdout=for_text, stderr=subprocess.PIPE) as process:
        os.close(for_prompt)
        os.close(for_text)
        for part in (b"one ", b"two"):
            time.sleep(0.5)
            os.write(prompt, part)
        os.close(prompt)
        time.sleep(1)
        with open(text, "rb") as reader:
            found = json.loads(reader.read())
        assert process.wait(60) == 0
    assert found["usage"]["prompt_tokens"] == 2 and len(found["settings"]["system"]) == len(found["settings"]["stop"][0]) == 100_000


@posix
def test_the_module_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "strata_cli", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
