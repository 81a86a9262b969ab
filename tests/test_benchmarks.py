"""The benchmarks run through with toys of models; of other libraries, who is left out, and why."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from benchmarks import contestants, gpu, peers
from benchmarks.contestants import installed_peers, peer_contestants
from benchmarks.transfer import CASES, drawn, summary
from benchmarks.utilisation import count_executed, products

from tests.helpers.refusals import refused
from vitkit.jobs.bench import vitkit_contestants
from vitkit.models.measure import forward_flops
from vitkit.models.zoo import model_config, vit_config

CPU = torch.device("cpu")
MODEL = "ViT-32x3x2/8"


def test_a_peer_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("of another\nversion")

    monkeypatch.setitem(contestants.PEERS, "timm", (broken, ("timm",)))
    config = vit_config(MODEL, 10, 32)
    for tried, reason in (
        (config, "RuntimeError: of another version"),
        (model_config("BiT-R1-1-1x0.5", 10, 32), "it is compared on plain ViTs"),
    ):
        given = "timm", tried, torch.zeros(1, 3, 32, 32), "inference", ("float32",)
        refused(f"timm is left out: {reason}", peer_contestants, *given)


def test_an_engine_that_computes_something_else_is_left_out() -> None:
    config = vit_config(MODEL, 10, 32)
    model = contestants.graph_to_export(config)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    contestants._require_same(model, lambda x: model(x).detach().numpy(), images)
    for wrong in (lambda x: -model(x).detach().numpy(), lambda x: model(x[:1]).detach().numpy()):
        refused("other logits", contestants._require_same, model, wrong, images)


def test_the_table_is_made_without_the_libraries_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(contestants, "find_spec", lambda package: None)
    assert installed_peers() == ([], list(contestants.PEERS))
    path = tmp_path / "peers.json"
    peers.main([MODEL, "--image-size", "32", "--seconds", "0.1", "--json", str(path)])
    printed = capsys.readouterr()
    assert "Not installed, so left out: timm, transformers" in printed.err
    assert f"{MODEL} at 32 pixels, batch 8, training: speed over vitkit --exact" in printed.out
    assert path.exists() and (Path(__file__).parents[1] / "scripts/bench-peers").exists()


@pytest.mark.parametrize("name", [MODEL, "BiT-R1-1-1x0.5", "R+ViT-64x2x2/16"])
def test_the_plain_way_executes_the_flops_of_the_whole_model(name: str) -> None:
    config = model_config(name, 10, 64)
    *_, plain = vitkit_contestants(config, CPU, "inference", ("float32",), 2)
    images = torch.zeros(2, 3, 64, 64)
    # PyTorch's counter takes the zeros of padding for pixels.
    assert count_executed(plain, images) == 2 * forward_flops(config, head=True, padding=True)


def test_the_ceiling_is_the_products_of_one_block() -> None:
    config = vit_config(MODEL, 10, 64)
    made = products(config, 4, CPU, "bfloat16")
    assert made is not None
    rows, width = 4 * 65, 32
    assert made[1] == 2 * rows * (4 * width**2 + 2 * width * config.mlp_dim)
    made[0]()
    assert products(model_config("BiT-R50x1", 10, 64), 4, CPU, "float32") is None


# GPUs and profiles, on a processor, with a toy of a model


def test_everything_that_is_asked_of_a_gpu_runs_on_a_processor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "installed_peers", lambda: ([], ["timm"]))
    path = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--small", "--seconds", "0.05", "--backend", "eager", "--out", str(path)])
    measured = json.loads(path.read_text())
    assert measured["machine"]["device"] and measured["machine"]["kind"] == "cpu"
    kinds = [record["kind"] for record in measured["records"]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"speed": 6, "largest batch": 6, "loop": 2}
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


# The table of transfer in small, whose cells take minutes: what it draws and prints


def test_the_same_test_images_for_every_draw_and_none_of_them_is_drawn(tmp_path: Path) -> None:
    folders = [drawn(CASES["digits"], 5, seed, Path("nowhere"), tmp_path) for seed in (0, 1)]
    tests = [pq.read_table(folder / "test-0.parquet") for folder in folders]
    trains = [pq.read_table(folder / "train-0.parquet") for folder in folders]
    assert tests[0] == tests[1] and trains[0] != trains[1]
    assert all(sorted(train["label"].to_pylist()) == sorted([*range(10)] * 5) for train in trains)
    tested = {row["bytes"] for row in tests[0]["image"].to_pylist()}
    assert not any(row["bytes"] in tested for row in trains[0]["image"].to_pylist())


def test_numbers_come_with_students_interval() -> None:
    assert summary([0.78, 0.80, 0.82]) == "80.0 ± 2.0 (75 to 85)"  # 4.303 * 2 / sqrt(3) = 4.97
    assert summary([0.8]) == "80.0 (one seed)"
    assert summary([]) == ""
