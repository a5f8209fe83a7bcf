"""The order of the runs, and what they gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_cli.benchmark.arms import Arm
from strata_cli.benchmark.process import Output, run
from strata_cli.benchmark.prompts import Prompt
from strata_cli.options import Settings
from strata_cli.output import rate

MODES = ("greedy", "sampled")
REPEATS = 15
"""Rounds that are timed for each window size in a run."""
# A request's settings that another program needs to know.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty", "ignore_eos")

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every run does. rounds: each runs every arm twice. windows: their sizes in rows, to time. timeout: seconds for a run."""

    prompts: Sequence[Prompt]
    modes: Sequence[str]
    rounds: int
    windows: Sequence[int]
    depth: int
    document: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an arm: number counts all runs in the order they were made."""

    number: int
    round: int
    arm: str
    output: Output

    def decode_rate(self, mode: str | None = None) -> float | None:
        """Tokens per second over all prompts, or those of a mode."""
        records = [record for record in self.output.records if mode in (None, record["mode"])]
        return rate(sum(len(record["token_ids"]) for record in records), sum(record["decode_ms"] for record in records))

    def prefill_rate(self) -> float | None:
        """Prompt tokens per second; a prompt's last token is run by the first round."""
        known = [record for record in self.output.records if record["prefill_ms"] and record["prompt_tokens"]]
        return rate(sum(record["prompt_tokens"] - 1 for record in known), sum(record["prefill_ms"] for record in known))


@dataclass(slots=True)
class Measurement:
    """What was found: rehearsals by arm, and the runs, whole rounds only. notices: warnings of the arms, each once."""

    rehearsals: dict[str, Output] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def of(self, arm: str) -> list[list[Run]]:
        """An arm's runs by round."""
        mine = [run for run in self.runs if run.arm == arm]
        return [[run for run in mine if run.round == number] for number in sorted({run.round for run in mine})]


def order(arms: int) -> list[int]:
    """Who runs when in a round: there and back, so that each arm's runs lie around the same middle."""
    return [*range(arms), *reversed(range(arms))]


def measure(arms: Sequence[Arm], plan: Plan, measurement: Measurement, progress: Progress, say: Callable[[str], None]) -> None:
    """Rehearses, then runs all rounds; `measurement` has at any time what is done. progress: (what is being done, part of all).

    say: gets a line for each run. Raises StrataError.
    """
    for arm in arms:
        if arm.command is None:
            progress(f"rehearsing {arm.name}", 0.0)
            _rehearse(arm, plan, measurement)
    jobs = {arm.name: _job(arm, plan, arms, measurement) for arm in arms}
    sequence = order(len(arms))
    steps = plan.rounds * len(sequence)
    for number in range(plan.rounds):
        done: list[Run] = []
        for index in sequence:
            arm = arms[index]
            count = len(measurement.runs) + len(done)
            where = f"round {number + 1} of {plan.rounds}, {arm.name}"

            def step(prompts: int, where: str = where, count: int = count) -> None:
                total = len(plan.prompts) * len(plan.modes)
                progress(f"{where}: {prompts} of {total} prompts", (count + prompts / total) / steps)

            step(0)
            found = Run(count, number, arm.name, run(arm, jobs[arm.name], f"arm {arm.name!r}, round {number + 1}", plan.timeout, step))
            done.append(found)
            speed = found.decode_rate()
            say(f"{where}: " + ("no token" if speed is None else f"{speed:.1f} tok/s"))
        measurement.runs += done


def _rehearse(arm: Arm, plan: Plan, measurement: Measurement) -> None:
    """Warms the arm's caches, finds out what cannot run, and gets the prompts' tokens."""
    output = run(arm, _job(arm, plan, rehearsal=True), f"arm {arm.name!r}", plan.timeout, lambda _: None)
    measurement.rehearsals[arm.name] = output
    for notice in output.about.get("notices", []):
        line = f"arm {arm.name!r}: {notice}"
        if line not in measurement.notices:
            measurement.notices.append(line)


def _job(arm: Arm, plan: Plan, arms: Sequence[Arm] = (), measurement: Measurement | None = None, rehearsal: bool = False) -> dict[str, Any]:
    entries = [_entry(arm, prompt, index, mode) for mode in plan.modes for index, prompt in enumerate(plan.prompts)]
    job: dict[str, Any] = {"rehearsal": rehearsal, "prompts": entries, "depth": plan.depth, "windows": list(plan.windows), "repeats": REPEATS}
    if arm.command is None:
        flags = {key: value for key, value in arm.flags.items() if value is not None and value != ()}
        return job | {"flags": flags, "document": plan.document}
    assert measurement is not None
    about = _tokenised(arm, arms, plan, measurement)
    for entry, ids in zip(entries, about["token_ids"], strict=True):
        entry["token_ids"] = ids
    return job | {"model": str(arm.settings.model), "ctx": about["ctx"]}


def _entry(arm: Arm, prompt: Prompt, index: int, mode: str) -> dict[str, Any]:
    """A prompt of a job. The seeds differ between prompts, so that one lucky draw does not stand for all."""
    assert arm.settings.seed is not None
    seed = arm.settings.seed + index
    entry = {"id": prompt.id, "kind": prompt.kind, "mode": mode, "prompt": prompt.prompt, "system": prompt.system, "seed": seed % 2**64}
    if arm.command is not None:
        sampling = {name: arm.settings.generation[name] for name in SAMPLING}
        entry |= {"max_new": arm.settings.generation["max_new"]} | sampling | ({"temperature": 0.0} if mode == "greedy" else {})
    return entry


def _room(settings: Settings) -> tuple[object, ...]:
    """What the prompts' tokens and their context depend on."""
    return settings.model, settings.config.ctx, settings.generation["max_new"]


def _tokenised(arm: Arm, arms: Sequence[Arm], plan: Plan, measurement: Measurement) -> Mapping[str, Any]:
    """The prompts in tokens and the context they take, as Strata has them under the same settings. Another program gets these, whatever its
    own template.
    """
    if "" in measurement.rehearsals:
        return measurement.rehearsals[""].about
    for other in arms:
        if other.command is None and _room(other.settings) == _room(arm.settings):
            return measurement.rehearsals[other.name].about
    stand_in = Arm(arm.name, "", {}, None, arm.flags, arm.settings)
    where = f"arm {arm.name!r}: its prompts in tokens"
    output = run(stand_in, _job(stand_in, plan, rehearsal=True), where, plan.timeout, lambda _: None)
    measurement.rehearsals[""] = output  # no arm has this name
    return output.about
