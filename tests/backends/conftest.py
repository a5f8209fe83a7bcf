"""Fixtures that need a device."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cl_context(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A context on an OpenCL device: a CPU runtime if there is one. Skips without any."""
    library = Path(sys.prefix) / "lib" / "libintelocl.so"
    if "OCL_ICD_VENDORS" not in os.environ and "pyopencl" not in sys.modules and library.exists():
        folder = tmp_path_factory.mktemp("icd")
        (folder / "intel.icd").write_text(f"{library}\n")
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    cl = pytest.importorskip("pyopencl")
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        devices = []
    if not devices:
        pytest.skip("no OpenCL device")
    return cl.Context([min(devices, key=lambda device: not device.type & cl.device_type.CPU)])
