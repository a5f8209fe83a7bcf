"""An emulator of a CUDA device, for tests of machines without one.

It compiles the CUDA text as C++ with the system's compiler, and stands in for the part of CuPy that backends/cuda.py calls. It proves
that the text is valid in the dialect, that it computes what the other dialects compute, and that the host's side (compilation, memory,
streams, graphs, errors) is right. It proves nothing about speed, about a real compiler's code or about a real driver.

words.h: what a CUDA compiler knows without a header; blocks run one after another, a block's threads as fibres that switch at
__syncthreads. compiler.py: text to library. fake_cupy.py: the module.
"""
