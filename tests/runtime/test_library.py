import logging
import subprocess

import pytest
from networks import conv_net
from runtime.agreement import KERNELS

from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime, library


def test_the_installation_has_compiled_kernels():
    assert "portable" in KERNELS


@pytest.mark.parametrize("suffix", [".so", ".pyd", ".dll", *library.EXTENSION_SUFFIXES])
def test_the_library_is_found_under_any_suffix(suffix, tmp_path):
    assert library.find_library(tmp_path) is None
    (tmp_path / f"_kernels{suffix}").touch()
    assert library.find_library(tmp_path) == tmp_path / f"_kernels{suffix}"


def test_a_library_of_another_version_is_not_used(need, tmp_path, monkeypatch, caplog):
    need("gcc")
    source = "long long spikewire_record_size(void) { return 8; }\nint spikewire_best_path(void) {}"
    for code in (source, source.splitlines()[1]):  # another record; a library before this check
        (tmp_path / "x.c").write_text(code)
        command = ["gcc", "-w", "-shared", "-fPIC", "x.c", "-o", "_kernels.so"]
        subprocess.run(command, cwd=tmp_path, check=True)
        assert not library.is_current(tmp_path / "_kernels.so")
        (tmp_path / "_kernels.so").rename(tmp_path / f"_kernels{len(code)}.so")
    monkeypatch.setattr(library, "find_library", lambda folder: next(tmp_path.glob("*.so")))
    library.installed.cache_clear()
    with caplog.at_level(logging.WARNING, "spikewire"):
        runtime = Runtime(trace_model(conv_net()))
    library.installed.cache_clear()
    assert runtime.kernels == "torch"
    assert "is of another version" in caplog.text


def test_without_compiled_kernels_torch_is_used_and_one_warning_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(library, "SUFFIXES", [".absent"])
    library.installed.cache_clear()
    with caplog.at_level(logging.WARNING, "spikewire"):
        runtime = Runtime(trace_model(conv_net()))
        Runtime(trace_model(conv_net()))
    library.installed.cache_clear()
    assert runtime.kernels == "torch"
    assert len(caplog.records) == 1
    assert "no compiled kernels" in caplog.text
