"""What runs on which device, in which order and until when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.device_choice import EMULATED
from tests.gpu_check import child, correctness

Say = Callable[[str], None]
MODELS = ("135M", "1B", "8B", "27B")
QUICK_MODELS = ("135M",)
CHECKS_SHARE = 0.6  # of a device's time, where speed is measured too
FILE_SHARE = 3  # times as much as a shape with random weights gets
LEAST_S = 5.0  # below which nothing is begun
SMALL_COPY = 32 << 20  # bytes, in a rehearsal
LIST_S = 60.0  # for finding the devices


class Clock:
    """The time that is left of `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._begun, self._seconds = time.monotonic(), seconds

    @property
    def took(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    @property
    def left(self) -> float:
        """Seconds, never below 0. What a part begins before its time is over may take some longer, so not all is handed out."""
        return max(0.0, self._seconds - self.took)


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for. models: names of shapes. file: a GGUF file to measure too. speed, checks: which of the two parts run."""

    models: Sequence[str] = MODELS
    weight_type: str = "Q4_0"
    file: str | None = None
    quick: bool = False
    checks: bool = True
    speed: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """A device to check. is_gpu: false for a rehearsal on something else. weight: its share of the time beside other devices'."""

    name: str
    driver: str
    is_gpu: bool
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """What there is. places: its GPUs. trouble: why the cards that a driver is for are none of them. hint: what a GPU would need."""

    places: Sequence[Place]
    trouble: Sequence[str] = ()
    hint: str = ""


def gpus() -> Found:
    """All GPUs, CuPy's first. The first of a kind gets most of the time: the same card by OpenCL, or its twin, has less news.

    Raises DeviceError where they cannot be listed.
    """
    from backends.devices import GPU_BACKENDS

    found = _listed()
    chosen = [info for info in found["devices"] if info["backend"] in GPU_BACKENDS or info["name"].startswith("gpu/")]
    kinds = [(info["backend"], info["description"]) for info in chosen]
    weights = [
        3 if info["backend"] in GPU_BACKENDS and kinds.index(kind) == at else 1 for at, (info, kind) in enumerate(zip(chosen, kinds, strict=True))
    ]
    places = [Place(info["name"], info["driver"], True, weight) for info, weight in zip(chosen, weights, strict=True)]
    by_cupy = any(info["backend"] in GPU_BACKENDS for info in chosen)
    return Found(places, () if by_cupy else tuple(found["trouble"]), found["hint"])


def named(names: Sequence[str]) -> Found:
    """The devices of those names, for a rehearsal where they are no GPU. Raises BadValue for a name that no device has."""
    found = [] if set(names) == {EMULATED} else _listed()["devices"]
    return Found([_named(name, found) for name in names])


def _listed() -> dict[str, Any]:
    """In a process of its own: a driver may hang when it is asked what there is."""
    from backends.errors import DeviceError

    try:
        return child.ask({"task": "list"}, LIST_S)
    except child.ChildFailed as error:
        raise DeviceError(f"the devices cannot be listed: {error}") from error


def _named(name: str, found: Sequence[dict[str, Any]]) -> Place:
    from backends.devices import GPU_BACKENDS
    from backends.errors import BadValue

    if name == EMULATED:
        return Place(name, "tests/cuda_emulator", False)
    for info in found:
        if info["name"] == name and name != "numpy":
            return Place(name, info["driver"], info["backend"] in GPU_BACKENDS or name.startswith("gpu/"))
    names = ", ".join(info["name"] for info in found if info["name"] != "numpy")
    raise BadValue(f"--device: {name!r} is not allowed; allowed: {names}, {EMULATED}")


def run(places: Sequence[Place], job: Job, clock: Clock, say: Say) -> list[dict[str, Any]]:
    """Each device's report: "name", "driver", "is_gpu", "line", "memory_bytes", "copy", "checks", "speed", "left_out", "failure" (opening it)."""
    reports = []
    for number, place in enumerate(places):
        share = place.weight / sum(other.weight for other in places[number:])
        reports.append(_device(place, job, Clock(clock.left * share), say))
    return reports


def _device(place: Place, job: Job, clock: Clock, say: Say) -> dict[str, Any]:
    report: dict[str, Any] = {"name": place.name, "driver": place.driver, "is_gpu": place.is_gpu, "line": None, "memory_bytes": None, "copy": None}
    report |= {"failure": None, "checks": [], "speed": [], "left_out": []}
    left_out: list[str] = report["left_out"]
    if clock.left < LEAST_S:
        left_out.append("everything")
        return report
    say(f"{place.name}: what it is, how fast it copies")
    size = {} if place.is_gpu else {"copy_bytes": SMALL_COPY}
    try:
        report |= child.ask({"task": "device", "device": place.name, "copy_bytes": 1 << 30, **size}, clock.left)
    except child.ChildFailed as error:
        report["failure"] = f"the device cannot be used: {error}"
        return report
    if job.checks:
        _checks(report, job, Clock(clock.left * (CHECKS_SHARE if job.speed else 1.0)), say)
    if job.speed:
        _speed(report, job, clock, say)
    return report


def _checks(report: dict[str, Any], job: Job, clock: Clock, say: Say) -> None:
    sections = list(correctness.SECTIONS.items())
    for number, (section, tests) in enumerate(sections):
        # An early section leaves its unused time to the later, larger ones.
        seconds = clock.left / (len(sections) - number) if number + 1 < len(sections) else clock.left
        if clock.left < LEAST_S:
            report["left_out"].append(f"checks: {section}")
            continue
        say(f"{report['name']}: {section}")
        report["checks"].append(correctness.check(section, tests, report["name"], seconds, job.quick))
    # What a later section left of its time goes to those that ended before their tests did.
    for number, first in enumerate(report["checks"]):
        section, found = first["section"], first
        if found["unrun"] and not found["failed"] and clock.left >= LEAST_S:
            say(f"{report['name']}: {section}, the rest")
            more = correctness.check(section, correctness.SECTIONS[section], report["name"], clock.left, job.quick, found["ran"])
            found = correctness.joined(first, more)
        if found["unrun"]:
            report["left_out"].append(f"checks: {found['unrun']} tests of {section}")
        report["checks"][number] = {key: value for key, value in found.items() if key != "ran"}


def _speed(report: dict[str, Any], job: Job, clock: Clock, say: Say) -> None:
    models = [(name, False) for name in job.models] + ([(job.file, True)] if job.file else [])
    for number, (model, is_file) in enumerate(models):
        # Repacking a file's weights on the host takes its time.
        shares = [FILE_SHARE if other else 1 for _, other in models[number:]]
        seconds = clock.left * shares[0] / sum(shares)
        if seconds < LEAST_S:
            report["left_out"].append(f"speed: {model}")
            continue
        say(f"{report['name']}: speed of {model}")
        question = {"task": "speed", "device": report["name"], "model": model, "type": job.weight_type, "seconds": seconds}
        try:
            found = child.ask({**question, "quick": job.quick, "is_file": is_file}, seconds)
        except child.ChildFailed as error:
            if is_file and isinstance(error, child.ChildSlow):  # a large one, rather than a device that hangs
                report["left_out"].append(f"speed: {model}, {error}")
                continue
            found = {"model": model, "failure": str(error)}
        report["speed"].append(found)
        report["left_out"] += [f"speed of {model}: {name}" for name in found.get("left_out", [])]
