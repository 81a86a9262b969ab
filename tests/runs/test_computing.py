"""How a run computes is chosen when it begins, and kept; evaluation and prediction choose too."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import vitkit
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.config import to_json
from vitkit.jobs import train_run as training
from vitkit.kernels.block import compiled_block, compiled_gelu, onednn_is_faster
from vitkit.models.config import PLAIN, Compute
from vitkit.models.image_model import ImageModel
from vitkit.runs import machine as computing
from vitkit.training.config import OptimizerConfig, TrainingConfig
from vitkit.training.gradients import Gradients


def fast(precision: Literal["float32", "bfloat16"], attention: Literal["fused", "explicit"]) -> Compute:
    """Give the choice on this machine: not every processor has products of bfloat16."""
    block = Compute("float32", attention, "class_token", "compiled")
    whole = compiled_block(precision) is not None
    return replace(block, precision=precision, block="compiled" if whole else "modules")


FAST, FUSED = fast("bfloat16", "explicit"), fast("float32", "fused")


pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module", autouse=True)
def _a_machine_with_bfloat16() -> Iterator[None]:
    # Another test of this process may have looked for kernels before they were compiled.
    compiled_block.cache_clear()
    compiled_gelu.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "device_features", lambda device: frozenset({"avx512_bf16"}))
        yield


def short(**options: Any) -> vitkit.Run:
    settings = {"steps": 6, "batch_size": 16, "checkpoint_every": 2, "evaluate_every": 3, "keep": 9}
    return vitkit.Run(
        data="digits",
        model="ViT-128x2x4/4",
        preprocessing=replace(vitkit.recipe("digits").preprocessing, image_size=(8, 8)),
        optimizer=OptimizerConfig(polyak=0.9),
        training=TrainingConfig(**{**settings, "select": "last", **options}),
    )


def weights(folder: Path) -> dict[str, bytes]:
    last = folder / "checkpoints" / "step-00000006"
    return {name: (last / f"{name}.safetensors").read_bytes() for name in ("model", "average", "optimizer")}


def cut_back(whole: Path, folder: Path) -> None:
    """Make a folder of a run that was killed after step 3."""
    shutil.copytree(whole, folder)
    for step in (4, 6):
        shutil.rmtree(folder / "checkpoints" / f"step-0000000{step}")
    for name in ("model.safetensors", "model.json", "report.html"):
        (folder / name).unlink()


WAYS: dict[str, tuple[dict[str, Any], Compute]] = {
    "auto": ({}, FAST),
    "exact": ({"exact": True}, PLAIN),
    "float32": ({"precision": "float32"}, FUSED),
}


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, without_report: None, _a_machine_with_bfloat16: None
) -> dict[str, tuple[Path, Hearing]]:
    """A finished run of each way, and what was heard of it."""
    root, made = tmp_path_factory.mktemp("runs"), dict[str, tuple[Path, Hearing]]()
    for name, (options, _) in WAYS.items():
        heard = Hearing()
        made[name] = (vitkit.train(short(**options), root / name, listener=heard), heard)
    return made


@pytest.mark.parametrize("name", WAYS)
def test_a_choice_is_written_down_and_kept(
    name: str, runs: dict[str, tuple[Path, Hearing]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole, heard), (options, expected) = runs[name], WAYS[name]
    if expected.block == "compiled" and expected.precision == "float32" and onednn_is_faster():
        expected = replace(expected, products="onednn")
    config = json.loads((whole / "config.json").read_text())
    manifest = json.loads((whole / "checkpoints" / "step-00000006" / "manifest.json").read_text())
    assert config["compute"] == manifest["environment"]["compute"] == to_json(expected)
    assert config["run"]["training"]["precision"] == options.get("precision", "auto")
    assert dict(heard.rows)["device"][0].startswith(f"cpu, {expected.precision}, ")

    # A machine where something else would be chosen.
    choose_for = computing.choose_for

    def choose(*args: Any, phase: Any, **options: Any) -> Any:
        assert phase != "training", "was chosen already"
        return choose_for(*args, phase=phase, **options)

    monkeypatch.setattr(computing, "choose_for", choose)
    cut_back(whole, tmp_path / "killed")
    heard = Hearing()
    vitkit.train(short(**options), tmp_path / "killed", listener=heard)
    assert weights(tmp_path / "killed") == weights(whole)
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert not [line for line in heard.warnings if "may differ" in line]


def test_a_choice_that_was_edited_and_a_machine_without_a_compiler_are_told(
    runs: dict[str, tuple[Path, Hearing]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = runs["auto"]
    cut_back(whole, tmp_path / "uncompiled")
    with monkeypatch.context() as patch:
        patch.setattr(computing, "compiled_gelu", lambda *_: None)
        heard = Hearing()
        vitkit.train(short(), tmp_path / "uncompiled", listener=heard)
    (warning,) = [line for line in heard.warnings if line.startswith("compute was")]
    assert "'gelu': 'compiled'" in warning and "'gelu': 'pytorch'" in warning
    cut_back(whole, tmp_path / "killed")
    path = tmp_path / "killed" / "config.json"
    config = json.loads(path.read_text())
    config["compute"]["attention"] = "fused"
    path.write_text(json.dumps(config))
    heard = Hearing()
    vitkit.train(short(), tmp_path / "killed", listener=heard)
    assert [line for line in heard.warnings if line.startswith("compute was") and "may differ" in line]
    config["compute"]["attention"] = "slow"
    path.write_text(json.dumps(config))
    (tmp_path / "killed" / "report.html").unlink()
    said = r"config\.json: compute: attention: expected one of"
    refused(said, vitkit.train, short(), tmp_path / "killed")


def test_evaluation_and_prediction_choose_and_can_be_exact(runs: dict[str, tuple[Path, Hearing]]) -> None:
    folder, _ = runs["exact"]
    exact = vitkit.evaluate(folder, exact=True)
    fast, single = vitkit.evaluate(folder, precision="bfloat16"), vitkit.evaluate(folder)
    recorded = np.load(folder / "evaluation" / "test.logits.npy")
    np.testing.assert_array_equal(exact.predictions.logits, recorded)  # of the end of the run, exact too
    assert not np.array_equal(fast.predictions.logits, recorded)
    np.testing.assert_allclose(fast.predictions.logits, recorded, atol=0.02)
    np.testing.assert_allclose(single.predictions.logits, recorded, atol=1e-5)

    images = [np.full((8, 8, 3), level, np.uint8) for level in (0, 200)]
    plain = vitkit.Predictor(folder, exact=True)
    assert isinstance(plain.model, ImageModel)
    assert plain.model.chosen == PLAIN and plain.precision == "float32"
    alone = vitkit.Predictor(folder)
    assert isinstance(alone.model, ImageModel)
    # The kernels are there already.
    assert alone.model.chosen == replace(FUSED, pixels="folded")
    chosen = vitkit.Predictor(folder, precision="bfloat16")
    assert isinstance(chosen.model, ImageModel)
    assert chosen.model.chosen == replace(FAST, pixels="folded")
    assert chosen.precision == "bfloat16"
    with torch.inference_mode():
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        expected = vitkit.load_model(folder).eval()(batch).softmax(-1).amax(-1)
    np.testing.assert_allclose([first.probability for first, *_ in plain.many(images)], expected, rtol=1e-6)
    np.testing.assert_allclose([first.probability for first, *_ in chosen.many(images)], expected, atol=0.01)


# A run whose batch does not fit into the memory of a GPU goes on with fewer images at a time


def test_a_gpu_that_is_too_small_takes_fewer_images_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artificial lack of memory: no GPU is asked."""
    add_up, tried = Gradients._add_up, list[int]()

    def cramped(gradients: Gradients, batch: Any, step: int, valid: int) -> Any:
        tried.append(gradients.size)
        if gradients.size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return add_up(gradients, batch, step, valid)

    monkeypatch.setattr(Gradients, "_add_up", cramped)
    heard, exact = Hearing(), {"exact": True}
    whole = vitkit.train(short(**exact), tmp_path / "whole", listener=heard)
    assert tried == [16, 8, *[4] * 6]
    (warning,) = [line for line in heard.warnings if "Out of memory" in line]
    assert "at step 1: from here on 4 images are computed at a time" in warning
    micro_batched = vitkit.train(short(micro_batch_size=4, **exact), tmp_path / "asked")
    assert weights(whole) == weights(micro_batched)
    cut_back(whole, tmp_path / "killed")
    tried.clear()
    heard = Hearing()
    # Whoever runs out of memory may continue with recomputing, too, to the same bits.
    again = short(recompute=True, **exact)
    training.train_run(again, tmp_path / "killed", resume=True, listener=heard)
    assert {*tried} == {4} and weights(tmp_path / "killed") == weights(whole)
    assert not [line for line in heard.warnings if "micro_batch" in line]
