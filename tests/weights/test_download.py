"""Addresses: one download, whole or none, whatever the network does to it."""

import fnmatch
import hashlib
import json
import logging
import shutil
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors.torch import save

from tests.helpers import refusals
from tests.helpers.file_server import Hosted, Server, npz, redirection, refused, running_server
from vitkit import load_model
from vitkit.durable import cache_folder
from vitkit.weights.create import create_model
from vitkit.weights.files import download
from vitkit.weights.files.download import fetch, is_local, require_answer
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of
from vitkit.weights.published import find_start_named

DIGEST = hashlib.sha256(npz()).hexdigest()
SETTINGS_OF = save({"x": torch.ones(3)})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running_server() as server:
        server.files["/x.npz"] = Hosted(npz())
        yield server


# Paths and addresses


def test_paths_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:org").mkdir()
    (tmp_path / "hf:org" / "name").touch()  # what is on the disk is no address
    paths = ["model.npz", "hf", "hf/model", "C:\\weights\\model.npz", "/abs/x.pth", "https", "a:b", "s3/x"]
    for path in (*paths, "hf:org/name"):
        assert fetch(path).path == Path(path) == fetch(Path(path)).path and fetch(path).origin == {}


BROKEN = ("http://[::1/x.npz", "http://a..b/x.npz", f"http://{'a' * 70}.org/x.npz")
OTHERS = ("ftp://host/x.npz", "file:///etc/passwd", "zip://x::https://host/y.npz", "gs://b/x.npz", "s3:/b/x")
NO_WEIGHTS = ("/", "/folder", "/x.txt", "/..", "/model.safetensors.index.json", "/a%2F..%5Cx.npz")
NO_MODELS = ("hf:name", "hf:", "hf:org/name@", "hf:org/na me")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        *((address, "no address that can be fetched") for address in OTHERS),
        *((address, "no server can be reached: ") for address in BROKEN),
        *((f"http://host{path}", "expected the address of one file of weights") for path in NO_WEIGHTS),
        *((address, "expected hf:org/name") for address in NO_MODELS),
        ("http://host/x.npz#sha256=12", "64 digits"),
        ("hf:org/name#md5=3", "expected sha256="),
    ],
)
def test_what_is_no_address_of_weights_is_refused(address: str, said: str) -> None:
    refused(address, said)


# One file from a server


def test_a_file_is_fetched_once_and_known_without_asking(server: Server) -> None:
    server.files["/w/ViT-B_16.npz"] = Hosted(npz())
    address = server.url("/w/ViT-B_16.npz")
    assert not is_local(address) and not server.requests
    seen: list[tuple[int, int | None]] = []
    first = fetch(address, lambda done, total: seen.append((done, total)))
    assert first.path.name == "ViT-B_16.npz" and first.path.read_bytes() == npz()
    assert first.origin == {"source": address, "sha256": DIGEST}
    assert seen[-1] == (len(npz()), len(npz())) and sorted(seen) == seen
    assert fetch(address) == first
    assert fetch(Path(address)) == first  # pathlib takes one slash away
    assert is_local(address) and is_local(f"{address}#sha256={'0' * 64}") and is_local(first.path)
    assert not is_local(server.url("/m/y.npz")) and len(server.requests) == 1


@pytest.mark.parametrize("size", [None, 200_000, 100_000, 10_000])
def test_a_cut_download_begins_again_and_mixes_no_files(size: int | None, server: Server) -> None:
    new = None if size is None else npz(size, 2.0)  # the file that takes its place meanwhile
    server.files["/x.npz"] = Hosted(npz(), cuts=[100_000, 0], after_cut=Hosted(new) if new else None)
    fetched = fetch(server.url("/x.npz")).path
    assert fetched.read_bytes() == (new or npz()) and len(server.requests) == (2 if new else 3)
    assert not list(fetched.parent.glob("*.part"))


def test_what_a_killed_process_left_is_not_used(server: Server) -> None:
    folder = fetch(server.url("/x.npz")).path.parent
    (folder / "x.npz").unlink()
    left = [folder / "x.npz.part", folder / ".x.npz.part.1.tmp"]
    for path in left:
        path.write_bytes(b"the beginning of another file")
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_busy_server_is_asked_again(status: int, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.files["/x.npz"] = Hosted(npz(), length=0, statuses=[status, status])  # and says no length
    logging.getLogger("vitkit").setLevel(logging.ERROR)  # as where loading's own warnings are kept back
    try:
        assert fetch(server.url("/x.npz")).path.read_bytes() == npz()
    finally:
        logging.getLogger("vitkit").setLevel(logging.NOTSET)
    assert f"HTTP Error {status}: " in caplog.text and "; trying again in 0 s (attempt 2 of 5)" in caplog.text


PARTIAL = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/9\r\nContent-Length: 4\r\n\r\nPK\3\4"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SLOW = "x.npz cannot be fetched: fewer than 30,720 bytes of the file came in 0.2 s."
ONWARD = "no server can be reached: "


NO_FILES = [
    ({"cuts": [100_000] * 9}, 2, "ended after 100,000"),
    ({"length": len(npz()) + 5}, 2, "cannot be fetched"),
    ({"statuses": [404] * 9}, 1, "HTTP Error 404: Not Found"),
    ({"raw": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"}, 1, "compressed"),
    ({"raw": PARTIAL}, 1, "the server answers with HTTP 206 in place of the file"),
    ({"raw": b"\x1b]0;owned\x07 hello\r\n\r\n"}, 2, r"\x1b]0;owned\x07"),
    ({"raw": b"HTTP/1.1 499 \x1b[31mred\x9b" + b"x" * 900 + b"\r\n\r\n"}, 1, r"\x1b[31mred\x9b"),
    *(({"raw": redirection(target)}, 1, ONWARD) for target in BROKEN),
    *(({"raw": redirection(f"{kind}://host/x")}, 1, f"{kind}://host") for kind in ("ftp", "gopher")),
    ({"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 800000\r\n\r\n", "repeated": b"PK34567890"}, 2, SLOW),
    ({"raw": b"HTTP/1.1 200 OK\r\nX: ", "repeated": b"a"}, 2, SLOW),
    ({"raw": CHUNKED + b"5\r\nabcde\r\n0\r\n", "repeated": b"X: y\r\n"}, 2, SLOW),
    ({"raw": CHUNKED + b"5;", "repeated": b"x"}, 2, SLOW),
]


@pytest.mark.parametrize(("answer", "requests", "said"), NO_FILES)
def test_an_answer_that_is_no_whole_file_is_shown_and_not_kept(
    answer: dict[str, Any], requests: int, said: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    if said == SLOW:
        monkeypatch.setattr(download, "WINDOW", 0.2)
    server.files["/x.npz"] = Hosted(**{"data": npz(), **answer})
    message = refused(server.url("/x.npz"), said, "Nothing was changed")
    assert len(server.requests) == requests
    assert "\x1b" not in message and len(message) < 600  # what a server says is shown, not obeyed
    assert [path.name for path in cache_folder().rglob("*") if path.is_file()] == [".lock"]


def test_what_is_no_checkpoint_is_not_kept(server: Server) -> None:
    server.files["/x.npz"] = Hosted(b"<!DOCTYPE html><html>log in</html>")
    refused(server.url("/x.npz"), "was fetched, but it is", "thrown away")
    server.files["/x.npz"] = Hosted(npz())
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


def test_nobody_there(server: Server) -> None:
    address = server.url("/x.npz")
    server.shutdown()
    server.server_close()
    message = refused(address, "no server can be reached", "Nothing was changed", "put it at ")
    by_hand = Path(message.rpartition("put it at ")[2].removesuffix("."))
    by_hand.write_bytes(npz())
    fetched = fetch(address)
    assert fetched.path == by_hand and fetched.origin["sha256"] == DIGEST


def test_a_file_damaged_in_the_cache_is_not_used(server: Server) -> None:
    path = fetch(server.url("/x.npz")).path
    path.write_bytes(npz()[:-1] + b"!")
    refused(server.url("/x.npz"), "when it was first fetched", DIGEST, f"Delete {path} to fetch it again")
    path.unlink()
    server.files["/x.npz"] = Hosted(npz(fill=2.0))  # it must come back the same
    refused(server.url("/x.npz"), DIGEST, "It was thrown away")
    server.files["/x.npz"] = Hosted(npz())
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


def test_a_hash_in_the_address_is_kept_to(server: Server) -> None:
    url = server.url("/x.npz")
    assert fetch(f"{url}#sha256={DIGEST.upper()}").origin["sha256"] == DIGEST
    refused(f"{url}#sha256={'0' * 64}", "expected the SHA-256 0000", f"found {DIGEST}", "Delete")
    assert fetch(url).path.read_bytes() == npz()


def test_no_secrets_in_records(server: Server) -> None:
    assert fetch(server.url("/x.npz?signature=secret")).origin["source"] == server.url("/x.npz")
    records = [path.read_text() for path in cache_folder().rglob("*.json")]
    assert records and not any("secret" in text for text in records)
    assert "secret" not in refused("https://me:secret@host/x.npz", "name and password")


def test_a_disk_that_refuses(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "file" / "cache"))
    refused(server.url("/x.npz"), "cannot be kept", "VITKIT_CACHE")


def test_several_at_once_fetch_once(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = [*pool.map(lambda _: fetch(server.url("/x.npz")).path, range(4))]
    assert len(set(paths)) == 1 and len(server.requests) == 1


def test_a_model_is_loaded_from_an_address_with_what_describes_it(server: Server, tmp_path: Path) -> None:
    model = create_model("ViT-16x1x2/4", num_classes=3, image_size=(8, 8)).eval()
    save_model(model, tmp_path / "saved")
    for name in ("model.safetensors", "model.json"):
        server.files[f"/m/{name}"] = Hosted((tmp_path / "saved" / name).read_bytes())
    server.files["/m/config.json"] = Hosted(b"<html>not found, politely</html>")
    server.files["/x.npz"] = Hosted(save_model(model, tmp_path / "x.npz", "official").read_bytes())
    images = torch.rand(1, 3, 8, 8)
    for path, recorded in (
        ("/m/model.safetensors", {}),
        ("/x.npz", {"file": "x.npz", "dialect": "official"}),
    ):
        loaded = load_model(server.url(path))
        with torch.inference_mode():
            assert torch.equal(loaded(images), model(images))
        origin = card_of(loaded).origin
        digest = hashlib.sha256(server.files[path].data).hexdigest()
        assert origin == {**origin, "source": server.url(path), "sha256": digest, **recorded}


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/vitkit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "vitkit"
    monkeypatch.setenv("VITKIT_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"
    # As in a container whose user is no user of the system: no folder named "~" is made.
    monkeypatch.delenv("VITKIT_CACHE")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    with pytest.raises(RuntimeError, match="home"):
        cache_folder()


# Bounds and redirections


def test_what_comes_with_a_redirection_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WINDOW", 0.5)
    server.files["/store.npz"] = Hosted(npz())
    server.files["/x.npz"] = Hosted(b"", raw=redirection(server.url("/store.npz")), repeated=b"x" * 1000)
    assert fetch(server.url("/x.npz")).path.read_bytes() == npz()


def test_a_body_without_end_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MAX_WEIGHTS", 50_000)
    server.files["/x.npz"] = Hosted(npz(), length=0)
    refused(server.url("/x.npz"), "has not ended after 50,000 bytes")
    assert [path.name for path in cache_folder().rglob("*") if path.is_file()] == [".lock"]


def test_settings_too_large_are_left_out_with_words(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_SETTINGS", 100)
    server.files["/model.safetensors"] = Hosted(SETTINGS_OF)
    server.files["/config.json"] = Hosted(b" " * 101)
    path = fetch(server.url("/model.safetensors")).path
    said = "it has not ended after 100 bytes, the most that are read"
    assert f"config.json beside the weights is left out: {said}" in caplog.text
    assert not (path.parent / "config.json").exists()


@pytest.fixture
def encrypted(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that speaks https, whose certificate is trusted for the time of the test."""
    certificate = Path(__file__).parents[1] / "fixtures" / "loopback.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_server(certificate) as encrypted:
        yield encrypted


def test_redirects_never_lead_from_https_to_http(server: Server, encrypted: Server) -> None:
    server.files["/store.npz"] = encrypted.files["/store.npz"] = Hosted(npz())
    encrypted.files["/x.npz"] = Hosted(b"", raw=redirection(server.url("/store.npz")))
    said = f"on to {server.url('/store.npz')}, which is not encrypted"
    refused(encrypted.url("/x.npz"), said, "Nothing was")
    assert not server.requests
    encrypted.files["/y.npz"] = Hosted(b"", raw=redirection(encrypted.url("/store.npz")))
    assert fetch(encrypted.url("/y.npz")).path.read_bytes() == npz()
    server.files["/z.npz"] = Hosted(b"", raw=redirection(encrypted.url("/store.npz")))
    assert fetch(server.url("/z.npz")).path.read_bytes() == npz()


# Models of the Hugging Face Hub: through its library and its cache, and the same bytes each time

WEIGHTS, OTHER = save({"x": torch.ones(3)}), save({"x": torch.zeros(3)})
HUB_DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
NO_ROUTE = RuntimeError("no route to the Hub")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Hub:
    """As much of huggingface_hub as is used, with models in memory and a cache on the disk."""

    commit = "abc123" + "0" * 34

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.files = {"model.safetensors": WEIGHTS}
        self.failure: Exception | None = None
        self.downloads: list[list[str]] = []
        self.revisions: list[str | None] = []
        self.says: str | None = None
        """The server states this SHA-256 of its files in place of the true one."""

    def model_info(self, repo_id: str, *, revision: str | None = None, files_metadata: bool) -> Any:
        if self.failure:
            raise self.failure
        self.revisions.append(revision)
        siblings = [
            types.SimpleNamespace(
                rfilename=name, size=len(data), lfs=types.SimpleNamespace(sha256=self.says or digest(data))
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
    ) -> str:
        folder = self.cache / "snapshots" / self.commit
        if local_files_only:
            if not folder.exists():
                raise FileNotFoundError("no snapshot")
            return str(folder)
        if self.failure and not folder.exists():
            raise self.failure
        if not self.failure:
            names = [n for n in self.files if any(fnmatch.fnmatchcase(n, p) for p in allow_patterns)]
            self.downloads.append(sorted(names))
            for name in names:
                path = folder / name
                blob = self.cache / "blobs" / digest(self.files[name])
                blob.parent.mkdir(parents=True, exist_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                if not blob.exists():
                    blob.write_bytes(self.files[name])
                if not path.exists():
                    path.symlink_to(blob)
        return str(folder)

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None = None) -> str:
        folder = self.snapshot_download(repo_id, allow_patterns=[filename])
        return str(Path(folder) / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.hf_hub_download)
    return hub


IN_FOLDERS = "model.safetensors a/x.npz a/config.json config.json"


@pytest.mark.parametrize(
    ("rest", "revision", "files", "needed"),
    [
        ("", None, "model.safetensors pytorch_model.bin config.json a.md", "config.json model.safetensors"),
        ("", None, "only[1].safetensors sub/model.safetensors x.bin", "only[1].safetensors"),
        ("@v1.0/a/x.npz", "v1.0", IN_FOLDERS, "a/config.json a/x.npz"),
        ("/a", None, IN_FOLDERS, "a/config.json a/x.npz"),
        ("@refs%2Fpr%2F1", "refs/pr/1", IN_FOLDERS, "config.json model.safetensors"),
    ],
)
def test_one_format_is_fetched(rest: str, revision: str | None, files: str, needed: str, hub: Hub) -> None:
    hub.files = dict.fromkeys(files.split(), WEIGHTS)
    fetched = fetch(f"hf://org/na.me-1{rest}")
    file = needed.split()[-1]
    assert hub.downloads == [needed.split()] and hub.revisions == [revision]
    assert fetched.path.name == Path(file).name and fetched.path.read_bytes() == WEIGHTS
    assert fetched.origin == {"source": f"hf:org/na.me-1@{hub.commit}/{file}", "sha256": HUB_DIGEST}


def test_weights_in_the_hubs_cache_are_known_without_a_request(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    assert not is_local("hf:org/name")
    hub.snapshot_download("org/name", allow_patterns=["config.json"])
    assert not is_local("hf:org/name")  # what stands beside the weights is not them
    fetch("hf:org/name")
    hub.failure = ConnectionError("no network")
    assert is_local("hf:org/name") and is_local("hf:org/name/model.safetensors")
    assert not is_local("hf:org/name/other.npz")


def test_shards_are_fetched_by_their_index(hub: Hub) -> None:
    shards = {
        f"model-{number}.safetensors": save({name: torch.ones(1)}) for number, name in ((1, "a"), (2, "b"))
    }
    where = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "../../x.safetensors"}
    index = json.dumps({"weight_map": where}).encode()
    hub.files = {**shards, "model.safetensors.index.json": index, "other.bin": b"x"}
    fetched = fetch("hf:org/name")
    assert hub.downloads[-1] == [*shards, "model.safetensors.index.json"]
    assert fetched.origin["sha256"] == {name: digest(data) for name, data in shards.items()}


def test_a_file_damaged_in_the_hubs_cache_is_not_used(hub: Hub) -> None:
    blob = fetch("hf:org/name").path.resolve()
    blob.write_bytes(WEIGHTS[:-1] + b"!")
    said = "is not the file that the Hub says it has", HUB_DIGEST, f"Delete {blob} and run"
    refused("hf:org/name", *said)
    # Without a network nobody announces its SHA-256: the Hub's cache names a large file by it.
    shutil.rmtree(cache_folder())  # as where another program fetched it
    hub.failure = NO_ROUTE
    refused("hf:org/name", *said)
    hub.failure = None
    blob.unlink()
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS


def test_what_a_commit_of_the_hub_holds_never_changes(hub: Hub) -> None:
    address = f"hf:org/name@{hub.commit}"
    path = fetch(address).path
    hub.says = "0" * 64
    refused(address, "not what it was", "0000")
    assert path.read_bytes() == WEIGHTS


@pytest.mark.parametrize("kind", ["resolve", "blob"])
def test_the_web_address_of_a_file_is_an_address_of_the_hub(kind: str, hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "a/x y.npz": WEIGHTS}
    page = f"https://huggingface.co/org/name/{kind}/refs%2Fpr%2F1"
    assert not is_local(f"{page}/model.safetensors")
    fetched = fetch(Path(f"{page}/model.safetensors?download=true"))  # pathlib takes one slash away
    assert fetched.origin["source"] == f"hf:org/name@{hub.commit}/model.safetensors"
    assert is_local(f"{page}/model.safetensors") and hub.revisions == ["refs/pr/1"]
    assert fetch(f"{page}/a/x%20y.npz").path.name == "x y.npz"
    refused(f"{page}/model.safetensors#sha256={'0' * 64}", f"expected the SHA-256 {'0' * 64}", "not used")


def test_what_was_first_fetched_from_the_hub_is_remembered(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "config.json": b"{}"}
    fetch("hf:org/name")
    hub.files["config.json"] = b"{ }"  # no weights
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS
    hub.files["model.safetensors"] = OTHER
    count = len(hub.downloads)
    changed = "not what it was when it was first fetched"
    refused("hf:org/name", changed, f"hf:org/name@{hub.commit}/model.safetensors")
    assert len(hub.downloads) == count  # it was not fetched: the Hub said its hash
    hub.files = {"pytorch_model.bin": OTHER}
    refused("hf:org/name", f"{changed}: expected {HUB_DIGEST} of model.safetensors")
    (record,) = (cache_folder() / "hub").glob("first-*")
    record.write_text("[]")  # damaged: there is nothing to compare with
    assert fetch("hf:org/name").path.name == "pytorch_model.bin"
    hub.files = {"model.safetensors": WEIGHTS}
    assert fetch(f"hf:org/name@{'b' * 40}").path.name == "model.safetensors"  # a commit is what it is
    refused("hf:org/name", "delete ", str(record))
    record.unlink()
    assert fetch("hf:org/name").path.name == "model.safetensors"


def test_a_hash_in_an_address_of_the_hub_is_kept_to(hub: Hub) -> None:
    assert fetch(f"hf:org/name@{'a' * 40}#sha256={HUB_DIGEST}").path.read_bytes() == WEIGHTS
    count = len(hub.downloads)
    refused(f"hf:org/name#sha256={'0' * 64}", f"expected the SHA-256 {'0' * 64}")
    assert len(hub.downloads) == count
    hub.failure = NO_ROUTE  # what is here is compared all the same
    refused(f"hf:org/name#sha256={'0' * 64}", f"found {HUB_DIGEST}", "It is not used")


def test_what_is_no_file_of_weights_of_the_model_is_not_found(hub: Hub) -> None:
    hub.files = {"a.npz": WEIGHTS, "b.npz": WEIGHTS}
    refused("hf:org/name", "the name of one file behind a slash; found a.npz, b.npz.")
    hub.files = {"README.md": b""} | dict.fromkeys(("../model.safetensors", "a/../../x.npz"), WEIGHTS)
    for rest in ("", "/absent.npz", "/../model.safetensors", "/a/../../x.npz"):  # nothing leads out of it
        refused(f"hf:org/name{rest}", "found none")
    assert not hub.downloads


def test_without_a_network_or_the_model_what_was_fetched_is_used(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "config.json": b"{}"}
    hub.failure = NO_ROUTE
    said = "no route to the Hub", "Nothing was changed", "https://huggingface.co/org/name/tree/main"
    refused("hf:org/name", *said)
    hub.failure = None
    first = fetch("hf:org/name")
    for hub.failure in (NO_ROUTE, RepositoryNotFoundError("none", response=Mock())):
        assert fetch("hf:org/name") == first


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (GatedRepoError("gated", response=Mock()), "accepted its terms"),
        (RepositoryNotFoundError("none", response=Mock()), "no public model org/name"),
        (RevisionNotFoundError("none", response=Mock()), "no revision v9"),
        (TypeError("'int' object is not iterable"), "cannot be fetched: 'int' object"),
    ],
)
def test_the_hubs_answers(failure: Exception, message: str, hub: Hub) -> None:
    hub.failure = failure
    refused("hf:org/name@v9", message, "Nothing was changed")


def test_the_hub_is_asked_for_a_published_checkpoint_and_nothing_is_fetched(hub: Hub) -> None:
    start = find_start_named("vit-b16-in21k")
    assert start is not None
    hub.failure = NO_ROUTE
    said = r"vit-b16-in21k is not on this machine\. .* no route to the Hub"
    refusals.refused(said, require_answer, start)
    hub.failure = None
    require_answer(start)
    assert not hub.downloads
