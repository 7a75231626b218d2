"""The wheel as a user gets it: built, installed into an empty environment, run from elsewhere."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import spikewire

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("wheel")  # one build


def run(*words, cwd, **environment) -> str:
    """Run a command that knows nothing of this checkout; return its output."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the source distribution, as `make wheel` builds it, from a clean copy."""
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "clone/src", ignore=unwanted)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "clone")
    script = "from setuptools import build_meta; build_meta.build_sdist('..')"
    run(sys.executable, "-c", script, cwd=folder / "clone")
    (source,) = folder.glob("*.tar.gz")
    words = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    run(sys.executable, "-m", "pip", *words, cwd=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel, which borrows its dependencies from this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd="/")
    # a .pth file adds a folder but not the .pth files in it, so not the checkout
    borrowed = Path(packages.strip()) / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_the_wheel_is_for_a_platform_and_for_every_python(wheel, need):
    need("cc")
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("spikewire", spikewire.__version__, "py3", "none")
    assert platform == sysconfig.get_platform().replace("-", "_").replace(".", "_")
    found = set(zipfile.ZipFile(wheel).namelist())
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix not in (".pyc", ".so")]
    sources = [path for path in sources if path.is_file() and "egg-info" not in str(path)]
    expected = {str(path.relative_to(ROOT / "src")) for path in sources}
    assert len(expected) > 100
    packaged = {name for name in found if ".dist-info/" not in name}
    assert packaged == expected | {"spikewire/runtime/_kernels.so"}


def test_an_installed_wheel_trains_exports_and_predicts(environment, tmp_path, need):
    need("cc")
    spikewire = environment / "bin" / "spikewire"
    script = (
        "import spikewire; print(spikewire.__file__);"
        "from spikewire.runtime.library import installed; assert installed()"
    )
    where = run(environment / "bin" / "python", "-c", script, cwd=tmp_path)
    assert where.startswith(str(environment))
    run(spikewire, "train", "--epochs", "2", cwd=tmp_path)
    (trained,) = (tmp_path / "runs").iterdir()
    run(spikewire, "export", trained, cwd=tmp_path)
    (packed,) = trained.glob("*.packed.safetensors")
    output = run(spikewire, "predict", packed, "--input", "digits", cwd=tmp_path)
    assert "%" in output


def test_a_clone_does_not_shadow_the_package(environment, tmp_path):
    """The folder that holds a clone named spikewire is searched first."""
    (tmp_path / "spikewire").symlink_to(ROOT)
    script = "import spikewire; print(spikewire.__file__, spikewire.Budget)"
    for python in (sys.executable, environment / "bin" / "python"):
        file, *_ = run(python, "-c", script, cwd=tmp_path).split()
        assert file.endswith("spikewire/__init__.py")
        assert not file.startswith(str(tmp_path / "spikewire"))
