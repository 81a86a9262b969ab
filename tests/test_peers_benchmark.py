"""The benchmark of other libraries: who takes part, who is left out, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import contestants, peers
from benchmarks.contestants import installed_peers, peer_contestants
from benchmarks.peers import headlines
from benchmarks.utilisation import count_executed, products

from tests.engines.models import NAMES, small
from vitkit.errors import VitkitError
from vitkit.jobs.bench import Speed, vitkit_contestants
from vitkit.models.measure import forward_flops
from vitkit.models.zoo import model_config, vit_config

CPU = torch.device("cpu")
MODEL = "ViT-32x3x2/8"


def test_engines_take_part() -> None:
    pytest.importorskip("openvino")
    config, images = small().config, torch.randn(3, 3, 16, 24)
    made = peer_contestants("vitkit-openvino", config, images, "inference", ("float32",))
    assert [(contestant.name, contestant.library) for contestant in made] == [
        ("vitkit openvino float32", "vitkit openvino")
    ]
    assert made[0].logits(images).shape == (3, len(NAMES))
    assert peer_contestants("vitkit-openvino", config, images, "training", ("float32",)) == []


def test_a_peer_that_fails_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("of another\nversion")

    monkeypatch.setitem(contestants.PEERS, "timm", (broken, ("timm",)))
    config = vit_config(MODEL, 10, 32)
    for tried, reason in (
        (config, "RuntimeError: of another version"),
        (model_config("BiT-R1-1-1x0.5", 10, 32), "it is compared on plain ViTs"),
    ):
        with pytest.raises(VitkitError, match=f"timm is left out: {reason}"):
            peer_contestants("timm", tried, torch.zeros(1, 3, 32, 32), "inference", ("float32",))


def test_an_engine_that_computes_something_else_is_left_out() -> None:
    config = vit_config(MODEL, 10, 32)
    model = contestants.graph_to_export(config)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    contestants._require_same(model, lambda x: model(x).detach().numpy(), images)
    for wrong in (lambda x: -model(x).detach().numpy(), lambda x: model(x[:1]).detach().numpy()):
        with pytest.raises(VitkitError, match="other logits"):
            contestants._require_same(model, wrong, images)


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
    *_, plain = vitkit_contestants(config, CPU, "inference", ("float32",))
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


def test_headlines_compare_with_the_best_peer() -> None:
    def speed(name: str, library: str, seconds: float) -> Speed:
        times = {"images_per_second": 1 / seconds, "seconds": seconds, "least_seconds": seconds}
        kind = {"precision": "float32", "phase": "inference", "batch_size": 1, "rounds": 3}
        beside = {"reference": name, "ratio": 1.0, "ratio_quartiles": (1.0, 1.0), "quartiles": (1.0, 1.0)}
        same: Any = {**times, **kind, **beside}
        return Speed(model="m", image_size=(32, 32), name=name, library=library, **same)

    theirs = [speed("a", "timm", 3.0), speed("b", "openvino", 2.0)]
    ours = [speed("c", "vitkit", 1.0), speed("d", "vitkit exact", 0.1)]
    phrase = "times the speed of the best peer (b) by medians"
    assert headlines([*theirs, *ours]) == [f"float32: c has 2.00 {phrase}, 2.00 by least times"]
    engine = speed("e", "vitkit openvino", 0.5)
    assert headlines([*theirs, *ours, engine]) == [f"float32: e has 4.00 {phrase}, 4.00 by least times"]
    assert not headlines(ours)
