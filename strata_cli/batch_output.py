"""Where a batch's results go: a file that is added to until it is whole, or a stream that nothing can be read back from."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from backends.errors import BadValue
from strata_cli.batch_input import STDIN, source_name
from strata_cli.batch_manifest import SUFFIX, TEMPORARY
from strata_cli.output import Unwritable, write_stdout

if sys.platform != "win32":
    import fcntl

STDOUT = "-"
_BEGINNING = b'{"id": '  # of every result
# Characters that JSON lets stand in a text and that many a reader takes for the end of a line.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class Results(Protocol):
    """Takes results one by one. name: what messages call it."""

    name: str

    def write(self, record: dict[str, Any]) -> None:
        """Write one result, whole. Raises Unwritable; BrokenPipeError if the reader of a pipe left."""

    def finish(self) -> None:
        """After the last one. Raises Unwritable where that turns out to be lost."""

    def close(self) -> None:
        """Let go of it."""


def open_results(out: str, source: str) -> Results:
    """The results at `out` of the requests at `source`: a stream for `-` and whatever else is no regular file. Raises BadValue."""
    if out == STDOUT:
        _refuse_same(source, sys.stdout, "-o -")
        return _Stdout()
    try:
        # By the name as given: what /dev/stdout or >(...) leads to has no path of its own where it is a pipe.
        try:
            kind = os.stat(out).st_mode
        except FileNotFoundError:
            kind = stat.S_IFREG
        path = os.path.realpath(out)  # a link's manifest lies beside the file itself, so that every name of it has the same one
    except (OSError, ValueError) as error:  # a NUL character is a ValueError
        raise BadValue(f"-o: {out!r}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(kind):
        raise BadValue(f"-o: {out}: it is a folder; allowed: a file, or - for standard output")
    if not stat.S_ISREG(kind):
        return _Stream(out)
    for name in (path, path + SUFFIX, path + TEMPORARY):
        _refuse_same(source, name, f"-o {out}")
    return ResultFile(out, path)


def _refuse_same(source: str, out: Any, flag: str) -> None:
    """Results must not land on the requests, whatever the two are called. A terminal or pipe may well be both."""
    try:
        there = os.fstat(out.fileno()) if out is sys.stdout else os.stat(out)
        here = os.fstat(sys.stdin.fileno()) if source == STDIN else os.stat(source)
    except (OSError, ValueError, AttributeError):  # one of them is no file
        return
    if stat.S_ISREG(here.st_mode) and os.path.samestat(here, there):
        raise BadValue(f"{flag}: it would overwrite the requests, {source_name(source)}; choose another file")


def as_line(record: dict[str, Any]) -> str:
    """A result as one line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS) + "\n"


class _Stdout:
    name = "standard output"

    def write(self, record: dict[str, Any]) -> None:
        write_stdout(as_line(record))

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Stream:
    """A device or a named pipe."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._fd = os.open(name, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise BadValue(f"-o: {name}: {error.strerror}") from None

    def write(self, record: dict[str, Any]) -> None:
        try:
            _write_all(self._fd, as_line(record))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unwritable(f"cannot write to {self.name}: {error.strerror}") from None

    def finish(self) -> None:
        pass

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Finished:
    """The results a file holds: their ids in order, and how many of them are errors."""

    ids: list[str | int | None]
    errors: int


class ResultFile:
    """A file of results, locked for as long as it is open. path: without links; manifest: the path of the file beside it.

    A line counts as a result once it can be read whole; what a killed run left of one is cut off by `resume`.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path, self.manifest = name, path, path + SUFFIX
        self._end, self._joint = 0, b""
        while True:
            try:
                self._fd, self._new = self._open()
            except OSError as error:
                raise BadValue(f"-o: {name}: {error.strerror}") from None
            try:
                self._lock()
                # Another batch that came to nothing may have removed it between the two; the lock would then be on a file without a name.
                if self._is_there():
                    return
            except BaseException:
                os.close(self._fd)
                raise
            os.close(self._fd)

    def _open(self) -> tuple[int, bool]:
        """The file, and whether it was not there before."""
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        with contextlib.suppress(FileExistsError):
            return os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
        return os.open(self.path, flags | os.O_CREAT, 0o666), False

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def is_empty(self) -> bool:
        """Whether there is nothing that writing to it could harm."""
        return os.fstat(self._fd).st_size == 0

    def finished(self) -> Finished:
        """What is there already. Raises BadValue for a line that is no result; the last one may be torn."""
        ids: list[str | int | None] = []
        errors = 0
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            for number, content in enumerate(file, 1):
                whole = content.endswith(b"\n")
                try:
                    record = json.loads(content.decode())
                except (ValueError, RecursionError):
                    if not whole and _is_torn(content):
                        break
                    record = None
                if not isinstance(record, dict) or "id" not in record or ("text" in record) == ("error" in record):
                    raise BadValue(f"{self.name}: line {number} is no result of a batch; the file stays as it is, choose another -o")
                ids.append(record["id"])
                errors += "error" in record
                self._end += len(content)
                self._joint = b"" if whole else b"\n"  # all but the newline was written: nothing of it is missing
        return Finished(ids, errors)

    def resume(self) -> None:
        """Cut off what is behind the finished results, and write from there on. Raises Unwritable."""
        try:
            if os.fstat(self._fd).st_size != self._end:
                os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            if self._joint:
                self._end += _write_all(self._fd, "\n")
                self._joint = b""
        except OSError as error:
            raise Unwritable(f"cannot write to {self.name}: {error.strerror}") from None
        self._new = False

    def count(self) -> int:
        """How many results it holds, read from the file itself, so right at any moment; nothing can be written afterwards."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) + len(self._joint)

    def write(self, record: dict[str, Any]) -> None:
        line = as_line(record)
        try:
            self._end += _write_all(self._fd, line)
        except OSError as error:
            with contextlib.suppress(OSError):  # a part of a line is of no use to readers; the next run would cut it off too
                os.ftruncate(self._fd, self._end)
            raise Unwritable(f"cannot write to {self.name}: {error.strerror}") from None

    def finish(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise Unwritable(f"cannot write to {self.name}: {error.strerror}") from None

    def close(self) -> None:
        if self._new:  # nothing came of it
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        os.close(self._fd)

    def _lock(self) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadValue(f"-o: {self.name}: another batch is writing to it; wait for its end, or choose another file") from None
            except OSError:
                pass  # some network file systems have no locks


def _is_torn(content: bytes) -> bool:
    """Whether a last line without its newline can be what a killed run left: the beginning of a result, or what a file system puts in
    place of what it lost. Anything else is somebody's, and stays.
    """
    return content.startswith(_BEGINNING) or _BEGINNING.startswith(content.rstrip(b"\0"))


def _write_all(fd: int, text: str) -> int:
    """One write for the whole text, and more only where the system takes less at once. The number of bytes."""
    content = text.encode(errors="backslashreplace")  # half of a surrogate pair becomes JSON's escape for it
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    return len(content)
