"""Downloads from a real server on this machine that misbehaves in every known way."""

import gzip
import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from refusal import refused

from spikewire import data
from spikewire.data.download import download
from spikewire.data.source import Archive, File, Source


class Site:
    """A web server on this machine: its files, its defects, and the requests it received."""

    def __init__(self, files, *, ranges=True, cut=None):
        self.seen = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range")
                site.seen.append((self.path, wanted))
                content = files.get(self.path.lstrip("/"))
                if content is None:
                    return self.send_error(404)
                start = int(wanted[len("bytes=") : -1]) if wanted and ranges else 0
                self.send_response(206 if wanted and ranges else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                self.wfile.write(content[start:][:cut])
                return None

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sites = []

    def start(*args, **defects):
        sites.append(Site(*args, **defects))
        return sites[-1]

    yield start
    for each in sites:
        each.close()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def noise(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(count)


CONTENT = noise(900_000)
PACKED = gzip.compress(CONTENT, mtime=0)
PLAIN = File("plain/pixels", len(CONTENT), md5(CONTENT))


def archive(*files: File, packed: bytes = PACKED, name: str = "pixels.gz") -> Source:
    entry = Archive(name, len(packed), md5(packed), ("http://127.0.0.1:9/",), files or (PLAIN,))
    return Source("Plain", "made for a test", lambda root: pytest.fail("not to be read"), (entry,))


def fetched(root: Path, source: Source, *sites: Site, **options) -> None:
    download("plain", source, root, mirrors=tuple(each.url for each in sites) or None, **options)


def left_over(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_a_whole_download_reports_progress_and_leaves_only_the_file(tmp_path, site):
    calls = []
    fetched(tmp_path, archive(), site({"pixels.gz": PACKED}), progress=lambda *c: calls.append(c))
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT
    assert left_over(tmp_path) == ["pixels"]
    assert calls[-1] == ("pixels.gz", len(PACKED), len(PACKED))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert len(calls) > 1


def test_get_works_by_name_and_keeps_intact_files(tmp_path, site, monkeypatch):
    monkeypatch.setitem(data.DATASETS, "plain", archive())
    server = site({"pixels.gz": PACKED})
    assert data.get("plain", tmp_path, mirrors=(server.url,)) == tmp_path
    data.get("plain", tmp_path, mirrors=(server.url,))
    assert len(server.seen) == 1
    (tmp_path / "plain/pixels").write_bytes(CONTENT[:-1])
    data.get("plain", tmp_path, mirrors=(server.url,))
    assert len(server.seen) == 2
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_complete_data_needs_no_connection(site, mnist, fashion_mnist, cifar10):
    server = site({})
    for name in ("mnist", "fashion-mnist", "cifar10"):
        data.get(name, mirrors=(server.url,))
    assert server.seen == []


def test_a_partial_file_is_resumed_where_it_ended(tmp_path, site):
    part = tmp_path / "plain/pixels.gz.part"
    part.parent.mkdir()
    part.write_bytes(PACKED[:1000])
    server = site({"pixels.gz": PACKED})
    fetched(tmp_path, archive(), server)
    assert server.seen == [("/pixels.gz", "bytes=1000-")]
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_a_partial_file_that_is_complete_is_not_downloaded_again(tmp_path, site):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/pixels.gz.part").write_bytes(PACKED)
    server = site({"pixels.gz": PACKED})
    fetched(tmp_path, archive(), server)
    assert server.seen == []


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * len(PACKED), b"x" * (len(PACKED) + 5)])
def test_a_partial_file_with_wrong_bytes_is_discarded(tmp_path, site, stale):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/pixels.gz.part").write_bytes(stale)
    fetched(tmp_path, archive(), site({"pixels.gz": PACKED}))
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_a_server_that_cuts_the_connection_is_asked_for_the_remaining_bytes(tmp_path, site):
    server = site({"pixels.gz": PACKED}, cut=len(PACKED) // 2)
    fetched(tmp_path, archive(), server)
    assert len(server.seen) > 1
    assert server.seen[1][1] == f"bytes={len(PACKED) // 2}-"
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_the_next_mirror_resumes_where_one_stopped(tmp_path, site):
    broken = site({"pixels.gz": PACKED}, ranges=False, cut=5000)
    whole = site({"pixels.gz": PACKED})
    fetched(tmp_path, archive(), broken, whole)
    assert whole.seen == [("/pixels.gz", "bytes=5000-")]
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_a_server_without_ranges_restarts_the_download(tmp_path, site):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/pixels.gz.part").write_bytes(PACKED[:1000])
    server = site({"pixels.gz": PACKED}, ranges=False)
    fetched(tmp_path, archive(), server)
    assert server.seen == [("/pixels.gz", "bytes=1000-")]
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_altered_bytes_are_refused_and_the_next_mirror_is_tried(tmp_path, site):
    altered = bytearray(PACKED)
    altered[500] ^= 1
    bad, longer = site({"pixels.gz": bytes(altered)}), site({"pixels.gz": PACKED + b"more"})
    refused(
        lambda: fetched(tmp_path, archive(), bad, longer),
        f"md5 {md5(altered)}, expected {md5(PACKED)}",
        f"more than {len(PACKED)} bytes",
        "by hand",
    )
    assert left_over(tmp_path) == []
    fetched(tmp_path, archive(), bad, longer, site({}), site({"pixels.gz": PACKED}))
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT


def test_no_network_is_one_line_that_says_what_to_do(tmp_path, site):
    empty = site({})
    refused(
        lambda: fetched(tmp_path, archive()),
        "cannot download pixels.gz",
        "127.0.0.1:9",
        tmp_path / "plain",
        "by hand",
        "SPIKEWIRE_DATA",
        "--data-dir",
    )
    refused(lambda: fetched(tmp_path, archive(), empty), "HTTP 404", empty.url.split("/")[2])


def test_an_address_that_is_no_web_address_is_refused(tmp_path):
    refused(
        lambda: data.get("mnist", tmp_path, mirrors=("file:///etc/",)), "mirrors", "file:///etc/"
    )


def test_a_data_dir_that_cannot_be_written_is_named(tmp_path, site):
    (tmp_path / "file").write_text("no directory")
    refused(
        lambda: fetched(tmp_path / "file", archive(), site({"pixels.gz": PACKED})),
        "plain: cannot write",
        tmp_path / "file",
    )


@pytest.mark.parametrize(
    "packed",
    [gzip.compress(CONTENT + b"1"), gzip.compress(CONTENT[:-1] + b"?"), PACKED[:-9], b"no gzip"],
    ids=["longer", "altered", "truncated", "not gzip"],
)
def test_what_an_archive_unpacks_to_is_checked_too(tmp_path, site, packed):
    server = site({"pixels.gz": packed})
    refused(lambda: fetched(tmp_path, archive(packed=packed), server), "not as published")
    assert left_over(tmp_path) == []


def test_a_small_archive_that_unpacks_hugely_is_cut_short(tmp_path, site):
    bomb = gzip.compress(bytes(1 << 26))
    server = site({"pixels.gz": bomb})
    message = refused(lambda: fetched(tmp_path, archive(packed=bomb), server), "not as published")
    assert f"has {len(CONTENT) + 1} bytes, expected {len(CONTENT)}" in message


def tarball(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


ONE, TWO = noise(5000, 1), noise(7000, 2)
PAIR = (File("set/one.bin", len(ONE), md5(ONE)), File("set/two.bin", len(TWO), md5(TWO)))


def test_a_tar_gives_only_the_expected_members(tmp_path, site):
    packed = tarball(
        ("../escaped", b"x"),
        (f"{tmp_path}/absolute", b"x"),
        ("set/../../one.bin", b"x"),
        ("set/readme.html", b"x"),
        ("set/one.bin", ONE),
        ("", link("set/link", "/etc/passwd")),
        ("set/two.bin", TWO),
    )
    source = archive(*PAIR, packed=packed, name="set.tar.gz")
    root = tmp_path / "inner" / "data"
    fetched(root, source, site({"set.tar.gz": packed}))
    assert left_over(tmp_path) == ["one.bin", "two.bin"]
    assert (root / "set/two.bin").read_bytes() == TWO


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("set/one.bin", ONE)], "it lacks set/two.bin"),
        ([("set/one.bin", ONE), ("", link("set/two.bin", "one.bin"))], "it lacks set/two.bin"),
        ([("set/one.bin", ONE), ("../set/two.bin", TWO)], "it lacks set/two.bin"),
        ([("set/one.bin", ONE), ("set/two.bin", TWO + b"!")], "has 7001 bytes, expected 7000"),
        ([("set/big.bin", bytes(1 << 22)), ("set/one.bin", ONE)], "unpacks to more than"),
    ],
)
def test_a_hostile_tar_is_refused(tmp_path, site, members, words):
    packed = tarball(*members)
    source = archive(*PAIR, packed=packed, name="set.tar.gz")
    server = site({"set.tar.gz": packed})
    refused(lambda: fetched(tmp_path / "data", source, server), "set.tar.gz", words)
    assert set(left_over(tmp_path)) <= {"one.bin"}
