"""The file beside a batch's results that says what they were made with, so that a later run goes on with the same or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backends.decode.slop import OFF
from backends.errors import BadValue
from strata_cli.environment import BY_KEY
from strata_cli.options import FLAGS, GENERATION, Settings
from strata_cli.output import Unwritable, json_biases
from strata_cli.slop_lists import digest

SUFFIX = ".manifest.json"
TEMPORARY = SUFFIX + ".tmp"
FORMAT = 1
_NONE = object()
_MIB = 1 << 20
_WHOLE = 256 * _MIB  # files up to this size are hashed whole
_HEAD, _SAMPLES, _SAMPLE = 64 * _MIB, 1024, 1 << 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the results depend on. device: the device's line; None until a request has needed one. requests: a digest for each line."""

    strata: str
    model: Mapping[str, Any]
    device: str | None
    options: Mapping[str, Any]
    seed: int
    requests: Sequence[str]

    def differences(self, now: Manifest) -> list[str]:
        """What has changed, as `name: old -> new`. The requests, and a device that is not known, are not compared."""
        found = []
        if self.strata != now.strata:
            found.append(f"strata: {self.strata} -> {now.strata}")
        if (self.model["sha256"], self.model["bytes"]) != (now.model["sha256"], now.model["bytes"]):
            old, new = (f"{model['file']} ({model['bytes']} bytes, sha256 {model['sha256'][:8]}...)" for model in (self.model, now.model))
            found.append(f"--model: {old} -> {new}")
        if self.device is not None and now.device is not None and self.device != now.device:
            found.append(f"device: {self.device} -> {now.device}")
        for name in [*now.options, *(name for name in self.options if name not in now.options)]:
            before, after = (_shown(options[name]) if name in options else "(none)" for options in (self.options, now.options))
            if self.options.get(name, _NONE) != now.options.get(name, _NONE):
                key = name.replace("_", "-")  # another version's may be neither flag nor variable here
                found.append(f"{f'--{key}' if key in FLAGS else BY_KEY[key].name if key in BY_KEY else name}: {before} -> {after}")
        if self.seed != now.seed:
            found.append(f"--seed: {self.seed} -> {now.seed}")
        return found


def options(settings: Settings) -> dict[str, Any]:
    """The settings that the text depends on, besides model, device and seed, as JSON values."""
    config = settings.config
    found = {"kv": config.kv, "ctx": config.ctx, "kernel_shape": config.kernel_shape}
    found |= {name: settings.generation[name] for name in GENERATION}
    # The lists even where the policy is off: a request may turn it on.
    found |= {"slop": str(config.slop or OFF), "slop_lexicon": digest(config.slop_lexicon), "slop_openers": digest(config.slop_openers)}
    return found | {"logit_bias": json_biases(settings.generation["logit_bias"]), "stop": list(settings.generation["stop"])}


def model_identity(path: Path) -> dict[str, Any]:
    """A model file's name, size and SHA-256. Of a file above 256 MiB the first 64 MiB and 1024 pieces of 64 KiB, evenly spread over the
    whole with the last at its end, are hashed: minutes of reading would be too much before a run that may have nothing to do.

    Raises BadValue where it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = size if size <= _WHOLE else _HEAD
            for start in range(0, head, _MIB):
                digest.update(file.read(min(_MIB, head - start)))
            if head < size:
                for index in range(_SAMPLES):
                    file.seek(head + (size - _SAMPLE - head) * index // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE))
    except OSError as error:
        raise BadValue(f"model {path}: cannot be read: {error.strerror}") from None
    return {"file": path.name, "bytes": size, "sha256": digest.hexdigest()}


def load(path: str) -> Manifest | None:
    """The manifest at `path`; None where there is none. Raises BadValue for a file that is something else."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadValue(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        found = None
    fields = Manifest.__slots__
    ok = isinstance(found, dict) and found.get("strata_batch") == FORMAT and set(found) == {"strata_batch", *fields}
    ok = ok and isinstance(found["model"], dict) and {"file", "bytes", "sha256"} <= set(found["model"]) and isinstance(found["options"], dict)
    ok = ok and isinstance(found["model"]["sha256"], str) and isinstance(found["seed"], int) and isinstance(found["requests"], list)
    if not ok:
        raise BadValue(f"{path}: it is no manifest of this version's `strata batch`; it stays as it is, choose another -o")
    return Manifest(**{name: found[name] for name in fields})


def save(manifest: Manifest, path: str) -> None:
    """Put it at `path` so that at any moment the old or the new one is there, whole, even if the machine stops. Raises Unwritable."""
    content = json.dumps({"strata_batch": FORMAT, **asdict(manifest)}, indent=1, allow_nan=False) + "\n"
    temporary = path.removesuffix(SUFFIX) + TEMPORARY
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if sys.platform != "win32":
            folder = os.open(os.path.dirname(path), os.O_RDONLY)
            try:
                os.fsync(folder)  # the new name, too
            except OSError:
                pass  # some file systems cannot do that to a folder
            finally:
                os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise Unwritable(f"cannot write {path}: {error.strerror}") from None


def _shown(value: Any) -> str:
    if value is None:
        return "auto"  # only --ctx has none
    text = repr(value).removesuffix(".0") if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
