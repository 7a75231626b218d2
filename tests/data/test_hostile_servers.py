"""Mirrors that answer with malformed or hostile bytes; the next mirror delivers the file."""

import random
import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from data.test_download import CONTENT, PACKED, Site, archive, fetched, left_over
from refusal import refused

from spikewire import data
from spikewire.data.download import download
from spikewire.errors import SpikewireError

LINE, END = b"HTTP/1.1 200 OK\r\n", b"Connection: close\r\n\r\n"
LENGTH = f"Content-Length: {len(PACKED)}\r\n".encode()


class Raw:
    """A server that sends the same bytes to everyone and closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.socket = answer, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            with connection:
                if not connection.recv(65536).startswith(b"GET"):
                    return
                with suppress(OSError):  # the client may have read enough
                    connection.sendall(self.answer)

    def close(self) -> None:
        with socket.create_connection(self.socket.getsockname()) as connection:
            connection.sendall(b"stop")
        self.thread.join()
        self.socket.close()


@contextmanager
def running(*servers):
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def redirect(address: bytes, code: bytes = b"302 Found") -> bytes:
    return b"HTTP/1.1 " + code + b"\r\nLocation: " + address + b"\r\n" + END


def answers():
    """Yield responses in which one part has an unexpected value."""
    for line in (b"", b"\r\n", b"x", b"HTTP/1.1\r\n", b"HTTP/1.1 x OK\r\n", b"HTTP/1.1 99 OK\r\n",
                 b"HTTP/1.1 1000 OK\r\n", b"HTTP/1.1 -1 OK\r\n", b"HTTP/9.9 200 OK\r\n",
                 b"ICY 200 OK\r\n", b"HTTP/1.1 204 None\r\n", b"HTTP/1.1 206 Partial\r\n",
                 b"HTTP/1.1 416 No\r\n", b"HTTP/1.1 500 \x1b[2J\x07\x9b31m\r\n",
                 b"HTTP/1.1 404 " + b"x" * 9000 + b"\r\n",
                 b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=x\r\n", b"\xff" * 70000,
                 b"HTTP/1.1 407 No\r\nProxy-Authenticate: Digest \xff\r\n",
                 b"HTTP/1.1 304 Same\r\n", b"HTTP/1.1 101 Switch\r\n",
                 b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 300 Many\r\n"):  # fmt: skip
        yield line + END
        yield line + LENGTH + END + PACKED[:100]
    for value in (
        b"-1",
        b"x",
        b"1e9",
        b"99999999999999999999",
        b"0",
        b"",
        b"5, 7",
        b"\xff",
        b"+3",
        b"0x10",
    ):
        yield LINE + b"Content-Length: " + value + b"\r\n" + END + PACKED[:3000]
    for size in (
        b"",
        b"x",
        b"-1",
        b"ffffffffffffffffffff",
        b"0",
        b"5;" + b"x" * 70000,
        b"\xff",
        b"0x5",
        b"1e",
    ):
        body = size + b"\r\nabcde\r\n0\r\n\r\n"
        yield LINE + b"Transfer-Encoding: chunked\r\n" + END + body
    for header in (b"x" * 70000, b"A: b\r\n" * 300, b"no colon", b"\x00: \x00", b": x", b" folded",
                   b"Content-Encoding: gzip", b"Content-Range: bytes 9-5/x",
                   b"Set-Cookie: \xff"):  # fmt: skip
        yield LINE + header + b"\r\n" + END + PACKED[:3000]
    for address in (b"", b"http://", b"http://[", b"http://[::1", b"http://[::1]:x/",
                    b"http://a:b@:c/", b"//[", b"http://127.0.0.1:99999/", b"http://127.0.0.1:-1/",
                    b"http://127.0.0.1:9/", b"http://user:secret@127.0.0.1:9/",
                    b"http://user:secret@[/", b"file:///etc/passwd", b"ftp://127.0.0.1:9/x",
                    b"data:,x", b"javascript:x", b"gopher://x", b"http:///x", b"\xff\xfe",
                    b"http://" + b"a" * 300 + b"/", b"http://\xc3\xa9\xff/", b"http://a..b/",
                    b"http://127.0.0.1:9/ x", b"http://127.0.0.1:9/\x00",
                    b"http://127.0.0.1:9/%zz", b"http://xn--a/", b"x" * 60000, b"?", b"#",
                    b"http://127.0.0.1:0/", b"https://127.0.0.1:9/", b"HTTP://127.0.0.1:9",
                    b"http:127.0.0.1", b"http://127.0.0.1:9@[::1]:secret/",
                    b"http://\xe2\x84\x80/", b"\\\\host\\x"):  # fmt: skip
        for code in (b"301 Moved", b"302 Found", b"307 Moved", b"308 Moved"):
            yield redirect(address, code)
    yield LINE + LENGTH + END + bytes(len(PACKED))
    yield LINE + LENGTH + END + PACKED + b"more"
    yield LINE + END + PACKED * 2
    yield redirect(b"/pixels.gz")


ANSWERS = list(answers())


def hostile_servers(tmp_path, count, faults):
    whole = Site({"pixels.gz": PACKED})
    with running(whole):
        for number, answer in enumerate(random.Random(0).sample(ANSWERS, count)):
            root = tmp_path / str(number)
            with running(Raw(answer)) as (bad,):
                try:
                    fetched(root / "alone", archive(), bad)
                except SpikewireError as error:
                    refusal = str(error)
                    assert len(refusal.splitlines()) == 1
                    assert len(refusal) < 1000
                    assert "secret" not in refusal
                fetched(root, archive(), bad, whole)
            assert (root / "plain/pixels").read_bytes() == CONTENT
            assert not [name for name in left_over(root / "plain") if name != "pixels"]
    faults("malformed response of a server", count, count)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def test_malformed_responses(tmp_path, faults):
    hostile_servers(tmp_path, 25, faults)


@pytest.mark.slow
def test_all_malformed_responses(tmp_path, faults):
    assert len(ANSWERS) >= 100
    hostile_servers(tmp_path, len(ANSWERS), faults)


@pytest.mark.parametrize(
    "mirror",
    ["http://[", "http://[::1", "http://", "http://127.0.0.1:x/", "http://127.0.0.1:99999/",
     "http://a..b/", "http://" + "a" * 300 + "/", "http://127.0.0.1:9/ x\n/", "https://127.0.0.1:0/"],
)  # fmt: skip
def test_after_a_malformed_mirror_the_next_one_is_tried(tmp_path, mirror):
    whole = Site({"pixels.gz": PACKED})
    with running(whole):
        download("plain", archive(), tmp_path, mirrors=(mirror, whole.url))
    assert (tmp_path / "plain/pixels").read_bytes() == CONTENT
    refused(lambda: download("plain", archive(), tmp_path / "x", mirrors=(mirror,)), "download")


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_mirror_with_a_password_is_refused_without_showing_it(tmp_path, scheme):
    mirror = f"{scheme}://user:secret@127.0.0.1:9/"
    message = refused(lambda: data.get("mnist", tmp_path, mirrors=(mirror,)), "***@127.0.0.1:9")
    assert "secret" not in message
    assert "user" not in message.replace("without user", "")


def test_a_redirect_with_an_endless_body_is_not_read(tmp_path):
    """The body says that it has a terabyte, and the server stops after a megabyte."""
    answer = (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 1099511627776\r\n"
    )
    with running(Raw(answer + b"\r\n" + bytes(1 << 20))) as (bad,):
        message = refused(lambda: fetched(tmp_path, archive(), bad), "cannot download")
    assert "IncompleteRead" not in message


def test_escapes_in_the_reason_of_a_server_do_not_reach_the_terminal(tmp_path, call, monkeypatch):
    with running(Raw(b"HTTP/1.1 500 \x1b[2J\x9b31mgone\r\n" + END)) as (bad,):
        entry = archive().archives[0]
        changed = type(entry)(entry.name, entry.size, entry.md5, (bad.url,), entry.files)
        source = type(archive())("plain", "for a test", lambda root: None, (changed,))
        monkeypatch.setitem(data.DATASETS, "plain", source)
        code, out, err = call("data", "get", "plain", "--data-dir", tmp_path)
    assert code == 2
    assert r"HTTP 500 \x1b[2J\x9b31mgone" in err
    assert err.rstrip("\n").isprintable()
