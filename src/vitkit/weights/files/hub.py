"""Models of the Hugging Face Hub, through its own library and cache."""

import glob
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from platformdirs import user_cache_path

from vitkit.durable import hash_file, replace_json
from vitkit.errors import VitkitError
from vitkit.text import first_line
from vitkit.weights.files.source import SETTINGS, choose_weights, read_json_object, weight_names
from vitkit.weights.format_names import ENDINGS


def cache_folder() -> Path:
    """Return the folder of fetched files: VITKIT_CACHE, or `vitkit` in the user's cache (XDG_CACHE_HOME)."""
    # platformdirs leaves "~" where a user has no home, and a folder of that name would be made.
    return Path(os.environ.get("VITKIT_CACHE") or user_cache_path("vitkit", False)).expanduser()


def record_of(address: str) -> Path:
    """Return the path of the record of an address's first fetch."""
    return cache_folder() / "hub" / f"first-{hashlib.sha256(address.encode()).hexdigest()[:16]}.json"


def read_record(address: str) -> dict[str, Any]:
    """Read what an address held at first, where it was recorded and is not damaged.

    Returns:
        `source` without secrets; `sha256` of each file of weights by its name; `states`, by which a file that
        was not changed since is known, so that it need not be hashed again.
    """
    with suppress(VitkitError):
        record = read_json_object(record_of(address))
        parts = record.get("source"), record.get("sha256"), record.setdefault("states", {})
        if all(map(isinstance, parts, (str, dict, dict))) and record["sha256"]:
            return record
    return {}


def write_record(address: str, source: str, digests: Mapping[str, str], files: Mapping[str, Path]) -> None:
    """Record what an address held: its source without secrets, and the SHA-256 of each file of weights."""
    states = {name: _state(file) for name, file in files.items()}
    record = {"source": source, "sha256": digests, "states": states}
    with suppress(OSError):  # the cache cannot be written: next time the file is read, and nothing compared
        if read_record(address) != record:
            record_of(address).parent.mkdir(parents=True, exist_ok=True)
            replace_json(record_of(address), record)


def digest_of(file: Path, name: str, record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file in a cache; it is read only when its size or time has changed."""
    if record and record["states"].get(name) == _state(file):
        return str(record["sha256"].get(name))
    return hash_file(file)[1]


def _state(file: Path) -> list[int]:
    return [file.stat().st_size, file.stat().st_mtime_ns]


_log = logging.getLogger("vitkit")
_ADDRESS = re.compile(r"hf:(?://)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.+))?")


def from_hub(address: str, expected: str | None = None) -> tuple[Path, Mapping[str, Any]]:
    """Fetch a model's weights and the JSON files beside them; return their path and their origin.

    Without `expected`, the weights that were fetched first are remembered by their SHA-256, and other weights
    at the same address are refused.

    Args:
        address: `hf:org/name[@revision][/file]`.
        expected: SHA-256 that the file of weights must have.

    Raises:
        VitkitError: no such address, model or revision, no network, or files that are not what they should
            be.
    """
    repository, revision, inside = _parts(address)
    import huggingface_hub as hub

    record = read_record(address)
    first = {} if expected else record
    with _explained(address):
        announced = _list_files(hub, repository, revision)
        chosen = _choose(list(announced), inside, address)
        digest = announced[chosen]
        if digest is not None and digest != (expected or first.get("sha256", {}).get(chosen, digest)):
            raise _other_weights(address, chosen, digest, expected, first)  # before all of it is fetched
        folder = PurePosixPath(chosen).parent
        needed = {chosen, *(str(folder / name) for name in SETTINGS)} & set(announced)
        if chosen.endswith(".index.json"):
            index = Path(hub.hf_hub_download(repository, chosen, revision=revision))
            shards = set(map(str, read_json_object(index).get("weight_map", {}).values()))
            needed |= {str(folder / shard) for shard in shards} & set(announced)
        patterns = [glob.escape(name) for name in sorted(needed)]
        weights = [name for name in sorted(needed) if name.endswith(ENDINGS)]
        snapshot = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
        digests = {}
        for name in weights:
            file = snapshot / name
            blob = file.resolve().name  # the Hub's cache names a large file by its SHA-256
            right = announced[name] or (blob if re.fullmatch(r"[0-9a-f]{64}", blob) else None)
            digest = digest_of(file, name, record)
            if digest != (right or digest):
                _log.warning("%s of %s is not the file that the Hub has: fetching it again", name, repository)
                hub.hf_hub_download(repository, name, revision=revision, force_download=True)
                digest = hash_file(file)[1]
            if digest != (right or digest):
                raise VitkitError(
                    f"{name} of {repository} was fetched twice, and is not the file that the Hub says it "
                    f"has: expected SHA-256 {right}, found {digest}. Delete {file} and try again later."
                )
            digests[name] = digest
    exact = f"hf:{repository}@{snapshot.name}/{chosen}"
    if digests != ({chosen: expected} if expected else first.get("sha256", digests)):
        raise _other_weights(address, chosen, digests.get(chosen, "several files"), expected, first)
    if not expected:  # a hash in the address is compared in place of the first fetch's
        write_record(
            address, first.get("source", exact), digests, {name: snapshot / name for name in weights}
        )
    return snapshot / chosen, {
        "source": exact,
        "sha256": digests.get(chosen) if len(digests) == 1 else digests,
    }


def require_on_hub(address: str) -> None:
    """Ask for the list of a model's files, from the cache where the Hub does not answer.

    Raises:
        VitkitError: as `from_hub`.
    """
    repository, revision, _ = _parts(address)
    import huggingface_hub as hub

    with _explained(address):
        _list_files(hub, repository, revision)


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Explain the errors of the Hub's library."""
    from huggingface_hub import errors

    repository, revision, _ = _parts(address)
    messages = {
        errors.GatedRepoError: " is open only to those who accepted its terms: do so at "
        f"https://huggingface.co/{repository}, then log in with 'hf auth login'. Nothing was changed.",
        errors.RepositoryNotFoundError: f": there is no public model {repository} on the Hub. Look at its "
        "name again; for a private one, log in with 'hf auth login'. Nothing was changed.",
        errors.RevisionNotFoundError: f": {repository} has no revision {revision}. Nothing was changed.",
    }
    try:
        yield
    except VitkitError:
        raise
    except Exception as error:  # of the network, by any library below
        reason = first_line(error)
        if isinstance(error, AttributeError | KeyError | TypeError):
            reason = f"the server's answer is not what the Hub's library expects ({reason})"
        otherwise = (
            f" cannot be fetched: {reason}. Nothing was changed. With no network here, fetch the "
            f"files of https://huggingface.co/{repository}/tree/{revision or 'main'} elsewhere and give the "
            "path of their folder."
        )
        message = next((text for kind, text in messages.items() if isinstance(error, kind)), otherwise)
        raise VitkitError(f"{address}{message}") from error


def is_in_cache(address: str) -> bool:
    """Whether the Hub's cache on this machine holds the weights of an address; no server is asked."""
    import huggingface_hub as hub

    repository, revision, inside = _parts(address)
    if (folder := _local_snapshot(hub, repository, revision)) is None:
        return False
    return (folder / inside).is_file() or bool(weight_names(map(str, (folder / inside).rglob("*"))))


def _other_weights(
    address: str, chosen: str, actual: str, expected: str | None, first: Mapping[str, Any]
) -> VitkitError:
    """Make the error for weights with another SHA-256 than the address says, or than the first time."""
    if expected:
        return VitkitError(
            f"{address}: expected {chosen} with the SHA-256 {expected}, found {actual}: it is another file, "
            "or a damaged one. It is not used."
        )
    then = ", ".join(f"{name} with the SHA-256 {digest}" for name, digest in first["sha256"].items())
    former = f"Give {first['source']} for the former; or, if"
    if re.fullmatch("[0-9a-f]{40}", _parts(address)[1] or ""):
        former = "What a commit holds never changes, so that one of the two is not it: if"
    return VitkitError(
        f"{address} is not what it was when it was first fetched: expected {then}, found {chosen} with "
        f"{actual}. {former} you trust the other, delete {record_of(address)}."
    )


def _parts(address: str) -> tuple[str, str | None, str]:
    """Split an address into model, revision and path inside it."""
    if (match := _ADDRESS.fullmatch(address)) is None:
        raise VitkitError(
            f"{address}: expected hf:org/name, hf:org/name@revision or hf:org/name/file, such as "
            "hf:timm/vit_base_patch16_224.augreg_in21k."
        )
    return match[1], match[2] and unquote(match[2]), match[3] or ""


def _list_files(hub: Any, repository: str, revision: str | None) -> dict[str, str | None]:
    """List the files of a model with the SHA-256 that the Hub says, or None.

    Without a network, the files in the Hub's own cache are listed.
    """
    try:
        info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        files = {
            file.rfilename: getattr(getattr(file, "lfs", None), "sha256", None)
            for file in info.siblings or ()
        }
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a proxy, HF_HUB_OFFLINE
        if (snapshot := _local_snapshot(hub, repository, revision)) is None:
            raise
        _log.info(
            "%s: no answer from the Hub (%s); what was fetched before is used", repository, first_line(error)
        )
        paths = (path for path in snapshot.rglob("*") if path.is_file())
        files = {path.relative_to(snapshot).as_posix(): None for path in paths}
    return {name: digest for name, digest in files.items() if ".." not in PurePosixPath(name).parts}


def _local_snapshot(hub: Any, repository: str, revision: str | None) -> Path | None:
    """Return the folder of a model in the Hub's cache; None where nothing of the model is on this machine."""
    local: dict[str, Any] = {"local_files_only": True, "allow_patterns": list(SETTINGS)}
    with suppress(Exception):
        return Path(hub.snapshot_download(repository, revision=revision, **local))
    return None


def _choose(names: list[str], inside: str, address: str) -> str:
    """Choose the weight file that the text after the model's name means: a file, or the best of a folder."""
    if inside in names:
        return inside
    folder = f"{inside.rstrip('/')}/" if inside else ""
    here = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    here = [name for name in here if "/" not in name]
    if (chosen := choose_weights(here)) is not None:
        return folder + chosen
    candidates = ", ".join(weight_names(here)[:8] or weight_names(names)[:8])
    advice = ": add the name of one to the address, after a slash" if candidates else ""
    raise VitkitError(
        f"{address}: expected weights under one of the usual names, or one file of them; found "
        f"{candidates or 'none'}{advice}."
    )
