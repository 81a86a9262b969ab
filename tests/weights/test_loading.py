"""What loading returns beside the model, and what it refuses by name."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.fixture_files import write_npz
from tests.helpers.random_models import random_model
from tests.helpers.refusals import refused
from tests.helpers.timm_files import TINY, config_json, folder_of, state
from tests.helpers.weight_files import write_tensors
from vitkit import load_model
from vitkit.cli.main import run
from vitkit.errors import VitkitError
from vitkit.jobs.convert import convert
from vitkit.models.config import BackboneConfig
from vitkit.weights import loading
from vitkit.weights.format_names import Format, LoadOptions
from vitkit.weights.loading import find_doubts, load, save_model

GIVEN: dict[str, Any] = {"num_heads": 4, "image_size": (12, 16)}

# Notes


def test_notes_are_returned_logged_by_load_model_and_shown_by_every_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pth"
    torch.save({"model": state(), "model_ema": state(), "epoch": 3}, path)
    with caplog.at_level(logging.DEBUG, "vitkit"):
        loaded = load(path, LoadOptions(**GIVEN))
        assert caplog.text == ""
        load_model(path, **GIVEN)
    assert loaded.identity.format == "timm" and loaded.identity.config == loaded.model.config
    assert any("its 'model_ema'" in note and "left aside: model, epoch" in note for note in loaded.notes)
    assert any("no config.json" in note for note in loaded.notes)  # what had to be assumed
    for note in loaded.notes:
        assert f"{path}: {note}" in caplog.text
    out = str(tmp_path / "out")
    for command, code in (
        (["card", str(path)], 0),
        (["convert", str(path), out], 0),
        (["predict", str(path), out], 1),
    ):
        assert run([*command, "--num-heads", "4", "--image-size", "12", "16"]) == code  # no image is there
        said = capsys.readouterr()
        assert "the weights are its 'model_ema', a moving average" in (said.err if code else said.out)


def write_again(path: Path) -> None:
    """Write the same length into a file, with another last number."""
    data = path.read_bytes()
    path.write_bytes(data[:-4] + bytes(4))
    os.utime(path, (1, 1))


def replace_by_another(path: Path) -> None:
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").replace(path)


def replace_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.touch()


@pytest.mark.parametrize("change", [write_again, replace_by_another, Path.unlink, replace_its_folder])
def test_weights_changed_while_being_read_are_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    save_model(random_model(TINY), tmp_path / "model")
    opened = loading.OpenCheckpoint(tmp_path / "model", LoadOptions())
    assert opened.files == (tmp_path / "model" / "model.safetensors",)
    change(opened.files[0])
    refused(r"model was changed while it was looked at", opened.read)


# Numbers that are none


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_model(TINY)
    with torch.no_grad():
        model.get_parameter("blocks.1.norm2.weight")[3] = value
    save_model(model, tmp_path / "model")
    [note] = load(tmp_path / "model").notes
    assert "1 of its 32 tensors hold NaN or infinity (blocks.1.norm2.weight)" in note
    assert run(["predict", str(tmp_path / "model"), str(tmp_path)]) == 1
    assert "(blocks.1.norm2.weight)" in capsys.readouterr().err
    refused("not finite", convert, tmp_path / "model", tmp_path / "out")
    model = random_model(TINY)
    with torch.no_grad():
        model.get_parameter("head.weight")[0] = value
    save_model(model, tmp_path / "model")
    assert "(head.weight)" in load(tmp_path / "model").notes[0]
    assert not load(tmp_path / "model", LoadOptions(num_classes=3)).notes  # a head that is replaced


def test_the_file_is_named_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent of a file in the working folder is ".", which stands in most messages; "run" in some."""
    refuse = Mock(side_effect=VitkitError("A trunk of 999 layers cannot be built. Take another file."))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("vitkit.weights.table.recognise", lambda source: Mock(read=refuse))
    for path in ("model.npz", "run/model.npz"):
        np.savez(path, x=np.ones(1))
        refused(f"^{path}: A trunk", load, path)


def test_finite_numbers_whose_sum_is_infinite_are_finite() -> None:
    largest = torch.finfo(torch.float32).max
    tensors = {"large": torch.full((4,), largest), "half": torch.full((100,), 60_000.0).half()}
    assert find_doubts(tensors) == []
    tensors["opposite"] = torch.tensor([float("inf"), float("-inf")])
    [doubt] = find_doubts(tensors)
    assert "1 of its 3 tensors hold NaN or infinity (opposite)" in doubt


# Types


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_weights_of_types_that_are_no_weights_are_refused_by_name(ending: str, tmp_path: Path) -> None:
    key, tensors, path = "blocks.1.mlp.fc1.weight", state(), tmp_path / f"x{ending}"
    plain = tensors[key]
    for dtype in (torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
        write_tensors(path, tensors | {key: plain.to(dtype)})
        name = str(dtype).removeprefix("torch.")
        refused(rf"{key}: expected floating-point.*found {name}.*dequantise", load_model, path, **GIVEN)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        model = load_model(
            write_tensors(path, {name: tensor.to(dtype) for name, tensor in tensors.items()}), **GIVEN
        )
        assert torch.equal(model.state_dict()["head.bias"], tensors["head.bias"].to(dtype).float())


def test_so_are_those_of_an_npz_but_not_integers_that_are_left_out(tmp_path: Path) -> None:
    path = save_model(random_model(replace(TINY, gelu="tanh")), tmp_path / "x.npz", "big_vision")
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    write_npz(path, arrays | {"opt/state/step": np.array(7)})
    loaded = load(path, LoadOptions(image_size=(12, 16)))
    assert list(loaded.identity.left_out.values()) == [["opt/state/step"]]
    for dtype in (np.int8, np.bool_, np.uint16):
        write_npz(path, arrays | {"params/head/kernel": arrays["params/head/kernel"].astype(dtype)})
        refused(r"head/kernel: expected floating-point.*dequantise", load_model, path, image_size=(12, 16))


# Prefixes


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_the_prefix_to_strip_is_named(ending: str, tmp_path: Path) -> None:
    for prefix in ("backbone.", "model.backbone.", "student."):
        tensors = {f"{prefix}{key}": value for key, value in state().items()} | {"loss.centre": torch.ones(1)}
        path = write_tensors(tmp_path / f"x{ending}", tensors)
        refused(rf"are timm's after the prefix .*strip the prefix '{prefix}'", load_model, path, **GIVEN)
    write_tensors(path, {"a.b.c": torch.ones(1), "d": torch.ones(1)})
    assert "after the prefix" not in refused("holds no model we know", load_model, path)


# Sizes


OUT_OF_BOUNDS = [
    ({"depth": 1001}, "depth: expected from 1 to 1,000, found 1001"),
    ({"depth": 999}, "its description says 999 layers, and it has 32 tensors"),
    ({"width": 10**9}, "width: expected from 1 to"),
    ({"width": 2**20}, "does not hold the weights"),
    ({"mlp_dim": 10**9}, "mlp_dim: expected from 1 to"),
    ({"mlp_dim": 10**30}, "mlp_dim: the number 1000000000000000000000000000000 is too large"),
    ({"num_heads": 10**9}, "num_heads: expected from 1 to"),
    ({"num_classes": 10**9}, "num_classes: expected 0 \\(no head\\) to 16,777,216"),
    ({"num_classes": 2**24}, "does not hold the weights"),
    ({"register_tokens": 10**9}, "register_tokens: expected from 0"),
    ({"representation_size": 10**9}, "representation_size: expected from 1"),
    ({"image_size": [10**9, 16]}, "image_size: expected from 1 to"),
    ({"image_size": [2**20, 2**20]}, "tokens; at most"),
    ({"image_size": [14_000, 14_000], "position": "sincos_2d"}, "Sine-cosine positions of"),
    ({"norm_eps": float("nan")}, "norm_eps: expected 0 or more, found nan"),
    ({"layer_scale": 1e39}, r"layer_scale: expected a finite number, of at most 3.4e\+38, found 1e\+39"),
    ({"image_std": [0.5, 1e-320, 0.5]}, "image_std: expected a number above 0"),
    ({"backbone": {"layers": [10**6]}}, "at most 10 stages and 1,000 units"),
    ({"backbone": {"layers": [1], "width_factor": float("inf")}}, "width_factor: expected a finite"),
]


@pytest.mark.parametrize(("change", "message"), OUT_OF_BOUNDS)
def test_sizes_in_a_description_are_bounded(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_model(random_model(TINY), tmp_path)
    record = json.loads((tmp_path / "model.json").read_text())
    record["architecture"] |= change
    (tmp_path / "model.json").write_text(json.dumps(record))
    assert str(tmp_path) in refused(message, load_model, tmp_path)


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("vitkit", "model.json"),
        ("vitkit", "model.safetensors"),
        ("timm", "config.json"),
        ("huggingface", "config.json"),
        ("huggingface", "preprocessor_config.json"),
    ],
)
def test_a_pipe_under_a_known_name_is_refused(format: Format, name: str, tmp_path: Path) -> None:
    save_model(random_model(replace(TINY, patch_size=(4, 4), image_size=(16, 16))), tmp_path / "x", format)
    tmp_path = tmp_path / "x"
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    refused(f"{name} cannot be read.*a (named )?pipe", load_model, tmp_path)


def test_a_device_is_refused_and_json_is_bounded(tmp_path: Path) -> None:
    path = folder_of(tmp_path, state(), config_json())
    with (tmp_path / "config.json").open("ab") as file:
        file.truncate(17 << 20)
    refused(r"expected at most 16,777,216 bytes", load_model, path)
    (tmp_path / "x.safetensors").symlink_to("/dev/zero")
    refused("a device, not a regular file", load_model, tmp_path / "x.safetensors")


# Images of another size


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({"patch_size": (1, 1)}, (30, 22), ""),  # a hybrid pads
        ({"patch_size": (2, 2)}, (24, 16), "1 rows below and 0 columns at the right of the backbone's"),
        ({"patch_size": (4, 4), "backbone": None}, (14, 19), "2 rows below and 3 columns at the right"),
    ],
)
def test_what_of_images_of_another_size_fills_no_patch_is_said(
    changes: dict[str, Any], size: tuple[int, int], said: str, tmp_path: Path
) -> None:
    config = replace(TINY, image_size=(16, 16), **{"backbone": BackboneConfig((1, 1)), **changes})
    notes = "; ".join(load(save_model(random_model(config), tmp_path), LoadOptions(image_size=size)).notes)
    assert said in notes and ("cut off" in notes) == bool(said)


def test_no_trained_head_means_fine_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(random_model(replace(TINY, num_classes=0)), tmp_path / "headless")
    assert run(["predict", str(tmp_path / "headless"), "x.png"]) == 1
    assert "has no head" in (said := capsys.readouterr().err) and "vitkit finetune" in said
    save_model(random_model(TINY), tmp_path / "model")
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--num-classes", "2"]) == 0
    said = capsys.readouterr().out
    assert "it says nothing until it is trained (vitkit finetune)" in said
