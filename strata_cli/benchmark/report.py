"""From runs to the report: what --json prints, and what tables, Markdown and plot are made of."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from strata_cli.benchmark.arms import Arm, describe
from strata_cli.benchmark.measure import MODES, Measurement, Plan, Run
from strata_cli.benchmark.statistics import CONFIDENCE, MIN_ROUNDS, TIE, Comparison, compare
from strata_cli.benchmark.texts import Identity, compare_texts, repeat_texts
from strata_cli.output import rate

Rounds = Sequence[Sequence[Run]]


def build(arms: Sequence[Arm], plan: Plan, measurement: Measurement, header: Mapping[str, Any]) -> dict[str, Any]:
    """The report on the rounds that are complete, of which there is at least one."""
    baseline = measurement.of(arms[0].name)
    return {
        **header,
        "settings": _settings(arms, plan),
        "rounds": {"wanted": plan.rounds, "complete": len(baseline)},
        "baseline": arms[0].name,
        "arms": [_arm(arm, measurement, baseline if arm is not arms[0] else None, plan) for arm in arms],
        "notices": list(measurement.notices),
        "runs": [_run(run) for run in measurement.runs],
    }


def _settings(arms: Sequence[Arm], plan: Plan) -> dict[str, Any]:
    asked = [_asked(arm, plan) for arm in arms]
    kinds = [prompt.kind for prompt in plan.prompts]
    return {
        "prompts": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "modes": list(plan.modes),
        # Null where the arms differ; each one's own are with the arm.
        **{name: value if all(other[name] == value for other in asked) else None for name, value in asked[0].items()},
        "depth": plan.depth,
        "windows": list(plan.windows),
        "timeout": plan.timeout,
        "confidence": CONFIDENCE,
        "interval_needs_rounds": MIN_ROUNDS,
        "tie": TIE,
    }


def _asked(arm: Arm, plan: Plan) -> dict[str, Any]:
    """What an arm's prompts ask for beside their texts; null for what greedy ones have no use for."""
    sampled = "sampled" in plan.modes
    generation = arm.settings.generation
    return {
        "max_new": generation["max_new"],
        "temperature": generation["temperature"] if sampled else None,
        "seed": arm.settings.seed if sampled else None,
    }


def _run(run: Run) -> dict[str, Any]:
    about = run.output.about
    return {
        "number": run.number,
        "round": run.round,
        "arm": run.arm,
        "decode_tok_s": run.decode_rate(),
        "prefill_tok_s": run.prefill_rate(),
        "load_ms": about.get("load_ms"),
        "window_ms": about.get("window_ms", {}),
        "prompts": [dict(record) for record in run.output.records],
    }


def _arm(arm: Arm, measurement: Measurement, baseline: Rounds | None, plan: Plan) -> dict[str, Any]:
    rounds = measurement.of(arm.name)
    runs = [run for round_ in rounds for run in round_]
    windows = sorted({int(rows) for run in runs for rows in run.output.about.get("window_ms", {})})
    repeated = repeat_texts(rounds)
    return {
        "name": arm.name,
        "text": arm.text,
        "environment": dict(arm.environment),
        "command": list(arm.command) if arm.command else None,
        "model": str(arm.settings.model),
        **_asked(arm, plan),
        "settings": None if arm.command else describe(arm.settings),
        "about": runs[0].output.about.get("about", {}),
        "decode_tok_s": _spread([run.decode_rate() for run in runs]),
        "by_mode": {mode: _spread([run.decode_rate(mode) for run in runs]) for mode in plan.modes},
        "prefill_tok_s": _spread([run.prefill_rate() for run in runs]),
        "load_ms": _spread([run.output.about.get("load_ms") for run in runs]),
        "window_ms": {str(rows): _spread([window_ms(run, rows) for run in runs]) for rows in windows},
        "speculation": speculation(runs),
        "repeated": {"identical": repeated.identical, "of": repeated.total},
        "beside": None if baseline is None else _beside(baseline, rounds, plan, windows),
    }


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Every run's figure, and their median."""
    known = [value for value in values if value is not None]
    return {"median": statistics.median(known) if known else None, "runs": list(values)}


def window_ms(run: Run, rows: int) -> float | None:
    """A run's milliseconds for a window of so many rows: the median of its repeats."""
    times = run.output.about.get("window_ms", {}).get(str(rows))
    return statistics.median(times) if times else None


def speculation(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Drafts and rounds over all runs; None where nothing was drafted."""
    specs = [record["speculation"] for run in runs for record in run.output.records]
    drafted, accepted, rounds = (sum(spec[key] for spec in specs) for key in ("drafted", "accepted", "rounds"))
    if not drafted:
        return None
    places: list[list[int]] = []
    for spec in specs:
        for place, pair in enumerate(spec["by_position"]):
            if place == len(places):
                places.append([0, 0])
            places[place] = [places[place][0] + pair[0], places[place][1] + pair[1]]
    # Not those of records without rounds, which another program may leave out of some.
    tokens = sum(len(record["token_ids"]) for run in runs for record in run.output.records if record["speculation"]["rounds"])
    return {
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": accepted / drafted,
        "tokens_per_round": tokens / rounds if rounds else None,
        "by_position": places,
    }


def _beside(baseline: Rounds, arm: Rounds, plan: Plan, windows: Sequence[int]) -> dict[str, Any]:
    """The arm beside the baseline: speed by what was measured, and texts."""
    texts = compare_texts(baseline, arm)
    kinds = dict.fromkeys(prompt.kind for prompt in plan.prompts)
    kind_of = {prompt.id: prompt.kind for prompt in plan.prompts}

    def speeds(keep: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any] | None:
        return _compared(baseline, arm, lambda run: decode_speeds(run, keep))

    return {
        "decode": speeds(lambda _: True),
        "by_mode": {mode: speeds(lambda record, mode=mode: record["mode"] == mode) for mode in MODES if mode in plan.modes},  # type: ignore[misc]
        "by_kind": {kind: speeds(lambda record, kind=kind: kind_of[record["id"]] == kind) for kind in kinds},  # type: ignore[misc]
        "prefill": _compared(baseline, arm, lambda run: {"prefill": run.prefill_rate() or 0.0}),
        "windows": {str(rows): _compared(baseline, arm, lambda run, rows=rows: _window_speed(run, rows)) for rows in windows},  # type: ignore[misc]
        "texts": _texts(texts) | {"differences": [dataclasses.asdict(difference) for difference in texts.differences]},
        "texts_by_mode": {mode: _texts(compare_texts(baseline, arm, mode)) for mode in plan.modes},
    }


def decode_speeds(run: Run, keep: Callable[[Mapping[str, Any]], bool]) -> dict[Hashable, float]:
    """Tokens per second of a run by prompt and mode."""
    kept = [record for record in run.output.records if keep(record)]
    return {(record["id"], record["mode"]): rate(len(record["token_ids"]), record["decode_ms"]) or 0.0 for record in kept}


def _window_speed(run: Run, rows: int) -> dict[Hashable, float]:
    ms = window_ms(run, rows)
    return {} if ms is None else {rows: 1 / ms}


def _compared(baseline: Rounds, arm: Rounds, speeds: Callable[[Run], Mapping[Hashable, float]]) -> dict[str, Any] | None:
    both = ([[speeds(run) for run in round_] for round_ in rounds] for rounds in (baseline, arm))
    found: Comparison | None = compare(*both)
    return None if found is None else dataclasses.asdict(found) | {"verdict": found.verdict}


def _texts(found: Identity) -> dict[str, Any]:
    return {"identical": found.identical, "of": found.total}
