"""Predicted memory against what PyTorch keeps and allocates on a CPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import inference_memory, parameters, training_memory
from vitkit.models.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.vit_config import EVA02_ROTARY
from vitkit.models.zoo import ModelConfig, vit_config
from vitkit.training.optim import clip_gradients, create_optimizer
from vitkit.training.optim_config import OptimizerConfig

VIT = vit_config("ViT-64x3x4/8", 10, 64)
HYBRID = replace(vit_config("R26+ViT-64x2x2/32", 10, 64), backbone=BackboneConfig((1, 1, 2), 0.5))
BIT = ResNetConfig((96, 64), (1, 1, 2), 10, 0.5)

# batch, configuration
MODELS: dict[str, tuple[int, ModelConfig]] = {
    "vit": (16, VIT),
    "one image": (1, VIT),
    "narrow mlp": (8, vit_config("ViT-128x2x2x64/8", 10, (64, 32))),
    "many classes": (16, vit_config("ViT-64x2x4/16", 5000, 64)),
    "mean": (8, replace(VIT, pool="mean")),
    "map": (8, replace(VIT, pool="map")),
    "max": (8, replace(VIT, pool="max")),
    "norm before the blocks": (8, replace(VIT, norm_before_blocks=True)),
    "rotary": (8, replace(VIT, position="none", rotary=EVA02_ROTARY)),
    "layer scale": (8, replace(VIT, layer_scale=0.1)),
    "tanh layer": (8, replace(VIT, representation_size=32)),
    "relative": (8, replace(VIT, position="relative")),
    "every layer": (8, replace(VIT, position_at="every_layer", register_tokens=4)),
    "axial": (8, vit_config("Axial-ViT-64x3x4/8", 10, (64, 32))),
    "hybrid": (8, HYBRID),
    "convolutional stem": (8, vit_config("ViT-64x3x4/8-conv", 10, 64)),
    "deep convolutional stem": (
        8,
        replace(vit_config("ViT-64x1x4/4", 10, 64), stem_channels=(32, 64, 64, 64)),
    ),
    "convolutional stem of early strides": (
        8,
        replace(
            vit_config("ViT-64x1x4/4", 10, 64), stem_channels=(32, 64, 64, 64), stem_strides=(2, 1, 2, 1)
        ),
    ),
    "root alone": (4, vit_config("R+ViT-64x2x2/16", 10, 64)),
    "bit": (4, BIT),
    "bit, other padding": (4, replace(BIT, max_pool_padding="lowest")),
    "axial resnet": (4, ResNetConfig((64, 32), (1, 1), 10, mixing="axial", num_heads=4)),
}
each_model = pytest.mark.parametrize(("batch", "config"), MODELS.values(), ids=MODELS.keys())


def pictures(config: ModelConfig, batch: int) -> Tensor:
    return torch.randint(0, 256, (batch, config.in_channels, *config.image_size), dtype=torch.uint8)


def saved(model: ImageModel, images: Tensor) -> int:
    """Bytes that autograd keeps, each storage once, without the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(images)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in found.items() if address not in own)


def allocated(step: Callable[[], Any]) -> int:
    """The most bytes that a step has allocated and not freed at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def loss_bytes(config: ModelConfig, batch: int, of_logits: int = 4) -> int:
    """Logits, their log-softmax and the targets."""
    return batch * config.num_classes * (of_logits + 8)


@each_model
def test_what_autograd_keeps(batch: int, config: ModelConfig) -> None:
    found = saved(build_model(config), pictures(config, batch))
    predicted = training_memory(config, batch).activations - loss_bytes(config, batch)
    assert predicted == pytest.approx(found, rel=0.015)


@pytest.mark.parametrize("pool", ["token", "mean", "map"])
def test_what_autograd_keeps_of_a_vit_in_bfloat16(pool: Any) -> None:
    config = replace(VIT, pool=pool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = saved(build_model(config), pictures(config, 8))
    predicted = training_memory(config, 8, precision="bfloat16").activations - loss_bytes(config, 8, 2)
    assert predicted == pytest.approx(found, rel=0.005)


@each_model
def test_the_peak_of_a_training_step(batch: int, config: ModelConfig) -> None:
    model = build_model(config)
    optimizer = create_optimizer(model, OptimizerConfig())
    images = pictures(config, batch)
    targets = F.one_hot(torch.zeros(batch, dtype=torch.long), config.num_classes).float()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), targets * 1.0).backward()  # type: ignore[no-untyped-call]
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()

    step()  # makes the optimiser's state
    optimizer.zero_grad()
    fixed = 12 * parameters(config) + images.numel()
    memory = training_memory(config, batch)
    assert memory.peak == pytest.approx(fixed + allocated(step), rel=0.1)
    assert memory.weights + memory.optimizer_state + memory.images == fixed


@each_model
def test_the_peak_of_prediction(batch: int, config: ModelConfig) -> None:
    model = build_model(config).eval()
    images = pictures(config, batch)
    with torch.inference_mode():
        model(images)
        fixed = 4 * parameters(config) + images.numel()
        measured = fixed + allocated(lambda: model(images))
    assert inference_memory(config, batch).peak == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@each_model
def test_every_weight_has_a_gradient(batch: int, config: ModelConfig, precision: Any) -> None:
    memory = training_memory(config, batch, precision=precision)
    assert memory.gradients == memory.weights == 4 * parameters(config)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("momentum", ["float32", "bfloat16"])
def test_the_state_of_the_optimizer(kind: Any, momentum: Any) -> None:
    options = OptimizerConfig(optimizer=kind, momentum_dtype=momentum)
    model = build_model(VIT)
    optimizer = create_optimizer(model, options)
    model(pictures(VIT, 1)).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    found = sum(tensor.nbytes for tensor in tensors)
    assert training_memory(VIT, 1, optimizer=options).optimizer_state == found


def test_an_average_is_one_more_copy_of_the_weights() -> None:
    without, with_average = (
        training_memory(VIT, 4, optimizer=OptimizerConfig(polyak=polyak)) for polyak in (None, 0.999)
    )
    assert with_average.peak - without.peak == with_average.average == without.weights > without.average == 0


def test_gradients_that_are_accumulated_are_there_when_activations_are() -> None:
    plain, accumulating = (training_memory(VIT, 16, accumulate=accumulate) for accumulate in (False, True))
    assert plain.peak < accumulating.peak <= plain.peak + plain.gradients


def test_dropout_keeps_a_byte_for_each_number_it_may_drop() -> None:
    plain, dropped = (training_memory(replace(VIT, dropout=dropout), 4).activations for dropout in (0.0, 0.1))
    per_token = VIT.width + VIT.depth * (2 * VIT.width + VIT.mlp_dim)
    assert dropped - plain == 4 * VIT.num_tokens * per_token


def test_the_mlp_of_attention_pooling_drops_as_well() -> None:
    token, pooled = (
        [
            training_memory(replace(VIT, pool=pool, class_token_position=False, dropout=rate), 4).activations
            for rate in (0.0, 0.1)
        ]
        for pool in ("mean", "map")
    )
    assert (pooled[1] - pooled[0]) - (token[1] - token[0]) == 4 * (VIT.width + VIT.mlp_dim)


def test_a_large_model_needs_less_in_bfloat16() -> None:
    config = vit_config("ViT-L/16")
    whole, half = (training_memory(config, 64, precision=p) for p in ("float32", "bfloat16"))
    assert half.peak < 0.75 * whole.peak
    assert half.weights == whole.weights
