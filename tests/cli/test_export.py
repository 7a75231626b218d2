"""`spikewire export` and `spikewire predict` on a finished run."""

import json

import numpy as np
import pytest
from matplotlib.image import imsave

from spikewire.config import resolve
from spikewire.deploy import export_run
from spikewire.formats import packed
from spikewire.runtime import load
from spikewire.train.evaluate import evaluate_run
from spikewire.train.loop import fit


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a short run on the embedded digits."""
    path = tmp_path_factory.mktemp("runs") / "x"
    flags = {"epochs": "4", "time_steps": "4", "threads": "1", "alpha": "0.02"}
    fit(resolve("digits", flags=flags), path)
    return path


@pytest.fixture
def file(finished, tmp_path):
    """The packed file of the run."""
    return export_run(finished, out=tmp_path / "x.safetensors", check_images=0).path


def test_the_accuracy_on_training_images_is_that_of_the_images_that_a_run_would_hold_out(
    finished, file, call, digits
):
    held = digits.hold_out(300)
    runtime = load(file)
    right = runtime(runtime.normalise(held.test_images)).mean(0).argmax(1) == held.test_labels
    expected = f"{float(right.float().mean()):.2%}"
    assert f"{evaluate_run(finished, train_images=300).accuracy:.2%}" == expected
    assert f"{evaluate_run(finished).accuracy:.2%}" != expected
    for words in (
        ["eval", finished, "--train-images", "300"],
        ["eval", file, "--train-images", "300"],
        ["predict", file, "--input", "digits", "--train-images", "300"],
    ):
        code, out, _ = call(*words)
        assert (code, expected in out) == (0, True)


@pytest.mark.parametrize(("given", "allowed"), [("1437", "between 1 and 1436"), ("0", "1 or more")])
def test_a_wrong_number_of_training_images_is_one_line(given, allowed, finished, file, call):
    for name in (finished, file):
        code, _, err = call("eval", name, "--train-images", given)
        assert (code, err.count("\n")) == (2, 1)
        assert "--train-images: " in err
        assert allowed in err
    code, _, err = call("predict", file, "--input", "x.npy", "--train-images", "3")
    assert (code, "unless the input is a data set" in err) == (2, True)


def test_an_exported_run_predicts_with_the_accuracy_of_the_run(finished, tmp_path, call):
    file = tmp_path / "x.safetensors"
    code, out, _ = call("export", finished, "--values", "fp32", "--out", file)
    assert code == 0
    assert "accuracy change" in out
    about = packed.read(file).about
    assert about["dataset"] == "digits"
    assert about["accuracy"] == about["accuracy_before"]
    code, out, _ = call("predict", file, "--input", "digits")
    assert code == 0
    assert f"{evaluate_run(finished).accuracy:.2%}" in out


def test_predict_as_json_prints_one_record_per_image(file, digits, call):
    words = ("predict", file, "--input", "digits", "--json", "--exact", "--early-exit", "1")
    _, out, _ = call(*words, "--batch-size", "100", "--threads", "1")
    records = [json.loads(line) for line in out.splitlines()]
    model = load(file, exact=True)
    classes, steps = model.decide(model.normalise(digits.test_images), 1.0)
    assert [int(r["class"]) for r in records] == classes.tolist()
    assert [r["time_steps"] for r in records] == steps.tolist()
    assert [int(r["label"]) for r in records] == digits.test_labels.tolist()
    assert [r["image"] for r in records] == list(range(len(classes)))


def test_predict_reads_arrays_and_pictures(file, digits, tmp_path, call):
    pixels, model = digits.test_images[:3], load(file)
    wanted = [model.network.classes[i] for i in model.predict(model.normalise(pixels)).tolist()]
    np.save(tmp_path / "a.npy", pixels.numpy())
    imsave(tmp_path / "a.png", pixels[0, 0].numpy(), cmap="gray", vmin=0, vmax=255)
    _, out, _ = call("predict", file, "--input", tmp_path / "a.npy")
    assert out.split()[1::2] == wanted
    _, out, _ = call("predict", file, "--input", tmp_path / "a.png")
    assert out.split() == ["a.png", wanted[0]]


@pytest.mark.filterwarnings("always:.*resized to 8 x 8:UserWarning")
def test_predict_reads_nir_and_resizes_jpeg_pictures(finished, file, digits, tmp_path, call):
    call("export", finished, "--format", "nir", "--out", tmp_path / "x.nir", "--check", "0")
    code, out, _ = call("predict", tmp_path / "x.nir", "--time-steps", "4", "--input", "digits")
    assert code == 0
    assert f"{evaluate_run(finished).accuracy:.2%}" in out
    large = np.kron(digits.test_images[0, 0].numpy(), np.ones((8, 8), np.uint8))
    imsave(tmp_path / "a.jpg", large, cmap="gray", vmin=0, vmax=255)
    _, wanted, _ = call("predict", file, "--input", "digits", "--json")
    code, out, _ = call("predict", file, "--input", tmp_path / "a.jpg", "--resize")
    assert code == 0
    assert out.split() == ["a.jpg", json.loads(wanted.splitlines()[0])["class"]]
    code, again, error = call("predict", file, "--input", tmp_path / "a.jpg")
    assert (code, again) == (0, out)
    assert error.endswith("a.jpg: 64 x 64 pixels; resized to 8 x 8\n")


@pytest.mark.parametrize("words", [
    ["export", "RUN", "--format", "onnx"],
    ["export", "RUN", "--check", "many"],
    ["export", "nowhere"],
    ["predict", "nowhere", "--input", "digits"],
    ["predict", "FILE", "--input", "nothing"],
    ["predict", "FILE", "--input", "absent.npy"],
    ["predict", "FILE", "--input", "digits", "--early-exit", "soon"],
    ["predict", "FILE", "--input", "digits", "--threads", "0"],
    ["predict", "FILE", "--input", "digits", "--batch-size", "0"],
    ["predict", "FILE", "--input", "digits", "--kernels", "mmx"],
    ["predict", "FILE", "--input", "digits", "--early-exit", "-1"],
    ["predict", "FILE", "--input", "digits", "--time-steps", "0"],
    ["predict", "FILE", "--input", "digits", "--time-steps", "10001"],
])  # fmt: skip
def test_mistakes_are_reported_in_one_line(words, finished, file, call):
    names = {"RUN": finished, "FILE": file}
    code, _, err = call(*(names.get(word, word) for word in words))
    assert code == 2
    assert err.count("\n") == 1
    if words[-2] in ("--kernels", "--early-exit", "--time-steps"):
        assert err.startswith(f"spikewire: {words[-2]}: ")


def test_a_packed_file_runs_at_other_time_steps(call):
    def accuracy(*words):
        out = call("predict", "zoo:digits-5", "--input", "digits", *words)[1]
        return out.split("accuracy")[1].split()[0], out.split("time steps")[1].split()[0]

    assert accuracy() == accuracy("--time-steps", "8") == ("97.78%", "8.00")
    assert accuracy("--time-steps", "2") == ("95.28%", "2.00")
    _, out, _ = call("predict", "zoo:braille-10", "--input", "braille", "--time-steps", "16")
    assert "16.00 on average" in out, "events are summed to half as many steps"


def test_an_input_is_answered_with_the_nearest_data_set_and_the_shape_that_was_given(
    file, call, tmp_path
):
    assert "did you mean 'digits'?" in call("predict", file, "--input", "DIGITS")[2]
    np.save(tmp_path / "flat.npy", np.zeros((3, 64), "f4"))
    assert "(3, 64) is not" in call("predict", file, "--input", str(tmp_path / "flat.npy"))[2]
    said = call("predict", "zoo:braille-10", "--input", "digits")[2]
    assert "inputs of [12]" in said
    assert "--resize" not in said


@pytest.mark.parametrize("words", [
    ["export", "RUN", "--format", "onnx"],
    ["export", "FILE", "--format", "onnx"],
    ["export", "RUN", "--values", "fp8"],
    ["export", "RUN", "--values", "int8", "--format", "nir"],
    ["export", "FILE", "--values", "int8", "--format", "coo"],
    ["export", "RUN", "--pooling", "avg"],
    ["predict", "FILE", "--input", "notes.txt"],
])  # fmt: skip
def test_a_mistake_in_a_flag_is_reported_with_the_flag(words, finished, file, call):
    names = {"RUN": finished, "FILE": file}
    _, _, err = call(*(names.get(word, word) for word in words))
    assert err.startswith(f"spikewire: {words[2]}: ")
