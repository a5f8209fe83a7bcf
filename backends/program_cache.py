"""Compiled kernel programs on disk, keyed by source, options, device and driver.

pyopencl's own cache waits up to minutes for a lock that a killed process left behind; here a file appears whole or not at all
(written aside, then renamed) and carries its own checksum, because a driver handed a damaged binary may end the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.errors import DeviceError

if TYPE_CHECKING:
    import pyopencl as cl


class ProgramCache:
    """Bytes by key in a folder. folder: None keeps nothing. A folder that cannot be written gives one notice, then is left alone."""

    def __init__(self, folder: str | None, notices: list[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._notices = notices if notices is not None else []

    def notice(self, line: str) -> None:
        """A warning for the user, one line."""
        self._notices.append(line)

    def load(self, key: str) -> bytes | None:
        """The bytes stored under the key; None where there are none or they are damaged."""
        if self._folder is None:
            return None
        try:
            data = (self._folder / _name(key)).read_bytes()
        except OSError:
            return None
        body = data[32:]
        return body if hashlib.sha256(body).digest() == data[:32] else None

    def store(self, key: str, body: bytes) -> None:
        """Stores the bytes under the key."""
        if self._folder is None:
            return
        part = ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
            os.replace(part, self._folder / _name(key))
        except OSError as error:
            if part:
                with contextlib.suppress(OSError):
                    os.unlink(part)
            self.notice(
                f"the cache folder {str(self._folder)!r} cannot be written ({error.strerror}): kernels are compiled anew each time; "
                "STRATA_CACHE names another"
            )
            self._folder = None

    def build(self, context: cl.Context, device: cl.Device, line: str, source: str, options: Sequence[str]) -> cl.Program:
        """The program, from the cache or compiled. Raises DeviceError with the compiler's message."""
        import pyopencl as cl  # noqa: PLC0415

        key = "\0".join((line, device.version, *options, source))
        binary = self.load(key)
        if binary is not None:
            try:
                known: cl.Program = cl.Program(context, [device], [binary]).build()
                return known
            except cl.Error:
                pass  # another build of the same driver version; compile anew
        try:
            program: cl.Program = cl.Program(context, source).build(list(options))
        except cl.Error as error:
            raise DeviceError(f"a kernel does not compile on {line}: {error}") from error
        binaries: Any = program.get_info(cl.program_info.BINARIES)
        self.store(key, binaries[0])
        return program


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]
