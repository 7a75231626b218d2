"""`spikewire predict --input`: arrays and pictures that are damaged, hostile or of another kind."""

import io
import os
import random
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from networks import conv_net
from PIL import Image
from refusal import refused

from spikewire.errors import SpikewireError
from spikewire.formats import packed
from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime
from spikewire.runtime.inputs import read_images

SHAPE = (1, 9, 21)
pytestmark = pytest.mark.filterwarnings("ignore:.*resized to 21 x 9:UserWarning")


@pytest.fixture(scope="module")
def runtime():
    return Runtime(trace_model(conv_net(channels=(1, 5, 6)), mean=(0.1,), std=(1.0,)))


def npy(descr: object = "'|u1'", order: object = "False", shape: object = "(2, 1, 9, 21)") -> bytes:
    """Return a .npy file whose header says what is given."""
    return with_header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")


def with_header(text: str, version: bytes = b"\x01\x00", data: bytes = bytes(378 * 16)) -> bytes:
    header = text.encode("latin1") + b"\n"
    size = struct.pack("<H" if version[:1] == b"\x01" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header + data


def chunk(kind: bytes, content: bytes, crc: int | None = None, size: int | None = None) -> bytes:
    found = zlib.crc32(kind + content) if crc is None else crc
    size = len(content) if size is None else size
    return struct.pack(">I", size) + kind + content + struct.pack(">I", found)


def png(width=21, height=9, depth=8, colour=0, interlace=0, rows=None, extra=b"", **ends) -> bytes:
    """Return a PNG file; sizes are those of the network unless others are given."""
    fields = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    rows = bytes((1 + 21) * 9) if rows is None else rows
    parts = [chunk(b"IHDR", fields), extra, chunk(b"IDAT", zlib.compress(rows), **ends)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("x.npy", npy())
    return buffer.getvalue()


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def array_cases():
    """Yield .npy files: each field of the header with unexpected values, and other files."""
    whole = npy()
    for descr in ("'|O'", "'<U4'", "'>i8'", "'<c16'", "'|b1'", "'<M8[s]'", "'|V9'",
                  "[('a', '<f4')]", "None", "3", "'x'", "'<f99'", "[]", "('<f4', (3,))",
                  "'|S0'"):  # fmt: skip
        yield npy(descr=descr)
    for order in ("None", "3", "'x'", "[]"):
        yield npy(order=order)
    for shape in ("()", "(0,)", "(-1,)", "(2**40,)", "(4000000, 4000000, 4)", f"({10**30},)",
                  "(1.5,)", "'x'", "None", "[2, 1, 9, 21]", "(True,)", "(2, 1, 9, 22)",
                  "(2, 1, 9, 20)", "(0, 1, 9, 21)", f"({2**62}, 4)",
                  "(2, 1, 9, 21) * 9999"):  # fmt: skip
        yield npy(shape=shape)
        yield npy("'<f8'", "True", shape)
    for text in ("", "{", "{}", "[" * 500, "__import__('os')", "{'descr': '|u1'}", "\x00" * 40,
                 "1" * 9999,
                 "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), 'x': 1}"):  # fmt: skip
        yield with_header(text)
        yield with_header(text, b"\x02\x00")
    for version in (b"\x00\x00", b"\x03\x00", b"\x04\x00", b"\xff\xff"):
        yield whole[:6] + version + whole[8:]
    for size in (0, 1, 6, 8, 9, 10, 40, 100, 128, len(whole) - 16 * 378):
        yield whole[:size]
    yield b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + whole
    yield zipped()
    yield saved(np.full((1, 9, 21), np.nan))
    yield saved(np.full((1, 9, 21), np.finfo(np.longdouble).max))
    yield saved(np.zeros((2, 3, 4, 5, 6), np.uint8))
    yield png()


def picture_cases():
    """Yield .png files: each field of the header with unexpected values, and other files."""
    whole = png()
    for side in (0, 1, 20, 22, 2**16, 2**31 - 1, 2**31, 2**32 - 1):
        yield png(width=side)
        yield png(height=side)
        yield png(width=side, height=side)
    for value in (0, 1, 2, 3, 5, 7, 16, 255):
        yield png(depth=value)
        yield png(colour=value)
        yield png(interlace=value)
    for rows in (b"", bytes(5), b"\xff" * 198, bytes(10**6)):
        yield png(rows=rows)
    for size in (0, 2**31 - 1, 2**32 - 1, 3):
        yield png(size=size)
    yield png(crc=0)
    bomb = zlib.compress(bytes(2**26))
    for kind in (b"zTXt", b"iCCP"):
        yield png(extra=chunk(kind, b"x\0\0" + bomb))
    yield png(extra=chunk(b"iTXt", b"x\0\1\0\0\0" + bomb))
    for kind in (b"PLTE", b"tRNS", b"gAMA", b"IHDR", b"abcd", b"acTL", b"eXIf"):
        yield png(extra=chunk(kind, b""))
        yield png(extra=chunk(kind, bytes(7)))
    for size in (0, 1, 8, 20, 33, 60, len(whole) - 13, len(whole) - 3):
        yield whole[:size]
    for other in ("GIF", "JPEG", "BMP", "TIFF"):
        buffer = io.BytesIO()
        Image.new("L", (21, 9)).save(buffer, other)
        yield buffer.getvalue()
    yield saved(np.zeros(SHAPE, np.uint8))


CASES = [(".npy", content) for content in array_cases()]
CASES += [(".png", content) for content in picture_cases()]


def read_and_predict(path, runtime) -> bool:
    """Read images; they must give a prediction, or be refused in one line."""
    try:
        images, _ = read_images(str(path), runtime)
        assert runtime.predict(images).shape == (len(images),)
    except SpikewireError as error:
        refusal = str(error)
        assert len(refusal.splitlines()) == 1
        return False
    return True


def hostile_images(tmp_path, runtime, cases, faults):
    read = 0
    for suffix, content in cases:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(content)
        read += read_and_predict(path, runtime)
    assert 0 < read < len(cases)
    faults("damaged or hostile image file", len(cases), len(cases))


def test_hostile_arrays_and_pictures(tmp_path, runtime, faults):
    hostile_images(tmp_path, runtime, random.Random(0).sample(CASES, 50), faults)


@pytest.mark.slow
def test_all_hostile_arrays_and_pictures(tmp_path, runtime, faults):
    assert len(CASES) >= 100
    hostile_images(tmp_path, runtime, CASES, faults)


# ---------------------------------------------------------------------- the cases of the report


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.npy", b"", "cannot be read"),
        ("zip.npy", zipped(), "cannot be read"),
        ("huge.npy", npy(shape="(4000000, 4000000, 4)"), "cannot be read"),
        ("huge.png", png(2**16, 2**16), "cannot be read"),
        ("large.png", png(12000, 12000), "12000 x 12000"),
        ("objects.npy", npy(descr="'|O'"), "cannot be read"),
        ("complex.npy", npy(descr="'<c16'"), "complex128"),
    ],
)
def test_one_line_and_exit_code_2(tmp_path, call, name, content, words):
    packed.write(trace_model(conv_net(channels=(1, 5, 6))), tmp_path / "net")
    (tmp_path / name).write_bytes(content)
    code, out, err = call("predict", tmp_path / "net", "--input", tmp_path / name)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f2", np.longdouble, "<f8"])
def test_floats_of_any_size_and_byte_order_are_read(tmp_path, runtime, kind):
    images = np.random.default_rng(0).random((3, *SHAPE)).astype(np.float16)
    np.save(tmp_path / "x.npy", images.astype(kind))
    found, _ = read_images(str(tmp_path / "x.npy"), runtime)
    assert torch.equal(found, torch.from_numpy(images).float())


def test_a_pipe_is_refused(tmp_path, runtime):
    os.mkfifo(tmp_path / "x.npy")
    refused(lambda: read_images(str(tmp_path / "x.npy"), runtime), "pipe")
    refused(lambda: packed.read(tmp_path / "x.npy"), "pipe")
