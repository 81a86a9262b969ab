"""The costs of a ViT or hybrid, step by step: those of its parts, in the order they are computed.

The cost of a part stands with the part, in `parts.py`, `pool.py` and `axial.py`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vitkit.models.build import build_empty, build_vit
from vitkit.models.cost import FLOAT, MASK, PartCost, count_parameters, head_cost, norm_cost
from vitkit.models.resnet_cost import few_units, stem_costs
from vitkit.models.vit import ViT
from vitkit.models.vit_config import ViTConfig


def vit_costs(config: ViTConfig, product: int) -> Iterator[PartCost]:
    """Give the costs of stem, blocks, pooling, and head with loss, which is the last.

    Args:
        config: of the model.
        product: bytes of what goes into matrix products.
    """
    # One block stands for all: they cost the same, and building a large model takes its time.
    backbone = config.backbone and replace(config.backbone, layers=few_units(config.backbone.layers))
    model = build_empty(lambda: build_vit(replace(config, depth=1, backbone=backbone)))
    width, tokens = config.width, config.num_tokens
    yield from _embedding_costs(model, config, product)
    # A second copy of the tokens is alive where positions are added at every layer, or axial blocks reorder
    # them.
    copied = config.position_at != "stem" or config.attention != "full"
    held = PartCost(live=FLOAT * tokens * width if copied else 0)
    steps = [step + held for step in model.blocks[0].costs(tokens, product)]  # type: ignore[operator]
    for _ in range(config.depth):
        yield from steps
    yield norm_cost(tokens, width) + PartCost(kept=model.pooling.kept(tokens, width, product))
    yield from model.pooling.costs(tokens, width, product)
    outputs = 1 if config.pools else tokens
    yield head_cost(model.head, model.pre_logits, width, product, outputs=outputs)


def _embedding_costs(model: ViT, config: ViTConfig, product: int) -> Iterator[PartCost]:
    """Give the costs of `ViT.patches` and `ViT.place`."""
    stem: Any = model.stem  # the patch projection's, the convolutional one, or a hybrid's
    numbers, image = config.num_tokens * config.width, 0
    if config.stem_channels:
        *trunk, projection = stem.costs(config.image_size, product)
        yield from trunk
    elif config.backbone is None:
        projection = stem.cost(config.image_size, product)
        image = FLOAT * config.in_channels * config.image_size[0] * config.image_size[1]
    else:
        *trunk, projection = stem_costs(stem, config.backbone.layers, config.image_size, product)
        yield from trunk
    positions = count_parameters(model.positions)
    positions *= config.depth if config.position_at == "every_layer" else 1
    yield replace(
        projection,
        kept=projection.kept + (MASK * numbers if config.dropout else 0),
        passing=2 * FLOAT * numbers,
        live=max(projection.live, image + 3 * FLOAT * numbers),
        parameters=projection.parameters + positions + config.prefix_tokens * config.width,
    )
    if model.pre_norm is not None:
        yield norm_cost(config.num_tokens, config.width)
