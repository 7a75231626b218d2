import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "src" / "spikewire" / "runtime" / "kernels.c"


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """The kernels built with AddressSanitizer and UndefinedBehaviorSanitizer, and its library."""
    path = tmp_path_factory.mktemp("asan") / "kernels.so"
    flags = ["-O1", "-g", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-shared"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    subprocess.run(["gcc", *flags, *checks, str(KERNELS), "-o", str(path)], check=True)
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    return path, runtime.stdout.strip()


def run(sanitized, *command):
    options = {"LD_PRELOAD": sanitized[1], "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, *map(str, command)]
    environment = {**os.environ, **options}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def fuzz(sanitized, cases, seed):
    return run(sanitized, HERE / "fuzz_runtime.py", cases, seed, sanitized[0])


def misuse(sanitized, every, faults):
    done = run(sanitized, HERE / "misuse_runtime.py", sanitized[0], every)
    assert done.returncode == 0, done.stderr[-2000:]
    faults("runtime called with wrong arguments", int(done.stdout), int(done.stdout))
    return int(done.stdout)


def test_wrong_arguments_of_the_runtime_under_address_sanitizer(sanitized, faults):
    assert misuse(sanitized, 8, faults) >= 100


@pytest.mark.slow
def test_all_wrong_arguments_of_the_runtime_under_address_sanitizer(sanitized, faults):
    assert misuse(sanitized, 1, faults) >= 1000


def test_two_hundred_cases_under_address_sanitizer(sanitized):
    done = fuzz(sanitized, 200, 0)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_ten_thousand_cases_under_address_sanitizer(sanitized):
    done = fuzz(sanitized, 10_000, 1000)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_sanitizer_sees_a_byte_out_of_bounds(sanitized):
    code = (
        "import ctypes, sys; from spikewire.runtime.library import bind, make_window_record;"
        "import numpy as np;"
        f"k = bind({str(sanitized[0])!r}); x = np.zeros(4, np.uint16);"
        # libc, so that the sanitizer knows the size of the block
        "c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; m = c.malloc(8);"
        "w = make_window_record((1, 1), (1, 1), (0, 0), (1, 1));"
        "k.spikewire_spread(x.ctypes.data, m, 1, 4, 1, ctypes.byref(w), 4, 2)"
    )
    done = run(sanitized, "-c", code)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
