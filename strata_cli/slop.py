"""`strata slop`: what the slop policy sees in a text."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from backends.decode.slop import DEFAULT, Knobs
from backends.errors import BadValue, shown
from strata_cli import environment, slop_lists
from strata_cli.messages import harmless, warn
from strata_cli.options import find_settings, variable_of
from strata_cli.output import write_json, write_stdout, write_table
from strata_cli.prompt import check_utf8, read_file, read_stdin

if TYPE_CHECKING:
    from strata_cli.slop_report import Policy, Seen

Command = TypeVar("Command", bound=Callable[..., Any])
_PATH = re.compile(r"\S*/\S*|\S+\.\w{1,5}")  # what looks like a file's name
STRONG = 3.0  # logits: a penalty that a model seldom gets over


def _shared(command: Command) -> Command:
    """The flags of both commands."""
    for flag in ("--slop-openers", "--slop-lexicon"):
        variable = variable_of(flag.removeprefix("--"))
        text = f"{variable.doc}  [{variable.name}; default: {variable.default}]"
        command = click.option(flag, metavar=variable.grammar.metavar, help=text)(command)
    text = "The model whose tokens they are; its weights stay unread.  [STRATA_MODEL]"
    command = click.option("--model", "-m", metavar="FILE|PACKAGE", help=text)(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


@click.group("slop", short_help="Show or count what the slop policy (--slop) sees in a text.")
def command() -> None:
    """The slop policy lowers the logits of language models' stock mannerisms. These commands say what it sees in a text that is there."""


@command.command("show", short_help="Show a text's tokens as the policy sees them.")
@click.argument("text", metavar="TEXT|FILE|-")
@click.option("--slop", metavar="KNOBS", help="The knobs, as of `strata generate`; default: those set, or the default ones.  [STRATA_SLOP]")
@_shared
def show(text: str, slop: str | None, model: str | None, slop_lexicon: str | None, slop_openers: str | None, as_json: bool) -> int:
    """Show each token of TEXT, a file's text or, with -, standard input's: its classes, the state before it, and what its logit was lowered by.

    The text counts as an answer from its beginning.
    """
    policy, knobs = _open(model, slop, slop_lexicon, slop_openers)
    seen = list(policy.walk(_content(text), knobs))
    if as_json:
        write_json({"slop": str(knobs), "tokens": [_as_object(one) for one in seen]})
    elif sys.stdout is not None and sys.stdout.isatty():
        _print_coloured(seen)
    else:
        write_table(("token", "text", "classes", "state", "lowered by"), [_row(one) for one in seen])
    return 0


def _content(text: str) -> str:
    """The text that an argument means. Raises BadValue."""
    if text == "-":
        content, where = read_stdin("the text"), "standard input"
    elif os.path.exists(text):
        content, where = read_file(text, f"FILE: {text}", "the text"), f"FILE: {text}"
    else:
        content, where = check_utf8("TEXT", text), "TEXT"
        if _PATH.fullmatch(text):
            warn(f"TEXT: there is no file {shown(text)}; this shows its name as a text")
    if not content.strip():
        raise BadValue(f"{where}: the text is empty")
    return content


@command.command("count", short_help="Count the mannerisms of a text.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_shared
def count(files: tuple[str, ...], model: str | None, slop_lexicon: str | None, slop_openers: str | None, as_json: bool) -> int:
    """Count mannerisms in UTF-8 text files (-: standard input), each an answer, or in .jsonl files with a "text" a line, as `strata batch`
    writes: in all, and per 1,000 tokens. Code, thinking and tool calls do not count."""
    from strata_cli.corpus import read_texts

    policy, _ = _open(model, None, slop_lexicon, slop_openers)
    texts = [text for file in files for text in read_texts(file, "FILE") if text]
    report = policy.count(texts)
    if not report["tokens"]:
        raise BadValue(f"FILE: {', '.join(files)}: there is no text")
    if as_json:
        write_json({"files": list(files), **report})
        return 0
    rows = [(name.replace("_", " "), str(number), f"{report['per_1000'][name]:.2f}") for name, number in report["counts"].items()]
    write_table(("mannerism", "count", "per 1,000 tokens"), rows)
    most = ", ".join(f"{phrase} {number}" for phrase, number in list(report["found"].items())[:10])
    summary = f"{report['tokens']} tokens, {report['prose_tokens']} of them prose, in {report['texts']} texts"
    write_stdout(summary + (f"; {most}" if most else "") + "\n")
    return 0


def _open(model: str | None, slop: str | None, lexicon: str | None, openers: str | None) -> tuple[Policy, Knobs]:
    for line in environment.warnings(os.environ):
        warn(line)
    path, values, found = find_settings({"model": model, "slop": slop, "slop-lexicon": lexicon, "slop-openers": openers}, os.environ)
    lists = slop_lists.choose(values)

    from strata_cli.slop_report import Policy

    knobs = values["slop"] if "slop" in found else DEFAULT
    return Policy.of(path, lists["slop_lexicon"], lists["slop_openers"]), knobs


def _row(seen: Seen) -> tuple[str, ...]:
    from strata_cli.slop_report import mask_names, state_text

    # As JSON has it, so that blanks and newlines can be seen.
    text = repr(seen.data.decode("utf-8", errors="replace"))
    return str(seen.token), text, " ".join(mask_names(seen.mask)) or "-", state_text(seen.state), f"{seen.amount:g}" if seen.amount else ""


def _as_object(seen: Seen) -> dict[str, Any]:
    from strata_cli.slop_report import mask_names, state_text

    return {
        "token": seen.token,
        "text": seen.data.decode("utf-8", errors="replace"),
        "mask": seen.mask,
        "classes": mask_names(seen.mask),
        "state": state_text(seen.state),
        "amount": seen.amount,
        "after": state_text(seen.after),
    }


def _print_coloured(seen: Sequence[Seen]) -> None:
    """A table whose rows have the colour of their penalty: none, some, strong; dim where the policy does not look."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from backends.decode.slop_tables import PROSE

    table = Table("token", "text", "classes", "state", "lowered by", box=None, pad_edge=False)
    for one in seen:
        outside = one.state.region != PROSE
        style = "bold red" if one.amount >= STRONG else "yellow" if one.amount else "dim" if outside else ""
        table.add_row(*(Text(harmless(cell)) for cell in _row(one)), style=style)
    Console().print(table)
