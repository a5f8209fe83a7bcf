"""A GGUF file, mapped into memory: its metadata as Python values, its tensors as views of the map.

The header is read here and not by the `gguf` package, whose reader makes an object per array element (1.5 s for a vocabulary
of 49,000 tokens; this pass takes a few hundredths of a second). The file is untrusted: every count, length and offset is
checked against the file's size before it is used, and whatever is wrong ends in one ModelError.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NoReturn, TypeVar, overload

import numpy as np
import numpy.typing as npt

from backends.errors import BadValue, ModelError

T = TypeVar("T", int, float, bool, str, list[Any])
D = TypeVar("D")
U8Array = npt.NDArray[np.uint8]

# ggml type id -> (name, elements per block, bytes per block); ggml.h and ggml-common.h.
TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
_REMOVED_TYPES: Final = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
                         36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}  # fmt: skip

# GGUF value type id -> struct code; 7 is bool, 8 string, 9 array.
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_NUMPY: Final = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_STRUCTS: Final = {kind: Struct("<" + code) for kind, code in _SCALARS.items()}
_U32, _U64 = _STRUCTS[4], _STRUCTS[10]

# Far above any real model; a corrupt length inside a big file must not turn into gigabytes of Python objects.
MAX_STRING_BYTES: Final = 1 << 26
MAX_ARRAY_ITEMS: Final = 1 << 24
_MIN_KEY_BYTES: Final = 8 + 1 + 4 + 1  # length, name, value type, value
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8  # length, name, dimension count, one dimension, type, offset

_KIND_NAMES: Final[dict[type, str]] = {int: "an integer", float: "a finite number", bool: "true or false", str: "a text", list: "a list"}


class _Required:
    """The default of a key that has none."""


REQUIRED: Final = _Required()


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor as it lies in the file.

    type: ggml's name, e.g. "Q4_1". shape: elements per dimension, ggml's order (ne0, the contiguous one, first).
    data: the raw bytes, read-only, 1-d, a view of the mapped file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: U8Array

    @property
    def columns(self) -> int:
        """Elements per row (ne0)."""
        return self.shape[0]

    @property
    def rows(self) -> int:
        """Rows: the product of all dimensions but the first; 1 for a vector."""
        return math.prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return len(self.data) // self.rows


class GGUFFile:
    """A GGUF file whose header has been checked. The map lives as long as this object or any tensor's data.

    The file must not be cut shorter while it is mapped: the system then ends the process on the next read (SIGBUS).
    """

    __slots__ = ("_data_start", "_map", "metadata", "path", "tensors")

    path: str
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def __init__(self, path: str, mapped: mmap.mmap) -> None:
        """Read the header of an already mapped file; use `open`."""
        self.path = path
        self._map = mapped
        self.metadata, self.tensors, self._data_start = _Header(path, mapped).read()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map the file at `path` and check its header.

        Raises BadValue where there is no readable file, ModelError where it is not a whole GGUF file.
        """
        name = os.fspath(path)
        try:
            # stat before open: opening a pipe would wait for a writer.
            mode = os.stat(name).st_mode
            if stat.S_ISDIR(mode):
                raise BadValue(f"model {name}: is a folder, not a GGUF file")
            if not stat.S_ISREG(mode):
                raise BadValue(f"model {name}: is not a regular file")
            with open(name, "rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    raise ModelError(f"{name}: the file is empty (0 bytes)")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise BadValue(f"model {name}: no such file") from None
        except OSError as error:
            raise BadValue(f"model {name}: cannot be read: {error.strerror or error}") from None
        except ValueError as error:  # a path with a NUL character
            raise BadValue(f"model {name!r}: cannot be read: {error}") from None
        return cls(name, mapped)

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type[T], default: object = REQUIRED) -> object:
        """The metadata value at `key` as an int, float, bool, str or list; `default` where the key is absent.

        An integer is taken where a float is wanted; nothing else is converted. Raises ModelError on a wrong type, a float
        that is not finite, and an absent key without default.
        """
        value = self._raw(key, _KIND_NAMES[kind], default)
        if value is default and key not in self.metadata:
            return default
        return self._checked(key, value, kind, value)

    @overload
    def get_list(self, key: str, kind: type[T]) -> list[T]: ...
    @overload
    def get_list(self, key: str, kind: type[T], default: D) -> list[T] | D: ...
    def get_list(self, key: str, kind: type[T], default: object = REQUIRED) -> object:
        """As `get`, for a list whose items all are of `kind`."""
        value = self._raw(key, f"a list, each item {_KIND_NAMES[kind]}", default)
        if value is default and key not in self.metadata:
            return default
        if not isinstance(value, list):
            raise ModelError(f"{self.path}: {key} is {_show(value)}, wanted a list, each item {_KIND_NAMES[kind]}")
        if kind is not float and set(map(type, value)) <= {kind}:  # the usual case, at the speed a vocabulary needs
            return value
        return [self._checked(key, item, kind, value) for item in value]

    def fingerprint(self) -> str:
        """A hash for manifests and caches: header, file size and the first 64 bytes of every tensor (hex, 64 digits).

        Cheap (the weights are not read through), so it tells models apart but does not prove that a file is intact.
        """
        digest = hashlib.sha256(self._map[: self._data_start])
        digest.update(_U64.pack(len(self._map)))
        for tensor in self.tensors.values():
            digest.update(tensor.data[:64].tobytes())
        return digest.hexdigest()

    def _raw(self, key: str, wanted: str, default: object) -> object:
        if key in self.metadata:
            return self.metadata[key]
        if default is REQUIRED:
            raise ModelError(f"{self.path}: {key} is missing, wanted {wanted}")
        return default

    def _checked(self, key: str, value: object, kind: type, found: object) -> object:
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        if kind is not float and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise ModelError(f"{self.path}: {key} is {_show(found)}, wanted {_KIND_NAMES[kind]}")


class _Header:
    """One pass over the header. `at` is the byte that is read next; every read is checked against the file's end."""

    def __init__(self, path: str, mapped: mmap.mmap) -> None:
        self.path, self.map, self.size, self.at = path, mapped, len(mapped), 0

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor], int]:
        """Metadata, tensors and the byte at which tensor data begins."""
        self.magic_and_version()
        n_tensors = self.count("tensors", _MIN_TENSOR_BYTES)
        n_keys = self.count("metadata keys", _MIN_KEY_BYTES)
        metadata: dict[str, Any] = {}
        for index in range(n_keys):
            key = self.string(f"the name of metadata key {index}")
            if not key or key in metadata:
                self.fail(f"metadata key {index} {'is a second ' + _show(key) if key else 'has no name'}")
            metadata[key] = self.value(key)
        infos = [self.tensor_info(index) for index in range(n_tensors)]
        return metadata, *self.tensors(infos, self.alignment(metadata))

    def fail(self, what: str) -> NoReturn:
        raise ModelError(f"{self.path}: {what}")

    def take(self, n: int, what: str) -> int:
        """Step over `n` bytes; where they start."""
        start = self.at
        if n > self.size - start:
            self.fail(f"the header is cut off: {what} at byte {start} takes {n} bytes, the file has {self.size - start} more")
        self.at = start + n
        return start

    def number(self, form: Struct, what: str) -> Any:
        return form.unpack_from(self.map, self.take(form.size, what))[0]

    def count(self, what: str, min_bytes: int) -> int:
        count: int = self.number(_U64, f"the number of {what}")
        if count * min_bytes > self.size:
            self.fail(f"claims {count} {what}, more than a file of {self.size} bytes can hold")
        return count

    def string(self, what: str) -> str:
        length: int = self.number(_U64, f"the length of {what}")
        if length > MAX_STRING_BYTES:
            self.fail(f"{what} at byte {self.at} claims {length} bytes, allowed are {MAX_STRING_BYTES}")
        start = self.take(length, what)
        try:
            return self.map[start : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} at byte {start} is not UTF-8 (byte {error.start} of {length})")

    def magic_and_version(self) -> None:
        head = self.map[:4]
        if head != b"GGUF":
            self.fail(f"is not a GGUF file: it begins with {head!r}{_looks_like(self.map)}")
        self.at = 4
        version: int = self.number(_U32, "the version")
        if version in (2 << 24, 3 << 24):
            self.fail(f"is a big-endian GGUF file (version {version >> 24}); little-endian is supported")
        if version not in (2, 3):
            hint = " (convert the model again)" if version == 1 else ""
            self.fail(f"is GGUF version {version}; versions 2 and 3 are supported{hint}")

    def value(self, key: str) -> Any:
        name = f"the value of {_show(key)}"
        kind: int = self.number(_U32, f"the type of {_show(key)}")
        if kind == _STRING:
            return self.string(name)
        if kind == _ARRAY:
            return self.array(name)
        if kind not in _STRUCTS:
            self.fail(f"{name} has the unknown type {kind}")
        value = self.number(_STRUCTS[kind], name)
        if kind != _BOOL:
            return value
        if value > 1:
            self.fail(f"{name} is the byte {value}, wanted a bool (0 or 1)")
        return bool(value)

    def array(self, name: str) -> list[Any]:
        kind: int = self.number(_U32, f"the item type of {name}")
        length: int = self.number(_U64, f"the length of {name}")
        if kind == _ARRAY:
            self.fail(f"{name} is an array of arrays, which no supported model uses")
        if kind != _STRING and kind not in _SCALARS:
            self.fail(f"{name} is an array of the unknown type {kind}")
        if length > MAX_ARRAY_ITEMS:
            self.fail(f"{name} claims {length} items, allowed are {MAX_ARRAY_ITEMS}")
        if kind == _STRING:
            return self.strings(name, length)
        start = self.take(length * _STRUCTS[kind].size, name)
        if not length:
            return []
        array = np.frombuffer(self.map, dtype=_NUMPY[kind], count=length, offset=start)
        if kind == _BOOL and array.max() > 1:
            self.fail(f"{name} has the byte {array.max()}, wanted bools (0 or 1)")
        items: list[Any] = (array.astype(bool) if kind == _BOOL else array).tolist()
        return items

    def strings(self, name: str, length: int) -> list[str]:
        """`length` strings. A vocabulary has a hundred thousand, hence the plain loop with its checks inlined."""
        mapped, at, last = self.map, self.at, self.size - 8
        unpack, items = _U64.unpack_from, []
        try:
            for _ in range(length):
                if at > last:
                    break
                start = at + 8
                at = start + unpack(mapped, at)[0]
                if at > self.size:
                    break
                items.append(mapped[start:at].decode("utf-8"))
        except UnicodeDecodeError:
            self.fail(f"{name}: item {len(items)} at byte {start} is not UTF-8")
        if len(items) < length:
            self.fail(f"the header is cut off: {name} has {length} items, item {len(items)} reaches beyond the file's {self.size} bytes")
        self.at = at
        return items

    def alignment(self, metadata: dict[str, Any]) -> int:
        """Bytes to which tensor offsets are aligned."""
        value = metadata.get("general.alignment", 32)
        if type(value) is not int or not 8 <= value <= 1 << 20 or value & (value - 1):
            self.fail(f"general.alignment is {_show(value)}, wanted a power of two from 8 to {1 << 20}")
        return value

    def tensor_info(self, index: int) -> tuple[str, int, tuple[int, ...], int, int]:
        """Name, ggml type id, shape, offset in the data and size in bytes of one tensor."""
        name = self.string(f"the name of tensor {index}")
        if not name:
            self.fail(f"tensor {index} has no name")
        what = f"tensor {_show(name)}"
        n_dims: int = self.number(_U32, f"the number of dimensions of {what}")
        if not 1 <= n_dims <= 4:
            self.fail(f"{what} has {n_dims} dimensions, allowed are 1 to 4")
        shape = tuple(self.number(_U64, f"the shape of {what}") for _ in range(n_dims))
        if min(shape) < 1 or math.prod(shape) >= 1 << 63:
            self.fail(f"{what} has the impossible shape {list(shape)}")
        kind: int = self.number(_U32, f"the type of {what}")
        if kind in _REMOVED_TYPES:
            self.fail(f"{what} has the type {_REMOVED_TYPES[kind]} ({kind}), which ggml has given up (convert the model again)")
        if kind not in TENSOR_TYPES:
            self.fail(f"{what} has the unknown type {kind}")
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        if shape[0] % block:
            self.fail(f"{what} has rows of {shape[0]} elements, no multiple of the {block} of a {type_name} block")
        return name, kind, shape, self.number(_U64, f"the offset of {what}"), math.prod(shape) // block * block_bytes

    def tensors(self, infos: list[tuple[str, int, tuple[int, ...], int, int]], alignment: int) -> tuple[dict[str, Tensor], int]:
        """The tensors as views, after a check that each lies in the file and on no other; and where the data begins."""
        data_start = -(-self.at // alignment) * alignment
        last, last_name = 0, ""
        for name, _, _, offset, n_bytes in sorted(infos, key=lambda info: info[3]):
            if offset % alignment:
                self.fail(f"tensor {_show(name)} has the offset {offset}, no multiple of the alignment {alignment}")
            if offset < last:
                self.fail(f"tensor {_show(name)} at offset {offset} overlaps {_show(last_name)}, which ends at {last}")
            last, last_name = offset + n_bytes, name
        missing = data_start + last - self.size
        if infos and missing > 0:
            end = f"{_show(last_name)} ends at byte {data_start + last}, the file at {self.size}"
            self.fail(f"the tensor data is cut off: {end}: {missing} bytes are missing")
        whole = np.frombuffer(self.map, dtype=np.uint8)
        tensors: dict[str, Tensor] = {}
        for name, kind, shape, offset, n_bytes in infos:
            if name in tensors:
                self.fail(f"there are two tensors {_show(name)}")
            start = data_start + offset
            tensors[name] = Tensor(name, TENSOR_TYPES[kind][0], shape, whole[start : start + n_bytes])
        return tensors, min(data_start, self.size)


def _show(value: object) -> str:
    """A value for a message: on one line and not too long."""
    text = repr(value[:8]) + f" ... ({len(value)} items)" if isinstance(value, list) and len(value) > 8 else repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _looks_like(mapped: mmap.mmap) -> str:
    """What a file that is not GGUF seems to be, as the end of a message; empty where nothing fits."""
    head = mapped[:512]
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"version https://git-lfs"):
        return " (a git-lfs pointer: the model itself was not downloaded)"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return " (a web page: the download went wrong)"
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml"):
        return " (an old GGML file: convert the model again)"
    if head[:4] == b"FUGG":
        return " (a GGUF file in the wrong byte order)"
    if head[:4] == b"PK\x03\x04":
        return " (a zip archive, maybe a PyTorch checkpoint)"
    if head[:2] == b"\x1f\x8b":
        return " (a gzip archive: unpack it first)"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < len(mapped):
        return " (a safetensors file: convert the model to GGUF)"
    if text.startswith((b"{", b"[")):
        return " (JSON text)"
    if not any(head):
        return " (zeros: an unfinished download?)"
    return ""
