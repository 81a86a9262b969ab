"""Our models as folders that transformers' `from_pretrained` loads."""

from pathlib import Path

from vitkit.config import to_json
from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.models.card import Card
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.weights.files.safetensors import safetensors_chunks
from vitkit.weights.formats.huggingface.common import (
    labels_of,
    problem_type,
)
from vitkit.weights.formats.huggingface.names import FILES, bit_rows, vit_rows
from vitkit.weights.formats.huggingface.pixels import one_number, write_processor
from vitkit.weights.formats.huggingface.settings import (
    BIT_NORM_EPS,
    BIT_STANDARDIZATION_EPS,
    BitSettings,
    ViTSettings,
)
from vitkit.weights.formats.resnet_channels import absent_from_libraries
from vitkit.weights.table import (
    PLAIN,
    Holding,
    Row,
    to_file_tensors,
    unsupported_values,
)


def write_vit(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write a `ViTForImageClassification`.

    Without a head it is a `ViTModel`, whose pooler is our tanh layer (where there is none:
    `ViTModel.from_pretrained(path, add_pooling_layer=False)`).

    Raises:
        VitkitError: a model of ours is at `path`.
    """
    config: ViTConfig = model.config
    rows = vit_rows(config, "vit." if config.num_classes else "", FILES)
    return _write(model, path, notes, _vit_settings(config, model.card), rows)


def write_bit(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write a `BitForImageClassification`, without a head a `BitModel`; errors are those of `write_vit`."""
    config: ResNetConfig = model.config
    rows = bit_rows(config, "bit." if config.num_classes else "")
    return _write(model, path, notes, _bit_settings(config, model.card), rows)


def _write(
    model: ImageModel, path: Path, notes: list[str], settings: ViTSettings | BitSettings, rows: list[Row]
) -> Path:
    """Write the folder that `from_pretrained` reads: weights, `config.json` and `preprocessor_config.json`.

    Raises:
        VitkitError: a model of ours is at `path`.
    """
    if (path / "model.json").exists():
        raise VitkitError(f"{path} holds a model of vitkit's own format: choose another folder.")
    path.mkdir(parents=True, exist_ok=True)
    chunks = safetensors_chunks(to_file_tensors(model.state_dict(), rows), metadata={"format": "pt"})
    replace_file(path / "model.safetensors", chunks)
    replace_json(path / "config.json", to_json(settings))
    processor = write_processor(model, notes)
    replace_json(path / "preprocessor_config.json", processor)
    return path


def _unsupported_vit(config: ViTConfig) -> list[str]:
    """Name what transformers cannot build; its hybrid is retired."""
    words = unsupported_values(config, PLAIN)
    if config.representation_size and config.num_classes:
        words.append("a tanh layer before the head (load with head='new' to drop it)")
    return words


def _unsupported_bit(config: ResNetConfig) -> list[str]:
    """Name what their BiT cannot build."""
    mixing = [] if config.mixing == "convolution" else [f"{config.mixing} attention in a ResNet"]
    return mixing + absent_from_libraries(config)


def _lost_of_a_vit(config: ViTConfig) -> list[str]:
    """Name the numerics that their ViT fixes and ours does not."""
    words = ["dropout after the GELU, which they do not apply"] if config.dropout else []
    if config.drop_path:
        words.append(f"stochastic depth {config.drop_path:g}, which training alone uses")
    return words


def _lost_of_a_bit(config: ResNetConfig) -> list[str]:
    """Name the numerics that their BiT fixes and ours does not."""
    words = []
    if config.norm_eps != BIT_NORM_EPS:
        words.append(f"a GroupNorm epsilon of {config.norm_eps} (theirs: {BIT_NORM_EPS})")
    if config.standardization_eps != BIT_STANDARDIZATION_EPS:
        words.append(
            f"an epsilon of {config.standardization_eps} in the weight standardisation (theirs: "
            f"{BIT_STANDARDIZATION_EPS})"
        )
    if config.max_pool_padding != "zeros":
        words.append(f"max-pooling padded with the {config.max_pool_padding} number (theirs: zeros)")
    return words


def _vit_settings(config: ViTConfig, card: Card) -> ViTSettings:
    names = labels_of(card, config.num_classes)
    return ViTSettings(
        architectures=("ViTForImageClassification" if config.num_classes else "ViTModel",),
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        num_channels=config.in_channels,
        image_size=one_number(config.image_size),
        patch_size=one_number(config.patch_size),
        hidden_act={"tanh": "gelu_pytorch_tanh", "erf": "gelu", "quick": "quick_gelu"}[config.gelu],
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
        problem_type=problem_type(card),
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )


def _bit_settings(config: ResNetConfig, card: Card) -> BitSettings:
    names = labels_of(card, config.num_classes)
    stages = len(config.layers)
    return BitSettings(
        architectures=("BitForImageClassification" if config.num_classes else "BitModel",),
        num_channels=config.in_channels,
        embedding_size=config.root_channels,
        hidden_sizes=config.stage_channels,
        num_groups=config.groups,
        depths=config.layers,
        output_stride=max(32, 2 ** (stages + 1)),
        problem_type=problem_type(card),
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )


HOLDINGS = {
    "ViT": Holding(write_vit, _unsupported_vit, _lost_of_a_vit),
    "ResNet": Holding(write_bit, _unsupported_bit, _lost_of_a_bit),
}
