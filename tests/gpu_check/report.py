"""The report: aims, exit code, tables."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Any

PACKAGES = ("strata", "numpy", "pyopencl", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
# (figure, models, the aim, whether more is better)
AIMS = (
    ("percent_of_copy", ("27B",), 70.0, True),
    ("percent_of_copy", ("8B",), 50.0, True),
    ("window_ratio", ("1B", "8B", "27B"), 1.25, False),
    ("host_us", ("1B", "8B", "27B"), 100.0, False),
)
EXIT_CODES = {"passed": 0, "failed": 1, "incomplete": 3}  # 2 is a wrong argument
NAMES = {
    "percent_of_copy": "decode, % of copy bandwidth",
    "window_ratio": "window 4 / window 1",
    "host_us": "host us a round",
}


def about() -> dict[str, str]:
    """Date, system and versions."""
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def finished(report: dict[str, Any]) -> dict[str, Any]:
    """The report with what follows from its figures: "percent_of_copy" of each model, "aims", "unchecked", "verdict", "ok"."""
    for device in report["devices"]:
        for model in device["speed"]:
            if "weight_gb_s" in model and device["copy"]:
                model["percent_of_copy"] = 100 * model["weight_gb_s"] / device["copy"]["gb_s"]
    report["aims"] = list(aims(report["devices"]))
    report["unchecked"] = list(unchecked(report))
    report["verdict"] = "failed" if any(failures(report)) else "incomplete" if report["unchecked"] else "passed"
    report["ok"] = report["verdict"] == "passed"
    return report


def failures(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(device, what failed, why)"""
    for device in report["devices"]:
        if device["failure"]:
            yield device["name"], "device", device["failure"]
    for device in report["devices"]:
        for check in device["checks"]:
            yield from ((device["name"], failure["test"], failure["why"]) for failure in check["failures"])
    # A model that cannot be run to its end is wrong, not slow.
    for device in report["devices"]:
        yield from ((device["name"], model["model"], model["failure"]) for model in device["speed"] if model.get("failure"))


def unchecked(report: dict[str, Any]) -> Iterator[str]:
    """What was asked for and not seen to be right: cards that no device stands for, sections in which tests did not run or none passed."""
    yield from (f"a card that is there: {line}" for line in report["unlisted"])
    for device in report["devices"]:
        checks = {check["section"]: check for check in device["checks"]}
        for section in report["asked"]["sections"]:
            if section not in checks:
                yield f"{device['name']}: {section}"
            elif checks[section]["unrun"]:
                yield f"{device['name']}: {checks[section]['unrun']} tests of {section}"
            elif not checks[section]["passed"]:
                yield f"{device['name']}: {section}, of which no test passed"
        if not report["asked"]["sections"] and not device["speed"]:
            yield f"{device['name']}: everything"


def aims(devices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each aim for which a GPU has a figure: "device", "model", "figure", "aim", "found", "met". A rehearsal has none."""
    for device in devices:
        for figure, models, aim, more in AIMS:
            for model in device["speed"]:
                if device["is_gpu"] and model["model"] in models and figure in model:
                    found = model[figure]
                    met = found >= aim if more else found <= aim
                    yield {"device": device["name"], "model": model["model"], "figure": figure, "aim": aim, "found": found, "met": met}


def show(report: dict[str, Any]) -> None:
    """Prints the report."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for key, value in report["about"].items():
        console.print(f"{key}: {value}", markup=False)
    for device in report["devices"]:
        _show_device(console, device)
    if report["aims"]:
        console.print(_table("Aims", ["device", "model", "figure", "aim", "found", ""], map(_aim_cells, report["aims"])))
    for line in lines(report):
        console.print(line, markup=False)


def lines(report: dict[str, Any]) -> Iterator[str]:
    """What was left out, and the verdict."""
    for device in report["devices"]:
        if device["left_out"]:
            yield f"{device['name']}: left out for want of time: {'; '.join(device['left_out'])}"
    checks = [check for device in report["devices"] for check in device["checks"]]
    failed = list(failures(report))
    for name, what, why in failed:
        yield f"FAILED {name}: {what}: {why}"
    rehearsal = "" if any(device["is_gpu"] for device in report["devices"]) else " This was a rehearsal: no GPU took part."
    took = f"{report['took_s']:.0f} s of at most {report['limit_s']:.0f} s."
    for line in report["unchecked"]:
        yield f"NOT CHECKED {line}"
    passed = sum(check["passed"] for check in checks)
    if failed:
        yield f"gpu-check: {len(failed)} FAILED, {passed} passed. {took}{rehearsal}"
    elif report["unchecked"]:
        alone = "--device NAME, or " if len(report["devices"]) > 1 else ""
        more = f" More time: {alone}a larger --time-limit." if any(device["left_out"] for device in report["devices"]) else ""
        yield f"gpu-check: INCOMPLETE: {passed or 'none'} passed, none failed, not all was checked. {took}{more}{rehearsal}"
    elif not report["asked"]["checks"]:
        yield f"gpu-check: speed only, nothing was checked. {took}{rehearsal}"
    else:
        missed = sum(not aim["met"] for aim in report["aims"])
        speed = f" Aims met: {len(report['aims']) - missed}, missed: {missed}." if report["aims"] else ""
        yield f"gpu-check: all {passed} checks passed.{speed} {took}{rehearsal}"


def _show_device(console: Any, device: dict[str, Any]) -> None:
    console.print()
    console.print(f"{device['line'] or device['name']}{'' if device['is_gpu'] else ' (a rehearsal, not a GPU)'}", markup=False, style="bold")
    console.print(f"driver: {device['driver']}", markup=False)
    if device["copy"]:
        copy, memory = device["copy"], device["memory_bytes"]
        size = f"{memory / 2**30:.1f} GiB of memory; " if memory else ""
        ways = f"a kernel's {copy['kernel_gb_s']:.0f}, the driver's {copy['driver_gb_s']:.0f}"
        console.print(f"{size}copy within it: {copy['gb_s']:.0f} GB/s, bytes read and written both counted ({ways})", markup=False)
    if device["checks"]:
        columns = ["", "passed", "failed", "skipped", "not run", "s"]
        cells = ([c["section"], *(str(c[key]) for key in ("passed", "failed", "skipped", "unrun")), f"{c['seconds']:.0f}"] for c in device["checks"])
        console.print(_table("Checks", columns, cells))
        for why in sorted({why for check in device["checks"] for why in check["skips"]}):
            console.print(f"skipped: {why}", markup=False)
    for model in device["speed"]:
        if model.get("skipped") or model.get("failure"):
            console.print(f"{model['model']}: {'skipped: ' + model['skipped'] if model.get('skipped') else 'FAILED'}", markup=False)
    measured = [model for model in device["speed"] if "weight_bytes" in model]
    if measured:
        figures = [_figures(model) for model in measured]
        rows = ([name, *(column[name] for column in figures)] for name in figures[0])
        console.print(_table("Speed", ["", *map(_title, measured)], rows))
    for model in measured:
        if model.get("profile"):
            columns = ["", "launches", "ms", "% of step", "GB/s"]
            console.print(_table(f"A round of {_title(model)} at half the context, each kind alone", columns, _profile_cells(model)))


def _title(model: dict[str, Any]) -> str:
    return f"{model['model']} {model['type']}" if model["type"] else str(model["model"]).replace("\\", "/").rpartition("/")[2]


def _figures(model: dict[str, Any]) -> dict[str, str]:
    def shown(key: str, form: str = ".4g") -> str:
        return format(model[key], form) if key in model else "-"

    windows = {f"window {rows} ms": format(model["window_ms"][rows], ".4g") if rows in model["window_ms"] else "-" for rows in ("1", "2", "4", "8")}
    return {
        "decode tok/s": shown("decode_tok_s"),
        **windows,
        "window 4 / window 1": shown("window_ratio", ".2f"),
        "prefill tok/s": shown("prefill_tok_s"),
        "host us a round": shown("host_us", ".1f"),
        "launches a round": f"{model['launches']} ({model['replay']})",
        "weights GB": f"{model['weight_bytes'] / 1e9:.2f}",
        "weights GB/s": shown("weight_gb_s"),
        "% of copy bandwidth": shown("percent_of_copy", ".1f"),
    }


def _profile_cells(model: dict[str, Any]) -> Iterator[list[str]]:
    step = model["profile_step_ms"]
    for row in model["profile"]:
        gb_s = f"{row['gb_s']:.0f}" if row["gb_s"] else ""
        yield [row["kind"], str(row["launches"]), f"{row['ms']:.3f}", f"{100 * row['ms'] / step:.0f}", gb_s]
    total = sum(row["ms"] for row in model["profile"])
    yield ["all, one after the other", str(model["launches"]), f"{total:.3f}", f"{100 * total / step:.0f}", ""]


def _aim_cells(aim: dict[str, Any]) -> list[str]:
    sign = "at most" if aim["figure"] != "percent_of_copy" else "at least"
    return [aim["device"], aim["model"], NAMES[aim["figure"]], f"{sign} {aim['aim']:g}", f"{aim['found']:.4g}", "met" if aim["met"] else "missed"]


def _table(title: str, columns: list[str], rows: Any) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table
