import math

import pytest
from refusal import refused

from spikewire.config import resolve
from spikewire.deploy import FORMATS, export_run
from spikewire.runtime import from_nir, load
from spikewire.train.loop import fit


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a short run on the embedded digits."""
    path = tmp_path_factory.mktemp("runs") / "x"
    flags = {"epochs": "1", "time_steps": "2", "threads": "1"}
    fit(resolve("digits", flags=flags), path)
    return path


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_reports_what_was_written(format, finished, tmp_path):
    exported = export_run(
        finished, format=format, out=tmp_path / "x", values="fp32", check_images=64
    )
    files = [exported.path, *exported.path.glob("*")]
    assert exported.path == tmp_path / "x"
    assert exported.size == sum(file.stat().st_size for file in files if file.is_file())
    assert exported.checked_images == 64
    assert exported.accuracy_after == pytest.approx(exported.accuracy_before, abs=1 / 64)
    assert 0 < exported.connectivity < 1
    if format == "packed":
        assert load(exported.path).network.connectivity == exported.connectivity
    if format == "nir":
        assert from_nir(exported.path).network.connectivity == exported.connectivity


def test_without_images_to_check_no_accuracy_is_stored(finished, tmp_path):
    exported = export_run(finished, out=tmp_path / "x", check_images=0)
    assert math.isnan(exported.accuracy_before)
    assert math.isnan(exported.accuracy_after)
    assert "accuracy" not in load(exported.path).network.about


def test_unknown_arguments_are_refused_before_anything_is_written(finished, tmp_path):
    out = tmp_path / "x"
    refused(lambda: export_run(finished, out=out, format="onnx"), "format: unknown 'onnx'")
    refused(lambda: export_run(finished, out=out, values="fp8"), "values: unknown 'fp8'")
    refused(
        lambda: export_run(finished, out=out, format="nir", pooling="x"), "pooling: unknown 'x'"
    )
    refused(lambda: export_run(finished, out=out, check_images=-1), "check_images: -1")
    assert not out.exists()
