"""AMD's code without a GPU and without ROCm: HIP text to assembly by clang, and what each kernel needs of a compute unit.

The text is compiled as hiprtc does, which is clang too, with hip_words.h in place of hiprtc's own header. The needs are the metadata that
the assembly ends with, which a driver reads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMPILER = "clang-16"
INSTALL_HINT = f"{COMPILER} is not installed: make setup-hip"
WORDS = Path(__file__).parent / "hip_words.h"
# -O3 is hiprtc's default. Neither AMD's headers nor its device library: hip_words.h has what the kernels use of them.
DEVICE_ONLY = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib")
UNUSED = ("-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable")
WARNINGS = ("-Wall", *UNUSED, "-Wno-pass-failed", "-Wno-bitwise-instead-of-logical")  # masks meet in & and | (math.h)
OPTIONS = (*DEVICE_ONLY, "-O3", *WARNINGS, "-include", str(WORDS), "-S", "-o", "-", "-")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel needs: vector registers (spilled: those kept in memory) and bytes of memory of its own a work-item, LDS bytes a group.

    wave: work-items that run as one.
    """

    registers: int
    spilled: int
    private: int
    shared: int
    wave: int


def compiler() -> str | None:
    """The compiler's path; None where it is not installed."""
    return shutil.which(COMPILER)


def assembly(source: str, architecture: str, options: Sequence[str]) -> str:
    """Assembly for the architecture, with its metadata. Raises ValueError with the messages: errors, and warnings too."""
    done = subprocess.run(
        [compiler() or COMPILER, f"--offload-arch={architecture}", *options, *OPTIONS], input=source, capture_output=True, text=True
    )
    if done.returncode or done.stderr:
        raise ValueError(done.stderr)
    return done.stdout


def preprocessed(source: str, architecture: str) -> str:
    """The text as the preprocessor leaves it for the architecture."""
    command = [compiler() or COMPILER, f"--offload-arch={architecture}", *DEVICE_ONLY, "-E", "-P", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def usage(text: str) -> dict[str, Usage]:
    """What each kernel needs, from the metadata of its assembly."""
    _, _, metadata = text.partition("amdhsa.kernels:")
    found = {}
    for part in re.split(r"^  - ", metadata, flags=re.MULTILINE)[1:]:
        named = re.search(r"^    \.name: +(\w+)$", part, re.MULTILINE)
        if named is None:
            continue  # the list of versions, which ends the metadata
        keys = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size", "group_segment_fixed_size", "wavefront_size")
        numbers = [re.search(rf"^    \.{key}: +(\d+)$", part, re.MULTILINE) for key in keys]
        if not all(numbers):
            raise ValueError(f"not a kernel's metadata: {part}")
        found[named[1]] = Usage(*(int(match[1]) for match in numbers if match))
    return found


def instructions(text: str, pattern: str) -> list[str]:
    """The names of the instructions that match the pattern, in the order of the text; RDNA 3 issues two at once, with :: between."""
    return re.findall(rf"(?:^\t|:: )({pattern})\b", text, re.MULTILINE)
