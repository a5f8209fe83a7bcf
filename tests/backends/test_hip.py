"""Every kernel in every variant, compiled as HIP for AMD's architectures without a GPU: it compiles, fits, and rounds as its text says.

`python -m tests.backends.test_hip` prints what each kernel needs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from backends.cuda import BASE_DOT, BYTE_DOT, GROUP, HIPRTC_OPTIONS, byte_dot
from backends.device import KernelSpec
from backends.kernels.source import KERNELS, PRELUDES, kernel_source
from backends.opencl import COMMON_HEADERS
from tests.backends.test_nvrtc import name_of, variants
from tests.conftest import skip_or_fail
from tests.hip import INSTALL_HINT, Usage, assembly, compiler, instructions, preprocessed, usage

# (architecture, work-items of a wave): GCN has 64; RDNA has 32 by default and 64 on request.
TARGETS = [("gfx803", 64), ("gfx900", 64), ("gfx906", 64), ("gfx908", 64), ("gfx1010", 32), ("gfx1030", 32), ("gfx1030", 64), ("gfx1100", 32)]
DOTS = {  # by the manuals of the instruction sets
    "portable": ["gfx803", "gfx900", "gfx1010", "gfx1013"],
    "sdot4": ["gfx906", "gfx908", "gfx90a", "gfx940", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1034", "gfx1036"],
    "sudot4": ["gfx1100", "gfx1101", "gfx1103"],
}
DOT_INSTRUCTIONS = {"portable": set(), "sdot4": {"v_dot4_i32_i8", "v_dot4c_i32_i8"}, "sudot4": {"v_dot4_i32_iu8"}}
REGISTER_LIMIT = 256  # what an instruction can name
SHARED_LIMIT = 32 << 10  # half of a compute unit's, so that two groups fit
SPILL_LIMIT = 8  # registers: the compiler's schedule at times goes a few past what there are
PRIVATE_LIMIT = 128  # bytes a work-item, arrays indexed by a variable
FUSED = r"v_(?:pk_|dual_)?(?:fma|mad|mac)\w*_f32\w*"  # fmac, fmaak and the like too
# What hardware computes to a few last places (v_rcp_f32 and v_mad_f32 have their place in divisions of integers), or lets neighbours of
# a wave exchange.
INEXACT = r"v_(?:rsq|exp|log|sqrt|sin|cos|div_scale|div_fmas|div_fixup)_f32\w*"
ACROSS = r"ds_(?:b?permute|swizzle)\w*|v_permlane\w*|v_\w+_dpp"


@pytest.fixture(scope="module")
def clang() -> None:
    if compiler() is None:
        skip_or_fail(INSTALL_HINT)


def options(architecture: str, wave: int | None = None) -> list[str]:
    """The backend's own, for the architecture."""
    dot = BASE_DOT if byte_dot(architecture) == "portable" else BYTE_DOT
    # AMD's devices before RDNA have no other size, and no option for one.
    waves = [] if wave is None or not architecture.startswith("gfx1") else [f"-m{'' if wave == 64 else 'no-'}wavefrontsize64"]
    return [*HIPRTC_OPTIONS, f"-DGROUP={GROUP}", f"-DDOT={dot}", *waves]


def compiled(spec: KernelSpec, architecture: str, wave: int) -> str:
    """A variant's assembly."""
    source = kernel_source([*COMMON_HEADERS, *spec.headers, f"{spec.op}.cl"], "cuda")
    return assembly(source, architecture, [*options(architecture, wave), *(f"-D{name}={value}" for name, value in spec.constants)])


def all_compiled(architecture: str, wave: int) -> Iterator[tuple[KernelSpec, str]]:
    """(variant, assembly) of all variants."""
    specs = list(variants())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from zip(specs, pool.map(lambda spec: compiled(spec, architecture, wave), specs), strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "wave"), TARGETS)
def test_every_kernel_compiles_and_fits(clang: None, architecture: str, wave: int) -> None:
    dots = set()
    for spec, text in all_compiled(architecture, wave):
        found = usage(text)
        assert spec.kernel in found
        for kernel, needs in found.items():
            assert 0 < needs.registers <= REGISTER_LIMIT, (name_of(spec), kernel, needs)
            assert needs.spilled <= SPILL_LIMIT, (name_of(spec), kernel, needs)
            assert needs.private <= PRIVATE_LIMIT, (name_of(spec), kernel, needs)
            assert needs.shared <= SHARED_LIMIT, (name_of(spec), kernel, needs)
            assert needs.wave == wave
        # Subnormals are kept, and rounding is to nearest even: 3 and 0 in the registers that a wave starts with.
        modes = set(re.findall(r"\.amdhsa_float_(?:denorm|round)_mode_\w+ \d", text))
        assert {mode.removeprefix(".amdhsa_float_") for mode in modes} == {
            *("denorm_mode_32 3", "denorm_mode_16_64 3", "round_mode_32 0", "round_mode_16_64 0")
        }
        assert not instructions(text, f"{INEXACT}|{ACROSS}"), name_of(spec)
        dots |= {re.sub(r"_e(?:32|64)$", "", name) for name in instructions(text, r"v_dot\w+")}
    allowed = DOT_INSTRUCTIONS[byte_dot(architecture)]
    assert dots <= allowed
    assert bool(dots) == bool(allowed)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted({architecture for architecture, _ in TARGETS}))
def test_only_a_written_fma_is_fused(clang: None, architecture: str) -> None:
    text = kernel_source(["lanes.h"], "cuda") + (
        "KERNEL void apart(float *a, float b) { int i = local_id(); a[i] = a[i] * b + a[i + 1]; a[i + 9] = a[i + 9] - b * a[i + 8]; }\n"
        "KERNEL void fused(float *a, float b) { int i = local_id(); a[i] = fma(a[i], b, a[i + 1]); }\n"
    )
    apart, _, fused = assembly(text, architecture, options(architecture)).partition("; -- End function")
    assert not instructions(apart, FUSED)
    assert [len(instructions(apart, rf"v_(?:dual_)?{op}_f32\w*")) for op in ("mul", "add", "sub")] == [2, 1, 1]
    assert len(instructions(fused, FUSED)) == 1
    assert not instructions(fused, r"v_mul_f32\w*")
    # And the check would notice: as the compiler would have it, without our options.
    if architecture != "gfx803":  # which has no fast fma
        assert instructions(assembly(text, architecture, [f"-DGROUP={GROUP}"]).partition("; -- End function")[0], FUSED)


@pytest.mark.slow
@pytest.mark.parametrize(("dot", "architecture"), [(dot, name) for dot, names in DOTS.items() for name in names])
def test_the_byte_dot_product_is_one_instruction(clang: None, dot: str, architecture: str) -> None:
    """Host and compiler agree on which; a signed one needs a second where unsigned bytes may be above 127."""
    assert byte_dot(architecture) == byte_dot(architecture + ":xnack-") == dot
    asked = "".join(f"#if __has_builtin(__builtin_amdgcn_{name})\n{name}\n#endif\n" for name in ("sdot4", "sudot4"))
    assert preprocessed(asked, architecture).split() == ([] if dot == "portable" else [dot])
    text = kernel_source(["lanes.h", "dot.h"], "cuda") + (
        "KERNEL void dots(int *s, const uint *w, const uint *x) { int i = local_id(); s[i] = DOT4(s[i], w[i] & MASK, x[i]); }\n"
    )
    for mask, wanted in (("0x0f0f0f0fu", 1), ("0x7f7f7f7fu", 1), ("0xffffffffu", 2 if dot == "sdot4" else 1)):
        found = instructions(assembly(text, architecture, [*options(architecture), f"-DMASK={mask}"]), r"v_dot\w+")
        assert len(found) == (0 if dot == "portable" else wanted)


@pytest.mark.slow
def test_what_the_metadata_says(clang: None) -> None:
    """The shared array's size is known, and an array indexed by a variable lies in memory."""
    text = kernel_source(["lanes.h"], "cuda") + (
        "KERNEL void known(int *a, int n) { LOCAL_ARRAY int shared[300]; int own[64] = {};\n"
        "for (int i = 0; i < 64; i++) own[a[i] & 63] = a[own[i & n] & 63];\n"
        "shared[local_id()] = own[n]; BARRIER(); a[local_id()] = own[shared[n]]; }\n"
    )
    known = usage(assembly(text, "gfx906", options("gfx906")))["known"]
    assert known.shared == 1200
    assert known.private >= 256
    assert 4 < known.registers < 100


def test_no_kernel_depends_on_the_size_of_a_wave() -> None:
    """Neighbours meet in shared memory only: no word that exchanges values within a wave (a warp, a subgroup) is in the text."""
    words = re.compile(r"sub_group|subgroup|shfl|ballot|syncwarp|activemask|warp_?size|permlane|readlane|mov_dpp|wavefront", re.IGNORECASE)
    for path in sorted(KERNELS.iterdir()):
        if path.suffix in (".cl", ".h"):
            assert not words.search(path.read_text(encoding="utf-8")), path.name
    assert set(PRELUDES.values()) <= {path.name for path in KERNELS.iterdir()}


def test_an_unknown_architecture_gets_the_portable_form() -> None:
    assert [byte_dot(name) for name in ("gfx90c", "gfx1035", "gfx1151", "gfx1201", "gfx2000", "")] == [
        *("portable", "sdot4", "sudot4", "sudot4", "portable", "portable")
    ]


def main() -> None:
    """Prints a table of all variants for the architectures named, or for those of the tests."""
    print(f"{'kernel':42} {'':>7} {'wave':>4} {'registers':>9} {'spilled':>7} {'private':>7} {'shared':>6}")
    for architecture, wave in [target for target in TARGETS if not sys.argv[1:] or target[0] in sys.argv[1:]]:
        for spec, text in all_compiled(architecture, wave):
            for kernel, needs in usage(text).items():
                print(line(name_of(spec) if kernel == spec.kernel else kernel, architecture, needs))


def line(name: str, architecture: str, needs: Usage) -> str:
    """A kernel's line of the table."""
    return f"{name:42} {architecture:7} {needs.wave:4} {needs.registers:9} {needs.spilled:7} {needs.private:7} {needs.shared:6}"


if __name__ == "__main__":
    main()
