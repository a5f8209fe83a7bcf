"""CUDA text to a library of this machine: what NVRTC is to a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

WORDS = Path(__file__).parent / "words.h"
COMPILERS = ("g++", "clang++", "c++")
OPTIONS = ("-std=c++20", "-O1", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-Wall", "-Werror")
UNWANTED = ("-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-attributes")
# What can be checked without a run-time library in front of Python: array bounds and pointers within a thread, shifts, divisions.
SANITIZERS = ("-fsanitize=bounds,object-size,alignment,null,shift-exponent,integer-divide-by-zero", "-fno-sanitize-recover=all")
# With one: bounds of buffers and of shared arrays too. Python must then run with address_sanitizer() in LD_PRELOAD.
ADDRESS_SANITIZER = (*SANITIZERS, "-fsanitize=address", "-DEMULATED_ASAN", "-g1", "-fno-omit-frame-pointer")


def system_compiler() -> str | None:
    """The C++ compiler's path; None where there is none."""
    return next((path for path in map(shutil.which, COMPILERS) if path), None)


def address_sanitizer() -> str | None:
    """The path of AddressSanitizer's run-time library; None where the compiler brings none (or one of another name, as clang does)."""
    compiler = system_compiler()
    if compiler is None:
        return None
    path = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return path if Path(path).is_absolute() else None


def compile_library(source: str, defines: Sequence[str], checks: Sequence[str] = ()) -> bytes:
    """A shared library's bytes, with launch_<kernel> and signature_<kernel> for every kernel. Raises ValueError with the messages.

    checks: SANITIZERS, ADDRESS_SANITIZER or none.
    """
    compiler = system_compiler()
    if compiler is None:
        raise ValueError("no C++ compiler")
    kernels = re.findall(r"^KERNEL void (\w+)\(", source, re.MULTILINE)
    text = "\n".join([f'#include "{WORDS}"', source, *(f"EMULATED_KERNEL({name})" for name in kernels)])
    with tempfile.TemporaryDirectory() as folder:
        path, library = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        path.write_text(text + "\n", encoding="utf-8")
        command = [compiler, *OPTIONS, *UNWANTED, *checks, *defines, str(path), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
        return library.read_bytes()
