"""Puts kernel text together: a dialect's prelude, the function templates for every lane count, then the named files.

After the templates, the kernel text sees the lane types ``VF VI VU``, their casts (``AS_VF AS_VI AS_VU TO_VF TO_VI U_TO_VF``) and
the functions (``m_exp(x)``, ``philox(...)``) for ``LANES`` lanes, a ``-D`` option or the largest lane count asked for. The instance
for N lanes stays callable as ``m_exp_N``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from backends.errors import BadValue

KERNELS = Path(__file__).parent
PRELUDES = {"opencl": "prelude_opencl.h", "cuda": "prelude_cuda.h"}
TEMPLATES = ("math.h", "philox.h")
LANE_COUNTS = (1, 16)
DIALECT_LANES = {"opencl": LANE_COUNTS, "cuda": (1,)}
TYPES = ("F", "I", "U")
CASTS = ("AS_F", "AS_I", "AS_U", "TO_F", "TO_I", "U_TO_F")
FUNCTIONS = (
    *("m_exp", "m_log", "m_log1p", "m_sigmoid", "m_silu", "m_softplus", "m_rsqrt", "m_div"),
    *("philox", "philox_rounds", "gumbel", "gumbel_most"),
)


def kernel_source(files: Sequence[str], dialect: str = "opencl", lanes: Sequence[int] | None = None) -> str:
    """The whole text for the compiler; ``files`` are names in the kernels' folder, taken in order.

    dialect: "opencl", or "cuda" for CUDA C++ and HIP, which has the GPU shape only. lanes: None for all that the dialect has.
    """
    if dialect not in PRELUDES:
        raise BadValue(f"no kernel dialect {dialect!r}; there are: {', '.join(PRELUDES)}")
    known = DIALECT_LANES[dialect]
    lanes = known if lanes is None else lanes
    if not lanes or not set(lanes) <= set(known):
        raise BadValue(f"no kernels for lanes {tuple(lanes)}; lane counts are: {', '.join(map(str, known))}")
    parts = [_text(PRELUDES[dialect])]
    for count in lanes:
        parts += _instance(count)
    parts += _op_names(max(lanes))
    parts += [_text(name) for name in files]
    return "\n".join(parts) + "\n"


def _text(name: str) -> str:
    """A file's text, marked so that compiler messages name the file and its line."""
    try:
        text = (KERNELS / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(sorted(path.name for path in KERNELS.iterdir() if path.suffix in (".cl", ".h")))
        raise BadValue(f"no kernel file {name!r}; there are: {known}") from None
    return f'#line 1 "{name}"\n{text}'


def _instance(lanes: int) -> Iterator[str]:
    """The function templates for one lane count."""
    for name in (*TYPES, *CASTS):
        yield f"#define {name} {name}_{lanes}"
    yield f"#define FN(name) name##_{lanes}"
    yield from map(_text, TEMPLATES)
    for name in (*TYPES, *CASTS, "FN"):
        yield f"#undef {name}"


def _op_names(lanes: int) -> Iterator[str]:
    """What the op text calls the types and functions for LANES lanes."""
    yield '#line 1 "lane names"'
    yield f"#ifndef LANES\n#define LANES {lanes}\n#endif"
    yield "#define LANE_NAME_(name, lanes) name##_##lanes"
    yield "#define LANE_NAME(name, lanes) LANE_NAME_(name, lanes)"
    for name in (*TYPES, *CASTS):
        head, _, kind = name.rpartition("_")
        yield f"#define {head + '_' if head else ''}V{kind} LANE_NAME({name}, LANES)"
    for name in FUNCTIONS:
        yield f"#define {name} LANE_NAME({name}, LANES)"
