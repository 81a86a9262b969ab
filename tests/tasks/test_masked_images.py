"""Pre-training on images a part of which is hidden, as a person runs it: killed, continued, used."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

import vitkit.jobs.train_run
from tests.helpers.cli import Cli
from tests.helpers.photos import noise_images
from vitkit.cli.main import run
from vitkit.models.config import ResNetConfig
from vitkit.models.zoo import model_config, with_channels
from vitkit.tasks import find_task
from vitkit.tasks.learning import judge_loss
from vitkit.training.config import MAEConfig, MaskedImagesConfig, MaskedPatchesConfig, SimMIMConfig
from vitkit.training.trainer import Trainer

COMMON = (
    "--model ViT-16x1x2/4 --image-size 16 --steps 8 --batch-size 8 --micro-batch-size 4 --warmup-steps 1 "
    "--learning-rate 0.02 --polyak 0.9 --evaluate-every 4 --checkpoint-every 2 --workers 0 --threads 1"
)
TASKS = {
    "colours": "--task masked-patches --target 4x4-colours --select best",
    "simmim": "--task simmim",
    "mae": "--task mae --decoder-width 16 --decoder-depth 1 --decoder-heads 2",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_images(tmp_path_factory.mktemp("images") / "deep", 20)


def train(images: Path, out: Path, task: str) -> int:
    return run(["train", "--data", str(images), *COMMON.split(), *task.split(), "--out", str(out)])


@pytest.mark.parametrize("name", ["colours", "simmim", "mae"])
def test_a_killed_run_ends_with_the_same_bits(
    name: str, images: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vitkit.jobs.train_run, "write_report", lambda folder, **_: folder)  # takes seconds
    whole = trained if name == "simmim" else tmp_path / "whole"
    if name != "simmim":
        assert train(images, whole, TASKS[name]) == 0
    launch = Trainer.launch

    def killed(self: Trainer, *arguments: Any) -> Any:
        if arguments[1] == 5:
            raise KeyError("killed")
        return launch(self, *arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(Trainer, "launch", killed)
        train(images, tmp_path / "killed", TASKS[name])
    assert not (tmp_path / "killed/model.safetensors").exists()
    assert run(["train", "--resume", str(tmp_path / "killed")]) == 0
    last = [path.relative_to(whole) for path in whole.glob("checkpoints/step-00000008/*.safetensors")]
    assert {"objective.safetensors", "averaged_objective.safetensors"} <= {path.name for path in last}
    # What the objective owns is not in the model.
    plain = vitkit.create_model("ViT-16x1x2/4", 0, 16)
    assert load_file(whole / "model.safetensors").keys() == plain.state_dict().keys()
    for file in ("model.safetensors", "metrics.jsonl", "evaluation/examples.png", *map(str, last)):
        assert (whole / file).read_bytes() == (tmp_path / "killed" / file).read_bytes(), file
    lines = map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())
    validations = [line for line in lines if line["kind"] == "validation"]
    assert len(validations) == 2
    # The masks of the validation are the same each time, and so are the losses that need no model.
    assert len({(line["loss_nothing"], line["loss_constant"]) for line in validations}) == 1
    for line in validations:
        assert 0 < line["loss_constant"] <= line["loss_nothing"]


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(images, folder, TASKS["simmim"]) == 0
    return folder


def test_the_report_shows_what_was_hidden_and_the_loss_beside_what_needs_no_model(trained: Path) -> None:
    page = (trained / "report.html").read_text()
    shown = ("Hidden patches and their predictions", "best constant", "knowing nothing", "names no classes")
    assert all(text in page for text in shown)
    # Three rows of four pictures, of the four validation images of 40, with a line between.
    with Image.open(trained / "evaluation/examples.png") as picture:
        assert picture.size == (4 * 17, 3 * 17)


def test_what_it_makes_is_used_like_all_others_where_no_answers_are_needed(
    trained: Path, images: Path, tmp_path: Path, cli: Cli
) -> None:
    assert run(["convert", str(trained), str(tmp_path / "timm"), "--to", "timm"]) == 0
    assert run(["embed", str(trained), str(images), "--out", str(tmp_path / "f.npy")]) == 0
    assert np.load(tmp_path / "f.npy").shape == (40, 16)
    card = json.loads((trained / "model.json").read_text())
    assert card["task"] == {"name": "simmim", "loss": "none"}  # there are no logits that could mean anything
    for refused in (["predict", str(trained), str(images / "a/00.png")], ["evaluate", str(trained)]):
        assert "answers nothing" in cli(refused, 1).err
    printed = cli(["card", str(trained)]).out
    assert "vitkit inspect" in printed and "vitkit predict" not in printed and "loss none" not in printed
    printed = cli(["data", "check", str(images), "--task", "mae"]).out
    assert f"vitkit pretrain {images} --objective mae" in printed and "from scratch" not in printed


def test_models_that_cannot_learn_it_are_refused() -> None:
    learning = find_task("mae").learning
    cases: tuple[tuple[str, MaskedImagesConfig, str], ...] = (
        ("BiT-R50x1", MaskedPatchesConfig(), "no patches that could be hidden"),
        ("R26+ViT-S/32", MaskedPatchesConfig(), "through convolutions"),
        ("ViT-Ti/16-conv", SimMIMConfig(), "through convolutions"),
        ("ViT-Ti/224", SimMIMConfig(), "a single patch"),
        ("ViT-Ti/32", SimMIMConfig(), "do not fill"),  # 7 x 7 patches
        ("ViT-Ti/16-relative", MAEConfig(), "relative positions"),
        ("ViT-Ti/16-everylayer", MAEConfig(), "positions at every layer"),
        ("Axial-ViT-B/16", MAEConfig(), "axial attention"),
        ("ViT-Ti/16-relative", SimMIMConfig(), ""),
        ("Axial-ViT-B/16", MaskedPatchesConfig(), ""),
        *((f"ViT-Ti/16-{positions}", MAEConfig(), "") for positions in ("sincos2d", "sincos2dmae")),
    )
    for name, objective, sentence in cases:
        reason = learning.explain_unfit(model_config(name), objective)
        assert sentence in reason and bool(sentence) == bool(reason), name
    config = model_config("ViT-Ti/16")
    assert not isinstance(config, ResNetConfig)
    wide = with_channels(config, 13)  # they have too many colours
    assert "--target pixels" in learning.explain_unfit(wide, MaskedPatchesConfig())
    assert not learning.explain_unfit(wide, MaskedPatchesConfig("pixels"))


def test_a_loss_that_stands_at_a_baseline_is_said_to() -> None:
    cases = ((1.0, ""), (1.97, "constant"), (2.5, "constant"), (6.2, "nothing"), (7.0, "nothing"))
    for loss, verdict in cases:
        sentence = judge_loss({"loss": loss, "loss_nothing": 6.238, "loss_constant": 2.0})
        assert verdict in sentence and bool(verdict) == bool(sentence)
