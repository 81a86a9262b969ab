"""model.json knows its weights: another file in their place is refused, whatever put it there."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY
from vitkit import load_model
from vitkit.cli.main import run
from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.weights import loading as native
from vitkit.weights.loading import identify, load, save_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(random_model(TINY), tmp_path / "model")


def described(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return record


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def test_the_record_is_that_of_the_file(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    assert described(folder)["weights"] == {
        "bytes": len(data),
        "xxh3_128": xxhash.xxh3_128_hexdigest(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert load(folder).notes == ()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.999])
def test_a_flipped_bit_is_noticed(share: float, folder: Path) -> None:
    weights = folder / "model.safetensors"
    length = int.from_bytes(weights.read_bytes()[:8], "little")
    flip(weights, 8 + length + int(share * (weights.stat().st_size - 8 - length)))
    for opening in (load_model, identify, load):
        with pytest.raises(VitkitError, match=r"is not the file .*expected XXH3 \w{32}, found XXH3 \w{32}"):
            opening(folder)


def test_another_file_of_weights_is_refused_by_its_size(folder: Path, tmp_path: Path) -> None:
    other = save_model(random_model(TINY).bfloat16(), tmp_path / "other")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(VitkitError, match=r"expected [\d,]+ bytes, found [\d,]+ bytes.*damaged or replaced"):
        load_model(folder)


def test_a_program_stopped_between_the_two_files_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path, data: Any) -> None:
        raise KeyboardInterrupt

    new = random_model(TINY)
    with monkeypatch.context() as patch:
        patch.setattr(native, "replace_json", killed)
        with pytest.raises(KeyboardInterrupt):
            save_model(new, folder)
    with pytest.raises(VitkitError, match=r"stopped between writing the two.*same vitkit train command"):
        load_model(folder)
    save_model(new, folder)
    assert_same(load_model(folder), new)


def assert_same(model: ImageModel, other: ImageModel) -> None:
    state = other.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_description_without_a_checksum_is_refused(folder: Path) -> None:
    record = described(folder)
    del record["weights"]
    (folder / "model.json").write_text(json.dumps(record))
    with pytest.raises(VitkitError, match=r"model\.json: weights: the key 'bytes' of Checksum is missing"):
        load_model(folder)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "expected an object"),
        (None, "expected an object"),
        ({"bytes": 3}, "the key 'xxh3_128' of Checksum is missing"),
        ({"bytes": "3", "xxh3_128": "", "sha256": ""}, "weights: bytes: expected int, found '3'"),
    ],
)
def test_a_record_that_is_none(record: Any, message: str, folder: Path) -> None:
    (folder / "model.json").write_text(json.dumps({**described(folder), "weights": record}))
    with pytest.raises(VitkitError, match=message):
        load_model(folder)


def test_a_renamed_file_is_checked_and_one_of_another_kind_is_said_not_to_be(folder: Path) -> None:
    weights = (folder / "model.safetensors").rename(folder / "best.safetensors")
    assert load(weights).notes == ()
    torch.save(load_model(weights).state_dict(), folder / "best.pth")
    assert any("not of this one: not checked" in note for note in load(folder / "best.pth").notes)
    flip(weights, weights.stat().st_size - 1)
    with pytest.raises(VitkitError, match="is not the file"):
        load(weights)


def test_the_card_shows_the_hash_that_others_know(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert run(["card", str(folder)]) == 0
    assert sha256 in capsys.readouterr().out
    assert run(["card", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"]["sha256"] == sha256
