"""`strata batch`: a file of requests, answered one after the other; a run that was cut short goes on where it was."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from backends.config import Request
from backends.errors import BadValue, DeviceError, StrataError
from strata_cli import batch_manifest, drafting
from strata_cli.batch_input import Line, read_lines, source_name
from strata_cli.batch_manifest import Manifest
from strata_cli.batch_output import Finished, ResultFile, Results, open_results
from strata_cli.batch_progress import BatchProgress
from strata_cli.main import INTERRUPTED
from strata_cli.messages import complain, warn
from strata_cli.options import Settings, shared_options
from strata_cli.output import Unwritable, result_object
from strata_cli.progress import Progress

if TYPE_CHECKING:
    from backends.engine import Engine, Session

GO_ON = "the same command goes on from there"


@click.command("batch", short_help="Answer a file of requests, a line each.")
@click.argument("source", metavar="IN.jsonl")
@click.option("-o", "--output", "out", metavar="OUT.jsonl", required=True, help="Where the results go, a line each; -: standard output.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no statistics; warnings and errors stay.")
@shared_options
def command(settings: Settings, source: str, out: str, quiet: bool) -> int:
    """Answer the requests of IN.jsonl (-: standard input), one JSON object a line, and write a result a line to OUT.jsonl, in their order.

    A request has an "id" and a "prompt" or "messages", and may set the sampling flags below for itself (as "max_new", "temperature", ...).
    When a run was cut short, the same command goes on; OUT.jsonl.manifest.json holds what it needs for that.
    """
    lines = read_lines(source)
    with contextlib.closing(open_results(out, source)) as results:
        batch = Batch(settings, lines, results, source_name(source), quiet)
        return batch.run()


class Batch:
    """One run: what is left of the requests, to the end or as far as it gets."""

    def __init__(self, settings: Settings, lines: Sequence[Line], results: Results, source: str, quiet: bool) -> None:
        self._settings, self._lines, self._results, self._source, self._quiet = settings, lines, results, source, quiet
        self._finished = Finished([], 0)
        self._file = results if isinstance(results, ResultFile) else None
        self._progress: BatchProgress | None = None
        self._running: Line | None = None
        self._interrupted = False
        self._stored: Manifest | None = None

    def run(self) -> int:
        """The exit code. Raises BadValue, before anything is written, where OUT is not this batch's; StrataError where the run failed."""
        try:
            seed = self._settings.seed
            manifest = None
            if self._file is None:
                seed = secrets.randbits(32) if seed is None else seed
            else:
                manifest = self._manifest(self._file)
                seed = manifest.seed
            total, before = len(self._lines), len(self._finished.ids)
            if before == total and total:
                if not self._quiet:
                    errors = f", {self._finished.errors} with errors" if self._finished.errors else ""
                    complain(f"nothing to do: {self._results.name} holds all {total} results{errors}")
                if self._file is not None:
                    self._file.resume()  # the last result may lack its newline
            else:
                self._run(seed, manifest)
        except KeyboardInterrupt:
            self._interrupt()
        except Unwritable as error:
            raise StrataError(f"{error}; {self._state()}") from None
        except DeviceError as error:
            if self._running is None:
                raise
            raise StrataError(f"request {self._running.id!r}: {error}; {self._state()}") from None
        if self._interrupted:
            return INTERRUPTED
        return 1 if (self._progress.errors if self._progress is not None else self._finished.errors) else 0

    def _manifest(self, file: ResultFile) -> Manifest:
        """What this run's results depend on, with the seed of the runs before. Raises BadValue if those were different."""
        self._stored = stored = batch_manifest.load(file.manifest)
        if stored is None and not file.is_empty():
            raise BadValue(
                f"-o: {file.name} exists and has no manifest beside it ({file.manifest}), so this batch cannot go on with it; "
                "remove it, or choose another file"
            )
        import strata_cli

        finished, settings = file.finished(), self._settings
        seed = settings.seed
        if seed is None:
            seed = secrets.randbits(32) if stored is None else stored.seed
        now = Manifest(
            strata=strata_cli.__version__,
            model=batch_manifest.model_identity(settings.model),
            device=None,
            options=batch_manifest.options(settings),
            seed=seed,
            requests=[line.digest for line in self._lines],
        )
        if stored is None or not finished.ids:  # nothing there yet that would have to fit
            return now
        self._refuse_changes(stored.differences(now))
        self._refuse_other_requests(file, stored, finished)
        self._finished = finished
        return dataclasses.replace(now, device=stored.device)

    def _refuse_changes(self, found: Sequence[str]) -> None:
        if found:
            raise BadValue(f"-o: {self._results.name} was begun with other settings: {'; '.join(found)}; use the old ones, or choose another file")

    def _refuse_other_requests(self, file: ResultFile, stored: Manifest, finished: Finished) -> None:
        """Those with a result must be the ones it was made from; the others may change, and there may be more of them."""
        advice = "put changed and new requests behind the finished ones, with new ids, or choose another -o"
        if len(finished.ids) > len(self._lines):
            raise BadValue(f"-o: {file.name} has {len(finished.ids)} results, {self._source} only {len(self._lines)} requests; {advice}")
        for index, (line, name) in enumerate(zip(self._lines, finished.ids, strict=False)):
            if line.id != name or type(line.id) is not type(name):
                raise BadValue(
                    f"{self._source}: line {line.number} has the id {line.id!r}, the result in its place in {file.name} the id {name!r}; {advice}"
                )
            if index >= len(stored.requests) or line.digest != stored.requests[index]:
                what = f"the request {line.id!r}" if line.id is not None else "a request without id"
                raise BadValue(f"{self._source}: line {line.number}, {what}, has changed since {file.name} got its result; {advice}")

    def _run(self, seed: int, manifest: Manifest | None) -> None:
        rest = self._lines[len(self._finished.ids) :]
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(contextlib.closing(self._open())) if self._needs_engine(rest) else None
            shown = len(engine.notices) if engine is not None else 0
            if manifest is not None and self._file is not None:
                device = engine.device_line if engine is not None else manifest.device
                now = dataclasses.replace(manifest, device=device)
                self._refuse_changes(manifest.differences(now))
                if now != self._stored:
                    batch_manifest.save(now, self._file.manifest)
                self._file.resume()
            bar = self._file is not None or not _is_terminal()
            self._progress = BatchProgress(len(self._lines), len(self._finished.ids), self._finished.errors, self._quiet, bar)
            try:
                with self._progress:
                    self._answer(rest, engine.session() if engine is not None else None, seed)
                self._results.finish()
            except KeyboardInterrupt:
                self._interrupt()  # said before the engine is waited for
                return
            finally:
                for notice in engine.notices[shown:] if engine is not None else ():
                    warn(notice)
            if not self._quiet:
                complain(self._progress.statistics(seed))

    def _needs_engine(self, lines: Sequence[Line]) -> bool:
        """Whether any of them is a request; a model need not be loaded to refuse the others."""
        for line in lines:
            with contextlib.suppress(BadValue):
                line.request(self._settings, 0)
                return True
        return False

    def _open(self) -> Engine:
        from backends.engine import Engine

        if self._quiet:
            engine = Engine.open(self._settings.model, self._settings.config)
        else:
            with Progress() as progress:
                engine = Engine.open(self._settings.model, self._settings.config, progress)
        for notice in engine.notices:
            warn(notice)
        drafting.warn_of_flags(self._settings, engine)
        return engine

    def _answer(self, lines: Sequence[Line], session: Session | None, seed: int) -> None:
        assert self._progress is not None
        for line in lines:
            self._running = line
            try:
                request = line.request(self._settings, seed)
                assert session is not None
                record: dict[str, Any] = {"id": line.id, **self._generate(session, request)}
            except DeviceError:
                raise  # the machine's fault, not the request's: the next run has another try
            except StrataError as error:
                where = {} if line.id is not None else {"line": line.number}
                record = {"id": line.id, **where, "error": str(error)}
            self._results.write(record)
            self._running = None
            self._progress.finish_request("error" in record)

    def _generate(self, session: Session, request: Request) -> dict[str, Any]:
        assert self._progress is not None
        for chunk in session.generate(request):
            self._progress.add_tokens(len(chunk.token_ids))
        assert session.result is not None
        return result_object(session.result)

    def _interrupt(self) -> None:
        if not self._interrupted:
            self._interrupted = True
            complain(f"interrupted: {self._state()}")

    def _state(self) -> str:
        """How far it is, for the message that ends a run before its time."""
        done = self._progress.done if self._progress is not None else len(self._finished.ids)
        if self._file is not None:
            with contextlib.suppress(OSError):  # Ctrl-C may come between a result and its count
                done = self._file.count()
        state = f"{done} of {len(self._lines)} requests are finished"
        return f"{state} in {self._results.name}; {GO_ON}" if self._file is not None else state


def _is_terminal() -> bool:
    import sys

    return sys.stdout is not None and sys.stdout.isatty()
