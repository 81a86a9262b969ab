"""A way that computes something else than the model is refused before a run, and before an answer."""

import copy
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitkit
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.data.stream.loader import Batch
from vitkit.models.build import build_model
from vitkit.models.config import PLAIN, Compute, ViTConfig
from vitkit.models.image_model import ImageModel, Taps
from vitkit.models.parts import Attention
from vitkit.runs import build
from vitkit.runs import machine as compare_ways
from vitkit.runs.build import build_parts
from vitkit.runs.config import model_config_of
from vitkit.runs.machine import (
    compute_as,
    largest_difference,
    prepare,
    require_same_features,
    require_same_gradients,
)
from vitkit.runs.plan import list_images
from vitkit.training.config import ClassificationConfig, MAEConfig, MaskedPatchesConfig, SimMIMConfig
from vitkit.training.objectives import OBJECTIVE_OF, Classification, MultiLabel

pytestmark = pytest.mark.usefixtures("without_report")

CONFIG = ViTConfig((16, 16), (4, 4), width=64, depth=2, num_heads=4, mlp_dim=96, num_classes=5)
FAST = Compute("float32", "explicit", "class_token", "compiled", "folded", "compiled")
OBJECTIVES: dict[str, Callable[[], nn.Module]] = {
    "classification": lambda: Classification(ClassificationConfig(mixup=0.4, label_smoothing=0.1), 5),
    "multi-label": lambda: MultiLabel(ClassificationConfig()),
    "masked patches": lambda: OBJECTIVE_OF[MaskedPatchesConfig](MaskedPatchesConfig(), CONFIG),
    "simmim": lambda: OBJECTIVE_OF[SimMIMConfig](SimMIMConfig(mask_block=2), CONFIG),
    "mae": lambda: OBJECTIVE_OF[MAEConfig](
        MAEConfig(decoder_width=32, decoder_depth=1, decoder_heads=2), CONFIG
    ),
}


def make(way: Compute = FAST, config: ViTConfig = CONFIG) -> ImageModel:
    """A model as a run begins with it: the head is zero, so that no other weight has a gradient."""
    model = build_model(config, torch.Generator().manual_seed(0))
    compute_as(model, way)
    return model


def batch(objective: str = "classification", count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 5
    targets = torch.eye(5, dtype=torch.bool)[labels] if objective == "multi-label" else labels
    return Batch(pixels, {"labels": targets}, torch.ones(count, dtype=torch.bool), torch.arange(count))


def normalise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a line of `Attention.forward`, which no list of contents can see."""

    plain = Attention.forward

    def forward(self: Attention, x: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        if taps is not None:  # of a report's pictures
            return plain(self, x, taps, name)
        size = (*x.shape[:2], 3, self.num_heads, -1)
        q, k, v = self.qkv(x).reshape(size).permute(2, 0, 3, 1, 4)
        mixed = self.attend(4 * nn.functional.normalize(q, dim=-1), k, v, None, 0.0)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return out

    monkeypatch.setattr(Attention, "forward", forward)


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "float32") for name in OBJECTIVES), ("classification", "bfloat16")]
)
def test_a_run_is_compared_for_every_objective(
    name: str, precision: Literal["float32", "bfloat16"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ways agree on the model as it is. Once a line of it is changed they do not, though all weights but
    the head have gradients of zero in a run that begins."""
    torch.manual_seed(0)
    model, objective = make(replace(FAST, precision=precision)), OBJECTIVES[name]()
    require_same_gradients(model, objective, batch(name), 10)
    normalise(monkeypatch)
    if model.chosen.block == "modules" and name not in ("classification", "multi-label"):
        pytest.skip("the class token is read by classification alone, and no block is compiled here")
    said = "gives another result than the plain way: .* begin the run with"
    refused(said, require_same_gradients, model, objective, batch(name), 10)


def test_the_error_names_the_way_the_difference_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(Compute(last_block="class_token", pixels="folded"))
    normalise(monkeypatch)
    monkeypatch.setattr(compare_ways, "largest_difference", lambda fast, expected: ("the loss", 0.123))
    said = r"\(last_block class_token, pixels folded\) .* the loss differs by 0.12 .* float32 is below 0.0001"
    refused(said, require_same_gradients, model, OBJECTIVES["classification"](), batch(), 10)


@pytest.mark.parametrize("name", ["classification", "mae"])
def test_a_comparison_leaves_all_as_it_was(name: str) -> None:
    model, objective = make().train(), OBJECTIVES[name]()
    for number, weights in enumerate(model.parameters()):
        weights.grad = torch.full_like(weights.detach(), number)
        weights.requires_grad_(number % 2 == 0)
    before = copy.deepcopy((model, objective))
    states = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    require_same_gradients(model, objective, batch(name), 10)
    require_same_features(model)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), repr(np.random.get_state())) == states[1:]  # noqa: NPY002
    for old, new in zip(before, (model, objective), strict=True):
        assert [type(part) for part in new.modules()] == [type(part) for part in old.modules()]
        assert [part.training for part in new.modules()] == [part.training for part in old.modules()]
        for a, b in zip(old.parameters(), new.parameters(), strict=True):
            assert torch.equal(a, b) and a.requires_grad == b.requires_grad
        assert all(torch.equal(a, b) for a, b in zip(old.buffers(), new.buffers(), strict=True))
    for number, weights in enumerate(model.parameters()):
        assert torch.equal(weights.grad, torch.full_like(weights, number))  # type: ignore[arg-type]


def test_dropout_and_weights_that_are_not_finite_do_not_make_ways_differ() -> None:
    """Weights that are not finite are for the step to refuse."""
    config = replace(CONFIG, dropout=0.5, attention_dropout=0.5, drop_path=0.5)
    require_same_gradients(make(config=config).train(), OBJECTIVES["classification"](), batch(), 10)
    model = make()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    require_same_features(model)


def test_the_plain_way_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: object) -> None:
        raise AssertionError("computed for a comparison with itself")

    monkeypatch.setattr(copy, "deepcopy", never)
    model = make(replace(PLAIN, precision="bfloat16"))
    require_same_gradients(model, OBJECTIVES["classification"](), batch(), 10)
    require_same_features(model)


def test_the_largest_difference_is_in_proportion() -> None:
    expected = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1e-9]), "c": torch.tensor([0.0])}
    assert largest_difference(expected, expected) == ("a", 0.0)
    name, number = largest_difference(expected | {"a": torch.tensor([3.0, 4.5])}, expected)
    assert (name, round(number, 6)) == ("a", 0.1)
    # Rounding of what is zero is in proportion to all gradients.
    assert largest_difference(expected | {"c": torch.tensor([1e-7])}, expected)[1] < 1e-4
    without = {name: value for name, value in expected.items() if name != "a"}
    assert largest_difference(without, expected) == ("a", 1.0)
    assert largest_difference(expected, without)[1] > 1
    name, number = largest_difference(expected | {"b": torch.tensor([float("nan")])}, expected)
    assert name == "b" and math.isnan(number)


@pytest.mark.parametrize(
    "way", [Compute(last_block="class_token"), Compute(pixels="folded"), Compute(block="compiled")]
)
def test_a_prediction_is_compared(way: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(way)
    if model.chosen == PLAIN:
        pytest.skip("no compiler")
    require_same_features(model)
    if way.pixels == "folded":
        monkeypatch.setattr("vitkit.models.fast.CENTRE", 127.0)
        monkeypatch.setattr(
            "vitkit.models.parts.PatchStem.forward",
            lambda self, x: self.cut(x.abs()) @ self.weight.flatten(1).T,
        )
    else:
        normalise(monkeypatch)
    refused(r"differs by .* Compute in the plain way: with exact", require_same_features, model)


def test_the_comparison_of_loaded_weights_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By weights, architecture, way and PyTorch; not where the ways differ, nor where nothing can be kept."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    compared = list[str]()
    require = compare_ways.require_same_features

    def count(model: ImageModel) -> None:
        compared.append("")
        require(model)

    def predict(weights: str | None = "1", model: ImageModel | None = None) -> int:
        compared.clear()
        prepare(make(PLAIN) if model is None else model, "float32", False, "prediction", weights)
        return len(compared)

    monkeypatch.setattr("vitkit.runs.machine.require_same_features", count)
    assert [predict(), predict(), predict("2"), predict("2")] == [1, 0, 1, 0]
    assert predict(model=make(PLAIN, replace(CONFIG, norm_eps=1e-3))) == 1
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert [predict(), predict()] == [1, 0]
    monkeypatch.setenv("VITKIT_CACHE", str(Path("/dev/null") / "cache"))
    assert [predict(), predict()] == [1, 1]
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "other"))
    normalise(monkeypatch)
    for _ in range(2):
        refused("gives another result than the plain way", predict)
    for phase in ("prediction", "evaluation"):
        refused("gives another result than the plain way", prepare, make(PLAIN), "auto", False, phase)
        assert prepare(make(PLAIN), "auto", True, phase) == "float32"  # exact


def short_run(out: Path, **options: Any) -> Path:
    run = vitkit.recipe("digits", model="ViT-32x3x2/4", steps=2, **options)
    return vitkit.train(run, out, quiet=True)


def test_the_comparison_of_a_run_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By model, way and options of the loss; not of an objective of somebody's own."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    compared = list[str]()
    monkeypatch.setattr(compare_ways, "require_same_gradients", lambda *given: compared.append(""))
    short_run(tmp_path / "first")
    short_run(tmp_path / "second")
    assert len(compared) == 1
    short_run(tmp_path / "smoothed", label_smoothing=0.2)
    short_run(tmp_path / "in_bfloat16", precision="bfloat16")
    assert len(compared) == 3

    class Own(Classification): ...

    monkeypatch.setattr("vitkit.training.objectives.Classification", Own)
    short_run(tmp_path / "own")
    short_run(tmp_path / "again")
    assert len(compared) == 5


def test_a_run_is_refused_before_its_first_step_and_not_changed_by_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    compared = short_run(tmp_path / "compared")
    with monkeypatch.context() as patch:
        patch.setattr(build, "_compare_ways", lambda *given: None)
        other = short_run(tmp_path / "other")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (compared / name).read_bytes() == (other / name).read_bytes()
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "other-cache"))
    normalise(monkeypatch)
    refused("begin the run with exact", short_run, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert short_run(tmp_path / "exact", exact=True) == tmp_path / "exact"


def test_a_sharded_model_is_compared_by_two_of_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of it may not fit beside a copy."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    seen: list[tuple[int, Compute]] = []
    monkeypatch.setattr(
        compare_ways,
        "require_same_gradients",
        lambda model, *given: seen.append((len(model.layers()), model.chosen)),
    )
    run = vitkit.recipe("digits", model="ViT-32x3x2/4")
    parts = build_parts(
        run, list_images(run), tmp_path, Hearing(), FAST, model_config_of(run, 10), torch.device("cpu")
    )
    compute_as(parts.model, FAST)
    for sharding in ("replicas", "full"):
        build._compare_ways(parts, nn.Identity(), sharding)  # type: ignore[arg-type]
    assert seen == [(3, parts.model.chosen), (2, parts.model.chosen)]
