"""A report for people: lines and tables, as they go to a terminal or, as Markdown, into a document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_cli.output import write_stdout, write_table

Report = Mapping[str, Any]
SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True)
class Table:
    """rows hold a cell for each word of header. note: a line under it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def show(report: Report) -> None:
    """Prints the report."""
    write_stdout("".join(f"{_line(name)}: {_line(text)}\n" for name, text in head(report)))
    for table in tables(report):
        write_stdout(f"\n{table.title}\n")
        write_table(table.header, table.rows)
        if table.note:
            write_stdout(table.note + "\n")


def markdown(report: Report) -> str:
    """The report for a document."""
    lines = [f"- {_escaped(name)}: " + (_code(text) if name == "command" else _escaped(text)) for name, text in head(report)]
    for table in tables(report):
        lines += ["", f"**{_escaped(table.title)}**", "", _row(table.header), _row(["---"] * len(table.header)), *map(_row, table.rows)]
        if table.note:
            lines += ["", _escaped(table.note)]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """The text on one line, as editors and readers of Markdown take lines."""
    return " ".join(text.splitlines())


def _code(text: str) -> str:
    """The text as Markdown's code: between more backticks than stand in it together."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    return _line(text.replace("|", "\\|"))


def head(report: Report) -> list[tuple[str, str]]:
    """What was measured, where and how, as (name, text)."""
    machine, settings, rounds = report["machine"], report["settings"], report["rounds"]
    memory = f", {machine['memory'] / 2**30:.0f} GiB" if machine["memory"] else ""
    load = "" if machine["load"] is None else f", load {machine['load']} at the start"
    lines = [
        ("command", report["command"]),
        ("date", report["date"]),
        ("machine", f"{machine['processor']}, {machine['cores']} cores{memory}{load}; {machine['system']}"),
    ]
    lines += [("model", f"{model['path']}, {model['bytes']} bytes, sha256 {model['sha256']}") for model in report["models"]]
    kinds = ", ".join(f"{kind} {count}" for kind, count in settings["prompts"].items())
    # What only some arms have stands in their lines.
    sampled = "" if settings["temperature"] is None else f"temperature {settings['temperature']:g}"
    sampled += "" if settings["seed"] is None else f"{', ' * bool(sampled)}seed {settings['seed']} and up"
    sampled = f" ({sampled})" if sampled else ""
    depth = f" behind {settings['depth']} tokens of a document" if settings["depth"] else ""
    tokens = "" if settings["max_new"] is None else f"; {_tokens(settings['max_new'])}"
    lines.append(("prompts", f"{kinds}; {' and '.join(settings['modes'])}{sampled}{tokens}{depth}"))
    cut = "" if rounds["complete"] == rounds["wanted"] else f" of the {rounds['wanted']} wanted: the run was cut short"
    lines.append(("rounds", f"{rounds['complete']}{cut}, each {' '.join(_sequence(report))}, a fresh process each time"))
    # What all arms say of themselves alike is said once.
    abouts = [arm["about"] for arm in report["arms"]]
    common = {key: value for key, value in abouts[0].items() if all(about.get(key) == value for about in abouts)}
    lines += [(key, str(value)) for key, value in common.items()]
    settings_of = [arm["settings"] for arm in report["arms"] if arm["settings"] is not None]
    alike = {key: value for key, value in (settings_of or [{}])[0].items() if all(other.get(key) == value for other in settings_of)}
    if alike:
        lines.append(("settings", ", ".join(f"{key} {value}" for key, value in alike.items())))
    for arm in report["arms"]:
        own = "".join(f"; {key} {value}" for key, value in arm["about"].items() if key not in common)
        options = "".join(f", {key} {value}" for key, value in (arm["settings"] or {}).items() if key not in alike)
        asked = "" if settings["max_new"] == arm["max_new"] else f", {_tokens(arm['max_new'])}"
        asked += "" if settings["temperature"] == arm["temperature"] else f", temperature {arm['temperature']:g}"
        asked += "" if settings["seed"] == arm["seed"] else f", seed {arm['seed']} and up"
        lines.append((f"arm {arm['name']}", (arm["text"] or "as it is") + asked + options + own))
    return lines + [("warning", notice) for notice in report["notices"]]


def _tokens(limit: int) -> str:
    return "until the end" if limit == -1 else f"up to {limit} tokens each"


def _sequence(report: Report) -> list[str]:
    names = [arm["name"] for arm in report["arms"]]
    return [*names, *reversed(names)]


def tables(report: Report) -> list[Table]:
    """The tables, without those that would be empty."""
    arms = report["arms"]
    others = [arm for arm in arms if arm["beside"] is not None]
    found = [_speeds(arms)]
    if others:
        found.append(_beside(report, others))
    if any(arm["window_ms"] for arm in arms):
        found.append(_windows(arms))
    if any(arm["speculation"] for arm in arms):
        found.append(_drafts(arms))
    return found + [_differences(report["baseline"], arm) for arm in others if arm["beside"]["texts"]["differences"]]


def _figure(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"  # from where so many digits round up to one more


def _speeds(arms: Sequence[Report]) -> Table:
    rows = []
    for arm in arms:
        repeated, decode = arm["repeated"], arm["decode_tok_s"]
        rows.append(
            (
                arm["name"],
                _figure(decode["median"]),
                " ".join(_figure(value) for value in decode["runs"]),
                _figure(arm["prefill_tok_s"]["median"]),
                _figure(arm["load_ms"]["median"]),
                f"{repeated['identical']}/{repeated['of']}",
            )
        )
    header = ("arm", "decode tok/s", "every run", "prefill tok/s", "load ms", "texts repeat")
    return Table("Speed (medians of the runs)", header, tuple(rows))


def _beside(report: Report, others: Sequence[Report]) -> Table:
    rows: list[tuple[str, ...]] = []
    for arm in others:
        beside = arm["beside"]
        lines = [("decode", beside["decode"], _texts(beside["texts"]))]
        if len(beside["by_mode"]) > 1:
            lines += [(mode, found, _texts(beside["texts_by_mode"][mode])) for mode, found in beside["by_mode"].items()]
        if len(beside["by_kind"]) > 1:
            lines += [(kind, found, "") for kind, found in beside["by_kind"].items()]
        lines.append(("prefill", beside["prefill"], ""))
        lines += [(f"window {size}", found, "") for size, found in beside["windows"].items()]
        rows += [(arm["name"], what, *_ratio(found, what), texts) for what, found, texts in lines if found is not None]
    settings = report["settings"]
    note = f"wins/losses/ties: pairs of runs of one prompt; within {100 * settings['tie']:g}% is a tie"
    if report["rounds"]["complete"] < settings["interval_needs_rounds"]:
        note += f". An interval takes at least {settings['interval_needs_rounds']} rounds"
    header = ("arm", "what", "times as fast", f"{100 * settings['confidence']:g}% interval", "verdict", "wins/losses/ties", "identical texts")
    return Table(f"Beside {report['baseline']}", header, tuple(rows), note)


def _texts(found: Report) -> str:
    return f"{found['identical']}/{found['of']}"


def _ratio(found: Report, what: str) -> tuple[str, str, str, str]:
    span = "-" if found["low"] is None else f"{found['low']:.3f} to {found['high']:.3f}"
    pairs = f"{found['wins']}/{found['losses']}/{found['ties']}"
    return f"{found['ratio']:.3f}", span, found["verdict"], pairs


def _windows(arms: Sequence[Report]) -> Table:
    sizes = sorted({int(size) for arm in arms for size in arm["window_ms"]})
    rows = []
    for arm in arms:
        medians = {size: arm["window_ms"].get(str(size), {"median": None})["median"] for size in sizes}
        cost = f"{medians[4] / medians[1]:.2f}" if medians.get(1) and medians.get(4) else "-"
        rows.append((arm["name"], *(_figure(medians[size]) for size in sizes), cost))
    header = ("arm", *(f"{size} row{'s' * (size > 1)}" for size in sizes), "4 rows / 1 row")
    return Table("Milliseconds for a window (medians of the runs)", header, tuple(rows))


def _drafts(arms: Sequence[Report]) -> Table:
    drafting = [arm for arm in arms if arm["speculation"]]
    places = max(len(arm["speculation"]["by_position"]) for arm in drafting)
    rows = []
    for arm in drafting:
        spec = arm["speculation"]
        per_round = "-" if spec["tokens_per_round"] is None else f"{spec['tokens_per_round']:.2f}"
        cells = [f"{100 * hit / tried:.1f}% of {tried}" if tried else "-" for tried, hit in spec["by_position"]]
        cells += ["-"] * (places - len(cells))
        rows.append((arm["name"], f"{100 * spec['acceptance']:.1f}% of {spec['drafted']}", per_round, *cells))
    return Table("Drafts accepted", ("arm", "accepted", "tokens per round", *(f"draft {place + 1}" for place in range(places))), tuple(rows))


def _differences(baseline: str, arm: Report) -> Table:
    texts = arm["beside"]["texts"]
    found = texts["differences"]
    rows = tuple(
        (entry["id"], entry["mode"], str(entry["position"]), _quoted(entry["ours"], entry["theirs"]), _quoted(entry["theirs"], entry["ours"]))
        for entry in found[:SHOWN_DIFFERENCES]
    )
    left = len(found) - len(rows)
    title = f"Texts of {arm['name']} that differ from those of {baseline}"
    return Table(title, ("prompt", "mode", "from token", baseline, arm["name"]), rows, f"and {left} more, which --json has" if left else "")


def _quoted(text: str | None, other: str | None) -> str:
    if text is None:
        return "(no text given)"
    return f"(begins with) {text!r}" if other is None else repr(text) if text else "(ends)"
