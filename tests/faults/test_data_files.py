"""Data files that were swapped are refused by name, also at equal size."""

import pytest
from refusal import refused

from spikewire import data
from spikewire.data import data_dir


@pytest.mark.parametrize(
    ("name", "file", "other"),
    [
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin", "cifar-10-batches-bin/test_batch.bin"),
        ("mnist", "mnist/t10k-labels-idx1-ubyte", "fashion-mnist/t10k-labels-idx1-ubyte"),
        ("mnist", "mnist/train-labels-idx1-ubyte", "mnist/t10k-labels-idx1-ubyte"),
        ("fashion-mnist", "fashion-mnist/train-images-idx3-ubyte", "mnist/train-images-idx3-ubyte"),
    ],
)
def test_a_swapped_file_is_refused(
    tmp_path, faults, mnist, fashion_mnist, cifar10, name, file, other
):
    folder = (tmp_path / file).parent
    folder.mkdir()
    for path in (data_dir() / folder.name).iterdir():
        (folder / path.name).symlink_to(path)
    (tmp_path / file).unlink()
    (tmp_path / file).symlink_to(data_dir() / other)
    refused(lambda: data.load(name, tmp_path), tmp_path / file, "expected", "spikewire data get")
    faults("swapped data file", 1, 1)
