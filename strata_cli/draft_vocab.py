"""`strata draft-vocab`: the token ids that a drafter's head is restricted to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backends.errors import BadValue
from strata_cli import environment
from strata_cli.drafting import find_vocabulary
from strata_cli.grammar import Grammar, choice, integer, number, refuse
from strata_cli.messages import warn
from strata_cli.options import find_data, find_model
from strata_cli.output import write_json, write_stdout
from strata_cli.progress import Progress
from strata_cli.scripts import CHOICES

if TYPE_CHECKING:
    from strata_cli.vocabulary import Ids, Vocabulary

SIZE, SCRIPT = integer(1, 2**31 - 1), choice(CHOICES)

_model = click.option("--model", "-m", metavar="FILE|PACKAGE", help="The model whose tokens they are; its weights stay unread.  [STRATA_MODEL]")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("draft-vocab", short_help="Build or show a draft vocabulary: the tokens that drafts are picked from.")
def command() -> None:
    """Draft vocabularies: files of token ids that drafts are picked from, which makes drafting cheaper and never changes the text."""


@command.command("build", short_help="Build one from a corpus.")
@click.argument("corpus", nargs=-1, metavar="[CORPUS]...")
@click.option("-o", "--output", "out", metavar="FILE", required=True, help="Where it goes.")
@click.option("--size", metavar="N", help="Ids in all: the most frequent ones of the corpus, behind those that are always in.")
@click.option("--coverage", metavar="P", help="As few ids as hold this part of the corpus' tokens, such as 0.99.")
@click.option("--script", "scripts", multiple=True, metavar="NAME", help=f"Repeatable. Adds all tokens of a script: {', '.join(CHOICES)}.")
@click.option("--base", metavar="FILE|NAME", help="Adds all ids of another draft vocabulary.")
@_model
@_json
def build(
    corpus: tuple[str, ...],
    out: str,
    size: str | None,
    coverage: str | None,
    scripts: tuple[str, ...],
    base: str | None,
    model: str | None,
    as_json: bool,
) -> int:
    """Build a draft vocabulary from the tokens of CORPUS: UTF-8 text files, or .jsonl files with a "text" a line, as `strata batch` writes.

    END ids and control tokens are always in. Without --size and --coverage every token of the corpus is.
    """
    _warn_of_variables()
    if size is not None and coverage is not None:
        raise BadValue("--size and --coverage are both given; leave one out")
    wanted, share = _parsed("--size", SIZE, size), _parsed("--coverage", COVERAGE, coverage)
    kinds = [_parsed("--script", SCRIPT, script) for script in scripts]
    if not corpus and (size is not None or coverage is not None or (not scripts and base is None)):
        raise BadValue("CORPUS: no file is given; its tokens are what to choose from")
    _check_output(out, corpus)
    from strata_cli import vocabulary as vocabularies
    from strata_cli.corpus import count

    whole = vocabularies.Vocabulary.of(find_model(model, os.environ))
    with Progress() as progress:
        needed = whole.needed(kinds, _read(base, "--base", whole))
        counts = count(whole, corpus, "CORPUS", progress)
    ids = vocabularies.choose(counts, needed, wanted, share)
    vocabularies.write(ids, out)
    if wanted is not None and len(ids) < wanted:
        warn(f"--size {wanted}: the corpus has no more tokens, so it is {len(ids)}")
    _show(out, whole, ids, counts if corpus else None, "the corpus", as_json)
    return 0


@command.command("show", short_help="Show what is in one.")
@click.argument("file", metavar="FILE|NAME")
@click.option("--text", metavar="TEXTFILE", help="Which part of this file's tokens it has; the file as CORPUS of `strata draft-vocab build`.")
@_model
@_json
def show(file: str, text: str | None, model: str | None, as_json: bool) -> int:
    """Show a draft vocabulary: a file, or the name of a bundled one. How many ids, of which scripts, and whether END ids are among them."""
    _warn_of_variables()
    from strata_cli.corpus import count
    from strata_cli.vocabulary import Vocabulary

    whole = Vocabulary.of(find_model(model, os.environ))
    ids = _read(file, "FILE", whole)
    with Progress() as progress:
        counts = None if text is None else count(whole, [text], "--text", progress)
    _show(file, whole, ids, counts, text or "", as_json)
    return 0


def _warn_of_variables() -> None:
    for line in environment.warnings(os.environ):
        warn(line)


def _parsed(flag: str, grammar: Grammar, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return grammar.parse(text)
    except ValueError as reason:
        raise BadValue(refuse(flag, text, grammar, reason)) from None


def _above_zero(text: str) -> float:
    value: float = number(0, 1).parse(text)
    if value == 0:
        raise ValueError
    return value


COVERAGE = Grammar("a number above 0, to 1", "P", _above_zero)


def _check_output(out: str, reads: Sequence[str]) -> None:
    """Before the work: a folder that is not there, a file that is read."""
    if out == "-" or "\0" in out or not os.path.isdir(Path(out).parent) or (os.path.exists(out) and not os.path.isfile(out)):
        raise BadValue(f"-o: {out!r} is not allowed; allowed: a file in a folder that exists")
    if os.path.exists(out) and any(os.path.exists(path) and os.path.samefile(out, path) for path in reads):
        raise BadValue(f"-o: {out} is one of the corpus files")


def _read(name: str | None, where: str, whole: Vocabulary) -> Ids:
    """The ids of a draft vocabulary of the model, ascending. Raises BadValue, ModelError."""
    import numpy as np

    from backends.model.mtp import read_draft_vocabulary

    if name is None:
        return np.zeros(0, np.int64)
    return read_draft_vocabulary(find_vocabulary(name, find_data(os.environ), where), whole.tokenizer.n_vocab).astype(np.int64)


def _show(name: str, whole: Vocabulary, ids: Ids, counts: Ids | None, text: str, as_json: bool) -> None:
    report = whole.report(ids, counts)
    if as_json:
        write_json({"file": name, **report})
        return
    ends = [f"{token} {whole.tokenizer.tokens[token]}" for token in report["end_ids"]]
    missing = [f"{token} {whole.tokenizer.tokens[token]}" for token in report["end_ids_missing"]]
    lines = [
        f"{name}: {report['ids']} of {report['n_vocab']} ids",
        "by script: " + ", ".join(f"{kind} {number}" for kind, number in sorted(report["scripts"].items(), key=lambda item: -item[1])),
        "END ids: " + (", ".join(ends) or "none") + (f"; not in it: {', '.join(missing)}" if missing else ""),
    ]
    if counts is not None:
        held = report["coverage"]
        lines.append(f"coverage of {text}: {100 * held['share']:.2f}% ({held['covered']} of {held['tokens']} tokens)")
    write_stdout("".join(line + "\n" for line in lines))
