"""Addresses: one download, whole or none, whatever the network does to it."""

import contextlib
import fnmatch
import hashlib
import http.server
import io
import json
import logging
import os
import re
import shutil
import socket
import ssl
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from safetensors.torch import save

from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.build import create_model
from vitkit.weights import save_model
from vitkit.weights.files import remote, transport
from vitkit.weights.files.cache import cache_folder
from vitkit.weights.files.remote import fetch, is_kept
from vitkit.weights.model_card import card_of


def npz(size: int = 200_000, fill: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.full(size, fill, np.float32))
    return buffer.getvalue()


DRIPS = 150
"""Pieces that a dripping server sends, 0.02 s apart, before it gives up."""


@dataclass
class Hosted:
    """One file, and how its server behaves."""

    data: bytes
    etag: str = '"1"'
    ranges: bool = True
    conditions: bool = True
    """Whether If-Range is heeded."""
    length: int | None = None
    """What Content-Length says, if not the truth; 0: nothing."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes each of the next connections breaks."""
    statuses: list[int] = field(default_factory=list)
    """Errors of the next replies."""
    headers: dict[str, str] = field(default_factory=dict)
    after_cut: "Hosted | None" = None
    """What stands in its place once it was cut."""
    drip: bool = False
    """Whether it comes ten bytes at a time, with pauses."""
    elsewhere: str = ""
    """Where the server sends those who ask for it."""
    heads: bool = True
    """Whether the server answers HEAD."""


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Hosted] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.heads: list[str] = []
        self.scheme = "http"

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, *_: Any) -> None:
        """A client that goes away is what some tests are about."""

    @property
    def ranges(self) -> list[str | None]:
        """The Range of each request for weights."""
        return [asked for path, asked in self.requests if not path.endswith(".json")]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        file = self.server.files.get(self.path)
        self.server.heads.append(self.path)
        if file is None or not file.heads:
            self.send_error(501)
            return
        if self._sent_on(file):
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(file.data)))
        self._describe(file)

    def _sent_on(self, file: Hosted) -> bool:
        if file.elsewhere:
            self.send_response(302)
            self.send_header("Location", file.elsewhere)
            self._describe(file)
        return bool(file.elsewhere)

    def _describe(self, file: Hosted) -> None:
        if file.etag:
            self.send_header("ETag", file.etag)
        for name, value in file.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        path, asked = self.path.split("?")[0], self.headers.get("Range")
        self.server.requests.append((path, asked))
        file = self.server.files.get(path)
        if file is None:
            self.send_error(404)
            return
        if file.statuses:
            self.send_error(file.statuses.pop(0))
            return
        if self._sent_on(file):
            return
        start = 0
        if asked and file.ranges and (not file.conditions or self.headers.get("If-Range") == file.etag):
            match = re.fullmatch(r"bytes=(\d+)-", asked)
            assert match
            start = int(match[1])
            if start >= len(file.data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(file.data) - 1}/{len(file.data)}")
        else:
            self.send_response(200)
        body = file.data[start:]
        length = len(body) if file.length is None else file.length
        if length:
            self.send_header("Content-Length", str(length))
        self._describe(file)
        for _ in range(DRIPS if file.drip else 0):
            self.wfile.write(body[:10])
            body = body[10:]
            time.sleep(0.02)
        if file.drip:  # nobody cut it: a client without an end of its own gets one
            return
        if file.cuts:
            body = body[: file.cuts.pop(0)]
            if file.after_cut:
                self.server.files[path] = file.after_cut
        self.wfile.write(body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def refused(address: str, *words: str) -> str:
    with pytest.raises(VitkitError) as caught:
        fetch(address)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


# Paths


@pytest.mark.parametrize(
    "path", ["model.npz", "hf", "hf/model", "C:\\weights\\model.npz", "/abs/x.pth", "https", "a:b", "s3/x"]
)
def test_paths_stay_as_they_are(path: str) -> None:
    assert fetch(path).path == Path(path) and fetch(Path(path)).path == Path(path)
    assert fetch(path).origin == {}


def test_what_is_on_the_disk_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:org").mkdir()
    (tmp_path / "hf:org" / "name").touch()
    assert fetch("hf:org/name").path == Path("hf:org/name")


@pytest.mark.parametrize("address", ["ftp://host/x.npz", "file:///etc/passwd", "zip://x::https://host/y.npz"])
def test_other_addresses_are_refused(address: str) -> None:
    refused(address, "no address that can be fetched", "hf:org/name")


# One file from a server


def test_a_file_is_fetched_once(server: Server) -> None:
    server.files["/w/ViT-B_16.npz"] = Hosted(npz())
    seen: list[tuple[int, int | None]] = []
    first = fetch(server.url("/w/ViT-B_16.npz"), lambda done, total: seen.append((done, total)))
    assert first.path.name == "ViT-B_16.npz" and first.path.read_bytes() == npz()
    assert first.origin == {
        "source": server.url("/w/ViT-B_16.npz"),
        "sha256": hashlib.sha256(npz()).hexdigest(),
    }
    assert seen[-1] == (len(npz()), len(npz())) and sorted(seen) == seen
    assert fetch(server.url("/w/ViT-B_16.npz")) == first
    assert fetch(Path(server.url("/w/ViT-B_16.npz"))) == first  # pathlib takes one slash away
    assert len(server.requests) == 1


def test_what_is_kept_is_known_without_asking(server: Server) -> None:
    server.files["/m/x.npz"] = Hosted(npz())
    address = server.url("/m/x.npz")
    assert not is_kept(address) and not server.requests
    found = fetch(address)
    asked = len(server.requests)
    assert is_kept(address) and is_kept(f"{address}#sha256={'0' * 64}") and is_kept(found.path)
    assert not is_kept(server.url("/m/y.npz")) and len(server.requests) == asked


def test_a_cut_download_goes_on(server: Server) -> None:
    data = npz()
    server.files["/x.npz"] = Hosted(data, cuts=[100_000, 50_000])
    assert fetch(server.url("/x.npz")).path.read_bytes() == data
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_cuts_do_not_count_while_bytes_come(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), cuts=[50_000] * (2 * remote.ATTEMPTS))
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    assert len(server.requests) == 2 * remote.ATTEMPTS + 1


def test_killed_when_the_file_has_changed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the note of the new file and its first byte, the old beginning must be gone."""
    new, receive = npz(fill=2.0), remote._receive

    def killed(reply: transport.Reply, *others: Any) -> None:
        if reply.version == '"2"':
            raise KeyboardInterrupt
        receive(reply, *others)

    server.files["/x.npz"] = Hosted(npz(), cuts=[100_000], after_cut=Hosted(new, etag='"2"'))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remote, "_receive", killed)
        fetch(server.url("/x.npz"))
    assert fetch(server.url("/x.npz")).path.read_bytes() == new


def test_the_next_call_goes_on(server: Server) -> None:
    data = npz()
    server.files["/x.npz"] = Hosted(data, cuts=[100_000, 0, 0, 0, 0])
    refused(server.url("/x.npz"), "100,000 bytes are kept, and the next call goes on", "ended after 100,000")
    server.requests.clear()
    fetched = fetch(server.url("/x.npz")).path
    assert fetched.read_bytes() == data and server.ranges == ["bytes=100000-"]
    assert not list(fetched.parent.glob("*.part*")) and not list(fetched.parent.glob(".*.part*"))


@pytest.mark.parametrize("conditions", [True, False])
@pytest.mark.parametrize("size", [200_000, 100_000, 10_000])
def test_a_file_that_changes_meanwhile_is_never_mixed(conditions: bool, size: int, server: Server) -> None:
    new = npz(size, 2.0)
    after = Hosted(new, etag='"2"', conditions=conditions)
    server.files["/x.npz"] = Hosted(npz(), cuts=[100_000], after_cut=after)
    assert fetch(server.url("/x.npz")).path.read_bytes() == new


def test_a_changed_file_of_another_length_under_one_mark(server: Server) -> None:
    after = Hosted(npz(300_000, 2.0))
    server.files["/x.npz"] = Hosted(npz(), cuts=[100_000], after_cut=after)
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz(300_000, 2.0)


@pytest.mark.parametrize(
    "how", [{"ranges": False}, {"etag": ""}, {"etag": 'W/"1"'}], ids=["no ranges", "no mark", "weak mark"]
)
def test_where_it_cannot_go_on_it_begins_again(how: dict[str, Any], server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), cuts=[100_000, 200_000], **how)
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    if "etag" in how:
        assert server.ranges == [None, None, None]


def test_always_cut_at_the_same_place_it_gives_up(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), etag="", cuts=[100_000] * 99)
    words = refused(server.url("/x.npz"), "ended after 100,000")
    assert "are kept" not in words  # it could not go on from them
    assert len(server.requests) == remote.ATTEMPTS


def test_a_length_that_is_too_long(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), length=len(npz()) + 5)
    refused(server.url("/x.npz"), "cannot be fetched", "Nothing was changed")
    assert not list((cache_folder()).rglob("x.npz"))


def test_a_length_that_is_too_short(server: Server) -> None:
    """What would be kept is a file cut short, under a mark that says it is whole."""
    server.files["/x.npz"] = Hosted(npz(), length=5000)
    refused(server.url("/x.npz"), "announces 5,000 bytes of it, and sends more", "Nothing was changed")
    server.files["/x.npz"] = Hosted(npz())
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


def test_no_length_at_all(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), length=0)
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_busy_server_is_asked_again(status: int, server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), statuses=[status, status])
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


@pytest.mark.parametrize(
    ("status", "words"), [(404, "there is no such file"), (403, "access is refused"), (401, "not public")]
)
def test_an_answer_is_taken_as_one(status: int, words: str, server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), statuses=[status] * 99)
    message = refused(server.url("/x.npz"), words, f"HTTP {status}", "Nothing was changed")
    assert len(server.requests) == 1 and "vit_models" not in message


def test_the_authors_bucket_is_known_to_be_closed(server: Server) -> None:
    refused(server.url("/vit_models/augreg/x.npz"), "closed to the public", "hf:timm/vit_base_patch16_224")


@pytest.mark.parametrize(
    "text", ["<!DOCTYPE html><html>log in</html>", "version https://git-lfs.github.com/", ""]
)
def test_what_is_no_checkpoint_is_not_kept(text: str, server: Server) -> None:
    server.files["/x.npz"] = Hosted(text.encode())
    refused(server.url("/x.npz"), "was fetched, but it is", "thrown away")
    server.files["/x.npz"] = Hosted(npz())
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


def test_nobody_there(server: Server) -> None:
    port = server.server_port
    server.shutdown()
    server.server_close()
    words = refused(
        f"http://127.0.0.1:{port}/x.npz", "cannot be reached", "Nothing was changed", "put it at "
    )
    by_hand = Path(words.rpartition("put it at ")[2].removesuffix("."))
    by_hand.write_bytes(npz())
    fetched = fetch(f"http://127.0.0.1:{port}/x.npz")
    assert fetched.path == by_hand
    assert fetched.origin["sha256"] == hashlib.sha256(npz()).hexdigest()


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.files["/x.npz"] = Hosted(npz())
    path = fetch(server.url("/x.npz")).path
    os.utime(path, (1, 1))
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    assert len(server.requests) == 1  # another time alone: the contents are the same
    path.write_bytes(npz()[:-1] + b"!")
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    assert len(server.requests) == 2 and "is not the file that was fetched" in caplog.text


def test_a_hash_in_the_address_is_kept_to(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz())
    good, url = hashlib.sha256(npz()).hexdigest(), server.url("/x.npz")
    assert fetch(f"{url}#sha256={good.upper()}").origin["sha256"] == good
    refused(f"{url}#sha256={'0' * 64}", f"its SHA-256 is {good}, expected 0000")
    assert fetch(url).path.read_bytes() == npz()
    refused(f"{url}#sha256=12", "64 digits")


@pytest.mark.parametrize(
    "path", ["/", "/folder", "/x.txt", "/..", "/model.safetensors.index.json", "/a%2F..%5Cx.npz"]
)
def test_addresses_that_name_no_weights(path: str, server: Server) -> None:
    refused(server.url(path), "expected the address of one file of weights")
    assert not server.requests


def test_no_secrets_in_records(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz())
    fetched = fetch(server.url("/x.npz?signature=secret"))
    assert fetched.origin["source"] == server.url("/x.npz")
    kept = [path.read_text() for path in fetched.path.parent.glob(".*json")]
    assert kept and not any("secret" in text for text in kept)
    words = refused("https://me:secret@host/x.npz", "name and password")
    assert "secret" not in words


def test_compressed_answers_are_refused(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz(), headers={"Content-Encoding": "gzip"})
    refused(server.url("/x.npz"), "compressed")


def test_a_disk_that_refuses(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "file" / "cache"))
    refused(server.url("/x.npz"), "cannot be kept", "VITKIT_CACHE")


def test_two_at_once_fetch_once(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz())
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch(server.url("/x.npz")).path)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(server.requests) == 1


def test_a_model_of_ours_with_its_description(server: Server, tmp_path: Path) -> None:
    model = create_model("ViT-16x1x2/4", num_classes=3, image_size=(8, 8))
    save_model(model, tmp_path / "saved")
    for name in ("model.safetensors", "model.json"):
        server.files[f"/m/{name}"] = Hosted((tmp_path / "saved" / name).read_bytes())
    server.files["/m/config.json"] = Hosted(b"<html>not found, politely</html>")
    address = server.url("/m/model.safetensors")
    loaded = load_model(address)
    images = torch.rand(1, 3, 8, 8)
    with torch.inference_mode():
        assert torch.equal(loaded(images), model.eval()(images))
    assert card_of(loaded).origin["source"] == address and len(card_of(loaded).origin["sha256"]) == 64


def test_the_origin_of_a_foreign_model(server: Server, tmp_path: Path) -> None:
    model = create_model("ViT-16x1x2/4", num_classes=3, image_size=(8, 8))
    server.files["/x.npz"] = Hosted(save_model(model, tmp_path / "x.npz", "official").read_bytes())
    origin = card_of(load_model(server.url("/x.npz"))).origin
    assert origin["file"] == "x.npz" and origin["dialect"] == "official"
    assert origin["source"] == server.url("/x.npz") and len(origin["sha256"]) == 64


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/vitkit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "vitkit"


# Servers that never end, or lie


def shown(bytes_free: int) -> Any:
    return lambda folder: types.SimpleNamespace(free=bytes_free)


def test_a_drip_ends_and_what_came_is_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WINDOW", 0.2)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    server.files["/x.npz"] = Hosted(npz(), drip=True)
    refused(server.url("/x.npz"), "fewer than 30,720 bytes came in 0.2 s", "bytes are kept")
    assert len(server.requests) == 2 and server.ranges[1] is not None  # went on, and gave up all the same
    server.files["/x.npz"] = Hosted(npz())
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    assert server.ranges[2] not in (None, "bytes=0-")


@pytest.fixture
def raw() -> Iterator[Any]:
    """Servers that answer every connection with given pieces, a moment apart."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start(pieces: list[bytes]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0.05)

        def serve() -> None:
            with listener:
                while not stop.is_set():
                    with contextlib.suppress(OSError):
                        connection, _ = listener.accept()
                        with connection:
                            connection.recv(1000)
                            for piece in pieces:
                                connection.sendall(piece)
                                if stop.wait(0.02):
                                    return

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/x.npz"

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_an_answer_that_drips_ends_too(raw: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WINDOW", 0.2)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    refused(raw([b"H"] * DRIPS), "fewer than 30,720 bytes came", "Nothing was changed")


def test_an_answer_that_is_no_http_is_shown_not_obeyed(
    raw: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    words = refused(raw([b"\x1b]0;owned\x07 hello\r\n\r\n"]), "answer is no HTTP", r"\x1b]0;owned\x07")
    assert "\x1b" not in words
    words = refused(raw([b"HTTP/1.1 404 \x1b[31mred\x9b" + b"x" * 900 + b"\r\n\r\n"]), "no such file")
    words = refused(raw([b"HTTP/1.1 499 \x1b[31mred\x9b" + b"x" * 900 + b"\r\n\r\n"]), r"\x1b[31mred\x9b")
    assert "\x1b" not in words and len(words) < 500


def test_a_body_without_end_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", shown(100_000))
    server.files["/x.npz"] = Hosted(npz(), length=0)
    refused(server.url("/x.npz"), "has not ended after", "does not say how long")
    assert not list(cache_folder().rglob("*.part"))


def test_room_is_made_sure_of_before_the_first_byte(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/x.npz"] = Hosted(npz())
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", shown(100_000))
        refused(server.url("/x.npz"), f"needs {len(npz()):,} more bytes", "100,000 free", "VITKIT_CACHE")
    with monkeypatch.context() as patch:
        patch.setattr(remote, "MAX_WEIGHTS", 1000)
        refused(server.url("/x.npz"), "weights may have 1,000")
    assert not list(cache_folder().rglob("*.part"))
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


def test_all_of_it_takes_only_so_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TOTAL_TIME", 0.1)
    server.files["/x.npz"] = Hosted(npz(), drip=True)
    refused(server.url("/x.npz"), "not whole after", "bytes are kept")
    assert len(server.requests) == 1


def test_pauses_are_shown(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.files["/x.npz"] = Hosted(npz(), statuses=[503])
    logging.getLogger("vitkit").setLevel(logging.ERROR)  # as where loading's own warnings are kept back
    try:
        fetch(server.url("/x.npz"))
    finally:
        logging.getLogger("vitkit").setLevel(logging.NOTSET)
    assert "(HTTP 503); trying again in 0 s (attempt 2 of 5)" in caplog.text


def test_settings_that_are_too_large_are_left_out_with_words(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "MAX_SETTINGS", 1000)
    server.files["/model.safetensors"] = Hosted(WEIGHTS)
    server.files["/config.json"] = Hosted(json.dumps({"x": "y" * 2000}).encode())
    path = fetch(server.url("/model.safetensors")).path
    assert "config.json beside the weights is left out: it is larger than 1,000 bytes" in caplog.text
    assert not (path.parent / "config.json").exists()


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x.npz", "gopher://127.0.0.1/x.npz"])
def test_redirects_lead_to_http_alone(target: str, server: Server) -> None:
    server.files["/x.npz"] = Hosted(b"", elsewhere=target)
    refused(server.url("/x.npz"), target.partition(":")[0] + "://127.0.0.1", "Nothing was changed")


@pytest.fixture
def encrypted(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that speaks https, whose certificate is trusted for the time of the test."""
    certificate = Path(__file__).parents[1] / "fixtures" / "loopback.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Server() as encrypted:
        encrypted.scheme = "https"
        encrypted.socket = context.wrap_socket(encrypted.socket, server_side=True)
        thread = threading.Thread(target=encrypted.serve_forever, args=(0.01,))
        thread.start()
        yield encrypted
        encrypted.shutdown()
        thread.join()


def test_redirects_never_lead_from_https_to_http(server: Server, encrypted: Server) -> None:
    server.files["/store.npz"] = encrypted.files["/store.npz"] = Hosted(npz())
    encrypted.files["/x.npz"] = Hosted(b"", elsewhere=server.url("/store.npz"))
    refused(
        encrypted.url("/x.npz"), f"on to {server.url('/store.npz')}, which is not encrypted", "Nothing was"
    )
    assert not server.requests
    encrypted.files["/y.npz"] = Hosted(b"", elsewhere=encrypted.url("/store.npz"))
    assert fetch(encrypted.url("/y.npz")).path.read_bytes() == npz()
    server.files["/z.npz"] = Hosted(b"", elsewhere=encrypted.url("/store.npz"))
    assert fetch(server.url("/z.npz")).path.read_bytes() == npz()


def test_redirects_are_followed(server: Server) -> None:
    digest = hashlib.sha256(npz()).hexdigest()
    linked = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(npz()))}
    server.files["/x.npz"] = Hosted(b"", etag="", elsewhere=server.url("/store"), headers=linked)
    server.files["/store"] = Hosted(npz())
    assert fetch(server.url("/x.npz")).origin["sha256"] == digest
    server.files["/y.npz"] = Hosted(
        b"", etag="", elsewhere=server.url("/store"), headers={"X-Linked-ETag": f'"{"0" * 64}"'}
    )
    refused(server.url("/y.npz"), f"its SHA-256 is {digest}, expected 0000", "thrown away")


# What is kept, and what the server has now


@pytest.mark.parametrize(
    "now",
    [
        Hosted(npz(fill=2.0), etag='"2"'),
        Hosted(npz(300_000, 2.0), etag='"1"'),
        Hosted(npz(fill=2.0), headers={"X-Linked-ETag": hashlib.sha256(npz(fill=2.0)).hexdigest()}),
    ],
    ids=["version", "length", "SHA-256"],
)
def test_a_file_that_changed_on_the_server_is_refused(
    now: Hosted, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/x.npz"] = Hosted(npz())
    kept = fetch(server.url("/x.npz")).path
    server.files["/x.npz"] = now
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()  # asked a moment ago
    monkeypatch.setattr(remote, "CHECK_AGAIN", 0.0)
    refused(server.url("/x.npz"), "left as it is", str(kept), "delete it to fetch the other")
    assert kept.read_bytes() == npz()
    kept.unlink()
    assert fetch(server.url("/x.npz")).path.read_bytes() == now.data
    requests = len(server.requests)
    assert fetch(server.url("/x.npz")).path.read_bytes() == now.data
    assert len(server.requests) == requests


def test_the_same_bytes_under_another_mark_are_the_same_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.files["/x.npz"] = Hosted(npz())
    fetch(server.url("/x.npz"))
    server.files["/x.npz"] = Hosted(npz(), etag='"2"')
    monkeypatch.setattr(remote, "CHECK_AGAIN", 0.0)
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    assert "may have changed" in caplog.text and len(server.ranges) == 2
    fetch(server.url("/x.npz"))
    assert len(server.ranges) == 2


def test_a_file_that_was_damaged_here_must_come_back_the_same(server: Server) -> None:
    server.files["/x.npz"] = Hosted(npz())
    kept = fetch(server.url("/x.npz")).path
    kept.write_bytes(b"damaged")
    server.files["/x.npz"] = Hosted(npz(fill=2.0))
    refused(server.url("/x.npz"), hashlib.sha256(npz()).hexdigest(), "It was thrown away")


def test_a_server_that_cannot_say_changes_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHECK_AGAIN", 0.0)
    server.files["/x.npz"] = Hosted(npz())
    kept = fetch(server.url("/x.npz"))
    server.files["/x.npz"] = Hosted(npz(fill=2.0), heads=False)
    assert fetch(server.url("/x.npz")) == kept
    del server.files["/x.npz"]
    assert fetch(server.url("/x.npz")) == kept
    server.shutdown()
    server.server_close()
    assert fetch(server.url("/x.npz")) == kept and kept.path.read_bytes() == npz()


def test_what_a_commit_holds_never_changes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHECK_AGAIN", 0.0)
    path = f"/org/name/resolve/{'a' * 40}/x.npz"
    server.files[path] = Hosted(npz())
    kept = fetch(server.url(path)).path
    server.files[path] = Hosted(npz(fill=2.0), etag='"2"')
    refused(server.url(path), "names a commit", "left as it is", str(kept))
    assert kept.read_bytes() == npz()
    digest = hashlib.sha256(npz()).hexdigest()
    assert fetch(f"{server.url(path)}#sha256={digest}").path == kept  # nothing is asked: it is the one


# Stores


class Store(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that can break after some bytes."""

    protocol = "gs"
    store: ClassVar[dict[str, Any]] = {}
    cuts: ClassVar[list[int]] = []
    starts: ClassVar[list[int]] = []
    etag = "1"
    refuses: Exception | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("gs://").strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if Store.refuses:
            raise Store.refuses
        return {**super().info(path), "etag": Store.etag}

    def open(self, path: str, mode: str = "rb", **how: Any) -> Any:
        if mode != "rb":
            return super().open(path, mode, **how)

        class Breaking(io.BytesIO):
            def seek(self, offset: int, whence: int = 0) -> int:
                Store.starts.append(offset)
                return super().seek(offset, whence)

            def read1(self, size: int | None = -1) -> bytes:
                if not Store.cuts:
                    return super().read1(size)
                if self.tell() >= Store.cuts[0]:
                    Store.cuts.pop(0)
                    raise RuntimeError("of the store's own library")
                return super().read1(Store.cuts[0] - self.tell())

        return Breaking(self.cat_file(path))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Store]]:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", Store)
    for name, value in (("cuts", []), ("starts", []), ("etag", "1"), ("refuses", None), ("store", {})):
        monkeypatch.setattr(Store, name, value)
    yield Store


def test_a_store_goes_on_too(store: type[Store]) -> None:
    Store().pipe_file("/bucket/x.npz", npz())
    store.cuts[:] = [100_000, 300_000]
    fetched = fetch("gs://bucket/x.npz")
    assert fetched.path.read_bytes() == npz() and fetched.origin["source"] == "gs://bucket/x.npz"
    assert store.starts == [0, 100_000, 300_000]


def test_a_changed_file_of_a_store_is_begun_again(store: type[Store]) -> None:
    Store().pipe_file("/bucket/x.npz", npz())
    store.cuts[:] = [100_000, 100_000, 100_000, 100_000, 100_000]
    refused("gs://bucket/x.npz", "was cut (of the store's own library)", "100,000 bytes are kept")
    store.cuts.clear()
    store.etag = "2"
    Store().pipe_file("/bucket/x.npz", npz(fill=2.0))
    assert fetch("gs://bucket/x.npz").path.read_bytes() == npz(fill=2.0)


def test_a_store_that_refuses(store: type[Store]) -> None:
    refused("gs://bucket/none.npz", "there is no such file", "Nothing was changed")
    store.refuses = PermissionError("403")
    refused("gs://vit_models/x.npz", "access is refused", "closed to the public")
    store.refuses = RuntimeError("no route")
    refused("gs://bucket/x.npz", "cannot be reached: no route", "put it at")


@pytest.mark.parametrize(("address", "package"), [("gs://b/x.npz", "gcsfs"), ("s3://b/x.npz", "s3fs")])
def test_stores_without_their_packages(
    address: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    refused(address, f"pip install fsspec {package}", "Nothing was changed")


# The Hub


class HubError(OSError):
    pass


class NotFoundError(HubError):
    pass


class GatedError(NotFoundError):
    pass


class NoRevisionError(HubError):
    pass


class Hub:
    """As much of huggingface_hub as is used, with models in memory and a cache on the disk."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.files: dict[str, bytes] = {}
        self.failure: Exception | None = None
        self.asked: list[list[str]] = []
        self.revisions: list[str | None] = []
        self.says: str | None = None
        """What it says the SHA-256 of its files is, if not the truth."""
        self.draws_bars = True
        self.drew_bars: list[bool] = []
        self.broken = 0
        """How many of the next files arrive damaged."""

    def model_info(self, repo_id: str, *, revision: str | None = None, files_metadata: bool) -> Any:
        if self.failure:
            raise self.failure
        self.revisions.append(revision)
        siblings = [
            types.SimpleNamespace(
                rfilename=name,
                size=len(data),
                lfs=types.SimpleNamespace(sha256=self.says or hashlib.sha256(data).hexdigest()),
            )
            for name, data in self.files.items()
        ]
        return types.SimpleNamespace(siblings=siblings)

    def snapshot_download(
        self,
        repo_id: str,
        *,
        revision: str | None = None,
        allow_patterns: list[str],
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> str:
        self.drew_bars += [] if local_files_only else [self.draws_bars]
        folder = self.cache / "snapshots" / "abc123"
        if local_files_only:
            if not folder.exists():
                raise FileNotFoundError("no snapshot")
            return str(folder)
        if self.failure and not folder.exists():
            raise self.failure
        if not self.failure:
            names = [n for n in self.files if any(fnmatch.fnmatchcase(n, p) for p in allow_patterns)]
            self.asked.append(sorted(names))
            for name in names:
                path = folder / name
                blob = self.cache / "blobs" / hashlib.sha256(self.files[name]).hexdigest()
                blob.parent.mkdir(parents=True, exist_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                if force_download or not blob.exists():
                    blob.write_bytes(b"?" * self.broken + self.files[name][self.broken :])
                if not path.exists():
                    path.symlink_to(blob)
        return str(folder)

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None = None) -> str:
        return str(Path(self.snapshot_download(repo_id, allow_patterns=[filename])) / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    hub = Hub(tmp_path / "hub")
    module: Any = types.ModuleType("huggingface_hub")
    module.errors = types.ModuleType("huggingface_hub.errors")
    module.errors.GatedRepoError = GatedError
    module.errors.RepositoryNotFoundError = NotFoundError
    module.errors.RevisionNotFoundError = NoRevisionError
    module.HfApi = lambda: hub
    module.utils = types.SimpleNamespace(
        are_progress_bars_disabled=lambda: not hub.draws_bars,
        disable_progress_bars=lambda: setattr(hub, "draws_bars", False),
        enable_progress_bars=lambda: setattr(hub, "draws_bars", True),
    )
    module.snapshot_download = hub.snapshot_download
    module.hf_hub_download = hub.hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", module.errors)
    return hub


def test_the_names_used_are_those_of_the_real_library() -> None:
    import huggingface_hub
    from huggingface_hub import errors

    for name in ("HfApi", "snapshot_download", "hf_hub_download"):
        assert callable(getattr(huggingface_hub, name))
    for name in ("are_progress_bars_disabled", "disable_progress_bars", "enable_progress_bars"):
        assert callable(getattr(huggingface_hub.utils, name))
    assert issubclass(errors.GatedRepoError, errors.RepositoryNotFoundError)
    assert issubclass(errors.RevisionNotFoundError, Exception)


WEIGHTS = save({"x": torch.ones(3)})


@pytest.mark.parametrize("has_screen", [True, False])
def test_bars_are_drawn_on_screens_alone(hub: Hub, has_screen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: has_screen)
    fetch("hf:org/name")
    assert hub.drew_bars == [has_screen]
    assert hub.draws_bars  # in the caller's own downloads


@pytest.mark.parametrize(
    ("files", "fetched"),
    [
        (
            ["model.safetensors", "pytorch_model.bin", "config.json", "a.md"],
            ["config.json", "model.safetensors"],
        ),
        (
            ["pytorch_model.bin", "x.npz", "preprocessor_config.json"],
            ["preprocessor_config.json", "pytorch_model.bin"],
        ),
        (["ViT-B_16.npz", "README.md"], ["ViT-B_16.npz"]),
        (["only[1].safetensors", "sub/model.safetensors", "x.bin"], ["only[1].safetensors"]),
    ],
)
def test_one_format_is_fetched(files: list[str], fetched: list[str], hub: Hub) -> None:
    hub.files = dict.fromkeys(files, WEIGHTS)
    found = fetch("hf:org/name")
    assert hub.asked == [fetched] and found.path.name in fetched and found.path.read_bytes() == WEIGHTS
    assert found.origin == {
        "source": f"hf:org/name@abc123/{found.path.name}",
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
    }


def test_weights_in_the_hubs_cache_are_known_without_asking(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    assert not is_kept("hf:org/name")
    hub.snapshot_download("org/name", allow_patterns=["config.json"])
    assert not is_kept("hf:org/name")  # what stands beside the weights is not them
    fetch("hf:org/name")
    hub.failure = ConnectionError("no network")
    assert is_kept("hf:org/name") and is_kept("hf:org/name/model.safetensors")
    assert not is_kept("hf:org/name/other.npz")


def test_revisions_files_and_folders(hub: Hub) -> None:
    hub.files = dict.fromkeys(["model.safetensors", "a/x.npz", "a/config.json", "config.json"], WEIGHTS)
    assert fetch("hf:org/na.me-1@v1.0/a/x.npz").path.name == "x.npz"
    assert fetch("hf:org/name/a").path.name == "x.npz"
    assert fetch("hf://org/name@refs%2Fpr%2F1").path.name == "model.safetensors"
    assert hub.revisions == ["v1.0", None, "refs/pr/1"]
    assert hub.asked[0] == hub.asked[1] == ["a/config.json", "a/x.npz"]


def test_shards_are_fetched_by_their_index(hub: Hub) -> None:
    shards = {
        "model-1.safetensors": save({"a": torch.ones(1)}),
        "model-2.safetensors": save({"b": torch.ones(2)}),
    }
    index = {
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "../../x.safetensors"}
    }
    hub.files = {**shards, "model.safetensors.index.json": json.dumps(index).encode(), "other.bin": b"x"}
    found = fetch("hf:org/name")
    assert hub.asked[-1] == ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"]
    assert found.origin["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in shards.items()}


def test_a_file_that_was_damaged_in_the_hubs_cache_is_fetched_again(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    path = fetch("hf:org/name").path
    path.resolve().write_bytes(WEIGHTS[:-1] + b"!")
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS
    assert "not the file that the Hub has" in caplog.text
    path.resolve().write_bytes(WEIGHTS[:-1])
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS
    path.resolve().write_bytes(WEIGHTS[:-1] + b"!")
    hub.broken = 1
    refused("hf:org/name", "fetched twice", hashlib.sha256(WEIGHTS).hexdigest())


def test_what_a_commit_of_the_hub_holds_never_changes(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    path = fetch(f"hf:org/name@{'a' * 40}").path
    hub.says = "0" * 64
    refused(f"hf:org/name@{'a' * 40}", "now says 0000", "never changes", str(path))
    assert path.read_bytes() == WEIGHTS


def test_what_was_first_fetched_from_the_hub_is_remembered(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "config.json": b"{}"}
    fetch("hf:org/name")
    hub.files["config.json"] = b"{ }"  # no weights
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS
    other = save({"x": torch.zeros(3)})
    hub.files["model.safetensors"] = other
    asked = len(hub.asked)
    refused(
        "hf:org/name", "not what it was when it was first fetched", "hf:org/name@abc123/model.safetensors"
    )
    assert len(hub.asked) == asked  # it was not fetched: the Hub said its hash
    hub.files = {"pytorch_model.bin": other}
    refused("hf:org/name", "not what it was when it was first fetched: expected model.safetensors with the")
    (record,) = (cache_folder() / "hub").glob("first-*")
    record.write_text("[]")  # damaged: there is nothing to compare with
    assert fetch("hf:org/name").path.name == "pytorch_model.bin"
    hub.files = {"model.safetensors": WEIGHTS}
    assert fetch(f"hf:org/name@{'b' * 40}").path.name == "model.safetensors"  # a commit is what it is
    refused("hf:org/name", "delete ", str(record))
    record.unlink()
    assert fetch("hf:org/name").path.name == "model.safetensors"


def test_a_hash_in_an_address_of_the_hub_is_kept_to(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert fetch(f"hf:org/name@{'a' * 40}#sha256={digest}").path.read_bytes() == WEIGHTS
    asked = len(hub.asked)
    refused(f"hf:org/name#sha256={'0' * 64}", f"expected model.safetensors with the SHA-256 {'0' * 64}")
    assert len(hub.asked) == asked
    hub.failure = RuntimeError("no route to the Hub")  # what is here is compared all the same
    refused(f"hf:org/name#sha256={'0' * 64}", f"found {digest}", "It is not used")
    refused("hf:org/name#md5=3", "expected sha256=")


def test_a_model_without_weights(hub: Hub) -> None:
    hub.files = {"a.npz": WEIGHTS, "b.npz": WEIGHTS}
    refused("hf:org/name", "found a.npz, b.npz: add the name of one")
    hub.files = {"README.md": b""}
    refused("hf:org/name", "found none")
    refused("hf:org/name/absent.npz", "found none")


def test_without_a_network_what_was_fetched_is_used(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "config.json": b"{}"}
    hub.failure = RuntimeError("no route to the Hub")
    refused(
        "hf:org/name",
        "no route to the Hub",
        "Nothing was changed",
        "https://huggingface.co/org/name/tree/main",
    )
    hub.failure = None
    first = fetch("hf:org/name")
    hub.failure = RuntimeError("no route to the Hub")
    assert fetch("hf:org/name") == first


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (GatedError(), "accepted its terms"),
        (NotFoundError(), "no public model org/name"),
        (NoRevisionError(), "no revision v9"),
    ],
)
def test_the_hubs_answers(failure: Exception, words: str, hub: Hub) -> None:
    hub.failure = failure
    refused("hf:org/name@v9", words, "Nothing was changed")


@pytest.mark.parametrize("address", ["hf:name", "hf:", "hf:org/name@", "hf:org/na me"])
def test_addresses_that_name_no_model(address: str, hub: Hub) -> None:
    refused(address, "expected hf:org/name")
