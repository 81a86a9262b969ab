"""What a ViT costs, from its configuration alone.

Counted is what the paper's Table 6 counts: every matrix product (the patch projection, qkv, QK^T, attention
times V, the output projection, the MLP), over all tokens, the class token's among them. Not counted are
norms, softmax, GELU and additions, which are below one percent. The head is left out by default, as there.

A multiply-accumulate (MAC) is two floating-point operations (FLOPs).
"""

from vitkit.models.vit import ViTConfig


def parameters(config: ViTConfig) -> int:
    """Trainable numbers."""
    width, mlp = config.width, config.mlp_dim
    attention = 4 * width * width + 4 * width
    perceptron = 2 * width * mlp + mlp + width
    norms = 4 * width
    stem = (_patch_numbers(config) + 1) * width
    positions = (config.grid[0] * config.grid[1] + config.prefix_tokens) * width
    class_token = config.class_token * width
    encoder = config.depth * (attention + perceptron + norms) + 2 * width
    hidden = config.representation_size
    pre_logits = (width + 1) * hidden if hidden else 0
    head = ((hidden or width) + 1) * config.num_classes
    return stem + class_token + positions + encoder + pre_logits + head


def forward_macs(config: ViTConfig, *, head: bool = False) -> int:
    """Multiply-accumulates of one image's way through the model.

    Args:
        config: of a ViT with the linear patch projection; another stem has costs of its own.
        head: count the classification head (and the pre-training head's hidden layer) too.
    """
    tokens, width = config.num_tokens, config.width
    stem = config.grid[0] * config.grid[1] * _patch_numbers(config) * width
    projections = 4 * tokens * width * width
    attention = 2 * tokens * tokens * width
    perceptron = 2 * tokens * width * config.mlp_dim
    total = stem + config.depth * (projections + attention + perceptron)
    if head:
        hidden = config.representation_size
        per_row = (width * hidden if hidden else 0) + (hidden or width) * config.num_classes
        total += per_row * (tokens if config.pool == "none" else 1)
    return total


def forward_flops(config: ViTConfig, *, head: bool = False) -> int:
    """FLOPs of one image's way through the model."""
    return 2 * forward_macs(config, head=head)


def training_flops(config: ViTConfig, images: int = 1, *, head: bool = False) -> int:
    """FLOPs of training on so many images, repetitions counted.

    Three times the forward pass: every matrix product has two of its size in the backward pass. This gives
    the paper's Table 6 (images of the data set times epochs) within two percent.
    """
    return 3 * forward_flops(config, head=head) * images


def _patch_numbers(config: ViTConfig) -> int:
    return config.in_channels * config.patch_size[0] * config.patch_size[1]
