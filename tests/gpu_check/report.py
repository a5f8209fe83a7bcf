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
    """The report with what follows from its figures: "percent_of_copy" of each model, "aims", "ok"."""
    for device in report["devices"]:
        for model in device["speed"]:
            if "weight_gb_s" in model and device["copy"]:
                model["percent_of_copy"] = 100 * model["weight_gb_s"] / device["copy"]["gb_s"]
    report["aims"] = list(aims(report["devices"]))
    checked = [check for device in report["devices"] for check in device["checks"]]
    failed = any(device["failure"] for device in report["devices"]) or any(check["failed"] for check in checked)
    # A model that cannot be run to its end is wrong, not slow.
    failed = failed or any(model.get("failure") for device in report["devices"] for model in device["speed"])
    report["ok"] = not failed and (not report["asked"]["checks"] or any(check["passed"] for check in checked))
    return report


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
    failures: list[tuple[str, str, str]] = [(d["name"], "device", d["failure"]) for d in report["devices"] if d["failure"]]
    failures += [(device["name"], f["test"], f["why"]) for device in report["devices"] for check in device["checks"] for f in check["failures"]]
    failures += [(device["name"], m["model"], m["failure"]) for device in report["devices"] for m in device["speed"] if m.get("failure")]
    for name, what, why in failures:
        yield f"FAILED {name}: {what}: {why}"
    rehearsal = "" if any(device["is_gpu"] for device in report["devices"]) else " This was a rehearsal: no GPU took part."
    took = f"{report['took_s']:.0f} s of at most {report['limit_s']:.0f} s."
    if failures:
        yield f"gpu-check: {len(failures)} FAILED, {sum(check['passed'] for check in checks)} passed. {took}{rehearsal}"
    elif not report["ok"]:
        yield f"gpu-check: nothing was checked. {took}{rehearsal}"
    elif not report["asked"]["checks"]:
        yield f"gpu-check: speed only, nothing was checked. {took}{rehearsal}"
    else:
        missed = sum(not aim["met"] for aim in report["aims"])
        speed = f" Aims met: {len(report['aims']) - missed}, missed: {missed}." if report["aims"] else ""
        yield f"gpu-check: all {sum(check['passed'] for check in checks)} checks passed.{speed} {took}{rehearsal}"


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
