"""Which GPU driver there is, found without CuPy, and which CuPy wheel goes with it."""

from __future__ import annotations

import ctypes
import shlex
import sys
from functools import cache
from pathlib import Path

PIP = f"{shlex.quote(sys.executable)} -m pip install"  # into the environment that this runs in, whatever `pip` means
# [ctk] brings the compiler and the libraries of the CUDA toolkit, so that none need be installed.
CUDA_12, CUDA_13, ROCM = f"{PIP} 'cupy-cuda12x[ctk]'", f"{PIP} 'cupy-cuda13x[ctk]'", f"{PIP} cupy-rocm-7-0"
CUDA_13_DRIVER = 13000
MAJOR, MINOR = 75, 76  # CUdevice_attribute: the compute capability's parts


@cache
def nvidia_cards() -> tuple[int, tuple[int, ...]] | None:
    """The newest CUDA version the driver takes (12040 for 12.4) and the cards' compute capabilities (86 for 8.6); None without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count, version = ctypes.c_int(), ctypes.c_int()
        if driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version)) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return None
    except (OSError, AttributeError):
        return None
    cards = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), index):
            continue
        driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
        cards.append(10 * major.value + minor.value)
    return version.value, tuple(cards)


def wheel_for(capability: int, driver: int = CUDA_13_DRIVER) -> str:
    """The command that installs CuPy for a card: CUDA 13 knows none older than Turing, and its driver must know CUDA 13."""
    if capability < 75:
        return f"cards before Turing (Pascal, Volta) need CuPy for CUDA 12: {CUDA_12}"
    return CUDA_13 if driver >= CUDA_13_DRIVER else CUDA_12


def cupy_hint() -> str:
    """What to install, or to look at, for a GPU to be used through CuPy."""
    found = nvidia_cards()
    if found is not None and found[1]:
        driver, cards = found
        return wheel_for(min(cards), driver)
    if amd_driver():
        return ROCM
    return f"it needs an NVIDIA driver ({CUDA_12}; for driver 580 or newer and cards from Turing on {CUDA_13}) or ROCm 7 ({ROCM})"


def amd_driver() -> bool:
    """Whether AMD's compute driver is loaded."""
    return Path("/dev/kfd").exists()


def gpu_driver() -> bool:
    """Whether there is a driver, with a card, that CuPy could use."""
    cards = nvidia_cards()
    return bool(cards and cards[1]) or amd_driver()
