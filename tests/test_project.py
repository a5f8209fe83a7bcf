"""The project's own files: what an installation holds, and what documents and tables say about the code."""

from __future__ import annotations

import configparser
import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import strata_cli
from backends import tables
from tests.tiny import write_tiny_llama

ROOT = Path(__file__).parent.parent
TARGETS = ["setup", "setup-hip", "demo", "test", "test-all", "lint", "bench", "guarantee", "golden", "gpu-check", "peer", "clean", "help"]
TEXT_SUFFIXES = {".py", ".cl", ".h", ".md", ".cfg", ".toml", ".json", ""}


def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def test_an_installation_holds_all_modules_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from setuptools import Distribution

    monkeypatch.chdir(ROOT)
    distribution: Any = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["setup.cfg"])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    modules = {Path(path) for _, _, path in build.find_all_modules()}
    data = {Path(folder, name) for _, folder, _, names in build.data_files for name in names}
    wanted = {path.relative_to(ROOT) for path in sources("backends", "strata_cli")}
    assert {path for path in wanted if path.suffix == ".py"} == modules
    assert {path for path in wanted if path.suffix in (".cl", ".h")} <= data
    assert not [package for package in distribution.packages if package.partition(".")[0] not in ("backends", "strata_cli")]


def test_an_installation_holds_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from setuptools import Distribution

    monkeypatch.chdir(ROOT)
    distribution: Any = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["setup.cfg"])
    held = {(Path(folder), Path(name)) for folder, names in distribution.data_files for name in names}
    assert held == {(Path("share/strata") / path.parent.relative_to(ROOT / "data"), path.relative_to(ROOT)) for path in sources("data")}


def test_the_console_script_and_the_name() -> None:
    config = setup_cfg()
    assert config["metadata"]["name"] == strata_cli.DISTRIBUTION
    name, _, target = (part.strip() for part in config["options.entry_points"]["console_scripts"].partition("="))
    module, _, function = target.partition(":")
    assert name == "strata"
    assert callable(getattr(importlib.import_module(module), function))


def test_the_changelog_has_the_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == setup_cfg()["metadata"]["version"]


def test_the_readmes_python_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    model = write_tiny_llama(tmp_path / "model.gguf", n_vocab=320)
    assert code.count('"model.gguf"') == 1
    exec(compile(code.replace('"model.gguf"', repr(str(model))), "README.md", "exec"), {"__name__": "readme"})
    assert re.search(r"^\d+ tokens, (stop|length), \d+ ms$", capfd.readouterr().out, re.MULTILINE)


def test_documents_point_at_files_that_exist() -> None:
    for document in [ROOT / "README.md", *sources("docs")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_commands_of_the_readme() -> None:
    from strata_cli.commands import COMMANDS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `strata (\S+?)[ `]", readme, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_the_targets() -> None:
    done = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(TARGETS) <= set(re.findall(r"^  make (\S+)", done.stdout, re.MULTILINE))


def test_the_hosts_tables_are_the_kernels() -> None:
    text = (ROOT / "backends" / "kernels" / "tables.h").read_text(encoding="utf-8")
    defined = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)", text, re.MULTILINE)}
    assert len(defined) > 20
    assert defined == {name: getattr(tables, name, None) for name in defined}
    # The numbers that only one op's text has.
    ops = "\n".join(path.read_text(encoding="utf-8") for path in sources("backends/kernels") if path.suffix == ".cl")
    for name in ("STORE", "ADD", "SILU", "GATED", "PARTIAL_INTS"):
        assert re.findall(rf"^#define {name} (\d+)", ops, re.MULTILINE) == [str(getattr(tables, name))], name


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    place = re.compile(r"(?<![\w.~}/-])/(?:home|root|work|tmp|Users)/\w")
    files = [
        *sources("backends", "strata_cli", "tests", "docs", ".ci"),
        *(path for path in ROOT.iterdir() if path.is_file() and path.name != ".coverage"),
    ]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.suffix in TEXT_SUFFIXES and path != Path(__file__)
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if place.search(line)
    ]
    assert not found


def test_a_requantised_copy_is_the_same_model_in_another_type(tmp_path: Path) -> None:
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize

    from tests.bench.requantise import requantised

    source = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q4_1")
    copy = requantised(source, "Q8_0", tmp_path / "copies")
    assert requantised(source, "Q8_0", tmp_path / "copies") == copy
    before, after = GGUFReader(source), GGUFReader(copy)
    own = {"GGUF.kv_count", "general.file_type"}
    fields = [{name: field.contents() for name, field in reader.fields.items() if name not in own} for reader in (before, after)]
    assert fields[0] == fields[1]
    assert after.fields["general.file_type"].contents() == 7
    for a, b in zip(before.tensors, after.tensors, strict=True):
        assert (a.name, list(a.shape), "F32" if a.tensor_type.name == "F32" else "Q8_0") == (b.name, list(b.shape), b.tensor_type.name)
        values = dequantize(a.data, a.tensor_type)
        assert np.abs(dequantize(b.data, b.tensor_type) - values).max() <= np.abs(values).max() / 250
