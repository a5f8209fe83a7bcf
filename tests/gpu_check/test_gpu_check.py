"""gpu-check itself, rehearsed without a GPU: its report, its clock, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from backends.device import KernelSpec, Launch
from backends.devices import DeviceInfo
from tests.conftest import skip_or_fail
from tests.cuda_emulator.compiler import system_compiler
from tests.gpu_check import child, correctness, plan, report
from tests.gpu_check.__main__ import main, parser

ONE_TEST = ("tests/backends/test_device_bits.py::test_byte_products",)
FIGURES = {
    *("model", "type", "parameters", "load_s", "launches", "replay", "weight_bytes", "decode_tok_s", "step_ms", "weight_gb_s", "window_ms"),
    *("window_ratio", "host_us", "profile", "profile_step_ms", "prefill_tok_s", "left_out", "percent_of_copy"),
}


def sections(monkeypatch: pytest.MonkeyPatch, **tests: tuple[str, ...]) -> None:
    """Lets these tests be all there are."""
    monkeypatch.setattr(correctness, "SECTIONS", tests)


def written(tmp_path: Path, text: str) -> tuple[str, ...]:
    """A file of tests of its own, and one without any, by whose place pytest finds its options."""
    path = tmp_path / "test_written.py"
    path.write_text(text)
    return (str(path), "tests/gpu_check/__init__.py")


@pytest.mark.slow
def test_a_rehearsal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From end to end, on the CPU runtime in GPU shape."""
    sections(monkeypatch, math=ONE_TEST, guarantee=("tests/backends/test_gpu_shape.py::test_windows",))
    file = tmp_path / "found.json"
    assert main(["--device", "cpu", "--quick", "--shapes", "tiny", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "(a rehearsal, not a GPU)" in out and "no GPU took part" in out and "all 2 checks passed" in out
    found = json.loads(file.read_text())
    assert set(found) == {"about", "limit_s", "asked", "devices", "unlisted", "took_s", "aims", "unchecked", "verdict", "ok"}
    assert (found["verdict"], found["unchecked"], found["unlisted"]) == ("passed", [], [])
    assert found["ok"] and found["aims"] == [] and {"date", "system", "numpy"} <= set(found["about"])
    (device,) = found["devices"]
    assert (device["name"], device["is_gpu"], device["failure"], device["left_out"]) == ("cpu", False, None, [])
    assert device["line"].endswith("kernels in GPU shape") and device["driver"] and device["memory_bytes"] > 0
    assert device["copy"]["gb_s"] == max(device["copy"]["kernel_gb_s"], device["copy"]["driver_gb_s"]) > 0
    assert [(check["section"], check["passed"], check["failed"], check["unrun"]) for check in device["checks"]] == [
        ("math", 1, 0, 0),
        ("guarantee", 1, 0, 0),
    ]
    (model,) = device["speed"]
    assert set(model) == FIGURES
    assert set(model["window_ms"]) == {"1", "2", "4", "8"}
    kinds = {row["kind"]: row for row in model["profile"]}
    assert {"query, key, value", "attention", "feed-forward up", "feed-forward down", "attention output", "head", "pick"} <= set(kinds)
    assert sum(row["launches"] for row in kinds.values()) == model["launches"]
    assert model["percent_of_copy"] == pytest.approx(100 * model["weight_gb_s"] / device["copy"]["gb_s"])


def use_list(monkeypatch: pytest.MonkeyPatch, *devices: DeviceInfo, trouble: tuple[str, ...] = ()) -> None:
    """Lets these devices be all there are, in this process too."""
    monkeypatch.setattr("backends.devices.list_devices", lambda *args: devices)
    monkeypatch.setattr("backends.devices.gpu_trouble", lambda: list(trouble))
    ask = child.ask
    monkeypatch.setattr(child, "ask", lambda job, seconds: child.answer(job) if job["task"] == "list" else ask(job, seconds))


CPU = DeviceInfo("cpu", "opencl", "A processor", "", 2, 1, True)
NUMPY = DeviceInfo("numpy", "numpy", "", "", 1, 1, False)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what would find one."""
    use_list(monkeypatch, CPU, NUMPY)
    file = tmp_path / "found.json"
    assert main(["--json", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gpu-check: no GPU found") and err.count("\n") == 1
    assert not file.exists()


def test_which_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card's second API, and its twin, get less of the time."""
    first, second = DeviceInfo("cuda/0", "cuda", "Card", "", 2, 1, True), DeviceInfo("cuda/1", "cuda", "Card", "", 2, 1, False)
    use_list(monkeypatch, first, second, CPU, DeviceInfo("gpu/0", "opencl", "Card", "", 2, 1, False), trouble=("cuda/1: too old",))
    found = plan.gpus()
    assert [(place.name, place.is_gpu, place.weight) for place in found.places] == [("cuda/0", True, 3), ("cuda/1", True, 1), ("gpu/0", True, 1)]
    assert found.trouble == ()  # it is listed, so opening it says so


def test_a_card_that_only_opencl_sees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its driver is there, CuPy is not: all that is checked may pass, and the check is not complete."""
    use_list(monkeypatch, CPU, NUMPY, DeviceInfo("gpu/0", "opencl", "Card", "", 2, 1, False), trouble=("CuPy finds no compiler; get one",))
    passed = {"passed": 3, "failed": 0, "failures": [], "skips": [], "skipped": 0, "unrun": 0, "seconds": 1.0}
    monkeypatch.setattr(child, "ask", lambda job, seconds: child.answer(job) if job["task"] == "list" else {"line": "x"})
    monkeypatch.setattr(correctness, "check", lambda section, *args: {"section": section, **passed, "ran": []})
    file = tmp_path / "found.json"
    assert main(["--only", "checks", "--json", str(file)]) == 3
    out, err = capsys.readouterr()
    assert "gpu-check: only OpenCL is checked: CuPy finds no compiler; get one\n" in err
    assert "NOT CHECKED a card that is there: CuPy finds no compiler; get one\n" in out and "INCOMPLETE: 9 passed, none failed" in out
    assert (json.loads(file.read_text())["verdict"], json.loads(file.read_text())["unlisted"]) == ("incomplete", ["CuPy finds no compiler; get one"])
    monkeypatch.setattr("backends.devices.list_devices", lambda *args: [CPU])
    assert main(["--json", str(file)]) == 1
    assert capsys.readouterr().err == "gpu-check: no GPU found by OpenCL, and CuPy finds no compiler; get one\n"


def test_devices_that_cannot_be_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver that hangs when it is asked what there is ends in time, with a line."""

    def run_limited(command: Any, seconds: float, said: str) -> Any:
        assert json.loads(said) == {"task": "list"} and seconds == plan.LIST_S + child.GRACE_S
        raise subprocess.TimeoutExpired(command, seconds)

    monkeypatch.setattr(child, "run_limited", run_limited)
    for arguments in ([], ["--device", "cpu"]):
        assert main([*arguments, "--json", str(tmp_path / "found.json")]) == 1
        assert capsys.readouterr().err == "gpu-check: the devices cannot be listed: no answer within 100 s\n"


def test_a_process_that_cannot_be_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stuck in a driver: here its child holds the pipes."""
    monkeypatch.setattr(child, "KILLED_S", 0.5)
    sleeper = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(8)'])"
    begun = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        child.run_limited([sys.executable, "-c", sleeper], 1.0)
    assert time.monotonic() - begun < 6
    assert child.run_limited([sys.executable, "-c", "print(input())"], 60, "hello\n").stdout == "hello\n"


def test_a_name_that_no_device_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda/7"]) == 1
    assert capsys.readouterr().err.startswith("gpu-check: --device: 'cuda/7' is not allowed; allowed: cpu")


@pytest.mark.parametrize("arguments", [["--shapes", "9T"], ["--model", "nowhere.gguf"], ["--type", "Q2_K"]])
def test_values_that_are_not_allowed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "error: " in capsys.readouterr().err


def test_help_names_every_option() -> None:
    text = parser().format_help()
    for option in ("--model", "--device", "--json", "--quick", "--time-limit", "--shapes", "--type", "--only"):
        assert option in text


def test_a_failing_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 + 1 == 3\ndef test_c(): pytest.skip('not here')\n"
    sections(monkeypatch, kernels=written(tmp_path, text))
    file = tmp_path / "found.json"
    assert main(["--device", "cpu", "--only", "checks", "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert "gpu-check: 1 FAILED, 1 passed." in out and "test_b: assert (1 + 1) == 3" in out and "skipped: Skipped: not here" in out
    found = json.loads(file.read_text())
    (check,) = found["devices"][0]["checks"]
    assert not found["ok"] and (check["passed"], check["failed"], check["skipped"]) == (1, 1, 1)


def test_a_process_that_dies_has_failed(tmp_path: Path) -> None:
    """As a driver's crash would end it, with what ran before."""
    tests = written(tmp_path, "import os\ndef test_a(): pass\ndef test_b(): os._exit(9)\n")
    found = correctness.check("kernels", tests, "cpu", 60, False)
    (failure,) = found["failures"]
    assert found["passed"] == found["failed"] == 1
    assert "ended with code 9" in failure["why"] and "test_a" in failure["why"]


def test_tests_that_cannot_be_collected_have_failed(tmp_path: Path) -> None:
    found = correctness.check("kernels", written(tmp_path, "import nothing_of_the_kind\n"), "cpu", 60, False)
    assert found["failed"] == 1 and found["passed"] == 0


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_one_file_that_cannot_be_imported_has_failed(tmp_path: Path, seconds: float) -> None:
    """Beside others that can, whose tests then do not run; also where there was no time."""
    (tmp_path / "test_more.py").write_text("import nothing_of_the_kind\n")
    tests = (str(tmp_path / "test_more.py"), *written(tmp_path, "def test_a(): pass\ndef test_b(): pass\n"))
    found = correctness.check("kernels", tests, "cpu", seconds, False)
    (failure,) = found["failures"]
    assert failure["why"].endswith("No module named 'nothing_of_the_kind'")
    assert (found["failed"], found["passed"], found["unrun"]) == (1, 0, 2)


def test_an_interrupted_run_has_failed(tmp_path: Path) -> None:
    """Exit code 2, as where the time is over, but not by the clock."""
    found = correctness.check("kernels", written(tmp_path, "def test_a(): pass\ndef test_b(): raise KeyboardInterrupt\n"), "cpu", 60, False)
    assert found["failed"] == 1 and "ended with code 2" in found["failures"][0]["why"]


def test_a_file_that_skips_itself_is_said(tmp_path: Path) -> None:
    found = correctness.check("kernels", written(tmp_path, "import pytest\npytest.skip('not here', allow_module_level=True)\n"), "cpu", 60, False)
    assert (found["passed"], found["skipped"]) == (0, 1) and "not here" in found["skips"][0]


def test_tests_stop_in_time(tmp_path: Path) -> None:
    text = "import time\ndef test_a(): time.sleep(0.5)\ndef test_b(): pass\ndef test_c(): pass\n"
    found = correctness.check("kernels", written(tmp_path, text), "cpu", 0.3, False)
    assert (found["passed"], found["failed"], found["unrun"]) == (1, 0, 2)


@pytest.mark.parametrize("failed", [False, True])
def test_what_one_section_leaves_of_its_time_another_gets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failed: bool) -> None:
    """For the tests that it had no time for, and no other; not where it has failed by then."""
    tests = written(tmp_path, f"def test_a(): assert {not failed}\ndef test_b(): pass\ndef test_c(): pass\n")
    sections(monkeypatch, math=tests, kernels=(f"{tests[0]}::test_b", tests[1]))
    check, said = correctness.check, list[str]()

    def hurried(section: str, tests: Any, device: str, seconds: float, quick: bool, *done: Any) -> dict[str, Any]:
        return check(section, tests, device, 0.0 if section == "math" and not done else seconds, quick, *done)

    monkeypatch.setattr(correctness, "check", hurried)
    report: dict[str, Any] = {"name": "cpu", "checks": [], "left_out": []}
    plan._checks(report, plan.Job(), plan.Clock(120.0), said.append)
    first, second = report["checks"]
    assert (first["passed"], first["failed"], first["unrun"], second["passed"]) == ((0, 1, 2, 1) if failed else (3, 0, 0, 1))
    assert said == ["cpu: math", "cpu: kernels", *([] if failed else ["cpu: math, the rest"])]
    assert report["left_out"] == (["checks: 2 tests of math"] if failed else []) and "ran" not in first


def test_a_process_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(correctness, "GRACE_S", 3.0)
    found = correctness.check("kernels", written(tmp_path, "import time\ndef test_a(): time.sleep(60)\n"), "cpu", 0.1, False)
    assert "no answer within 3 s" in found["failures"][0]["why"]


def test_no_time_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is said, and is no pass."""
    file = tmp_path / "found.json"
    assert main(["--device", "cpu", "--time-limit", "1", "--json", str(file)]) == 3
    out = capsys.readouterr().out
    assert "cpu: left out for want of time: everything" in out and "INCOMPLETE: none passed" in out
    assert json.loads(file.read_text())["devices"][0]["left_out"] == ["everything"]


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections and models that no time is left for are named, each device's own."""
    now = [0.0]
    monkeypatch.setattr("tests.gpu_check.plan.time.monotonic", lambda: now[0])

    def ask(question: dict[str, Any], seconds: float) -> dict[str, Any]:
        if question["task"] == "device":
            return {"line": "x", "memory_bytes": 1, "copy": {"gb_s": 1.0}}
        now[0] += seconds
        return {"model": question["model"], "left_out": ["prefill"]}

    def check(section: str, tests: Any, device: str, seconds: float, quick: bool) -> dict[str, Any]:
        asked.append((section, seconds))
        now[0] += seconds
        return {"section": section, "passed": 2, "failed": 0, "unrun": 3, "ran": []}

    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(child, "ask", ask)
    monkeypatch.setattr(correctness, "check", check)
    places = [plan.Place("a", "", True), plan.Place("b", "", True)]
    first, second = plan.run(places, plan.Job(models=("1B", "8B")), plan.Clock(42), lambda line: None)
    assert asked[0][0] == "math" and asked[0][1] == pytest.approx(21 * 0.6 / 3) and now[0] <= 42
    assert first["left_out"] == [
        *(f"checks: {section}" for section in list(correctness.SECTIONS)[len(first["checks"]) :]),
        *(f"checks: 3 tests of {section}" for section, _ in asked[: len(first["checks"])]),
        *(f"speed: {model}" for model in ("1B", "8B") if model not in [m["model"] for m in first["speed"]]),
        *(f"speed of {m['model']}: prefill" for m in first["speed"]),
    ]
    assert second["checks"]


@pytest.mark.parametrize(("file", "failure"), [("large.gguf", None), (None, "no answer within 9 s")])
def test_a_slow_file_is_left_out_but_a_slow_device_has_failed(monkeypatch: pytest.MonkeyPatch, file: str | None, failure: str | None) -> None:
    def ask(question: dict[str, Any], seconds: float) -> dict[str, Any]:
        if question["task"] == "device":
            return {"line": "x", "memory_bytes": 1, "copy": {"gb_s": 1.0}}
        raise child.ChildSlow("no answer within 9 s")

    monkeypatch.setattr(child, "ask", ask)
    job = plan.Job(models=() if file else ("8B",), file=file, checks=False)
    (found,) = plan.run([plan.Place("a", "", True)], job, plan.Clock(100), lambda line: None)
    assert [model["failure"] for model in found["speed"]] == ([failure] if failure else [])
    assert found["left_out"] == (["speed: large.gguf, no answer within 9 s"] if file else [])


def test_a_device_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(question: dict[str, Any], seconds: float) -> dict[str, Any]:
        if question["task"] == "list":
            return child.answer(question)
        raise child.ChildFailed("it ended with code -11: nothing on stderr")

    monkeypatch.setattr(child, "ask", ask)
    assert main(["--device", "cpu", "--json", str(tmp_path / "found.json")]) == 1
    assert "FAILED cpu: device: the device cannot be used: it ended with code -11" in capsys.readouterr().out


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(child.ChildFailed, match=r"ended with code 1: backends\.errors\.BadValue: device: 'cuda-9'"):
        child.ask({"task": "device", "device": "cuda-9", "copy_bytes": 4096}, 60)


def test_the_emulated_device() -> None:
    """The CUDA side of what is measured."""
    if system_compiler() is None:
        skip_or_fail("the emulator needs a C++ compiler")
    found = child.ask({"task": "device", "device": "emulated", "copy_bytes": 1 << 16}, 120)
    assert found["line"].startswith("cuda cuda/0: Emulated GPU") and found["copy"]["bytes"] == 1 << 16


def test_aims() -> None:
    def gpu(is_gpu: bool) -> dict[str, Any]:
        models = [
            {"model": "8B", "weight_gb_s": 510.0, "window_ratio": 1.3, "host_us": 100.0},
            {"model": "27B", "weight_gb_s": 690.0, "window_ratio": 1.25},
            {"model": "135M", "weight_gb_s": 1.0, "window_ratio": 9.0, "host_us": 900.0},
            {"model": "1B", "skipped": "no room"},
        ]
        return {
            "name": "cuda/0",
            "is_gpu": is_gpu,
            "failure": None,
            "copy": {"gb_s": 1000.0},
            "checks": [section_of("math")],
            "speed": models,
        }

    about = {"asked": {"checks": True, "sections": ["math"]}, "unlisted": []}
    found = report.finished({"devices": [gpu(True)], **about})
    assert [(aim["model"], aim["figure"], aim["aim"], aim["found"], aim["met"]) for aim in found["aims"]] == [
        ("27B", "percent_of_copy", 70.0, pytest.approx(69), False),
        ("8B", "percent_of_copy", 50.0, pytest.approx(51), True),
        ("8B", "window_ratio", 1.25, 1.3, False),
        ("27B", "window_ratio", 1.25, 1.25, True),
        ("8B", "host_us", 100.0, 100.0, True),
    ]
    assert found["ok"]  # an aim that is missed is no failure
    assert report.finished({"devices": [gpu(False)], **about})["aims"] == []


def section_of(name: str, passed: int = 1, unrun: int = 0, failures: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    """A section's part of a report."""
    return {"section": name, "passed": passed, "failed": len(failures), "failures": failures, "unrun": unrun}


def device_of(name: str, *checks: dict[str, Any], failure: str | None = None) -> dict[str, Any]:
    """A device's part of a report."""
    return {"name": name, "is_gpu": True, "failure": failure, "checks": checks, "speed": [], "copy": None, "left_out": []}


WHOLE = section_of("math"), section_of("guarantee", 60)


@pytest.mark.parametrize(
    ("devices", "unlisted", "verdict", "unchecked"),
    [
        ([device_of("a", *WHOLE), device_of("b", *WHOLE)], [], "passed", []),
        ([device_of("a", section_of("math"), section_of("guarantee", 0, 60))], [], "incomplete", ["a: 60 tests of guarantee"]),
        ([device_of("a", section_of("math"), section_of("guarantee", 59, 1))], [], "incomplete", ["a: 1 tests of guarantee"]),
        ([device_of("a", section_of("math"), section_of("guarantee", 0))], [], "incomplete", ["a: guarantee, of which no test passed"]),
        ([device_of("a", section_of("math"))], [], "incomplete", ["a: guarantee"]),
        ([device_of("a", *WHOLE), device_of("b")], [], "incomplete", ["b: math", "b: guarantee"]),
        ([device_of("a", *WHOLE)], ["no CuPy"], "incomplete", ["a card that is there: no CuPy"]),
        ([device_of("a", section_of("math", 3, 9, ({"test": "t", "why": "w"},)))], [], "failed", ["a: 9 tests of math", "a: guarantee"]),
        ([device_of("a", *WHOLE), device_of("b", failure="lost")], [], "failed", ["b: math", "b: guarantee"]),
    ],
)
def test_the_verdict(devices: list[dict[str, Any]], unlisted: list[str], verdict: str, unchecked: list[str]) -> None:
    """Passed only where every section of every device has run to its end; the last line says no more than that."""
    about = {"asked": {"checks": True, "sections": ["math", "guarantee"]}, "unlisted": unlisted, "took_s": 1.0, "limit_s": 2.0}
    found = report.finished({"devices": devices, **about})
    assert (found["verdict"], found["ok"], found["unchecked"]) == (verdict, verdict == "passed", unchecked)
    *_, last = report.lines(found)
    assert ("checks passed" in last, "INCOMPLETE" in last, "FAILED" in last) == tuple(verdict == v for v in ("passed", "incomplete", "failed"))
    assert sorted(report.EXIT_CODES.values()) == [0, 1, 3]


@pytest.mark.parametrize("architecture", [60, 120])
def test_the_checks_own_kernels_compile_for_cards(architecture: int) -> None:
    from backends.cuda import NVRTC_OPTIONS
    from backends.kernels.source import kernel_source
    from backends.opencl import COMMON_HEADERS
    from tests.backends.test_device_bits import TEXT as BITS
    from tests.gpu_check.weights import TEXT
    from tests.nvrtc import compile_cubin

    for text, kernels in ((TEXT, ("fill", "copy")), (BITS, ("run_exp", "run_dot4", "run_narrow"))):
        source = kernel_source([*COMMON_HEADERS, "dot.h", f"{text}.cl"], "cuda")
        dot = 4 if architecture >= 61 else 3
        code, _ = compile_cubin(source, [*NVRTC_OPTIONS, "-DGROUP=128", f"-DDOT={dot}", f"--gpu-architecture=sm_{architecture}"])
        for kernel in kernels:
            assert kernel.encode() in code


def test_launches_are_told_apart() -> None:
    """By the matrix they read, wherever it stands in their arguments."""
    from backends.model.matrix import Matrix
    from tests.gpu_check.profile import kinds, weight_bytes

    class Model:
        """As far as kinds are concerned."""

    Model.__module__ = "backends.model.made_up"
    a, b = object(), object()
    model: Any = Model()
    model.head, model.down = Matrix(a, 3, "Q4_0", 64, 2), [Matrix(b, 3, "Q8_0", 32, 1)]
    launches = [
        Launch(KernelSpec("matvec", "matvec"), (1, a, 3, 0.5), 1),
        Launch(KernelSpec("matvec", "matvec"), (1.0, 3, b, 3), 1),
        Launch(KernelSpec("attention_chunks", "merge"), (a, 3), 1),
    ]
    found = kinds(model, launches)
    # Two k blocks of 16 rows: 2 * 32 bytes of scales, 2 * 256 of codes; one: 32 padded to 64, and 512.
    assert {kind: (len(own), nbytes) for kind, (own, nbytes) in found.items()} == {
        "head": (1, 2 * (64 + 512)),
        "feed-forward down": (1, 64 + 512),
        "attention": (1, 0),
    }
    assert weight_bytes(model, launches) == 2 * 576 + 576
