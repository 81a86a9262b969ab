"""Names of parameters in transformers' ViT and BiT.

They are those that every release of transformers writes to files; the ones that its modules have had since
release 5 are read too.
"""

from dataclasses import dataclass

from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.weights.table import Row, renamed, stacked, weight_and_bias


@dataclass(frozen=True)
class Naming:
    """The names in an encoder layer that differ between files and the modules of release 5."""

    layers: str
    query: str
    key: str
    value: str
    out: str
    fc1: str
    fc2: str


FILES = Naming(
    "encoder.layer",
    "attention.attention.query",
    "attention.attention.key",
    "attention.attention.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
MODULES = Naming(
    "layers",
    "attention.q_proj",
    "attention.k_proj",
    "attention.v_proj",
    "attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
)


def vit_rows(config: ViTConfig, prefix: str, naming: Naming) -> list[Row]:
    """List every parameter of a ViT with its name in Hugging Face transformers."""
    rows = [
        *weight_and_bias("stem", f"{prefix}embeddings.patch_embeddings.projection"),
        renamed("class_token", f"{prefix}embeddings.cls_token"),
        renamed("positions.0.embedding", f"{prefix}embeddings.position_embeddings"),
    ]
    parts = (naming.query, naming.key, naming.value)
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"{prefix}{naming.layers}.{i}"
        rows += weight_and_bias(f"{ours}.norm1", f"{theirs}.layernorm_before")
        for kind in ("weight", "bias"):
            rows.append(
                stacked(f"{ours}.attention.qkv.{kind}", (f"{theirs}.{part}.{kind}" for part in parts))
            )
        rows += weight_and_bias(f"{ours}.attention.out", f"{theirs}.{naming.out}")
        rows += weight_and_bias(f"{ours}.norm2", f"{theirs}.layernorm_after")
        rows += weight_and_bias(f"{ours}.mlp.fc1", f"{theirs}.{naming.fc1}")
        rows += weight_and_bias(f"{ours}.mlp.fc2", f"{theirs}.{naming.fc2}")
    rows += weight_and_bias("norm", f"{prefix}layernorm")
    if config.representation_size:
        rows += weight_and_bias("pre_logits", f"{prefix}pooler.dense")
    if config.num_classes:
        rows += weight_and_bias("head", "classifier")
    return rows


def bit_rows(config: ResNetConfig, prefix: str) -> list[Row]:
    """List every parameter of a BiT ResNet with its name in Hugging Face transformers."""
    rows = [renamed("root.weight", f"{prefix}embedder.convolution.weight")]
    for s, units in enumerate(config.layers):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"{prefix}encoder.stages.{s}.layers.{u}"
            for number in (1, 2, 3):
                rows += weight_and_bias(f"{ours}.norm{number}", f"{theirs}.norm{number}")
                rows.append(renamed(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
            if u == 0:
                rows.append(renamed(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
    rows += weight_and_bias("norm", f"{prefix}norm")
    if config.num_classes:
        rows += weight_and_bias("head", "classifier.1")
    return rows
