"""Every kernel in every variant, compiled as CUDA for every architecture without a GPU: it compiles, and fits a multiprocessor.

`python -m tests.backends.test_nvrtc` prints what each kernel needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from backends.cuda import COMPILES_FOR, GROUP, NVRTC_OPTIONS
from backends.device import KernelSpec
from backends.kernels.source import kernel_source
from backends.model.attention import CHUNK, chunk_spec, query_tile
from backends.model.weights import WEIGHT_TYPES
from backends.opencl import COMMON_HEADERS
from backends.plan import SAMPLER, SLOP, SLOP_ON
from backends.tables import MAX_WINDOW
from tests.nvrtc import REPORT, Usage, architectures, compile_cubin, usage

QUICK = (60, 120)  # the oldest, which has no byte dot product, and the newest
THOROUGH = (61, 70, 75, 80, 86, 89, 90, 100)
HEADS = (64, 128, 256)
SHARED_LIMIT = 48 << 10  # what a block may have without asking the driver for more
REGISTER_LIMIT = 255
LOCAL_LIMIT = 128  # bytes a thread, arrays indexed by a variable; spills count too
SPILL_LIMIT = 32  # the assembler takes a few bytes of spills for more threads at a time, far below 255 registers
CHUNKS_SPILL_LIMIT = 72  # attention's, by chunks; whole, it kept within the other. Whether these spills cost anything, only a GPU can say


def variants() -> Iterator[KernelSpec]:
    """All kernels that a plan may ask a GPU for."""
    for weights in WEIGHT_TYPES.values():
        headers = ("dot.h", weights.header, "norm.h", "activation.h")
        yield KernelSpec("embed", "embed", headers)
        yield KernelSpec("activate", "activate", headers)
        yield KernelSpec("pair", "pair", headers)
        for tile in (1, MAX_WINDOW):
            for op in ("matvec", "qkv"):
                yield KernelSpec(op, op, (*headers, "tile.h"), (("TILE", tile),))
    for head in HEADS:
        for queries in (1, query_tile(head, 3), query_tile(head, 8)):
            yield chunk_spec("attention", head, queries, CHUNK)
    yield KernelSpec("pick", "pick", SAMPLER)
    yield KernelSpec("filter", "filter", SAMPLER)
    for p_cum in (0, 1):
        yield KernelSpec("draft", "draft_pick", ("window.h",), (("PCUM", p_cum),))
    for op in ("pick", "filter"):
        yield KernelSpec(op, op, (*SAMPLER, *SLOP), SLOP_ON)
    yield KernelSpec("slop", "slop_parts", (*SAMPLER, *SLOP))
    yield KernelSpec("draft", "draft_parts", ("window.h", *SLOP), (("PCUM", 1), *SLOP_ON))


def compiled(spec: KernelSpec, architecture: int, *extra: str) -> dict[str, Usage]:
    """The needs of a variant's kernels."""
    source = kernel_source([*COMMON_HEADERS, *spec.headers, f"{spec.op}.cl"], "cuda")
    defines = [f"-D{name}={value}" for name, value in (("GROUP", GROUP), ("DOT", 4 if architecture >= 61 else 3), *spec.constants)]
    _, log = compile_cubin(source, [*NVRTC_OPTIONS, *defines, f"--gpu-architecture=sm_{architecture}", REPORT, *extra])
    unwanted = [line for line in log.splitlines() if "warning" in line and "Architectures prior to" not in line]
    assert not unwanted, unwanted
    return usage(log)


def name_of(spec: KernelSpec) -> str:
    weights = [header[len("weight_") : -2] for header in spec.headers if header.startswith("weight_")]
    return " ".join([spec.op, *weights, *(f"{name}={value}" for name, value in spec.constants)])


def test_the_compiler_knows_what_it_is_said_to_know() -> None:
    """Each of its architectures and no other, by its own answer and by what it compiles."""
    assert COMPILES_FOR[12, 9] == architectures()
    for architecture in (101, 103, 110, 120, 121):
        if architecture in COMPILES_FOR[12, 9]:
            assert compile_cubin("", [f"--gpu-architecture=sm_{architecture}"])[0]
        else:
            with pytest.raises(ValueError):
                compile_cubin("", [f"--gpu-architecture=sm_{architecture}"])


@pytest.mark.parametrize("architecture", [*QUICK, *(pytest.param(sm, marks=pytest.mark.slow) for sm in THOROUGH)])
def test_every_kernel_compiles_and_fits(architecture: int) -> None:
    for spec in variants():
        found = compiled(spec, architecture)
        assert spec.kernel in found
        for kernel, needs in found.items():
            assert 0 < needs.registers <= REGISTER_LIMIT, (name_of(spec), kernel, needs)
            assert needs.shared <= SHARED_LIMIT, (name_of(spec), kernel, needs)
            assert needs.local <= LOCAL_LIMIT, (name_of(spec), kernel, needs)
            limit = CHUNKS_SPILL_LIMIT if spec.op == "attention_chunks" else SPILL_LIMIT
            assert needs.spilled <= limit, (name_of(spec), kernel, needs)


def test_half_conversion_by_integers_compiles() -> None:
    """The base path, for a compiler that reaches no instruction for it."""
    assert compiled(KernelSpec("embed", "embed", ("dot.h", WEIGHT_TYPES["Q4_1"].header, "norm.h", "activation.h")), QUICK[0], "-DHALF_BY_INTEGERS")


def test_what_the_report_says() -> None:
    """The shared array's size is known, and a loop over an array in memory of its own needs at least that."""
    text = kernel_source(["lanes.h"], "cuda") + (
        "KERNEL void known(int *a, int n) { LOCAL_ARRAY int shared[300]; int own[64] = {};\n"
        "for (int i = 0; i < 64; i++) own[a[i] & 63] = a[own[i & n] & 63];\n"
        "shared[local_id()] = own[n]; BARRIER(); a[local_id()] = own[shared[n]]; }\n"
    )
    known = usage(compile_cubin(text, [*NVRTC_OPTIONS, "-DGROUP=128", "--gpu-architecture=sm_86", REPORT])[1])["known"]
    assert known.shared == 1200
    assert known.local >= 256
    assert 4 < known.registers < 100


def main() -> None:
    """Prints a table of all variants for the architectures named, or for the two of `make test`."""
    print(f"{'kernel':42} {'sm':>4} {'registers':>9} {'shared':>7} {'local':>6} {'spilled':>7}")
    for architecture in [int(a) for a in sys.argv[1:]] or QUICK:
        for spec in variants():
            for kernel, needs in compiled(spec, architecture).items():
                name = name_of(spec) if kernel == spec.kernel else kernel
                print(f"{name:42} {architecture:4} {needs.registers:9} {needs.shared:7} {needs.local:6} {needs.spilled:7}")


if __name__ == "__main__":
    main()
