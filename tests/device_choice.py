"""Which device a test runs on: each that its module names in PLACES, or with `pytest --device NAME` that one alone.

    python -m pytest tests/backends/test_ops.py --device cuda/0

NAME is a name of `strata devices`; its kernels run in GPU shape, also on a processor. "emulated" is the CUDA device that tests/cuda_emulator
stands in for. A test or fixture that asks for `place` gets the settings of a DecodeConfig.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

EMULATED = "emulated"
PROGRAMS = Path(__file__).parent.parent / "build" / "test-cache"


def settings_of(name: str) -> dict[str, Any]:
    """The settings that open a device by its name, in GPU shape."""
    if name == EMULATED:
        use_emulator()
        return {"backend": "cuda", "device": "cuda/0"}
    return {"backend": "auto", "device": name, "kernel_shape": "gpu"}


def use_emulator(**settings: Any) -> Any:
    """Puts the emulated CUDA device where everything looks for CuPy, until the process ends; returns the module that stands in for it."""
    import backends.cuda
    from tests.cuda_emulator.fake_cupy import FakeCupy

    fake = FakeCupy(cache=PROGRAMS, **settings)
    backends.cuda.load_cupy = lambda: fake
    return fake


def is_chosen(place: dict[str, Any]) -> bool:
    """Whether --device named the place."""
    return "device" in place


def has_cpu_runtime() -> bool:
    """Whether there is an OpenCL CPU runtime to compare with."""
    from backends.errors import DeviceError
    from backends.opencl import opencl_devices

    try:
        return any(name == "cpu" for name, _ in opencl_devices())
    except DeviceError:
        return False
