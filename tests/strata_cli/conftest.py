"""`cli`: run the command line in this process, on the stand-in engine and with nothing of the user's own settings; `bench`: `strata bench` so."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strata_cli.benchmark import process
from strata_cli.main import main
from tests.strata_cli.fake_backend import DeviceInfo, Script, modules
from tests.strata_cli.run_fake_bench import COMMAND

ROOT = Path(__file__).parent.parent.parent
WORDS = "one two three four five six seven eight nine ten eleven twelve"


class _Stream(io.TextIOWrapper):
    def __init__(self, content: bytes = b"", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", write_through=True)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def content(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


@dataclass
class Outcome:
    """What a run left."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error line, of which there must be exactly one."""
        lines = [line for line in self.err.splitlines() if not line.startswith("strata: warning: ")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("strata: error: ")


@dataclass
class Cli:
    """Runs `strata`."""

    monkeypatch: pytest.MonkeyPatch
    folder: Path
    script: Script = field(default_factory=Script)
    devices: list[DeviceInfo] | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def model(self) -> str:
        path = self.folder / "model.gguf"
        path.touch()
        return str(path)

    @property
    def config(self) -> Path:
        path = self.folder / "config" / "strata" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def __call__(self, *args: str, stdin: bytes = b"", terminal: bool = False, env: dict[str, str] | None = None) -> Outcome:
        with self.monkeypatch.context() as patch:
            for name, module in modules(self.script, self.devices, self.missing).items():
                patch.setitem(sys.modules, name, module)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            out, err = _Stream(terminal=terminal), _Stream(terminal=terminal)
            patch.setattr(sys, "stdin", _Stream(stdin, terminal))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main(args)
            return Outcome(code, out.content(), err.content())

    def generate(self, *args: str, stdin: bytes = b"hi", terminal: bool = False, env: dict[str, str] | None = None) -> Outcome:
        """`strata generate` with a model file that exists."""
        return self("generate", "-m", self.model, *args, stdin=stdin, terminal=terminal, env=env)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cli]:
    for name in [name for name in os.environ if name.startswith("STRATA_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "config"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    yield Cli(monkeypatch, tmp_path)


Bench = Callable[..., Outcome]


@pytest.fixture
def bench(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """`strata bench` with the stand-in engine, a model file that exists, one prompt and one round, if nothing else is said."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(process, "STRATA", COMMAND)

    def run(*args: str, prompt: tuple[str, ...] = ("--prompt", WORDS), rounds: str = "1", env: dict[str, str] | None = None) -> Outcome:
        return cli("bench", "-m", cli.model, "--rounds", rounds, *prompt, *args, env=env)

    return run
