"""Models of the Hugging Face Hub, through its own library and cache."""

import glob
import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from vitkit.durable import replace_json
from vitkit.errors import VitkitError
from vitkit.text import first_line
from vitkit.weights.files.cache import cache_folder, read_note, remembered_digest
from vitkit.weights.files.source import SETTINGS, choose_weights, read_json_object, weight_names
from vitkit.weights.format_names import ENDINGS

_log = logging.getLogger("vitkit")
_ADDRESS = re.compile(r"hf:(?://)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.+))?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class _Announced:
    """The Hub's present description of a file; None where it gives none, or could not be asked."""

    size: int | None = None
    sha256: str | None = None


def from_hub(address: str, wanted: str | None = None) -> tuple[Path, Mapping[str, Any]]:
    """Fetch a model's weights and the JSON files beside them; return their path and their origin.

    Without a commit in the address and without `wanted`, what was fetched first is remembered, and other
    weights at the same address are refused.

    Args:
        address: `hf:org/name[@revision][/file]`.
        wanted: SHA-256 that the file of weights must have.

    Raises:
        VitkitError: no such address, model or revision, no network, or files that are not what they should
            be.
    """
    repository, revision, inside = _parts(address)
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        announced = _announced(hub, repository, revision)
        chosen = _choose(list(announced), inside, address)
        first = {} if wanted or _COMMIT.fullmatch(revision or "") else _remembered(address)
        said = announced[chosen].sha256
        if said is not None and said != (wanted or first.get("sha256", {}).get(chosen, said)):
            raise _refused(address, chosen, said, wanted, first)  # before all of it is fetched
        folder = PurePosixPath(chosen).parent
        needed = {chosen, *(str(folder / name) for name in SETTINGS)} & set(announced)
        if chosen.endswith(".index.json"):
            index = Path(hub.hf_hub_download(repository, chosen, revision=revision))
            shards = set(map(str, read_json_object(index).get("weight_map", {}).values()))
            needed |= {str(folder / shard) for shard in shards} & set(announced)
        patterns = [glob.escape(name) for name in sorted(needed)]
        weights = [name for name in sorted(needed) if name.endswith(ENDINGS)]
        digests = {}
        with _bars_on_screens(hub):
            snapshot = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
            for name in weights:
                digests[name] = _verified(hub, repository, revision, snapshot, name, announced[name])
    except errors.GatedRepoError as error:
        raise VitkitError(
            f"{address} is open only to those who accepted its terms: do so at "
            f"https://huggingface.co/{repository}, then log in with 'hf auth login'. Nothing was changed."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise VitkitError(
            f"{address}: there is no public model {repository} on the Hub. Look at its name again; "
            "for a private one, log in with 'hf auth login'. Nothing was changed."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise VitkitError(
            f"{address}: {repository} has no revision {revision}. Nothing was changed."
        ) from error
    except VitkitError:
        raise
    except Exception as error:  # of the network, by any library below
        raise VitkitError(
            f"{address} cannot be fetched: {first_line(error)}. Nothing was changed. With no network here, "
            f"fetch the files of https://huggingface.co/{repository}/tree/{revision or 'main'} elsewhere and "
            "give the path of their folder."
        ) from error
    exact = f"hf:{repository}@{snapshot.name}/{chosen}"
    if wanted and digests != {chosen: wanted}:
        raise _refused(address, chosen, digests.get(chosen, "that of several files"), wanted, first)
    if first and first["sha256"] != digests:
        raise _refused(address, chosen, digests.get(chosen, "that of several files"), wanted, first)
    if not wanted and not first:
        _remember(address, {"address": address, "source": exact, "sha256": digests})
    return snapshot / chosen, {
        "source": exact,
        "sha256": digests.get(chosen) if len(digests) == 1 else digests,
    }


@contextmanager
def _bars_on_screens(hub: Any) -> Iterator[None]:
    """Leave the Hub's bars to terminals and notebooks: in a file, each of their steps would be a line."""
    has_screen = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    if has_screen or hub.utils.are_progress_bars_disabled():
        yield
        return
    hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        hub.utils.enable_progress_bars()


def is_on_disk(address: str) -> bool:
    """Whether weights that an address of the Hub names are in its cache on this machine; nobody is asked."""
    import huggingface_hub as hub

    repository, revision, inside = _parts(address)
    try:
        folder = Path(
            hub.snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=list(SETTINGS)
            )
        )
    except Exception:  # nothing of the model is there
        return False
    return bool(weight_names(str(path.relative_to(folder)) for path in (folder / inside).rglob("*"))) or (
        (folder / inside).is_file()
    )


def _first_fetch(address: str) -> Path:
    """Return the path of the record of what an address was when it was first fetched."""
    return cache_folder() / "hub" / f"first-{hashlib.sha256(address.encode()).hexdigest()[:16]}.json"


def _remembered(address: str) -> dict[str, Any]:
    """Read what an address was when it was first fetched; empty where that is not known."""
    record = read_note(_first_fetch(address))
    digests = record.get("sha256")
    return record if isinstance(digests, dict) and digests and isinstance(record.get("source"), str) else {}


def _remember(address: str, record: Mapping[str, Any]) -> None:
    path = _first_fetch(address)
    with suppress(OSError):  # a cache that may not be written: then nothing is compared next time
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, record)


def _refused(
    address: str, chosen: str, found: str, wanted: str | None, first: Mapping[str, Any]
) -> VitkitError:
    """Make the error for weights that are not those which were asked for, or those of the first time."""
    if wanted:
        return VitkitError(
            f"{address}: expected {chosen} with the SHA-256 {wanted}, found {found}: it is another file, or "
            "a damaged one. It is not used."
        )
    then = ", ".join(f"{name} with the SHA-256 {digest}" for name, digest in first["sha256"].items())
    return VitkitError(
        f"{address} is not what it was when it was first fetched: expected {then}, found {chosen} with "
        f"{found}. Give {first['source']} for the former; or, if you trust the other, delete "
        f"{_first_fetch(address)}."
    )


def _parts(address: str) -> tuple[str, str | None, str]:
    """Model, revision and path inside it."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise VitkitError(
            f"{address}: expected hf:org/name, hf:org/name@revision or hf:org/name/file, such as "
            "hf:timm/vit_base_patch16_224.augreg_in21k."
        )
    return match[1], match[2] and unquote(match[2]), match[3] or ""


def _announced(hub: Any, repository: str, revision: str | None) -> dict[str, _Announced]:
    """List the files of a model; without a network, those in the Hub's own cache."""
    try:
        info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        files = {
            file.rfilename: _Announced(
                getattr(file, "size", None), getattr(getattr(file, "lfs", None), "sha256", None)
            )
            for file in info.siblings or ()
        }
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a proxy, HF_HUB_OFFLINE
        try:
            kept = hub.snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=list(SETTINGS)
            )
        except Exception:
            raise error from None
        _log.info(
            "%s: no answer from the Hub (%s); what was fetched before is used", repository, first_line(error)
        )
        paths = (path for path in Path(kept).rglob("*") if path.is_file())
        files = {path.relative_to(kept).as_posix(): _Announced() for path in paths}
    return {name: file for name, file in files.items() if ".." not in PurePosixPath(name).parts}


def _choose(names: list[str], inside: str, address: str) -> str:
    """Choose the weight file that the text after the model's name means: a file, or the best of a folder."""
    if inside in names:
        return inside
    folder = f"{inside.rstrip('/')}/" if inside else ""
    here = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    here = [name for name in here if "/" not in name]
    chosen = choose_weights(here)
    if chosen is not None:
        return folder + chosen
    candidates = ", ".join(weight_names(here)[:8] or weight_names(names)[:8])
    advice = ": add the name of one to the address, after a slash" if candidates else ""
    raise VitkitError(
        f"{address}: expected weights under one of the usual names, or one file of them; found "
        f"{candidates or 'none'}{advice}."
    )


def _verified(
    hub: Any, repository: str, revision: str | None, snapshot: Path, name: str, announced: _Announced
) -> str:
    """Return the SHA-256 of a file in the Hub's cache; a file that does not match is fetched once more.

    The Hub keeps a large file under its SHA-256; of others only the size can be compared.
    """
    file = snapshot / name
    kept = file.resolve().name
    kept = kept if _DIGEST.fullmatch(kept) else ""
    pinned = _COMMIT.fullmatch(revision or "")
    if pinned and kept and announced.sha256 not in (None, kept):
        raise VitkitError(
            f"{name} of {repository}@{revision} has the SHA-256 {kept} here, and the Hub now says "
            f"{announced.sha256}. What a commit holds never changes, so one of the two is not it. "
            f"The file here is left as it is, {file}: use it by its path if you trust it, or delete it to "
            "fetch the other."
        )
    wanted = announced.sha256 or kept
    for attempt in (1, 2):
        digest = remembered_digest(file)
        if digest == (wanted or digest) and file.stat().st_size == (announced.size or file.stat().st_size):
            return digest
        if attempt == 1:
            _log.warning(
                "%s of %s is not the file that the Hub has (another length or SHA-256): fetching it again",
                name,
                repository,
            )
            hub.snapshot_download(
                repository, revision=revision, allow_patterns=[glob.escape(name)], force_download=True
            )
    raise VitkitError(
        f"{name} of {repository} was fetched twice, and is not the file that the Hub says it has: expected "
        f"SHA-256 {wanted or 'unknown'} and {announced.size or 'unknown'} bytes, found {digest} and "
        f"{file.stat().st_size}. Delete {file} and try again later."
    )
