"""Build of the C kernels of `spikewire.runtime`; without a compiler, torch does their work.

The library is loaded with ctypes and uses nothing of Python's C API. Its file name and the wheel's
tag therefore name a platform and no Python version.
"""

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildLibrary(build_ext):
    """Compile a plain shared library named ``_kernels.so``, without the tag of a Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library below the folder of packages."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """Return no ``PyInit`` function: there is none."""
        return ext.export_symbols


class PlatformWheel(bdist_wheel):
    """Tag the wheel ``py3-none-<platform>``."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, ABI and platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            "spikewire.runtime._kernels",
            ["src/spikewire/runtime/kernels.c"],
            extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=off"],
            optional=True,
        )
    ],
)
