"""Fixtures that need a device."""

from typing import Any

import pytest

from backends.opencl import opencl_devices


@pytest.fixture(scope="session")
def cl_context() -> Any:
    """A context on the OpenCL CPU device."""
    import pyopencl as cl

    return cl.Context([dict(opencl_devices())["cpu"]])
