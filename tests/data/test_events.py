"""Recordings of events: real ones, files of the same formats written here, peers, and frames."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusal import refused

from spikewire import data
from spikewire.config import resolve
from spikewire.data import cifar10_dvs, dvs_gesture, nmnist, shd, st_mnist
from spikewire.data.events import Events, Recordings, aedat2, aedat3, aedat4, lz4, to_frames
from spikewire.train.loop import fit

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "event_format_samples"


def sample(name):
    """Return a published recording, which is not redistributed with the tests."""
    if not (SAMPLES / name).is_file():
        pytest.skip(f"needs {name}, a published recording, in ../shared/data/event_format_samples")
    return SAMPLES / name


def drawn(count=50, size=128, seed=0):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(0, 1_000_000, count))
    x, y, p = (rng.integers(0, high, count) for high in (size, size, 2))
    return Events(t, x, y, p)


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


# ------------------------------------------------------------------------------ published files


def test_a_published_recording_of_nmnist():
    found = nmnist.read(sample("sample_nmnist.bin"))
    assert len(found.t) == 21625 // 5
    assert [values[0] for values in found] == [654, 7, 15, 1]  # 07 0f 80 02 8e
    assert (found.x.max(), found.y.max(), int(found.t[-1])) == (33, 33, 311175)
    assert bool((np.diff(found.t) >= 0).all())


def test_a_published_recording_in_aedat4():
    found = aedat4.read(sample("sample.aedat4"))
    assert len(found.t) == 111954
    assert bool((np.diff(found.t) >= 0).all())
    assert (found.x.max(), found.y.max()) == (319, 239)
    assert set(found.p.tolist()) == {0, 1}


def test_a_published_recording_of_st_mnist():
    found = st_mnist.read(sample("sample_stmnist.mat"))
    assert len(found.t) == 2346
    assert (int(found.t[0]), int(found.t[-1])) == (196626, 895745)
    assert (found.x.min() >= 0, found.x.max() < 10, found.y.max() < 10) == (True, True, True)


def test_a_published_header_without_events():
    assert len(aedat2.read(sample("sample_aedat_header.aedat")).t) == 0


# ------------------------------------------------------------------------------ written files


def write_nmnist(path, events):
    rows = [
        (x, y, p << 7 | t >> 16, t >> 8 & 255, t & 255) for t, x, y, p in zip(*events, strict=True)
    ]
    path.write_bytes(np.array(rows, np.uint8).tobytes())


def write_aedat2(path, events):
    address = events.y << 8 | events.x << 1 | events.p
    words = np.stack([address, events.t], 1).astype(">u4")
    path.write_bytes(b"#!AER-DAT2.0\r\n# a comment\r\n" + words.tobytes())


def write_aedat3(path, events, size=16):
    content = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n"
    content += struct.pack("<hhiiiiii", 2, 0, 4, 0, 0, 1, 1, 1) + b"abcd"  # of another type
    for first in range(0, len(events.t), size):
        t, x, y, p = (values[first : first + size] for values in events)
        words = np.stack([x << 17 | y << 2 | p << 1 | 1, t], 1).astype("<u4")
        content += struct.pack("<hhiiiiii", 1, 0, 8, 4, 0, len(t), len(t), len(t))
        content += words.tobytes()
    path.write_bytes(content)


def write_aedat4(path, events, compress):
    structs = np.zeros(len(events.t), aedat4.EVENT)
    for key, values in zip("txyp", events, strict=True):
        structs[key] = values
    # a size, then a FlatBuffer: root offset, identifier, vtable, table, vector
    body = struct.pack("<I4sHHHHiII", 16, b"EVTS", 6, 8, 4, 0, 8, 4, len(structs))
    packet = struct.pack("<I", len(body) + structs.nbytes) + body + structs.tobytes()
    packet = compress(packet)
    header = struct.pack("<I4sHHHHHHiiq", 20, b"IOHE", 8, 16, 4, 8, 0, 0, 12, 1, -1)
    content = aedat4.VERSION + struct.pack("<I", len(header)) + header
    content += struct.pack("<iI", 0, len(packet)) + packet
    path.write_bytes(content)


def stored_lz4(content):
    """An LZ4 frame of one block of literals only, which ends in five of them."""
    left, lengths = len(content) - 15, b""
    while left >= 255:
        lengths, left = lengths + b"\xff", left - 255
    block = bytes([0xF0]) + lengths + bytes([left]) + content
    frame = lz4.MAGIC + bytes([0x40, 0x70, 0]) + struct.pack("<I", len(block)) + block
    return frame + bytes(4)


@given(st.integers(0, 9), st.integers(1, 70))
@settings(deadline=None, max_examples=10)
def test_files_are_read_as_they_were_written(tmp_path_factory, seed, count):
    folder = tmp_path_factory.mktemp("events")
    small, large = drawn(count, 34, seed), drawn(count, 128, seed)
    write_nmnist(folder / "a.bin", small)
    assert same(nmnist.read(folder / "a.bin"), small)
    write_aedat2(folder / "a.aedat", large)
    assert same(cifar10_dvs.read(folder / "a.aedat"), large)
    write_aedat3(folder / "b.aedat", large)
    assert same(aedat3.read(folder / "b.aedat"), large)
    begin, end = 200_000, 700_000
    assert same(aedat3.read(folder / "b.aedat", begin, end), large.within(begin, end))
    write_aedat4(folder / "a.aedat4", large, stored_lz4)
    assert same(cifar10_dvs.read(folder / "a.aedat4"), large)


def test_lz4_copies_of_earlier_output_may_overlap():
    # "abc", then 9 bytes from 3 back, then the literals "wxyz!"
    block = bytes([0x35]) + b"abc" + bytes([3, 0]) + bytes([0x50]) + b"wxyz!"
    frame = lz4.MAGIC + bytes([0x60, 0x40, 0]) + struct.pack("<I", len(block)) + block + bytes(4)
    assert lz4.decompress(frame) == b"abc" + b"abcabcabc" + b"wxyz!"
    raw = lz4.MAGIC + bytes([0x60, 0x40, 0]) + struct.pack("<I", 1 << 31 | 2) + b"hi" + bytes(4)
    assert lz4.decompress(raw) == b"hi"
    outside = bytes([0x10]) + b"a" + bytes([9, 0])
    frame = lz4.MAGIC + bytes([0x60, 0x40, 0]) + struct.pack("<I", len(outside)) + outside
    refused(lambda: lz4.decompress(frame + bytes(4)), "LZ4 offset")


# ------------------------------------------------------------------------------ frames


def test_frames_by_time_and_by_count():
    times, positions = np.array([0, 1, 2, 97, 98, 99]), np.array([0, 0, 1, 1, 0, 1])
    by_time = to_frames(times, positions, (2,), 2)
    assert by_time.tolist() == [[2, 1], [1, 2]]
    skewed = np.array([0, 1, 2, 3, 4, 99])
    assert to_frames(skewed, positions, (2,), 2).tolist() == [[3, 2], [0, 1]]
    assert to_frames(skewed, positions, (2,), 2, "count").tolist() == [[2, 1], [1, 2]]
    assert to_frames(times[:0], positions[:0], (2,), 3).tolist() == [[0, 0]] * 3
    refused(lambda: to_frames(times, positions, (2,), 2, "tme"), "frames: unknown 'tme'")


@given(st.integers(0, 20), st.integers(1, 9), st.sampled_from(["time", "count"]))
@settings(deadline=None, max_examples=20)
def test_every_event_is_in_one_frame_at_its_pixel(seed, count, by):
    events = drawn(60, 5, seed)
    recordings = Recordings(
        [events], [3], read=lambda item: item, shape=(2, 5, 5), time_steps=count, frames=by
    )
    frames, label = recordings[0]
    assert (frames.shape, label) == ((count, 2, 5, 5), 3)
    total = torch.zeros(2, 5, 5, dtype=torch.int64)
    for x, y, p in zip(events.x, events.y, events.p, strict=True):
        total[p, y, x] += 1
    assert torch.equal(frames.sum(0), total)


def test_an_event_outside_the_sensor_is_one_line():
    recordings = Recordings([drawn()], [0], read=lambda item: item, shape=(2, 5, 5))
    refused(lambda: recordings[0], "position of an event", "5 x 5")


# ------------------------------------------------------------------------------ data sets


def make_nmnist(root):
    for part, count in (("Train", 4), ("Test", 2)):
        for digit in "01":
            (root / "nmnist" / part / digit).mkdir(parents=True)
            for i in range(count):
                write_nmnist(root / "nmnist" / part / digit / f"{i}.bin", drawn(60, 34, i))


def test_a_folder_of_nmnist_trains(tmp_path):
    make_nmnist(tmp_path)
    found = data.find("nmnist", tmp_path)
    assert (len(found.train), len(found.test), found.classes) == (8, 4, ("0", "1"))
    assert found.at(5).train[0][0].shape == (5, 2, 34, 34)
    flags = {"dataset": "nmnist", "time_steps": "4", "epochs": "1", "frames": "count"}
    flags |= {"method": "budget", "connectivity": "0.1", "batch_size": "4", "threads": "1"}
    result = fit(resolve(flags=flags), data=replace(found, workers=0))
    assert result.connectivity == pytest.approx(0.1, abs=1e-3)


def test_gestures_are_cut_out_of_their_recording(tmp_path):
    folder = tmp_path / "DvsGesture"
    folder.mkdir()
    events = drawn(200)
    for name, part in (("user01_led", "train"), ("user24_led", "test")):
        write_aedat3(folder / f"{name}.aedat", events)
        table = "class,startTime_usec,endTime_usec\n2,100000,400000\n11,500000,900000\n"
        (folder / f"{name}_labels.csv").write_text(table)
        (folder / f"trials_to_{part}.txt").write_text(f"{name}.aedat\n")
    found = data.find("dvs-gesture", tmp_path)
    assert found.train.targets == [1, 10]
    assert found.classes[10] == "other gestures"
    assert same(dvs_gesture.read(found.train.items[1]), events.within(500_000, 900_000))
    frames, _ = found.at(3, "count").train[0]
    assert frames.shape == (3, 2, 128, 128)
    assert int(frames.sum()) == len(events.within(100_000, 400_000).t)


def test_the_last_tenth_of_each_class_of_cifar10_dvs_is_for_testing(tmp_path):
    for name in cifar10_dvs.CLASSES:
        (tmp_path / "cifar10-dvs" / name).mkdir(parents=True)
        for i in range(10):
            write_aedat2(tmp_path / "cifar10-dvs" / name / f"cifar10_{name}_{i}.aedat", drawn(9))
    found = data.find("cifar10-dvs", tmp_path)
    assert (len(found.train), len(found.test)) == (90, 10)
    assert {path.stem.rpartition("_")[2] for path in found.test.items} == {"9"}


def test_spoken_digits_in_hdf5(tmp_path):
    import h5py

    (tmp_path / "SHD").mkdir()
    for part in ("train", "test"):
        with h5py.File(tmp_path / "SHD" / f"shd_{part}.h5", "w") as file:
            spikes = file.create_group("spikes")
            for key, kind in (("times", np.float16), ("units", np.uint16)):
                spikes.create_dataset(key, (2,), dtype=h5py.vlen_dtype(kind))
            spikes["times"][0], spikes["units"][0] = [0.0, 0.5, 1.0], [3, 699, 3]
            spikes["times"][1], spikes["units"][1] = [0.25], [0]
            file["labels"] = np.array([4, 19], np.uint16)
    found = data.find("shd", tmp_path)
    assert (found.train.targets, len(found.classes)) == ([4, 19], 20)
    frames, label = found.at(2).train[0]
    assert (frames.shape, label) == ((2, 700), 4)
    assert frames.nonzero().tolist() == [[0, 3], [0, 699], [1, 3]]
    shd._open.cache_clear()


@pytest.mark.parametrize("name", ["nmnist", "dvs-gesture", "cifar10-dvs", "shd", "ssc", "st-mnist"])
def test_a_data_set_that_is_not_present_is_one_line(name, tmp_path, call):
    refused(lambda: data.find(name, tmp_path), name, "does not exist", "https://")
    code, _, errors = call("data", "get", name, "--data-dir", tmp_path)
    assert (code, "get it from https://" in errors) == (2, True)


@pytest.mark.parametrize("read", [nmnist.read, aedat2.read, aedat3.read, aedat4.read])
def test_a_damaged_recording_is_one_line(read, tmp_path):
    path = tmp_path / "x.bin"
    refused(lambda: read(path), "cannot be read")
    for content in (b"abc", b"#!AER-DAT3.1\r\nabc", b"#!AER-DAT2.0\r\nabc", aedat4.VERSION + b"ab"):
        path.write_bytes(content)
        aedat3.index.cache_clear()
        refused(lambda: read(path), "x.bin")


def test_the_embedded_braille_letters():
    found = data.load("braille")
    assert found.train_images.shape == (1260, 256, 12)
    assert found.test_images.shape == (140, 256, 12)
    assert found.train_labels.bincount().tolist() == [180] * 7
    assert found.test_labels.bincount().tolist() == [20] * 7
    assert found.at(32).train_images.amax() <= 8
    assert int(found.at(32).train_images.sum()) == int(found.train_images.sum())


def test_a_time_shift_delays_each_sample_by_its_own_steps():
    from spikewire.data.augment import parse

    draw, apply = parse("time-shift:2")
    steps = draw(200, (1, 1), torch.Generator().manual_seed(0))
    assert sorted(set(steps.flatten().tolist())) == [-2, -1, 0, 1, 2]
    x = torch.arange(1, 9).view(2, 4, 1)
    moved = apply(x, torch.tensor([[1], [-2]]))
    assert moved[..., 0].tolist() == [[0, 1, 2, 3], [7, 8, 0, 0]]
    options = {"batch_size": 1, "mean": (), "std": (), "augment": ("time-shift",)}
    call = lambda: data.Batches(x, torch.zeros(2), **options)  # noqa: E731
    refused(call, "time-shift", "no data over time")
