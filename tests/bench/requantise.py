"""Copies of a GGUF file with its matrices in another type; names, shapes and all other metadata stay."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

FILE_TYPES = {"Q4_0": LlamaFileType.MOSTLY_Q4_0, "Q8_0": LlamaFileType.MOSTLY_Q8_0}


def requantised(source: Path, type_name: str, folder: Path) -> Path:
    """A copy of `source` in `folder` whose quantised tensors have the type of FILE_TYPES; F32 ones stay. Made once per source."""
    stat = source.stat()
    target = folder / f"{source.stem}-{stat.st_size:x}-{stat.st_mtime_ns:x}-to-{type_name}.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        _write(GGUFReader(source), part, type_name)
        os.replace(part, target)
    return target


def _write(reader: GGUFReader, path: Path, type_name: str) -> None:
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue  # the writer's own
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None)
    writer.add_file_type(FILE_TYPES[type_name])
    kind = GGMLQuantizationType[type_name]
    for tensor in reader.tensors:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            writer.add_tensor(tensor.name, quantize(dequantize(tensor.data, tensor.tensor_type), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """python -m tests.bench.requantise FILE TYPE FOLDER: prints the path of the copy, which for Q4_1 is the bundled model itself."""
    source, kind, folder = sys.argv[1:]
    print(source if kind == "Q4_1" else requantised(Path(source), kind, Path(folder)))


if __name__ == "__main__":
    main()
