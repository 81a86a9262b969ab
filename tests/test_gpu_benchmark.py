"""The benchmarks of GPUs and of profiles run through on a processor, with a toy of a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks import gpu, profile


def test_everything_that_is_asked_of_a_gpu_runs_on_a_processor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "installed_peers", lambda: ([], ["timm"]))
    path = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--small", "--seconds", "0.05", "--backend", "eager", "--out", str(path)])
    measured = json.loads(path.read_text())
    assert measured["machine"]["device"] and measured["machine"]["kind"] == "cpu"
    kinds = [record["kind"] for record in measured["records"]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"speed": 6, "largest batch": 6, "loop": 1}
    for record in measured["records"]:
        if record["kind"] == "speed":
            shortened = not record["name"].endswith("plain")
            assert record["mfu"] > 0 and (record["mfu_executed"] < record["mfu"]) == shortened
    batches = {
        (r["name"], r["recompute"]): r["images"]
        for r in measured["records"]
        if r["kind"] == "largest batch" and r["phase"] == "training"
    }
    assert {recompute for _, recompute in batches} == {True, False} and all(batches.values())
    loop = measured["records"][-1]
    assert len(loop["losses"]) == loop["steps"] == 6 and not loop["watched_for_waits"]


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu", "--out", str(tmp_path / "gpu.json")])
    assert "there is no GPU here; --small tries the same path" in capsys.readouterr().err


def test_operations_have_a_kind() -> None:
    kinds = {
        "aten::addmm": "products",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
        "aten::native_layer_norm_backward": "norm",
        "_GeluBackward": "GELU",
        "aten::_fused_adamw_": "optimiser",
        "aten::copy_": "casts and copies",
        "aten::add_": "sums",
        "aten::empty": "rest",
    }
    assert {operation: profile.kind_of(operation) for operation in kinds} == kinds


def test_the_profile_says_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    profile.main(
        ["--model", "ViT-64x3x2/8", "--size", "32", "--batch", "2", "--steps", "2", "--json", str(path)]
    )
    records = json.loads(path.read_text())["records"]
    assert {(record["phase"], record["name"]) for record in records} >= {
        (phase, name) for phase in ("training", "inference") for name in ("vitkit --exact", "vitkit float32")
    }
    for record in records:
        assert sum(record["shares"].values()) == pytest.approx(1)
        assert record["shares"]["products"] > 0 and record["shares"]["GELU"] > 0
        assert (record["shares"]["optimiser"] > 0) == (record["phase"] == "training")
    assert "| training, vitkit float32 |" in capsys.readouterr().out


@pytest.mark.parametrize("most", [0, 1, 37, 4096])
def test_batches_are_tried_until_one_does_not_fit(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search alone, without a GPU: whatever fits is found to a sixteenth."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def of_batch(count: int) -> Callable[[], None]:
        def step() -> None:
            if count > most:
                raise torch.OutOfMemoryError

        return step

    assert most * 15 / 16 - 1 <= gpu.largest_that_fits(of_batch, 10.0) <= most
