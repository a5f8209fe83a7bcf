"""Which architectures the engine runs: one file each, one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from backends.errors import ModelError
from backends.model.gguf import GGUFFile
from backends.model.llama import Llama

ARCHITECTURES: Final[dict[str, Callable[[GGUFFile], Llama]]] = {"llama": Llama}


def open_architecture(file: GGUFFile) -> Llama:
    """The model of the file's architecture, its tensors checked. Raises ModelError."""
    name = file.get("general.architecture", str)
    if name not in ARCHITECTURES:
        raise ModelError(f"{file.path}: architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name](file)
