import math
import subprocess

import pytest
import torch
from networks import conv_net
from refusal import refused
from torch import nn

from spikewire import compile, export
from spikewire.config import resolve
from spikewire.deploy import FORMATS, export_run
from spikewire.nn import LIF
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


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_is_written_in_every_format(format, tmp_path):
    model = conv_net(pool="avg")
    images = torch.randn(2, *model.input_shape)
    exported = export(model, images, tmp_path / "x", format=format)
    files = [exported.path, *exported.path.glob("*")]
    assert exported.size == sum(file.stat().st_size for file in files if file.is_file())
    assert exported.dense_size == 4 * sum(p.numel() for p in model.parameters())
    assert 0 < exported.connectivity < 1
    assert exported.different_spikes <= 1e-3


def test_names_of_classes_and_normalisation_are_stored(tmp_path):
    model = conv_net()
    images = torch.randn(2, *model.input_shape)
    fields = {"classes": ("a", "b", "c"), "mean": (0.1, 0.2), "std": (0.3, 0.4)}
    export(model, images, tmp_path / "x", values="int8", **fields)
    network = load(tmp_path / "x").network
    assert (network.classes, network.mean, network.std) == tuple(fields.values())
    assert compile(model, images, **fields).network.mean == (0.1, 0.2)
    refused(lambda: compile(model, images, classes=("a", "b")), "classes")


def test_a_compiled_model_predicts_like_the_model():
    model = conv_net()
    images = torch.randn(64, *model.input_shape)
    found = compile(model, images, exact=True, threads=2).predict(images)
    with torch.no_grad():
        wanted = model(images).mean(0).argmax(1)
    assert len(wanted.unique()) > 1
    assert torch.equal(found, wanted)


def test_unknown_options_of_a_model_are_refused_before_it_runs(tmp_path):
    model, images, out = conv_net(), torch.zeros(1, 2, 9, 21), tmp_path / "x"
    refused(lambda: export(model, images, out, format="onnx"), "format: unknown 'onnx'")
    refused(lambda: export(model, images, out, values="fp8"), "values: unknown 'fp8'")
    refused(lambda: export(model, images, out, format="c", values="fp16"), "values: unknown 'fp16'")
    refused(
        lambda: export(model, images, out, mean=0.5), "mean: 0.5 is not allowed; it must be one"
    )
    refused(
        lambda: export(nn.Linear, images, out), "model: 'type' is not allowed; it must be an nn"
    )
    assert not out.exists()


class Branching(nn.Module):
    """Doubles the current where the example is bright, as only Python can decide."""

    def __init__(self, reads):
        super().__init__()
        self.fc, self.lif, self.reads = nn.Linear(6, 3), LIF(), reads

    def forward(self, images):
        current = self.fc(images)
        if self.reads and images.sum() > 0:
            current = 2 * current
        return self.lif(current.expand(4, *current.shape))


@pytest.mark.parametrize("reads", [True, False])
def test_a_branch_that_depends_on_the_input_is_named_in_a_warning(caplog, reads):
    compile(Branching(reads), torch.rand(2, 6) * 9)
    assert ("Branching: forward() reads a number out of a tensor" in caplog.text) == reads


def test_a_layer_that_is_silent_on_the_example_is_named(caplog):
    model = conv_net()
    with torch.no_grad():
        model.conv2.weight.zero_()
        model.conv2.bias.zero_()
    compile(model, torch.randn(2, *model.input_shape))
    assert "no spike on the example in conv2" in caplog.text


@pytest.mark.parametrize(
    ("name", "format"), [("a.nir", "packed"), ("b.c", "nir"), ("c.packed.safetensors", "c")]
)
def test_a_file_name_of_another_format_is_refused(name, format, finished, tmp_path):
    model = conv_net()
    images = torch.randn(2, *model.input_shape)
    path = tmp_path / name
    refused(lambda: export(model, images, path, format=format), f"format: {format!r}", name)
    refused(lambda: export_run(finished, out=path, format=format), f"format: {format!r}", name)
    assert not path.exists()


def test_a_folder_in_place_of_a_file_is_one_line(finished, tmp_path, monkeypatch):
    model = conv_net()
    images = torch.randn(2, *model.input_shape)
    monkeypatch.chdir(tmp_path)
    for path in (".", "", "..", "/"):
        refused(lambda path=path: export(model, images, path), "Is a directory")
    refused(lambda: export_run(finished, out="."), "Is a directory")


def test_the_c_file_of_a_model_checks_itself_on_the_example(need, tmp_path):
    need("gcc")
    model = conv_net()
    images = torch.randn(2, *model.input_shape)
    path = tmp_path / "net.c"
    exported = export(model, images, path, format="c")
    assert exported.size == path.stat().st_size
    words = ["gcc", "-std=c99", "-DSPIKEWIRE_TEST", str(path), "-o", str(tmp_path / "net")]
    subprocess.run(words, check=True)
    assert subprocess.run([tmp_path / "net"], check=False).returncode == 0


def test_a_nir_file_given_to_load_names_the_reader_of_nir_files(tmp_path):
    model = conv_net(pool="none")
    images = torch.randn(2, *model.input_shape)
    export(model, images, tmp_path / "net.nir", format="nir")
    refused(lambda: load(tmp_path / "net.nir"), "is not a complete packed file", "from_nir")
