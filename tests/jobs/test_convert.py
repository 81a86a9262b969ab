"""Conversion leaves a file that is the same model, or none."""

import dataclasses
import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.random_models import random_model as drawn
from tests.helpers.refusals import refused
from tests.jobs.forked_runs import Case, fork_server
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import DecodeRule, Preprocessing
from vitkit.jobs.convert import compare, convert
from vitkit.models.config import ResNetConfig, Task
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import vit_config
from vitkit.weights.format_names import Format
from vitkit.weights.loading import save, save_model
from vitkit.weights.model_card import ModelCard, card_of

PLAIN = "ViT-64x2x2/16"
"""A ViT that every format has a name for."""


def random_model(name: str, **changes: Any) -> ImageModel:
    """Make a model in which every parameter is random, its head too; the same at every call."""
    torch.manual_seed(0)
    model = drawn(dataclasses.replace(vit_config(name, 3, 32), **changes))
    model.card = ModelCard(class_names=("cat", "dog", "émeu"))
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a plain model, for all that read it."""
    return save_model(random_model(PLAIN), tmp_path_factory.mktemp("source") / "model")


def test_a_conversion_is_silent_and_tells_how_far_it_is(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names of classes are kept or said to be lost. Without a head features are compared."""
    heard = Hearing()
    result = convert(source, tmp_path / "out", num_classes=0, listener=heard)
    assert capfd.readouterr() == ("", "")
    assert heard.steps == {"comparing images": [(done, 8) for done in range(1, 9)]}
    assert result.parity.logits is None and result.parity.features is not None
    assert "logits" not in str(result.parity) and "top-1" not in str(result.parity)
    formats: tuple[Format, ...] = ("vitkit", "timm", "huggingface")
    for to in formats:
        made = convert(source, tmp_path / to, to=to)
        assert vitkit.load_model(made.path).card.class_names == ("cat", "dog", "émeu")
    assert "class names" in convert(source, tmp_path / "other", to="official").lost


def test_arithmetic_of_no_format_is_refused_or_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model(PLAIN, gelu="erf"), tmp_path / "erf")
    said = "cannot store: GELU.*accept_change"
    refused(said, convert, tmp_path / "erf", tmp_path / "out.npz", to="official")
    assert not (tmp_path / "out.npz").exists()
    with caplog.at_level(logging.ERROR, "vitkit"):
        result = convert(tmp_path / "erf", tmp_path / "out.npz", to="official", accept_change=True)
    assert not result.parity.within(1e-5) and any("GELU" in sentence for sentence in result.lost)


def test_a_result_that_differs_is_not_left(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaging(model: ImageModel, path: Path, to: Format) -> tuple[Path, list[str]]:
        broken = random_model(PLAIN)
        with torch.no_grad():
            broken.get_parameter("blocks.1.mlp.fc2.weight")[3, 4] += 0.5
        return save(broken, path, to)

    monkeypatch.setattr("vitkit.weights.loading.save", damaging)
    refused(r"differs from the source: logits .* differ", convert, source, tmp_path / "out", to="official")
    assert not [*tmp_path.iterdir()]


def test_values_that_are_not_finite_agree_with_nothing(source: Path, tmp_path: Path) -> None:
    model, other = vitkit.load_model(source), random_model(PLAIN)
    with torch.no_grad():
        other.get_parameter("norm.bias")[0] = float("nan")
    assert not compare(model, other).within(1e9)
    path = save_model(other, tmp_path / "model")
    refused("not finite", convert, path, tmp_path / "out")  # which is no fault of the conversion
    assert not (tmp_path / "out").exists()


def test_what_a_format_cannot_say_is_said_to_be_lost(tmp_path: Path) -> None:
    """The loss, and rules of preprocessing."""
    model = random_model(PLAIN)
    rule = Preprocessing((32, 32), "shortest", 0.9, decode=DecodeRule(apply_exif=False))
    model.card = ModelCard(preprocessing=rule, class_names=(*"abc",), task=Task(loss="sigmoid"))
    save_model(model, tmp_path / "model")
    assert not convert(tmp_path / "model", tmp_path / "vitkit", to="vitkit").lost
    lost = "; ".join(convert(tmp_path / "model", tmp_path / "timm", to="timm").lost)
    assert "preprocessing's decode.apply_exif: False -> True" in lost and "sigmoid loss" in lost


def test_pixel_statistics_that_a_file_lacks_are_given(tmp_path: Path, cli: Cli) -> None:
    path = save_model(random_model(PLAIN, gelu="erf", norm_eps=1e-6), tmp_path / "timm", "timm")
    (path / "config.json").unlink()
    command = ["convert", str(path / "model.safetensors"), str(tmp_path / "out"), "--num-heads", "2"]
    assert run([*command, "--image-mean", "0.485", "0.456", "0.406", "--image-std", "0.25"]) == 0
    again = vitkit.load_model(tmp_path / "out")
    assert again.config.image_mean == (0.485, 0.456, 0.406) and again.config.image_std == (0.25,) * 3
    assert [assumption.what for assumption in card_of(again).assumed] == ["resizing"]
    said = cli(["card", str(tmp_path / "out")]).out
    assert "resizing not in the file: the shortest side resized to 35" in said
    wrong = [*command[:2], str(tmp_path / "other"), *command[3:], "--image-std", "0"]
    assert "--image-std is a number above 0" in cli(wrong, 1).err


def test_nothing_is_left_after_a_refusal_or_a_signal(source: Path, tmp_path: Path) -> None:
    save_model(random_model(PLAIN, register_tokens=1), tmp_path / "model")
    there = save_model(random_model(PLAIN), tmp_path / "there.npz", "official")
    (tmp_path / "file").write_text("x")
    before, new = there.read_bytes(), tmp_path / "new" / "folders" / "out"
    for start, out, options, said in (
        (tmp_path / "model", new, {"to": "official"}, "no place for register_tokens"),
        (source, there, {"to": "official"}, "is there already"),
        (source, tmp_path / "there", {"to": "official"}, "is there already"),  # the suffix is added
        (source, tmp_path / "file" / "out", {}, "file is a file, and"),
        (source, tmp_path / "out.safetensors", {"to": "timm"}, r"folder.*\.safetensors"),
        (source, tmp_path / "out", {"to": "official", "against": "timm"}, "neither the source"),
    ):
        refused(said, convert, start, out, **options)
    assert there.read_bytes() == before
    arguments = ["convert", str(source), str(tmp_path / "new" / "out")]
    with fork_server() as ask:
        done = ask(Case(arguments, (signal.SIGTERM,), "vitkit.jobs.convert.compare"))
    assert done.code == 143, done.err
    assert {path.name for path in tmp_path.iterdir()} == {"file", "model", "there.npz"}


def test_a_new_head_is_announced(source: Path, tmp_path: Path, cli: Cli) -> None:
    arguments = ["convert", str(source), str(tmp_path / "out"), "--num-classes", "7"]
    said = cli([*arguments, "--image-size", "48"]).text  # one number is a square
    assert "head new, of zeros, for 7 classes" in said and "cat, dog, émeu, is dropped" in said
    assert "top-1" not in said  # of a head of zeros it would say nothing
    assert vitkit.load_model(tmp_path / "out").config.image_size == (48, 48)
    model = vitkit.load_model(convert(source, tmp_path / "oblong", image_size=(48, 64), num_classes=7).path)
    assert model.config.grid == (3, 4) and not model.state_dict()["head.weight"].any()


def test_a_resnet_that_does_not_say_its_size(tmp_path: Path, cli: Cli) -> None:
    resnet = vitkit.build_model(ResNetConfig((40, 40), (1,), 3, width_factor=0.5)).eval()
    path = save_model(resnet, tmp_path / "r.npz", "official")
    assert "vitkit convert FILE OUT" in cli(["convert", str(path), str(tmp_path / "out")], 1).err
    assert run(["convert", str(path), str(tmp_path / "out"), "--image-size", "40", "40"]) == 0


def test_a_library_is_held_against_ours(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitkit.load_model(source)

    def honest(library: str, path: Path, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(images)  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr("vitkit.jobs.convert.library_logits", honest)
        result = convert(source, tmp_path / "good", to="timm", against="timm")
        assert result.beside_library is not None and result.beside_library.within(1e-5)
        patch.setattr("vitkit.jobs.convert.library_logits", lambda *a: honest(*a) + 0.01)
        refused("logits differ from vitkit's", convert, source, tmp_path / "bad", to="timm", against="timm")

    def absent(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr("vitkit.jobs.convert.import_module", absent)
    refused("pip install timm", convert, source, tmp_path / "bad", to="timm", against="timm")
    assert not (tmp_path / "bad").exists()


def test_a_card_is_in_words(tmp_path: Path, cli: Cli) -> None:
    model = random_model("R50+ViT-64x2x2/16")
    model.card = ModelCard(origin={"notes": ["one", "two"], "rate": 0.30000000000000004, "of": {"seed": 3}})
    said = cli(["card", str(save_model(model, tmp_path / "model"))]).out
    for phrase in ("one; two", "rate 0.3", "of seed 3", "backbone layers 3-4-9", "w / (std + 1e-05)"):
        assert phrase in said
    assert "{" not in said and '["' not in said and "0.30000" not in said


def test_a_card_says_why_blocks_are_not_compiled(tmp_path: Path, cli: Cli) -> None:
    for name, reason in (("ViT-32x1x2/4-rms", "norm rms"), ("ViT-8x1x2/4", "head_dim 4")):
        said = cli(["card", str(save_model(random_model(name), tmp_path / name.replace("/", "-")))]).out
        assert "operation by operation" in said and reason in said


def test_a_card_says_the_licence_of_the_published_start(tmp_path: Path, cli: Cli) -> None:
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    licences = []
    for name, origin in (("plain", {}), ("tuned", {"start": {"from": "vit-b16-mae-in1k"}})):
        model.card = ModelCard(origin=origin)
        path = str(save_model(model, tmp_path / name))
        licences.append(json.loads(cli(["card", path, "--json"]).out)["licence"])
    assert licences == [None, "CC-BY-NC-4.0 (no commercial use), of vit-b16-mae-in1k"]
    for line in (["card", path], ["finetune", path, "digits", "--dry-run", "--threads", "1"]):
        assert str(licences[1]) in cli(line).text
