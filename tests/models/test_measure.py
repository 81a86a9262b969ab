"""Parameters, FLOPs and memory against PyTorch's counter and what whole models keep and allocate."""

import bisect
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.utilisation import executed_flops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.refusals import refused
from tests.models.variants import VARIANTS
from vitkit.kernels.block import Outline, compiled_block
from vitkit.models import fast, measure
from vitkit.models.build import build_model
from vitkit.models.config import BackboneConfig, Compute, ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import inference_memory, parameters, training_memory
from vitkit.models.resnet import StdConv2d
from vitkit.models.zoo import NAMES, ModelConfig, model_config, vit_config
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import clip_gradients, create_optimizer

SMALL = vit_config("ViT-24x3x2/8x4", num_classes=7, image_size=(35, 18))
VIT = vit_config("ViT-64x6x4/8", 10, 64)
HYBRID = replace(vit_config("R26+ViT-64x2x2/32", 10, 64), backbone=BackboneConfig((1, 4, 2), 0.5))
BIT = ResNetConfig((96, 64), (1, 4, 2), 10, 0.5)
DEEP_STEM = replace(vit_config("ViT-64x1x4/4", 10, 64), stem_channels=(32, 64, 64, 64))

# batch, configuration
MODELS: dict[str, tuple[int, ModelConfig]] = {
    "vit": (16, VIT),
    "many classes": (16, vit_config("ViT-64x2x4/16", 5000, 64)),
    "ViT-5": (8, vit_config("ViT-5-64x5x4/8", 10, (64, 32))),
    "axial": (8, vit_config("Axial-ViT-64x5x4/8", 10, (64, 32))),
    "hybrid": (8, HYBRID),
    "convolutional stem": (8, vit_config("ViT-64x3x4/8-conv", 10, 64)),
    "deep convolutional stem": (8, DEEP_STEM),
    "dropout": (8, replace(VIT, dropout=0.1, attention_dropout=0.1, drop_path=0.1)),
    "without pooling": (4, replace(VIT, pool="none")),
    "bit": (4, BIT),
    "bit, other padding": (4, replace(BIT, max_pool_padding="lowest")),
    "axial resnet": (4, ResNetConfig((64, 32), (1, 1), 10, mixing="axial", num_heads=4)),
    **{name: (8, replace(VIT, **changes)) for name, changes in VARIANTS.items() if "axial" not in name},
}
CONFIGS = [
    *(config for _, config in MODELS.values()),
    replace(DEEP_STEM, stem_strides=(2, 1, 2, 1), image_size=(35, 18)),
    replace(SMALL, in_channels=1, image_mean=(0.5,), image_std=(0.5,), mlp_dim=50),
    replace(SMALL, patch_size=(3, 2), num_classes=0, depth=1, num_heads=1, register_tokens=2),
    replace(VIT, attention="axial", pool="map", position_at="every_layer", image_size=(43, 70)),
    # Feature maps and strides of odd sizes, with what fills no patch.
    replace(HYBRID, image_size=(70, 45), patch_size=(2, 1)),
    replace(HYBRID, image_size=(33, 47), backbone=BackboneConfig((), 1.5)),
    replace(HYBRID, image_size=(20, 31), backbone=BackboneConfig((1,), 1.0), pool="mean", num_classes=0),
    replace(BIT, image_size=(37, 50), num_classes=0),
    replace(BIT, image_size=(33, 65), layers=(1, 1, 1), width_factor=1.5),
    ResNetConfig((41, 18), (2, 1), 5, mixing="axial", num_heads=2),
]


def on_meta(config: ModelConfig) -> ImageModel:
    with torch.device("meta"):
        return build_model(config)


def counted(config: ModelConfig, model: ImageModel) -> int | None:
    """FLOPs as PyTorch counts them, the padding of convolutions among them."""
    images = torch.empty(1, config.in_channels, *config.image_size, device="meta")
    return executed_flops(lambda: model(images))


COMMON = (
    *("ViT-B/16", "ViT-5-S/16", "R+ViT-Ti/16", "R50+ViT-B/16", "BiT-R50x1"),
    *("Axial-ViT-B/32", "ViT-B/16-relative"),
)
"""One of each kind in the list of models; the others differ in sizes alone, whose sums are below."""
LISTED = [
    pytest.param(model_config(name), id=name, marks=() if name in COMMON else pytest.mark.slow)
    for name in NAMES
]


@pytest.mark.parametrize("config", [*CONFIGS, *LISTED])
def test_against_what_runs(config: ModelConfig) -> None:
    model = on_meta(config)
    assert measure.parameters(config) == sum(weights.numel() for weights in model.parameters())
    assert measure.forward_flops(config, head=True, padding=True) == counted(config, model)
    assert measure.forward_flops(config) <= measure.forward_flops(config, padding=True)


def test_a_model_larger_than_any_memory_is_refused_in_words() -> None:
    config = vit_config("ViT-1048576x1x1x1/1048576", image_size=2**20)
    refused("larger than any memory", measure.parameters, config)


@given(st.integers(1, 40), st.sampled_from([1, 3, 7]), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None)
def test_taps_that_meet_the_image(size: int, kernel: int, stride: int, symmetric: bool) -> None:
    """A convolution of ones with an image of ones counts them."""
    places = -(-size // stride)
    total = 2 * (kernel // 2) if symmetric else max((places - 1) * stride + kernel - size, 0)
    before = kernel // 2 if symmetric else total // 2
    line = torch.nn.functional.pad(torch.ones(1, 1, size), (before, total - before))
    taps = torch.nn.functional.conv1d(line, torch.ones(1, 1, kernel), stride=stride).sum().item()
    with torch.device("meta"):
        padding: Any = "symmetric" if symmetric else "same"
        square = StdConv2d(2, 5, kernel, stride, padding=padding, standardization="std", eps=0.0)
    assert measure._convolution_macs([square], (size, size), False) == (10 * taps**2, (places, places))


# vision_transformer `models_test.py:25-57`, with 1000 classes at 224 pixels.
PUBLISHED = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/16": 22_050_664,
    "ViT-S/32": 22_878_952,
    "ViT-B/8": 86_576_872,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
    "ViT-S/16-gap": 22_049_896,
    "ViT-S/32-gap": 22_878_184,
    "ViT-B/16-gap": 86_566_120,
    "ViT-B/32-gap": 88_222_696,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    # The sums of timm's resnetv2_50x1_bit, resnetv2_101x1_bit and resnetv2_152x2_bit.
    "BiT-R50x1": 25_549_352,
    "BiT-R101x1": 44_541_480,
    "BiT-R152x2": 236_335_208,
    # Of the authors' code of ViT-5.
    "ViT-5-S/16": 22_039_144,
    "ViT-5-B/16": 86_543_080,
    "ViT-5-L/16": 304_258_024,
    "ViT-5-XL/16": 448_505_128,
}


def test_parameters_as_published() -> None:
    assert {name: measure.parameters(model_config(name)) for name in PUBLISHED} == PUBLISHED


# One of each family; the others are variants of these.
QUICK = {"vit", "rotary, EVA-02", "axial", "hybrid", "convolutional stem", "bit", "axial resnet"}
each_model = pytest.mark.parametrize(
    ("batch", "config"),
    [
        pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, case in MODELS.items()
    ],
)


def pictures(config: ModelConfig, batch: int) -> Tensor:
    return torch.randint(0, 256, (batch, config.in_channels, *config.image_size), dtype=torch.uint8)


def saved(model: ImageModel, images: Tensor, precision: str) -> int:
    """Bytes that autograd keeps of a pass and its loss, each storage once, without parameters and images."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), images)}
    tensors: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        tensors[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model, images, precision)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in tensors.items() if address not in own)


def loss_of(model: ImageModel, images: Tensor, precision: str) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        logits = model(images)
        return F.cross_entropy(logits, torch.zeros_like(logits, dtype=torch.float32))


def allocated(step: Callable[[], Any]) -> tuple[int, int]:
    """Give the most bytes that a step has allocated and not freed at one time: by tensors alone, and in all.

    An operation's own buffers, which it frees before it returns, are of no tensor. Their number and size
    depend on the processor: convolutions copy their input to another layout, bfloat16 is added up in float32.
    """
    seen = Operations()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler, seen:
        step()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events = results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    buffers: set[int] = set()
    for event in events:
        if event.name() in seen.names:
            end = event.start_ns() + event.duration_ns()
            first, last = (bisect.bisect(changes, (time, 0)) for time in (event.start_ns(), end))
            buffers |= freed_within(changes, range(first, last))
    return most(size for place, (_, size) in enumerate(changes) if place not in buffers), most(
        size for _, size in changes
    )


class Operations(TorchDispatchMode):
    """Notes the names of PyTorch's operations that run, none of which has tensors inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def freed_within(changes: list[tuple[int, int]], places: range) -> set[int]:
    """Give the places of what is allocated and freed at these places."""
    both: set[int] = set()
    for place in places:
        size = changes[place][1]
        if size < 0:
            made = (at for at in reversed(range(places.start, place)) if changes[at][1] == -size)
            partner = next((at for at in made if at not in both), None)
            both |= set() if partner is None else {partner, place}
    return both


def most(changes: Iterable[int]) -> int:
    return max(itertools.accumulate(changes), default=0)


each_precision = pytest.mark.parametrize("precision", ["float32", "bfloat16"])


@each_precision
@each_model
def test_what_autograd_keeps_and_a_steps_peak(batch: int, config: ModelConfig, precision: Any) -> None:
    model, memory = build_model(config), training_memory(config, batch, Compute(precision))
    assert memory.activations == pytest.approx(saved(model, pictures(config, batch), precision), rel=0.01)
    assert memory.gradients == memory.weights == 4 * parameters(config)
    compare_step(model, batch, memory, precision)


WAYS = {
    "explicit attention": Compute("bfloat16", attention="explicit"),
    "class token alone": Compute("float32", last_block="class_token"),
    "compiled": Compute("float32", block="compiled"),
    "compiled, class token": Compute("bfloat16", "explicit", "class_token", block="compiled"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_other_ways_of_computing(way: Compute) -> None:
    block = compiled_block(way.precision) if way.block == "compiled" else None
    if way.block == "compiled" and block is None:
        pytest.skip("no compiler, or not for this processor")
    model, batch = build_model(VIT), 8
    fast.compute_as(model, way, None, block)
    memory = training_memory(VIT, batch, way, Outline(way.precision))
    assert memory.activations == pytest.approx(saved(model, pictures(VIT, batch), way.precision), rel=0.01)
    compare_step(model, batch, memory, way.precision)


def test_what_is_computed_again_is_not_kept() -> None:
    model, batch = build_model(VIT), 8
    model.recompute = True
    memory = training_memory(VIT, batch, recompute=True)
    assert memory.activations < 0.5 * training_memory(VIT, batch).activations
    compare_step(model, batch, memory, "float32")


def compare_step(model: ImageModel, batch: int, memory: measure.TrainingMemory, precision: str) -> None:
    """Hold the highest moment against what PyTorch allocates."""
    optimizer = create_optimizer(model, OptimizerConfig())
    images = pictures(model.config, batch)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, images, precision).backward()  # type: ignore[no-untyped-call]
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()

    step()  # makes the optimiser's state
    optimizer.zero_grad()
    fixed = 12 * sum(weights.numel() for weights in model.parameters()) + images.numel()
    check_peak(memory.peak, step, fixed)
    assert memory.weights + memory.optimizer_state + memory.images == fixed


def check_peak(predicted: int, step: Callable[[], Any], fixed: int) -> None:
    """Hold a predicted peak against the tensors of a step, and what it allocates in all."""
    tensors, everything = allocated(step)
    assert 0.95 * (fixed + tensors) <= predicted <= 1.05 * (fixed + everything)


@each_precision
@each_model
def test_the_peak_of_prediction(batch: int, config: ModelConfig, precision: Any) -> None:
    model = build_model(config).eval()
    images = pictures(config, batch)

    def predict() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            model(images)

    predict()
    fixed = 4 * parameters(config) + images.numel()
    check_peak(inference_memory(config, batch, Compute(precision)).peak, predict, fixed)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("momentum", ["float32", "bfloat16"])
def test_the_state_of_the_optimizer(kind: Any, momentum: Any) -> None:
    options = OptimizerConfig(optimizer=kind, momentum_dtype=momentum)
    model = build_model(VIT)
    optimizer = create_optimizer(model, options)
    model(pictures(VIT, 1)).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    measured = sum(tensor.nbytes for tensor in tensors)
    assert training_memory(VIT, 1, state_bytes=options.state_bytes).optimizer_state == measured


def test_momentum_of_sgd_in_bfloat16_is_float32_during_the_update() -> None:
    config, options = vit_config("ViT-256x2x4/8", 10, 16), OptimizerConfig(optimizer="sgd")
    options = replace(options, momentum_dtype="bfloat16")
    model = build_model(config)
    optimizer = create_optimizer(model, options)
    images = pictures(config, 1)
    loss_of(model, images, "float32").backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    memory = training_memory(config, 1, state_bytes=options.state_bytes)
    before = memory.weights + memory.optimizer_state + memory.gradients + images.numel()
    check_peak(memory.peak, optimizer.step, before)


def test_averages_and_gradients_that_are_accumulated_are_counted() -> None:
    without, with_average = (training_memory(VIT, 4, average=average) for average in (False, True))
    assert with_average.peak - without.peak == with_average.average == without.weights > without.average == 0
    plain, accumulating = (training_memory(VIT, 16, accumulate=accumulate) for accumulate in (False, True))
    assert plain.peak < accumulating.peak <= plain.peak + plain.gradients
