"""Builds the C kernels of `spikewire.runtime`; without a compiler the torch fallback takes over."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "spikewire.runtime._kernels",  # loaded with ctypes: it needs nothing of Python
            ["src/spikewire/runtime/kernels.c"],
            extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=off"],
            optional=True,
        )
    ]
)
