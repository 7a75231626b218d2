"""Data sets are read completely or refused in one line."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from spikewire import data
from spikewire.data.cifar100 import parse
from spikewire.data.dataset import stratified_mask
from spikewire.data.source import data_dir, read_file


def test_names_of_data_sets_are_shown_as_papers_write_them():
    assert [data.title_of(name) for name in ("cifar10", "seqmnist", "shd")] == [
        "CIFAR-10",
        "sequential MNIST",
        "SHD",
    ]
    assert data.title_of("folder:pictures/birds") == "birds"
    titles = [source.title for source in data.DATASETS.values()]
    assert len(set(titles)) == len(titles)


def test_mnist_has_the_published_images_and_labels(mnist):
    assert mnist.train_images.shape == (60_000, 1, 28, 28)
    assert mnist.test_images.shape == (10_000, 1, 28, 28)
    assert mnist.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(mnist.train_labels).tolist() == counts
    assert mnist.train_images[0, 0, 5, 12:18].tolist() == [3, 18, 18, 18, 126, 136]
    assert (mnist.train_images == 0).all(dim=0).sum() == 67
    assert mnist.train_images.double().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert (mnist.mean, mnist.std, mnist.shape) == ((0.0,), (1.0,), (1, 28, 28))


def test_fashion_mnist_has_the_published_images_and_labels(fashion_mnist):
    fashion = fashion_mnist
    assert fashion.train_images.shape == (60_000, 1, 28, 28)
    assert [fashion.classes[i] for i in fashion.train_labels[:2]] == ["Ankle boot", "T-shirt/top"]
    assert fashion.test_labels[:5].tolist() == [9, 2, 1, 1, 6]
    assert torch.bincount(fashion.train_labels).tolist() == [6000] * 10
    assert torch.bincount(fashion.test_labels).tolist() == [1000] * 10
    assert fashion.train_images.double().mean().item() / 255 == pytest.approx(0.2860, abs=1e-4)


def test_cifar10_has_the_published_images_and_labels(cifar10):
    cifar = cifar10
    assert cifar.train_images.shape == (50_000, 3, 32, 32)
    assert cifar.test_images.is_contiguous()
    assert [cifar.classes[i] for i in cifar.train_labels[:3]] == ["frog", "truck", "truck"]
    assert cifar.test_labels[:5].tolist() == [3, 8, 8, 0, 6]
    assert torch.bincount(cifar.train_labels).tolist() == [5000] * 10
    assert torch.bincount(cifar.test_labels).tolist() == [1000] * 10
    assert cifar.train_images[0, :, 0, 0].tolist() == [59, 62, 63]
    means = [channel.double().mean().item() / 255 for channel in cifar.train_images.unbind(1)]
    assert cifar.mean == pytest.approx(means, abs=1e-4)
    assert cifar.std == (0.2023, 0.1994, 0.2010)


def test_cifar100_has_the_published_images_and_labels(cifar100):
    assert cifar100.train_images.shape == (50_000, 3, 32, 32)
    assert cifar100.test_images.is_contiguous()
    assert torch.bincount(cifar100.train_labels).tolist() == [500] * 100
    assert torch.bincount(cifar100.test_labels).tolist() == [100] * 100
    assert len(set(cifar100.classes)) == 100
    assert sorted(cifar100.classes) == list(cifar100.classes)  # labels are numbered by the alphabet
    some = cifar100.train_images[::10].float().div_(255).transpose(0, 1).flatten(1)
    assert cifar100.mean == pytest.approx(some.mean(1).tolist(), abs=3e-3)
    assert cifar100.std == pytest.approx(some.std(1).tolist(), abs=3e-3)


def test_records_are_read_in_any_order_but_not_with_others(tmp_path, cifar100):
    file = data.DATASETS["cifar100"].files[1]
    content = (data_dir() / file.path).read_bytes()
    records = [content[i : i + 3074] for i in range(0, len(content), 3074)]
    target = tmp_path / file.path
    target.parent.mkdir()
    target.write_bytes(b"".join(reversed(records)))
    images, fine, coarse = parse(read_file(file, tmp_path, "cifar100"))
    assert torch.equal(images.flip(0), cifar100.test_images)
    assert torch.equal(fine.flip(0), cifar100.test_labels)
    assert len(set(zip(coarse.tolist(), fine.tolist(), strict=True))) == 100  # one group per class
    target.write_bytes(content[3074:] + records[-1])  # one record lost, another one twice
    read = lambda: read_file(file, tmp_path, "cifar100")  # noqa: E731
    refused(read, target, "md5", file.md5, "spikewire data get cifar100")


def test_digits_are_embedded_whole_and_split_by_class(digits):
    assert digits.train_images.shape == (1437, 1, 8, 8)
    assert digits.test_images.shape == (360, 1, 8, 8)
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    both = torch.cat([digits.train_labels, digits.test_labels])
    assert torch.bincount(both).tolist() == published
    for held, size in zip(torch.bincount(digits.test_labels).tolist(), published, strict=True):
        assert abs(held - size * 360 / 1797) < 1
    first_row = torch.tensor([0, 0, 5, 13, 9, 1, 0, 0])
    assert torch.equal(digits.train_images[0, 0, 0], (first_row * 255 / 16).round().to(torch.uint8))
    assert len(digits.train_images.unique()) == 17
    package = Path(data.__file__).parent
    assert (package / "digits.npz").stat().st_size < 200_000
    assert "CC BY 4.0" in (package / "digits.txt").read_text()


def test_every_data_set_has_the_same_layout(digits, mnist):
    for dataset in (digits, mnist):
        assert dataset.train_images.dtype == dataset.test_images.dtype == torch.uint8
        assert dataset.train_labels.dtype == dataset.test_labels.dtype == torch.int64
        assert len(dataset.mean) == len(dataset.std) == dataset.shape[0]
        assert int(dataset.train_labels.max()) == len(dataset.classes) - 1


def test_hold_out_takes_training_images_only_and_always_the_same(digits):
    held = digits.hold_out(300)
    again = digits.hold_out(300)
    assert torch.equal(held.test_images, again.test_images)
    assert (len(held.train_labels), len(held.test_labels)) == (1137, 300)
    parts = torch.cat([held.train_images, held.test_images]).flatten(1).tolist()
    assert sorted(parts) == sorted(digits.train_images.flatten(1).tolist())
    fractions = torch.bincount(held.test_labels) / torch.bincount(digits.train_labels)
    assert (fractions - 300 / 1437).abs().max() < 0.01
    refused(lambda: digits.hold_out(1437), "hold_out", 1437, 1436)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=60), st.data())
def test_a_stratified_mask_is_exact_and_in_proportion(labels, draw):
    labels = torch.tensor(labels)
    count = draw.draw(st.integers(1, len(labels) - 1))
    marked = stratified_mask(labels, count)
    assert int(marked.sum()) == count
    for label in labels.unique():
        own = labels == label
        assert abs(int(marked[own].sum()) - int(own.sum()) * count / len(labels)) < 1


def linked(folder: str, root: Path, without: str) -> Path:
    """Link a real data folder under `root` except one file; return that file's path."""
    (root / folder).mkdir()
    for path in (data_dir() / folder).iterdir():
        if path.name != without:
            (root / folder / path.name).symlink_to(path)
    return root / folder / without


def test_a_missing_file_says_what_to_do(tmp_path):
    refused(
        lambda: data.load("mnist", tmp_path),
        tmp_path / "mnist" / "train-images-idx3-ubyte",
        "spikewire data get mnist",
        "SPIKEWIRE_DATA",
        "--data-dir",
    )


@pytest.mark.parametrize(
    ("name", "fixture", "folder", "file"),
    [
        ("mnist", "mnist", "mnist", "t10k-labels-idx1-ubyte"),
        ("fashion-mnist", "fashion_mnist", "fashion-mnist", "train-labels-idx1-ubyte"),
        ("cifar10", "cifar10", "cifar-10-batches-bin", "data_batch_1.bin"),
    ],
)
def test_truncated_longer_and_altered_files_are_named_and_refused(
    tmp_path, request, name, fixture, folder, file
):
    request.getfixturevalue(fixture)  # skips where the data set is absent
    content = (data_dir() / folder / file).read_bytes()
    target = linked(folder, tmp_path, file)
    help_line = f"spikewire data get {name}"
    target.write_bytes(content[:-1])
    refused(lambda: data.load(name, tmp_path), target, len(content) - 1, len(content), help_line)
    target.write_bytes(content + b"\0")
    refused(lambda: data.load(name, tmp_path), target, len(content) + 1, len(content), help_line)
    altered = bytearray(content)
    altered[len(altered) // 2] ^= 1
    target.write_bytes(altered)
    found, expected = (hashlib.md5(each).hexdigest() for each in (altered, content))
    refused(lambda: data.load(name, tmp_path), target, found, expected, help_line)


def test_a_directory_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "mnist" / "train-images-idx3-ubyte").mkdir(parents=True)
    refused(lambda: data.load("mnist", tmp_path), "train-images-idx3-ubyte", "cannot be read")


def test_an_unknown_name_gets_the_nearest(tmp_path):
    refused(lambda: data.load("minst"), "did you mean 'mnist'", "cifar10", "digits")
    refused(lambda: data.get("cifar", tmp_path), "did you mean 'cifar10'")


def test_data_dir_argument_then_environment_then_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.delenv("SPIKEWIRE_DATA", raising=False)
    assert data_dir() == Path("/somewhere/.cache/spikewire")
    monkeypatch.setenv("SPIKEWIRE_DATA", str(tmp_path))
    assert data_dir() == tmp_path
    assert data_dir("~/elsewhere") == Path("/somewhere/elsewhere")
    refused(lambda: data.load("mnist"), tmp_path)
