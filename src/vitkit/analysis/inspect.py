"""Look into a model: its filters, positions and attention (paper 4.5, D.7, D.8), as arrays.

Shapes: B images, a grid of R x C patches of p x q pixels, N = R * C, T tokens (N and the class token, where
there is one), h heads, L layers, D = width.
"""

import math
from collections.abc import Iterator
from typing import TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.models.image_model import ImageModel, Taps
from vitkit.models.parts import AttentionPool
from vitkit.models.vit import ViT

Floats = NDArray[np.float32]


def patch_filters(model: ImageModel, count: int = 28) -> tuple[Floats, Floats]:
    """Compute the principal components of the filters that see the pixels (paper Figure 7, left).

    These are the D filters of the patch embedding, or of a ResNet's first convolution. They are points in the
    space of patches; their principal components are the patches along which they differ most. A component's
    sign is arbitrary: here its largest value is positive. Each is scaled by itself so that zero is mid-grey
    and its largest absolute value black or white.

    Args:
        model: for images of one or three channels.
        count: the most components, the strongest first.

    Returns:
        Components `(count, p, q, 3)` in [0, 1], and the fraction of the filters' variance that each explains
        `(count,)`. There are fewer if the filters span fewer dimensions.

    Raises:
        VitkitError: the model takes another number of channels, or has a stem of the caller's own.
    """
    if model.config.in_channels not in (1, 3):
        raise VitkitError(
            f"Filters can be shown as colours of one or three channels, found {model.config.in_channels}."
        )
    names = model.config.first_filters
    first = next((weight for name, weight in model.named_parameters() if name in names), None)
    if first is None:
        raise VitkitError(f"No filters that see pixels are in this model: none of {', '.join(names)}.")
    weight = first.detach().double().cpu()  # (D, channels, p, q)
    filters = weight.flatten(1)
    _, strengths, directions = torch.linalg.svd(filters - filters.mean(0), full_matrices=False)
    variance = strengths.square()
    # Centring takes one dimension away: with no more filters than pixels the last component is noise.
    count = min(count, len(filters) - 1, filters.shape[1])
    components = directions[:count]
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))  # (count, 1)
    images = 0.5 + 0.5 * (components / largest).unflatten(1, weight.shape[1:])
    images = images.permute(0, 2, 3, 1).expand(-1, -1, -1, 3)
    explained = variance[:count] / variance.sum().clamp_min(torch.finfo(variance.dtype).tiny)
    return images.float().numpy(), explained.float().numpy()


def has_attention_maps(model: ImageModel) -> TypeGuard[ViT]:
    """Whether there is attention between patches to look at: not in ResNets, not in axial models, and not
    where one patch is the whole image."""
    return bool(model.config.attention == "full" and math.prod(model.config.grid) > 1)


def position_similarity(model: ImageModel) -> Floats | None:
    """Compute the cosine similarity of every patch's position embedding with all others (Figure 7, centre).

    Returns:
        `(R, C, R, C)`: element `[i, j]` is the map of similarities to the patch in row i, column j. None if
        the model adds no position embedding, or has a single patch. Where every layer adds an embedding, it
        is the first layer's. The class token's own embedding takes no part.
    """
    embedding = model.position_embedding()
    if embedding is None or math.prod(model.config.grid) == 1:
        return None
    patches = embedding.detach()[0, model.config.prefix_positions :].double().cpu()  # (N, D)
    directions = F.normalize(patches, dim=1)
    similarity = (directions @ directions.T).clamp(-1, 1)
    return similarity.reshape(*model.config.grid, *model.config.grid).float().numpy()


def attention_distance(model: ViT, images: Tensor, batch_size: int = 16) -> Floats:
    """Measure the mean attention distance of every head (paper Figure 7, right, and D.7).

    For every patch, the distance in pixels from its centre to the centres of all patches, averaged with the
    attention that it pays them; then the mean over patches and images. The class token has no place in the
    image: it is left out as query and as key, and the attention left to the patches is scaled to sum to one.

    Args:
        model: a ViT or hybrid with attention between all tokens.
        images: `(B, C, H, W)`, uint8 or normalised; at least one.
        batch_size: images at a time; memory holds their attention in one layer (`h * T * T` floats each).

    Returns:
        `(L, h)` in pixels of the model's input.
    """
    distances = _patch_distances(model)  # (N, N)
    total = torch.zeros(len(model.blocks), model.config.num_heads, dtype=torch.float64)
    with evaluation_mode(model):
        for start in range(0, len(images), batch_size):
            layers = _attention_by_layer(model, images[start : start + batch_size])
            for layer, (_, weights) in enumerate(layers):
                to_patches = weights[:, :, -len(distances) :, -len(distances) :]  # (B, h, N, N)
                sums = to_patches.sum(-1).clamp_min(torch.finfo(to_patches.dtype).tiny)
                pixels = (to_patches * distances.to(weights)).sum(-1) / sums  # (B, h, N)
                total[layer] += pixels.mean(-1).sum(0, dtype=torch.float64).cpu()
    return (total / len(images)).float().numpy()


def even_attention_distance(model: ViT) -> float:
    """Return the `attention_distance` in pixels of attention that is spread evenly over the patches."""
    return float(_patch_distances(model).mean())


def attention_rollout(model: ViT, images: Tensor) -> Floats:
    """Trace which patches the model's output depends on, by attention rollout (paper Figure 6, D.8).

    After Abnar & Zuidema (2020): attention is averaged over heads, the identity is added for the residual
    connection, rows are scaled to sum to one, and the matrices are multiplied through the layers. The rows of
    the product are reduced as the head reads its tokens: the class token's row; the mean of the patches' rows
    (GAP); the rows weighted by the pooling's own attention, averaged over heads, which has no residual
    connection (MAP); or, without pooling, the mean of all rows. The entries of the patches are then scaled to
    sum to one.

    Args:
        model: a ViT or hybrid with attention between all tokens.
        images: `(B, C, H, W)`, uint8 or normalised; memory holds the attention of all in one layer.

    Returns:
        `(B, R, C)`, each map summing to one.
    """
    identity = torch.eye(model.config.num_tokens)
    rollout = identity.expand(len(images), -1, -1)  # (B, T, T)
    with evaluation_mode(model):
        for tokens, weights in _attention_by_layer(model, images):
            mixing = weights.mean(1).float().cpu() + identity
            rollout, last = (mixing / mixing.sum(-1, keepdim=True)) @ rollout, tokens
        reading = _read_by_the_head(model, rollout, last)
    output = reading[:, model.config.prefix_tokens :]  # (B, N)
    output = output / output.sum(-1, keepdim=True)
    return output.reshape(-1, *model.config.grid).numpy()


def _attention_by_layer(model: ViT, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tokens `(B, T, D)` and the attention weights `(B, h, T, T)` layer by layer, with one layer's
    in memory at a time.

    `model(images, taps, attention_weights=True)` gives the same, all at once: gigabytes for a large model.
    """
    tokens = model.embed(images.to(model.pixel_mean.device))
    for layer, block in enumerate(model.blocks):
        taps: Taps = {}
        tokens = block(model.before_layer(layer, tokens), taps, attention_taps=True)
        yield tokens, taps["/attention_weights"]


def _read_by_the_head(model: ViT, rollout: Tensor, tokens: Tensor) -> Tensor:
    """Reduce the rollout `(B, T, T)` to the tokens that the pooling reads: `(B, T)`."""
    if model.config.pool == "token":
        return rollout[:, 0]
    if isinstance(model.pooling, AttentionPool):
        weights = model.pooling.weights(model.norm(tokens)).mean(1).float().cpu()  # (B, T)
        return (weights[:, None] @ rollout)[:, 0]
    if model.config.pool == "token+mean":
        return (rollout[:, 0] + rollout[:, model.config.prefix_tokens :].mean(1)) / 2
    # The maximum has no weights of its own: each patch may be the largest in some feature.
    first = model.config.prefix_tokens if model.config.pool in ("mean", "max") else 0
    return rollout[:, first:].mean(1)


def _patch_distances(model: ViT) -> Tensor:
    """Compute the distances in pixels between the centres of all patches, `(N, N)`."""
    (rows, columns), (p, q) = model.config.grid, model.config.token_size
    centres = torch.cartesian_prod(torch.arange(rows) * float(p), torch.arange(columns) * float(q))
    return torch.cdist(centres, centres)
