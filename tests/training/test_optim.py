"""Optimisers and schedules against the authors' steps."""

import copy
import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from tests.fixture_files import load_fixture, write_npz
from tests.helpers.random_models import TINY, model_with_random_head
from tests.helpers.refusals import refused
from tests.training.small_run import OPTIMIZER, small_trainer
from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.vit import ViT
from vitkit.models.zoo import VIT5
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import (
    LINEAR_END,
    SGD,
    BFloat16AdamW,
    Muon,
    PolyakAverage,
    clip_gradients,
    create_optimizer,
    decay_groups,
    learning_rate,
    rate_scales,
)
from vitkit.weights.create import create_model
from vitkit.weights.formats import big_vision
from vitkit.weights.formats.official import LINEN, RELEASED, name_table, rows_of
from vitkit.weights.table import to_file_tensors

SGD_CONFIG = OptimizerConfig(optimizer="sgd", learning_rate=0.1, weight_decay=0, warmup_steps=2)
ADAM_CONFIG = OptimizerConfig(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, warmup_steps=2)


def three_steps(
    fixture: str, config: OptimizerConfig, micro_batches: int = 1, sigmoid: bool = False
) -> tuple[ViT, list[float], list[float]]:
    """Train a fixture's model on its three batches; returns it, the losses and the gradient norms."""
    description, parameters, arrays = load_fixture(fixture)
    with TemporaryDirectory() as folder:
        path = write_npz(Path(folder) / "weights.npz", parameters)
        model = load_model(path, image_size=tuple(description["image"])).train()
    assert isinstance(model, ViT)
    optimizer = create_optimizer(model, config)
    losses, norms = [], []
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, total_steps=20)
        images = torch.from_numpy(arrays["input"][step]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(arrays["multilabels" if sigmoid else "labels"][step])
        optimizer.zero_grad()
        loss = torch.zeros(())
        for part, target in zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            if sigmoid:
                entropy = F.binary_cross_entropy_with_logits(model(part), target.float(), reduction="none")
                part_loss = entropy.sum(1).mean() / micro_batches
            else:
                part_loss = F.cross_entropy(model(part), target.long()) / micro_batches
            part_loss.backward()  # type: ignore[no-untyped-call]
            loss += part_loss.detach()
        norms.append(clip_gradients(model.parameters(), config.clip_norm).item())
        optimizer.step()
        losses.append(loss.item())
    return model, losses, norms


def named_by_the_original(model: ViT) -> dict[str, NDArray[Any]]:
    """A model's weights under every name that the authors' code may give them."""
    config = model.config
    tables = (name_table(config, RELEASED), name_table(config, LINEN), rows_of(config, big_vision.NAMES))
    return {
        name: tensor.numpy()
        for table in tables
        for name, tensor in to_file_tensors(model.state_dict(), table).items()
    }


@dataclasses.dataclass(frozen=True)
class Steps:
    """Three steps of the authors' optimiser and how far from theirs ours may end."""

    fixture: str
    variant: str
    config: OptimizerConfig
    loss_error: float
    weight_error: float
    rounding_error: float | None = None
    """How far a weight may be whose bfloat16 moment fell on the other side of one rounding."""
    micro_batches: int = 1
    sigmoid: bool = False

    @property
    def tipped(self) -> float:
        """The share of weights that may be that far.

        Gradients differ between processors by 1e-6 of their size at most: sums of some hundred float32 terms
        in another order. Neighbours in bfloat16 are at least 2^-8 of their size apart, so one value in 2,000
        lies within 1e-6 of the middle between two, where it may go to the other one; and the roundings of two
        steps reach the last weights: 0.1 %.
        """
        return 0.0 if self.rounding_error is None else 1e-3


# A moment m that goes to the neighbouring bfloat16 is off by up to 2^-7 of m.
# SGD: the last step adds decay x momentum at the full rate, 0.1 x 0.8984 x 2^-7 x 0.2, the largest of these
# momenta = 1.4e-4.
# Adam: m is 0.19 g after the second step for a steady gradient g, the last step divides its decayed value by
# 1 - 0.9^3 and by g: 0.01 x 0.8984 x 0.19 x 2^-7 / 0.271 = 4.9e-5.
SGD_SHORT = dataclasses.replace(SGD_CONFIG, momentum_dtype="bfloat16")
ADAM_SHORT = dataclasses.replace(ADAM_CONFIG, momentum_dtype="bfloat16")
STEPS = (
    Steps("k_finetune_sgd", "f32", SGD_CONFIG, 5e-6, 2e-6),
    Steps("k_finetune_sgd", "f32_noclip", dataclasses.replace(SGD_CONFIG, clip_norm=None), 5e-6, 2e-6),
    Steps("k_finetune_sgd", "f32_accum2", SGD_CONFIG, 5e-6, 2e-6, micro_batches=2),
    Steps("k_finetune_sgd", "bf16", SGD_SHORT, 5e-6, 5e-6, rounding_error=1.4e-4),
    Steps("l_pretrain_adam", "f32_softmax", ADAM_CONFIG, 1e-5, 1e-5),
    Steps("l_pretrain_adam", "f32_sigmoid", ADAM_CONFIG, 1e-5, 1e-5, sigmoid=True),
    Steps("l_pretrain_adam", "bf16mu_softmax", ADAM_SHORT, 1e-5, 1e-5, rounding_error=5e-5),
)


def weight_errors(case: Steps, model: ViT) -> NDArray[Any]:
    """How far every compared weight is from the authors', (weights,)."""
    _, _, arrays = load_fixture(case.fixture)
    prefix = f"final_{case.variant}/"
    final = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
    # The key's bias has no true gradient: Adam turns rounding noise into steps.
    errors = [
        np.abs(weight - final[name]).ravel()
        for name, weight in named_by_the_original(model).items()
        if name in final and not name.endswith("key/bias")
    ]
    assert len(errors) >= 4
    return np.concatenate(errors)


@pytest.mark.parametrize("case", STEPS, ids=lambda case: f"{case.fixture}-{case.variant}")
def test_three_steps_are_those_of_the_original(case: Steps) -> None:
    model, losses, norms = three_steps(case.fixture, case.config, case.micro_batches, case.sigmoid)
    _, _, arrays = load_fixture(case.fixture)
    np.testing.assert_allclose(losses, arrays[f"loss_{case.variant}"], rtol=0, atol=case.loss_error)
    np.testing.assert_allclose(norms, arrays[f"gradnorm_{case.variant}"], rtol=1e-5)
    errors = weight_errors(case, model)
    assert np.mean(errors > case.weight_error) <= case.tipped
    assert errors.max() <= (case.rounding_error or case.weight_error)


def test_rates_are_those_of_the_original() -> None:
    description, _, arrays = load_fixture("i_lr_schedules")
    compared = 0
    for definition in description["defs"]:
        # Ours ends a linear schedule as vit_jax does.
        ends = {"cosine": (None, LINEAR_END), "linear": (LINEAR_END,)}
        if definition.get("linear_end") not in ends.get(definition.get("decay_type"), ()):
            continue
        warmup = definition.get("warmup_steps")
        if warmup is None:
            warmup = int(definition["warmup_epochs"] * definition["data_size"] / definition["batch_size"])
        config = OptimizerConfig(
            learning_rate=definition["base"], schedule=definition["decay_type"], warmup_steps=warmup
        )
        steps = arrays[f"{definition['name']}/steps"]
        rates = [learning_rate(config, int(step), definition["total_steps"]) for step in steps]
        expected = arrays[f"{definition['name']}/lr"]
        np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-9, err_msg=definition["name"])
        compared += 1
    assert compared == 7


@given(st.sampled_from(["cosine", "linear", "constant"]), st.integers(0, 50), st.integers(1, 300), st.data())
def test_rates_never_leave_their_range(schedule: Any, warmup: int, total: int, data: st.DataObject) -> None:
    config = OptimizerConfig(learning_rate=0.5, schedule=schedule, warmup_steps=warmup)
    step = data.draw(st.integers(0, total))
    rate = learning_rate(config, step, total)
    assert 0 <= rate <= 0.5
    if warmup:
        assert learning_rate(config, 0, total) == 0


@pytest.mark.parametrize("changes", [{"representation_size": 6}, VIT5])
def test_only_kernels_decay(changes: dict[str, Any]) -> None:
    model = model_with_random_head(dataclasses.replace(TINY, **changes))
    decayed, undecayed = decay_groups(model, OptimizerConfig(weight_decay=0.3))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying = {names[id(p)] for p in decayed["params"]}
    assert len(decaying) + len(undecayed["params"]) == len(names)
    assert decaying == {name for name in names.values() if name.endswith(".weight") and "norm" not in name}
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.3, 0.0)


def test_decay_is_apart_from_the_gradient() -> None:
    """Of SGD; the authors' steps with Adam have a decay."""
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    optimizer = create_optimizer(layer, OptimizerConfig(optimizer="sgd", weight_decay=0.5))
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    (layer.weight.sum() * 0 + layer.bias.sum() * 0).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    torch.testing.assert_close(layer.weight, before * (1 - 0.1 * 0.5))


def test_the_average_follows_and_a_short_run_is_not_stuck_at_its_start() -> None:
    average, model = nn.Linear(1, 1), nn.Linear(1, 1)
    nn.init.zeros_(average.weight)
    nn.init.ones_(model.weight)
    expected = 0.0
    for updates in range(5):
        PolyakAverage(average, model).update(0.9999, updates)
        expected += (1 - (1 + updates) / (10 + updates)) * (1 - expected)
    assert average.weight.item() == pytest.approx(expected)
    late = copy.deepcopy(average)
    PolyakAverage(late, model).update(0.9999, 10**9)
    assert late.weight.item() == pytest.approx(expected + 1e-4 * (1 - expected), rel=1e-5)


MUON = OptimizerConfig(optimizer="muon", learning_rate=0.01, weight_decay=0.1)


def test_muon_updates_the_matrices_of_the_blocks_and_adamw_all_else() -> None:
    model = nn.ModuleList([ViT(TINY), nn.Linear(3, 2)])  # the second: parameters of an objective
    optimizer = create_optimizer(model, MUON)
    assert isinstance(optimizer, Muon)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_muon = [names[id(p)] for group in optimizer.muon.param_groups for p in group["params"]]
    by_adamw = [names[id(p)] for group in optimizer.adamw.param_groups for p in group["params"]]
    of_a_block = ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")
    assert sorted(by_muon) == sorted(
        f"0.blocks.{number}.{part}.weight" for number in range(TINY.depth) for part in of_a_block
    )
    assert set(by_adamw) == set(names.values()) - set(by_muon)
    assert len(by_adamw) + len(by_muon) == len(names)
    for group in optimizer.param_groups:  # which reach both
        group["lr"] = 0.5 * group["scale"]
    assert {group["lr"] for part in (optimizer.muon, optimizer.adamw) for group in part.param_groups} == {0.5}


def newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """Five steps of the quintic iteration of Jordan et al. 2024, in the type of the matrix."""
    x: torch.Tensor = matrix / matrix.norm()
    if x.shape[0] > x.shape[1]:
        return newton_schulz(matrix.T).T
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
def test_a_step_of_muon_is_the_plain_formula(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape))
    before = weight.detach().clone()
    group = {"params": [weight], "weight_decay": 0.1, "scale": 1.0}
    optimizer = Muon([group], [weight], betas=(0.9, 0.999))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    momentum, expected = torch.zeros(shape), before
    for _ in range(2):
        weight.grad = torch.randn(shape)
        momentum = 0.95 * momentum + 0.05 * weight.grad
        update = newton_schulz(0.05 * weight.grad + 0.95 * momentum)  # Nesterov's
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * 0.2 * 6**0.5 * update
        optimizer.step()
    # PyTorch iterates in bfloat16, whose eight bits are off by 2^-8 an operation: entries below 1 by some
    # hundredths after five steps, times the two steps of 0.01 x 0.2 x the root of 6.
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=0.05 * 2 * 0.01 * 0.2 * 6**0.5)
    moved = (weight.detach() - before).norm()
    assert moved > 10 * (weight.detach() - expected).norm()


# Which layers learn how fast, and what is frozen


def scales_by_name(name: str, config: OptimizerConfig) -> dict[str, float]:
    model = create_model(name, num_classes=3, image_size=32)
    scales = rate_scales(model, config)
    return {key: scales[parameter] for key, parameter in model.named_parameters()}


def test_rates_fall_from_the_head_to_the_patches_as_in_mae() -> None:
    """MAE `util/lr_decay.py`: layer 0 the embedding, block i is i + 1, the rest the last, scale 1."""
    scales = scales_by_name("ViT-16x3x2/8", OptimizerConfig(layer_decay=0.5))
    assert {scales[key] for key in ("head.weight", "head.bias", "norm.weight", "norm.bias")} == {1.0}
    for block in range(3):
        own = {value for key, value in scales.items() if key.startswith(f"blocks.{block}.")}
        assert own == {0.5 ** (3 - block)}
    first = [key for key in scales if key.startswith(("stem.", "class_token", "positions."))]
    assert len(first) == 4 and {scales[key] for key in first} == {0.5**4}


def test_the_head_has_a_factor_of_its_own() -> None:
    """The norm before it learns as fast as without the factor, and so do the layers."""
    config = OptimizerConfig(layer_decay=0.5, head_rate=6.0)
    scales = scales_by_name("ViT-16x3x2/8", config)
    others = scales_by_name("ViT-16x3x2/8", dataclasses.replace(config, head_rate=1.0))
    assert {scales.pop(key) for key in ("head.weight", "head.bias")} == {6.0}
    assert scales == {key: others[key] for key in scales}
    frozen = scales_by_name("ViT-16x3x2/8", dataclasses.replace(config, freeze="backbone"))
    assert {frozen.pop(key) for key in ("head.weight", "head.bias")} == {6.0}
    assert {*frozen.values()} == {0.0}


@pytest.mark.parametrize(
    ("name", "frozen", "moving"),
    [
        ("ViT-16x3x2/8", ("stem.", "class_token", "positions.", "blocks.0.", "blocks.1."), "blocks.2."),
        ("Axial-ViT-16x3x2/8", ("stem.", "positions.", "blocks.0.", "blocks.1."), "blocks.2."),
        ("R+ViT-Ti/16", ("stem.", "class_token", "positions.", "blocks.0.", "blocks.1."), "blocks.2."),
        ("BiT-R26x1", ("root.", "stages.0."), "stages.1."),
    ],
)
def test_frozen_layers_are_the_first_of_every_family(name: str, frozen: tuple[str, ...], moving: str) -> None:
    scales = scales_by_name(name, OptimizerConfig(freeze_layers=2))
    assert {value for key, value in scales.items() if key.startswith(frozen)} == {0.0}
    assert {value for key, value in scales.items() if not key.startswith(frozen)} == {1.0}
    assert any(key.startswith(moving) for key in scales)


def test_a_frozen_backbone_leaves_the_head() -> None:
    config = dataclasses.replace(TINY, representation_size=6)
    model = build_model(config)
    scales = rate_scales(model, OptimizerConfig(freeze="backbone", layer_decay=0.5, freeze_layers=1))
    moving = {name for name, parameter in model.named_parameters() if scales[parameter]}
    assert moving == {"head.weight", "head.bias", "pre_logits.weight", "pre_logits.bias"}


def test_what_cannot_be_frozen_is_said() -> None:
    headless = create_model("ViT-16x3x2/8", num_classes=0, image_size=32)
    refused("no head that could be trained alone", rate_scales, headless, OptimizerConfig(freeze="backbone"))


def test_groups_have_their_rates_and_frozen_parameters_none() -> None:
    model = create_model("ViT-16x2x2/8", num_classes=3, image_size=16)
    config = OptimizerConfig(layer_decay=0.5, freeze_layers=1, weight_decay=0.3)
    scales = rate_scales(model, config)
    groups = decay_groups(model, config, scales)
    rules = [(group["scale"], group["weight_decay"]) for group in groups]
    assert rules == [(1.0, 0.3), (1.0, 0.0), (0.5, 0.3), (0.5, 0.0)]
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert len(grouped) == len({*grouped}) == sum(scale > 0 for scale in scales.values())
    # Without them, parameters have the numbers and groups that they had in the checkpoints of before.
    plain = decay_groups(model, OptimizerConfig(), rate_scales(model, OptimizerConfig()))
    assert [group["scale"] for group in plain] == [1.0, 1.0]


def test_a_slower_layer_moves_less_by_the_factor(tmp_path: Path) -> None:
    """After one step of SGD without clipping, each layer has moved by its factor times what it would have."""
    plain = OptimizerConfig(optimizer="sgd", learning_rate=0.1, weight_decay=0.0, clip_norm=None)
    moved = []
    for config in (plain, dataclasses.replace(plain, layer_decay=0.5)):
        trainer = small_trainer(tmp_path / str(config.layer_decay), optimizer=config)
        model = trainer.state.model
        head = model.get_parameter("head.weight")  # zeros would send no gradient below it
        torch.nn.init.normal_(head, generator=torch.Generator().manual_seed(0))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        next(trainer.fit())
        moved.append({name: value - before[name] for name, value in model.state_dict().items()})
    depth = TINY.depth
    for name, factor in (
        ("head.weight", 1.0),
        (f"blocks.{depth - 1}.mlp.fc1.weight", 0.5),
        ("stem.weight", 0.5 ** (depth + 1)),
    ):
        assert moved[0][name].abs().max() > 1e-5
        torch.testing.assert_close(moved[1][name], moved[0][name] * factor, rtol=1e-3, atol=1e-7)


def test_frozen_weights_keep_their_bits_and_get_no_gradient(tmp_path: Path) -> None:
    """Also in the Polyak average, and also with decay."""
    careful = dataclasses.replace(OPTIMIZER, freeze_layers=1, layer_decay=0.5)
    trainer = small_trainer(tmp_path, optimizer=careful)
    frozen = ("stem.", "class_token", "positions.", "blocks.0.")
    before = {name: value.clone() for name, value in trainer.state.model.state_dict().items()}
    list(trainer.fit())
    for model in (trainer.state.model, trainer.state.average):
        assert model is not None
        after = model.state_dict()
        for name in after:
            assert torch.equal(after[name], before[name]) == name.startswith(frozen), name
    for name, parameter in trainer.state.model.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen)


def test_no_optimizer_imports_pytorchs_compiler() -> None:
    """It takes a second, before the first step of every run."""
    code = """if True:
        import sys, torch
        from vitkit.training.optim import SGD, AdamW, BFloat16AdamW
        weight = torch.nn.Parameter(torch.ones(2, 2))
        groups = [{"params": [weight], "weight_decay": 0.1}]
        betas = (0.9, 0.99)
        for made in (AdamW(groups, betas), BFloat16AdamW(groups, betas), SGD(groups, 0.9, torch.float32)):
            weight.sum().backward()
            made.step()
            made.zero_grad()
            made.load_state_dict(made.state_dict())
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda groups: SGD(groups, 0.9, torch.float32),
        lambda groups: SGD(groups, 0.9, torch.bfloat16),
        lambda groups: BFloat16AdamW(groups, (0.9, 0.99)),
        lambda groups: Muon(groups, groups[0]["params"][1:], (0.9, 0.99)),
    ],
)
def test_an_optimiser_skips_a_step_that_is_not_finite_by_itself(make: Callable[[Any], Any]) -> None:
    """As the trainer marks it for a GPU, whose numbers are read a step later."""
    weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((2, 2), 3.0))]
    made = make([{"params": weights, "weight_decay": 0.1}])
    assert vars(made)["_step_supports_amp_scaling"]
    copied = [nn.Parameter(weight.detach().clone()) for weight in weights]
    plain = make([{"params": copied, "weight_decay": 0.1}])
    for group in (*made.param_groups, *plain.param_groups):
        group["lr"] = 0.5

    def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradient: float) -> None:
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()

    for gradient, is_skipped in ((0.25, 0.0), (math.nan, 1.0), (math.inf, 1.0), (-0.5, 0.0)):
        setattr(made, "found_inf", torch.tensor(is_skipped))  # noqa: B010
        step(made, weights, gradient)
        if not is_skipped:
            step(plain, copied, gradient)
        for state in plain.state.values():
            if is_skipped and "step" in state and isinstance(made, BFloat16AdamW):  # it counts those, too
                state["step"] += 1
        for weight, expected in zip(weights, copied, strict=True):
            torch.testing.assert_close(weight, expected, rtol=1e-6, atol=0)
