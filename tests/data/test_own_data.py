"""Arrays, archives, image folders and torch data sets of the user's own."""

import numpy as np
import pytest
import torch
from PIL import Image
from refusal import refused
from torch.utils.data import IterableDataset, TensorDataset

from spikewire import data
from spikewire.data import Batches, Dataset, Streamed, StreamedBatches, folder
from spikewire.data.batches import GROUP_VALUES
from spikewire.data.own import as_dataset
from spikewire.data.reference import fingerprint, is_python, named_path, short_name


def archive(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {"train_x": rng.random((8, 3)), "train_y": np.arange(8) % 2}
    arrays |= {"test_x": rng.random((4, 3)), "test_y": np.arange(4) % 2} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return data.find(f"npz:{path}")


@pytest.mark.parametrize(
    ("shape", "dtype", "temporal", "mean", "rest"),
    [
        ((3,), "float64", False, (), (3,)),
        ((2, 4, 5), "uint8", False, (0.0, 0.0), (2, 4, 5)),
        ((2, 4, 5), "float32", False, (), (2, 4, 5)),
        ((7, 3), "uint8", True, (), (3,)),
        ((7, 2, 4, 5), "int64", True, (), (2, 4, 5)),
    ],
)
def test_the_shape_of_a_sample_gives_its_meaning(tmp_path, shape, dtype, temporal, mean, rest):
    train, test = (np.ones((count, *shape), dtype) for count in (8, 4))
    found = archive(tmp_path / "a.npz", train_x=train, test_x=test)
    assert (found.temporal, found.mean, found.shape) == (temporal, mean, rest)
    assert found.name == "a"
    batches = Batches(
        found.train_images, found.train_labels, batch_size=4, mean=found.mean, std=found.std,
        temporal=found.temporal,
    )  # fmt: skip
    images, labels = next(batches.epoch(0))
    assert images.shape == ((7, 4, *rest) if temporal else (4, *rest))
    assert labels.shape == (4,)
    assert images.unique().tolist() == ([pytest.approx(1 / 255)] if mean else [1.0])


def test_an_archive_may_name_its_arrays_as_keras_does_and_name_classes(tmp_path):
    x, y = np.zeros((4, 3)), np.arange(4) % 2
    np.savez(tmp_path / "k.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=["a", "b", "c"])
    assert data.find(f"npz:{tmp_path / 'k.npz'}").classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_y": None}, ("has no test_y", "train_x")),
        ({"test_y": None, "x": np.zeros(3)}, ("its arrays: train_x, train_y, test_x, x",)),
        ({"train_y": np.arange(7)}, ("train labels: 7", "8")),
        ({"train_y": np.arange(8) / 2}, ("train labels: 'torch.float64'", "class numbers")),
        ({"train_y": np.arange(8) - 1}, ("train labels: -1 is not allowed", "class numbers")),
        ({"test_x": np.zeros((4, 2))}, ("(2,)", "(3,)")),
        ({"train_x": np.full((8, 3), np.nan)}, ("NaN or infinity",)),
        ({"train_x": np.zeros((8, 1, 1, 1, 1, 1))}, ("shape of a",)),
        ({"classes": ["only"]}, ("label: 1", "below 1")),
    ],
)
def test_a_wrong_archive_is_one_line(tmp_path, changes, words):
    refused(lambda: archive(tmp_path / "a.npz", **changes), *words)


def test_an_archive_that_is_none_or_holds_objects_is_one_line(tmp_path):
    refused(lambda: data.find(f"npz:{tmp_path / 'no.npz'}"), "no.npz", "cannot be read")
    (tmp_path / "text.npz").write_text("hello")
    refused(lambda: data.find(f"npz:{tmp_path / 'text.npz'}"), "is not a NumPy archive")
    np.savez(tmp_path / "object.npz", train_x=np.array([{}], dtype=object))
    refused(lambda: data.find(f"npz:{tmp_path / 'object.npz'}"), "is not a NumPy archive")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name in ("text.npz", "one.npy"):  # not numpy's proposal to unpickle, or its own error
        said = refused(lambda name=name: data.find(f"npz:{tmp_path / name}"))
        assert said.endswith(f"{name} is not a NumPy archive (.npz)")


# ------------------------------------------------------------------------------ folders


def draw(path, count, size=(5, 4), mode="L"):
    path.mkdir(parents=True)
    for i in range(count):
        shape = size if mode == "L" else (*size, 3)
        pixels = np.full(shape, 10 * i, dtype=np.uint8)
        pixels.flat[0] = 255
        Image.fromarray(pixels).save(path / f"{i}.png")


def test_a_folder_of_train_and_test_images(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for name in ("cat", "dog"):
            draw(tmp_path / part / name, count)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("ignored")
    found = data.load(f"folder:{tmp_path}")
    assert found.classes == ("cat", "dog")
    assert found.train_images.shape == (8, 1, 5, 4)
    assert found.train_labels.tolist() == [0] * 4 + [1] * 4
    assert found.train_images[2, 0, 0].tolist() == [255, 20, 20, 20]
    assert len(found.test_labels) == 4


def test_a_folder_without_parts_gives_every_fifth_image_of_a_class_to_the_test(tmp_path):
    draw(tmp_path / "a", 10, mode="RGB")
    draw(tmp_path / "b", 5, mode="RGB")
    found = data.load(f"folder:{tmp_path}")
    assert found.train_images.shape == (12, 3, 5, 4)
    assert found.test_labels.tolist() == [0, 0, 1]
    assert found.mean == (0.0,) * 3


def test_images_of_different_sizes_must_be_resized(tmp_path):
    draw(tmp_path / "a", 5)
    draw(tmp_path / "b", 5, size=(6, 6))
    refused(lambda: data.find(f"folder:{tmp_path}"), "0.png", "5 x 4", "--resize")
    found = data.find(f"folder:{tmp_path}", resize=3)
    assert found.shape == (1, 3, 3)


def test_a_folder_that_does_not_fit_in_memory_is_read_while_it_is_used(tmp_path, monkeypatch):
    draw(tmp_path / "a", 10)
    draw(tmp_path / "b", 10)
    memory = data.load(f"folder:{tmp_path}")
    monkeypatch.setattr(folder, "IN_MEMORY", 100)
    monkeypatch.setattr(folder, "WORKERS", 0)
    streamed = data.find(f"folder:{tmp_path}")
    assert isinstance(streamed, Streamed)
    options = {"batch_size": 3, "mean": (0.5,), "std": (0.5,), "seed": 4, "augment": ("flip",)}
    own = Batches(memory.train_images, memory.train_labels, **options)
    other = StreamedBatches(streamed.train, classes=2, **options)
    for start in (0, 3):
        pairs = zip(own.epoch(1, start), other.epoch(1, start), strict=True)
        assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)
    held = streamed.hold_out(4)
    assert [len(held.train), len(held.test)] == [12, 4]
    assert sorted(label for _, label in held.test) == [0, 0, 1, 1]
    refused(lambda: data.load(f"folder:{tmp_path}"), "kept in memory")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "no", ("is not a folder",)),
        (lambda path: path, ("folders of classes", "0")),
        (lambda path: (draw(path / "a", 5), path)[1], ("folders of classes", "1")),
        (lambda path: ((path / "a").mkdir(), (path / "b").mkdir(), path)[2], ("images in",)),
    ],
)
def test_a_wrong_folder_is_one_line(tmp_path, make, words):
    refused(lambda: data.find(f"folder:{make(tmp_path)}"), *words)


def test_a_damaged_image_is_one_line(tmp_path):
    draw(tmp_path / "a", 5)
    draw(tmp_path / "b", 5)
    (tmp_path / "b" / "3.png").write_bytes(b"no picture")
    refused(lambda: data.find(f"folder:{tmp_path}"), "3.png", "is not an image")
    whole = (tmp_path / "b" / "2.png").read_bytes()
    (tmp_path / "b" / "3.png").write_bytes(whole[:50])
    refused(lambda: data.find(f"folder:{tmp_path}"), "3.png", "cannot be read")


# ------------------------------------------------------------------------------ torch data sets


class Endless(IterableDataset):
    classes = ("a", "b")

    def __iter__(self):
        yield from ()


def test_torch_data_sets_are_used_as_they_are():
    x, y = torch.rand(10, 6, 3), torch.arange(10) % 2
    pair = TensorDataset(x, y), TensorDataset(x[:4], y[:4])
    refused(lambda: as_dataset("t", pair), "classes are not known")
    found = as_dataset("t", {"train": pair[0], "test": pair[1], "classes": ["a", "b"]})
    assert isinstance(found, Streamed)
    assert (found.temporal, found.shape) == (True, (3,))
    batches = StreamedBatches(
        found.at(3).train, classes=2, batch_size=5, mean=(), std=(), shuffle=False, temporal=True
    )
    images, labels = next(batches.epoch(0))
    assert torch.allclose(images, x[:5].unflatten(1, (3, 2)).sum(2).transpose(0, 1))
    assert labels.tolist() == y[:5].tolist()
    refused(lambda: found.at(4), "time_steps: 4", "6, the time steps of the data")
    refused(lambda: as_dataset("t", (Endless(), Endless())), "Endless", "len()")
    refused(lambda: as_dataset("t", (x, y)), "the function returned tuple")


class Counted(TensorDataset):
    """Counts the samples that were read."""

    read = 0

    def __getitem__(self, index):
        self.read += 1
        return super().__getitem__(index)


def padded(samples):
    """Cut the samples of a batch to their own longest, which differs; leave out the last one."""
    images = torch.stack([image for image, _ in samples])
    longest = int(max(label for _, label in samples)) + 1
    return images[:-1, :, :longest], torch.stack([label for _, label in samples])[:-1]


def test_batches_that_differ_in_shape_and_in_size_are_read_one_at_a_time(monkeypatch):
    """Also where batches of a `Dataset` are augmented together, as on a GPU."""
    monkeypatch.setitem(GROUP_VALUES, "cpu", 10**9)
    part = Counted(torch.rand(40, 1, 9, 4), torch.arange(40) % 9)
    options = {"classes": 9, "batch_size": 4, "mean": (), "std": (), "collate": padded}
    batches = StreamedBatches(part, **options).epoch(0)
    first, _ = next(batches)
    assert part.read == 1 + 4, "one for the shape"
    shapes = {tuple(images.shape) for images, _ in batches} | {tuple(first.shape)}
    assert all(shape[0] == 3 for shape in shapes)
    assert len(shapes) > 1


def test_reading_batches_leaves_torchs_generator_as_it_is():
    part = TensorDataset(torch.rand(10, 3), torch.arange(10) % 2)
    batches = StreamedBatches(part, classes=2, batch_size=5, mean=(), std=())
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(batches.epoch(0))
    assert torch.equal(before, torch.get_rng_state())


def test_a_data_set_object_is_returned_with_its_name(digits):
    found = as_dataset("mine", digits)
    assert isinstance(found, Dataset)
    assert found.name == "mine"


# ------------------------------------------------------------------------------ references


@pytest.mark.parametrize(
    ("value", "python", "path", "name"),
    [
        ("mnist", False, None, "mnist"),
        ("a/b.py:f", True, "a/b.py", "b"),
        ("npz:a/b.npz", False, "a/b.npz", "b"),
        ("folder:a/b c", False, "a/b c", "b_c"),
        ("npz:x.py:f", False, "x.py:f", "x"),
        ("x.py", False, None, "x.py"),
    ],
)
def test_forms_of_a_reference(value, python, path, name):
    assert is_python(value) == python
    assert (named_path(value) and str(named_path(value))) == path
    assert short_name(value) == name


def test_the_fingerprint_of_a_folder_changes_with_its_files(tmp_path):
    draw(tmp_path / "a", 1)
    before = fingerprint(tmp_path)
    (tmp_path / "a" / "x.png").write_bytes(b"1")
    assert fingerprint(tmp_path) != before


def test_labels_that_are_words_are_refused(tmp_path):
    words = np.array(["cat", "dog"])[np.arange(8) % 2]
    refused(lambda: archive(tmp_path / "a.npz", train_y=words), "train labels", "class numbers")


def test_grey_images_without_channels_get_a_hint(tmp_path):
    images = {"train_x": np.zeros((8, 28, 28), "uint8"), "test_x": np.zeros((4, 28, 28), "uint8")}
    found = archive(tmp_path / "a.npz", **images)
    refused(lambda: found.at(8), "time_steps: 8", "28", "[count, channels, height, width]")


@pytest.mark.parametrize(("shape", "warns"), [((28, 28, 3), True), ((3, 28, 28), False)])
def test_pictures_with_their_channels_last_are_named_in_a_warning(tmp_path, caplog, shape, warns):
    parts = {f"{part}_x": np.zeros((8, *shape), "uint8") for part in ("train", "test")}
    archive(tmp_path / "a.npz", **parts, test_y=np.arange(8) % 2)
    assert ("[28, 28, 3] are read as [channels, height, width]" in caplog.text) == warns
