"""What a report is of: machine, versions, model, command."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import platform
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backends.errors import StrataError


def header(command: str, models: Sequence[Path], progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Date, machine and the models' hashes; taken before anything runs, so that the load is the machine's own. Raises StrataError."""
    import strata_cli

    return {
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "versions": {"strata": strata_cli.__version__, "Python": platform.python_version()},
        "models": [_model(path, progress) for path in dict.fromkeys(models)],
    }


def command_line(words: Sequence[str]) -> str:
    """The words as a shell takes them, on one line: a line break or other character that cannot be seen is written in $'...'."""
    return " ".join(shlex.quote(word) if word.isprintable() else "$'" + "".join(map(_seen, word)) + "'" for word in words)


def _seen(letter: str) -> str:
    code = ord(letter)
    if letter in "\\'":
        return "\\" + letter
    if letter.isprintable():
        return letter
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\{code - 0xDC00:03o}"
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter) or (
        f"\\{code:03o}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def machine() -> dict[str, Any]:
    """The machine; null for what the system does not say."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    memory = None
    with contextlib.suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = None
    with contextlib.suppress(AttributeError, OSError):
        load = round(os.getloadavg()[0], 2)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": processor, "cores": cores, "memory": memory, "system": f"{platform.system()} {platform.release()}", "load": load}


def _model(path: Path, progress: Callable[[str, float], None]) -> dict[str, Any]:
    digest, done = hashlib.sha256(), 0
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
                done += len(block)
                progress(f"hashing {path.name}", done / max(size, 1))
    except OSError as error:
        raise StrataError(f"{path}: {error.strerror}") from None
    return {"path": str(path), "bytes": done, "sha256": digest.hexdigest()}
