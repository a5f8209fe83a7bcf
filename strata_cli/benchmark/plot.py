"""The report as a picture: every run's speed in the order of the runs, and the intervals."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.errors import BadValue, StrataError

SUFFIXES = (".png", ".svg")


def check(path: str) -> None:
    """Whether a plot can be written there later. Raises BadValue; StrataError without matplotlib."""
    folder = os.path.dirname(path) or "."
    if Path(path).suffix.lower() not in SUFFIXES:
        raise BadValue(f"--plot: {path!r} is not allowed; allowed: a file that ends in {' or '.join(SUFFIXES)}")
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise BadValue(f"--plot: {path}: no file can be written there")
    if importlib.util.find_spec("matplotlib") is None:
        raise StrataError("--plot: it needs matplotlib: pip install 'strata[plot]', or 'matplotlib>=3.9'; nothing was measured")


def draw(report: Mapping[str, Any], path: str) -> None:
    """Writes the plot. Raises StrataError."""
    from matplotlib import rc_context

    # Names and paths are what they are: no formula between $ signs, no TeX of the user's own settings.
    with rc_context({"text.parse_math": False, "text.usetex": False}):
        _draw(report, path)


def _draw(report: Mapping[str, Any], path: str) -> None:
    from matplotlib.figure import Figure  # without pyplot, which would look for a screen

    others = [arm for arm in report["arms"] if arm["beside"] is not None and arm["beside"]["decode"] is not None]
    figure = Figure(figsize=(11 if others else 7, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if others else 1, squeeze=False)[0]
    names: list[str] = []
    for arm in report["arms"]:
        points = [(run["number"] + 1, run["decode_tok_s"]) for run in report["runs"] if run["arm"] == arm["name"] and run["decode_tok_s"]]
        if points:
            axes[0].plot(*zip(*points, strict=True), marker="o", label=str(len(names)))
            names.append(arm["name"])
    axes[0].set(xlabel="run", ylabel="decode tok/s", title="Every run", ylim=(0, None))
    if names:  # written afterwards: a legend leaves out labels that begin with _
        for text, name in zip(axes[0].legend().get_texts(), names, strict=True):
            text.set_text(name)
    for place, arm in enumerate(others):
        found = arm["beside"]["decode"]
        axes[1].plot(found["rounds"], [place] * len(found["rounds"]), "|", color="grey", markersize=12)
        reach = None if found["low"] is None else [[found["ratio"] - found["low"]], [found["high"] - found["ratio"]]]
        axes[1].errorbar([found["ratio"]], [place], xerr=reach, fmt="o", capsize=5)
    if others:
        axes[1].axvline(1, color="black", linewidth=0.8)
        axes[1].set_yticks(range(len(others)), [arm["name"] for arm in others])
        axes[1].set(xlabel=f"times as fast as {report['baseline']}, interval, and each round", title="Decode", ylim=(-0.5, len(others) - 0.5))
    models = ", ".join(Path(model["path"]).name for model in report["models"])
    figure.suptitle(f"{models}; {report['machine']['processor']}; {report['date']}", fontsize=9)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StrataError(f"--plot: {path}: {error.strerror}") from None
