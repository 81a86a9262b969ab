"""Compare the chosen way to compute a model with the plain one, before anything depends on it.

`models/known_parts.py` finds what is added to a part. A line that is changed within a part's `forward` it
cannot see: its copy in another way would go on computing the old line. So before the first step of a run and
before the first answer of a model that was loaded, a few images are computed in both ways. That both agree is
remembered, of an answer where its weights have a checksum: a machine pays once for an architecture.
"""

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from torch import Tensor, nn

from vitkit.config import to_json
from vitkit.data.stream.batch import Batch
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.models.config.compute_config import PLAIN, Compute
from vitkit.models.fast import compute_as
from vitkit.models.image_model import ImageModel, autocast
from vitkit.models.vit import ViT
from vitkit.weights.files.hub import cache_folder

IMAGES = 4
"""Training images on which a run is compared: in bfloat16 they cost about 56 passes forward, once for each
architecture and machine."""
NOISE = 0.02
"""The largest number that is added to a weight before training is compared: of a branch or a head that begins
at zero nothing would be seen. Weights of trained models are about as large."""
FLOAT32_TOLERANCE = 1e-4
"""The largest norm of a difference, over the norm of the plain way's result, in float32. Measured on two
cores of a Zen 4 with AVX-512 (24 November 2026): 1.9e-6 at most, over the variants of
`tests/helpers/vit_variants.py` and models from ViT-Ti/16 to ViT-B/32."""
ROUNDINGS = 4.0
"""The same in bfloat16, over the plain way's own largest difference from float32, which is 0.01 to 0.07 and
depends on model and objective. Measured over the same models: 1.9 at most."""
MAXIMUM_TOLERANCE = 0.5
"""The same in bfloat16 where the head sees the largest of the tokens: rounding decides which one that is,
and so where its gradient goes. Measured: 0.20 at most."""
LEAST_PART = 1e-3
"""Gradients of a smaller part of the norm of all are compared with that part: some are zero but for rounding,
such as those of the keys' bias."""

Results = Mapping[str, Tensor]
"""The results of one way by name: the features, or the loss and the gradients that there are."""


def is_plain(chosen: Compute) -> bool:
    """Whether a way is the plain one, in either precision, so that there is nothing to compare."""
    return replace(chosen, graph="eager") == replace(PLAIN, precision=chosen.precision)


def require_same_gradients(model: ImageModel, objective: nn.Module, batch: Batch, total_steps: int) -> None:
    """Refuse to train a model whose chosen way gives another loss or other gradients than the plain one.

    Copies compute, in evaluation mode, so that nothing is dropped at random, and random generators are put
    back. torch.compile is left out: it would take half a minute, and makes its graph of the chosen way.

    Args:
        model: on its device, with its way chosen.
        objective: as for `Trainer`.
        batch: a few training images.
        total_steps: of the run.

    Raises:
        VitkitError: results are further apart than the tolerance.
    """
    if is_plain(model.chosen):
        return
    device, results = model.pixel_mean.device, list[Results]()
    trial, task = copy.deepcopy(model).eval(), copy.deepcopy(objective).to(device).eval()
    trained = nn.ModuleDict({"model": trial, "objective": task}).requires_grad_()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        with torch.no_grad():
            for weights in trained.parameters():
                weights.add_(torch.empty_like(weights).uniform_(-NOISE, NOISE))
        for way in _ways(model.chosen):
            if is_plain(way):
                compute_as(trial, way)
            torch.manual_seed(0)
            trained.zero_grad()
            with autocast(device, way.precision):
                loss, _ = task(trial, batch.to(device), 0, total_steps)
            loss.backward()
            named = ((name, weights.grad) for name, weights in trained.named_parameters())
            gradients = {f"the gradient of {name}": grad for name, grad in named if grad is not None}
            results.append({"the loss": loss.detach(), **gradients})
    if difference := describe_difference(results, model):
        raise VitkitError(f"{difference} Train in the plain way: begin the run with --exact.")


def _ways(chosen: Compute) -> list[Compute]:
    """List the chosen way, the plain one and, in bfloat16, the plain one in float32, which shows rounding."""
    plain = replace(PLAIN, precision=chosen.precision)
    return [chosen, plain] if plain == PLAIN else [chosen, plain, PLAIN]


def compare_once(model: ImageModel, facts: Sequence[Any], compare: Callable[[], None]) -> None:
    """Compare both ways, unless they agreed before, and remember that they agreed.

    Args:
        model: on its device, with its way chosen.
        facts: all that the comparison depends on beside the model's configuration and way, as plain data.
        compare: raises an error where the ways do not agree.
    """
    own = to_json(model.config), to_json(model.chosen), model.pixel_mean.device.type, torch.__version__
    digest = xxhash.xxh3_128(json.dumps([*own, *facts]).encode())
    # The source, too: somebody may have changed a part and not its copy.
    source = Path(__file__).parents[1]
    for path in sorted(path for room in ("kernels", "models") for path in (source / room).rglob("*")):
        if path.suffix in (".c", ".py"):
            digest.update(path.read_bytes())
    remembered = cache_folder() / "compared" / digest.hexdigest()
    if not remembered.exists():
        compare()
        with suppress(OSError):  # then it is compared again next time
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.touch()


def require_same_features(model: ImageModel) -> None:
    """Refuse to answer by a model whose chosen way gives other features than the plain one.

    Raises:
        VitkitError: features, or embeddings of patches, are further apart than the tolerance.
    """
    chosen = model.chosen
    if is_plain(chosen):
        return
    device, shape = model.pixel_mean.device, (model.config.in_channels, *model.config.image_size)
    trial = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    # One image: a prediction of a few should not wait for more.
    pixels = torch.randint(0, 256, (1, *shape), generator=torch.Generator().manual_seed(0))
    pixels, results = pixels.to(device, torch.uint8), list[Results]()
    with evaluation_mode(trial):
        for way in _ways(chosen):
            if is_plain(way):
                compute_as(trial, way)
            with autocast(device, way.precision):
                features = {"an image's features": trial.features(pixels)}
                # Pixels are folded where they are more than the weights of the patch embedding.
                if chosen.pixels == "folded":
                    vit = cast("ViT", trial)
                    weights = vit.get_parameter("stem.weight").numel()
                    many = pixels.expand(1 + weights // math.prod(shape), *shape)
                    features["the embedding of patches"] = vit.patches(many)
            results.append(features)
    if difference := describe_difference(results, model):
        raise VitkitError(f"{difference} Compute in the plain way: with --exact.")


def describe_difference(results: Sequence[Results], model: ImageModel) -> str:
    """Describe the largest difference between the results of a model's chosen way and of the plain one.

    Args:
        results: in the order of `_ways`.
        model: with its way chosen.

    Returns:
        A sentence; "" where the difference is rounding, or where the plain way's results are not finite: the
        step or the answer itself refuses those.
    """
    chosen, (fast, plain, *exact) = model.chosen, results
    name, difference = largest_difference(fast, plain)
    tolerance = ROUNDINGS * largest_difference(plain, exact[0])[1] if exact else FLOAT32_TOLERANCE
    if exact and getattr(model.config, "pool", "") == "max":
        tolerance = max(tolerance, MAXIMUM_TOLERANCE)
    # Written so that a difference that is not a number does not pass.
    if difference <= tolerance or not all(value.isfinite().all() for value in plain.values()):
        return ""
    values = {own.name: getattr(chosen, own.name) for own in fields(chosen) if own.name != "precision"}
    ways = [f"{name} {value}" for name, value in values.items() if value != getattr(PLAIN, name)]
    return (
        f"The chosen way to compute this model ({', '.join(ways)}) gives another result than the plain "
        f"way: {name} differs by {difference:.2g} of its size, where rounding in {chosen.precision} is below "
        f"{tolerance:.2g}. Something in the model is computed in the plain way alone."
    )


def largest_difference(fast: Results, expected: Results) -> tuple[str, float]:
    """Find the result with the largest norm of the difference, over the norm of what is expected.

    A result that one of the two lacks is zero there.
    """
    norms, zero = {name: value.double().norm().item() for name, value in expected.items()}, torch.zeros(())
    least = max(LEAST_PART * math.hypot(*norms.values()), 1e-30)  # never a division by zero
    differences = {
        name: (fast.get(name, zero).double() - expected.get(name, zero).double()).norm().item()
        / max(norms.get(name, 0.0), least)
        for name in sorted(expected.keys() | fast.keys())
    }
    # What is not a number is the largest.
    return max(differences.items(), key=lambda pair: math.inf if math.isnan(pair[1]) else pair[1])
