"""Models of the Hugging Face Hub: through its library and its cache, and the same bytes each time."""

import fnmatch
import hashlib
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.helpers.file_server import refused
from vitkit.errors import VitkitError
from vitkit.weights.files.download import cache_folder, fetch, is_local, require_answer

WEIGHTS, OTHER = save({"x": torch.ones(3)}), save({"x": torch.zeros(3)})
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
NO_ROUTE = RuntimeError("no route to the Hub")


class NotFoundError(OSError):
    pass


class GatedError(NotFoundError):
    pass


class NoRevisionError(OSError):
    pass


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Hub:
    """As much of huggingface_hub as is used, with models in memory and a cache on the disk."""

    commit = "abc123" + "0" * 34

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.files: dict[str, bytes] = {}
        self.failure: Exception | None = None
        self.downloads: list[list[str]] = []
        self.revisions: list[str | None] = []
        self.says: str | None = None
        """What it says the SHA-256 of its files is, if not the truth."""
        self.broken = 0
        """How many of the next files arrive damaged."""

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
        force_download: bool = False,
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
                if force_download or not blob.exists():
                    blob.write_bytes(b"?" * self.broken + self.files[name][self.broken :])
                if not path.exists():
                    path.symlink_to(blob)
        return str(folder)

    def hf_hub_download(
        self, repo_id: str, filename: str, *, revision: str | None = None, force_download: bool = False
    ) -> str:
        folder = self.snapshot_download(repo_id, allow_patterns=[filename], force_download=force_download)
        return str(Path(folder) / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    hub = Hub(tmp_path / "hub")
    errors = types.SimpleNamespace(
        GatedRepoError=GatedError,
        RepositoryNotFoundError=NotFoundError,
        RevisionNotFoundError=NoRevisionError,
    )
    module: Any = types.SimpleNamespace(errors=errors, HfApi=lambda: hub)
    module.snapshot_download, module.hf_hub_download = hub.snapshot_download, hub.hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return hub


def test_the_names_used_are_those_of_the_real_library() -> None:
    import huggingface_hub
    from huggingface_hub import errors

    for name in ("HfApi", "snapshot_download", "hf_hub_download"):
        assert callable(getattr(huggingface_hub, name))
    assert issubclass(errors.GatedRepoError, errors.RepositoryNotFoundError)
    assert issubclass(errors.RevisionNotFoundError, Exception)


@pytest.mark.parametrize(
    ("files", "needed"),
    [
        ("model.safetensors pytorch_model.bin config.json a.md", ["config.json", "model.safetensors"]),
        (
            "pytorch_model.bin x.npz preprocessor_config.json",
            ["preprocessor_config.json", "pytorch_model.bin"],
        ),
        ("ViT-B_16.npz README.md", ["ViT-B_16.npz"]),
        ("only[1].safetensors sub/model.safetensors x.bin", ["only[1].safetensors"]),
    ],
)
def test_one_format_is_fetched(files: str, needed: list[str], hub: Hub) -> None:
    hub.files = dict.fromkeys(files.split(), WEIGHTS)
    fetched = fetch("hf:org/name")
    assert hub.downloads == [needed] and fetched.path.name in needed and fetched.path.read_bytes() == WEIGHTS
    assert fetched.origin == {"source": f"hf:org/name@{hub.commit}/{fetched.path.name}", "sha256": DIGEST}


def test_weights_in_the_hubs_cache_are_known_without_a_request(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    assert not is_local("hf:org/name")
    hub.snapshot_download("org/name", allow_patterns=["config.json"])
    assert not is_local("hf:org/name")  # what stands beside the weights is not them
    fetch("hf:org/name")
    hub.failure = ConnectionError("no network")
    assert is_local("hf:org/name") and is_local("hf:org/name/model.safetensors")
    assert not is_local("hf:org/name/other.npz")


def test_revisions_files_and_folders(hub: Hub) -> None:
    hub.files = dict.fromkeys(["model.safetensors", "a/x.npz", "a/config.json", "config.json"], WEIGHTS)
    assert fetch("hf:org/na.me-1@v1.0/a/x.npz").path.name == "x.npz"
    assert fetch("hf:org/name/a").path.name == "x.npz"
    assert fetch("hf://org/name@refs%2Fpr%2F1").path.name == "model.safetensors"
    assert hub.revisions == ["v1.0", None, "refs/pr/1"]
    assert hub.downloads[0] == hub.downloads[1] == ["a/config.json", "a/x.npz"]


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


def test_a_file_damaged_in_the_hubs_cache_is_fetched_anew(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    path = fetch("hf:org/name").path
    path.resolve().write_bytes(WEIGHTS[:-1] + b"!")
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS
    assert "not the file that the Hub has" in caplog.text
    path.resolve().write_bytes(WEIGHTS[:-1])
    assert fetch("hf:org/name").path.read_bytes() == WEIGHTS
    path.resolve().write_bytes(WEIGHTS[:-1] + b"!")
    hub.broken = 1
    refused("hf:org/name", "fetched twice", DIGEST)
    # Without a network nobody announces its SHA-256: the Hub's cache names a large file by it.
    shutil.rmtree(cache_folder())  # as where another program fetched it
    hub.failure = NO_ROUTE
    refused("hf:org/name", "is not the file that the Hub says it has", DIGEST)


def test_what_a_commit_of_the_hub_holds_never_changes(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    address = f"hf:org/name@{hub.commit}"
    path = fetch(address).path
    hub.says = "0" * 64
    refused(address, "not what it was", "0000", "never changes")
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
    refused(f"{page}/model.safetensors#sha256={'0' * 64}", f"with the SHA-256 {'0' * 64}", "not used")


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
    refused("hf:org/name", f"{changed}: expected model.safetensors with the")
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
    assert fetch(f"hf:org/name@{'a' * 40}#sha256={DIGEST}").path.read_bytes() == WEIGHTS
    count = len(hub.downloads)
    refused(f"hf:org/name#sha256={'0' * 64}", f"expected model.safetensors with the SHA-256 {'0' * 64}")
    assert len(hub.downloads) == count
    hub.failure = NO_ROUTE  # what is here is compared all the same
    refused(f"hf:org/name#sha256={'0' * 64}", f"found {DIGEST}", "It is not used")
    refused("hf:org/name#md5=3", "expected sha256=")


def test_what_is_no_file_of_weights_of_the_model_is_not_found(hub: Hub) -> None:
    hub.files = {"a.npz": WEIGHTS, "b.npz": WEIGHTS}
    refused("hf:org/name", "found a.npz, b.npz: add the name of one")
    hub.files = {"README.md": b""} | dict.fromkeys(("../model.safetensors", "a/../../x.npz"), WEIGHTS)
    for rest in ("", "/absent.npz", "/../model.safetensors", "/a/../../x.npz"):  # nothing leads out of it
        refused(f"hf:org/name{rest}", "found none")
    assert not hub.downloads


def test_without_a_network_what_was_fetched_is_used(hub: Hub) -> None:
    hub.files = {"model.safetensors": WEIGHTS, "config.json": b"{}"}
    hub.failure = NO_ROUTE
    said = "no route to the Hub", "Nothing was changed", "https://huggingface.co/org/name/tree/main"
    refused("hf:org/name", *said)
    hub.failure = None
    first = fetch("hf:org/name")
    hub.failure = NO_ROUTE
    assert fetch("hf:org/name") == first


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (GatedError(), "accepted its terms"),
        (NotFoundError(), "no public model org/name"),
        (NoRevisionError(), "no revision v9"),
        (TypeError("'int' object is not iterable"), "not what the Hub's library expects ('int' object"),
    ],
)
def test_the_hubs_answers(failure: Exception, message: str, hub: Hub) -> None:
    hub.failure = failure
    refused("hf:org/name@v9", message, "Nothing was changed")


def test_the_hub_is_asked_for_a_published_checkpoint_and_nothing_is_fetched(hub: Hub) -> None:
    hub.failure = NO_ROUTE
    with pytest.raises(VitkitError, match=r"vit-b16-in21k is not on this machine\. .* no route to the Hub"):
        require_answer("vit-b16-in21k")
    hub.failure = None
    require_answer("vit-b16-in21k")
    (cache_folder() / "starts" / "vit-b16-in21k").mkdir(parents=True)
    hub.failure = NO_ROUTE
    require_answer("vit-b16-in21k")  # it is here: nobody is asked
    assert not hub.downloads


@pytest.mark.parametrize("address", ["hf:name", "hf:", "hf:org/name@", "hf:org/na me"])
def test_addresses_that_name_no_model(address: str, hub: Hub) -> None:
    refused(address, "expected hf:org/name")
