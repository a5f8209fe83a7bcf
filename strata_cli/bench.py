"""`strata bench`: the speed of settings, and of other programs, beside each other."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

from backends.errors import BadValue
from strata_cli import environment, folders, user_config
from strata_cli.benchmark.arms import DEFAULTS, Arm, parse_arms
from strata_cli.grammar import Grammar, integer, number, refuse
from strata_cli.main import INTERRUPTED
from strata_cli.messages import complain, warn
from strata_cli.options import shared_flags, take_flags
from strata_cli.output import write_json, write_stdout
from strata_cli.progress import Progress

MODES = {"both": ("greedy", "sampled"), "greedy": ("greedy",), "sampled": ("sampled",)}
WINDOWS = Grammar("rows from 1 to 8 with commas, or off", "N[,...]|off", lambda text: () if text == "off" else _windows(text))
ROUNDS, TIMEOUT, DEPTH = integer(1, 1000), number(1, 1e6), integer(0, 2**31 - 1)


class _Recorded(click.Command):
    """Keeps the arguments as typed, for the report."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["strata.arguments"] = list(args)
        return super().parse_args(ctx, args)


@click.command("bench", cls=_Recorded, short_help="Measure settings and programs beside each other.")
@click.option("--arm", "arms", multiple=True, metavar="ARM", help='Repeatable. What to measure: "NAME: VAR=x --flag y", or "NAME: !command".')
@click.option("--rounds", default="6", metavar="N", help="Rounds; each runs every arm twice, there and back.  [default: 6]")
@click.option("--prompts", multiple=True, metavar="SET|FILE", help="Repeatable. Prompt sets, with commas, or a file.  [default: the six kinds]")
@click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="Repeatable. A prompt.")
@click.option("--mode", default="both", metavar="|".join(MODES), help="How the prompts run.  [default: both]")
@click.option("--depth", default="0", metavar="N", help="Fill the context with N tokens of a document before each prompt.  [default: 0]")
@click.option("--windows", default="1,2,4,8", metavar=WINDOWS.metavar, help="Time windows of so many rows.  [default: 1,2,4,8]")
@click.option("--timeout", default="1800", metavar="SECONDS", help="Longest time for one run of an arm.  [default: 1800]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every figure of every run.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a document.")
@click.option("--plot", metavar="FILE", help="Draw a .png or .svg too; needs matplotlib.")
@shared_flags(DEFAULTS)
@click.pass_context
def command(context: click.Context, /, **parameters: Any) -> int:
    """Measure arms beside each other: each in fresh processes, in turn, there and back (A B B A), on the same prompts.

    The first arm is the baseline. The report has every run, paired ratios with their interval, and whether the texts are the same.
    The other flags hold for all arms; an arm's own go first.
    """
    flags, greedy = take_flags(parameters)
    for line in environment.warnings(os.environ):
        warn(line)
    if parameters["as_json"] and parameters["as_markdown"]:
        raise BadValue("--json and --markdown are both given; leave one out")
    mode = parameters["mode"]
    if mode not in MODES:
        raise BadValue(f"--mode: {mode!r} is not allowed; allowed: {', '.join(MODES)}")
    if greedy:
        if mode == "sampled" or flags["temperature"] is not None:
            raise BadValue("--greedy: it means --mode greedy, but --mode sampled or a temperature is given too; leave one out")
        mode = "greedy"
    from strata_cli.benchmark import plot
    from strata_cli.benchmark.header import command_line
    from strata_cli.benchmark.measure import Plan

    windows, rounds = _parsed("--windows", WINDOWS, parameters), _parsed("--rounds", ROUNDS, parameters)
    depth, timeout = _parsed("--depth", DEPTH, parameters), _parsed("--timeout", TIMEOUT, parameters)
    arms = parse_arms(parameters["arms"], flags, os.environ)
    for arm in arms:
        if "sampled" in MODES[mode] and arm.settings.generation["temperature"] == 0:
            raise BadValue(f"arm {arm.name!r}: sampled prompts need a temperature above 0; `strata bench --greedy` runs greedy prompts alone")
    if parameters["plot"] is not None:
        plot.check(parameters["plot"])
    from strata_cli.benchmark.prompts import collect, document

    data = (user_config.read(folders.config_file(os.environ)) | environment.read(os.environ)).get("data")
    plan = Plan(
        prompts=collect(parameters["prompts"], parameters["texts"], data),
        modes=MODES[mode],
        rounds=rounds,
        windows=windows,
        depth=depth,
        document=document(data) if depth else "",
        timeout=timeout,
    )
    return _run(arms, plan, command_line(["strata", "bench", *context.meta["strata.arguments"]]), parameters)


def _windows(text: str) -> tuple[int, ...]:
    sizes = [integer(1, 8).parse(word.strip()) for word in text.split(",")]
    return tuple(sorted(set(sizes)))


def _parsed(flag: str, grammar: Grammar, parameters: dict[str, Any]) -> Any:
    text = parameters[flag.removeprefix("--")]
    try:
        return grammar.parse(text)
    except ValueError as reason:
        raise BadValue(refuse(flag, text, grammar, reason)) from None


class _Signals:
    """Has the signals that end a program end the measurement as Ctrl-C does: an arm runs in a session of its own and gets none of them."""

    def __init__(self) -> None:
        self.code = INTERRUPTED
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for which in filter(None, (getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP"))):
            # What whoever started this wants ignored stays so (nohup); only the main thread may set any.
            if signal.getsignal(which) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
                self._before[which] = signal.signal(which, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.code == INTERRUPTED:  # a second one would cut short what the first one began
            self.code = 128 + number
            raise KeyboardInterrupt


def _run(arms: Sequence[Arm], plan: Any, arguments: str, parameters: dict[str, Any]) -> int:
    """Measures and reports. A run that was cut short, by Ctrl-C or whatever fails, reports the rounds that were complete."""
    from strata_cli.benchmark.header import header
    from strata_cli.benchmark.measure import Measurement, measure

    measurement = Measurement()
    failure: Exception | None = None
    interrupted = False
    head: dict[str, Any] = {}
    # On a terminal the bar says it all; lines would break it.
    quiet = sys.stderr is None or sys.stderr.isatty()
    with _Signals() as signals, Progress() as bar:
        try:
            # The bar reads [brackets] as colours.
            def progress(stage: str, fraction: float) -> None:
                bar(stage.replace("[", "("), fraction)

            head = header(arguments, [arm.settings.model for arm in arms], progress)
            measure(arms, plan, measurement, progress, (lambda _: None) if quiet else complain)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as error:
            failure = error
    for notice in measurement.notices:
        warn(notice)
    if measurement.runs:
        try:
            _report(arms, plan, measurement, head, parameters)
        except Exception as error:
            if failure is None and not interrupted:
                raise
            # Why the run ended matters more, and is said last; a reader that left wants no word.
            if not isinstance(error, BrokenPipeError):
                warn(f"the report failed: {error}")
    if failure is not None:
        raise failure
    if interrupted:
        complain(f"interrupted after {len(measurement.of(arms[0].name))} of {plan.rounds} rounds")
    return signals.code if interrupted else 0


def _report(arms: Sequence[Arm], plan: Any, measurement: Any, head: dict[str, Any], parameters: dict[str, Any]) -> None:
    from strata_cli.benchmark import plot, tables
    from strata_cli.benchmark.report import build

    report = build(arms, plan, measurement, head)
    if parameters["as_json"]:
        write_json(report)
    elif parameters["as_markdown"]:
        write_stdout(tables.markdown(report))
    else:
        tables.show(report)
    if parameters["plot"] is not None:
        plot.draw(report, parameters["plot"])
