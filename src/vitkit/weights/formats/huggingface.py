"""Folders of Hugging Face's transformers, read and written.

The Vision Transformers that are read are tables in `huggingface_families.py`; here are BiT, and the folders
that are written, of ViT and BiT. Their parameters have the names that every release of transformers writes to
files; transformers' `from_pretrained` loads them.

`config.json` gives the arithmetic, by the fields of transformers with its own defaults, the arrays give the
shapes, `preprocessor_config.json` gives the pixels (`huggingface_processor.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.models.config import Card, ResNetConfig, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.weights import table
from vitkit.weights.files.source import Source, read_fields, write_folder
from vitkit.weights.formats.huggingface_families import (
    BERT,
    FAMILIES,
    ViTSettings,
    choose_names,
    read_vit,
)
from vitkit.weights.formats.huggingface_processor import (
    SIGMOID,
    ModelSettings,
    make_card,
    model_type,
    prefix_of,
    read_pixels,
    refuse,
    size_of,
    write_processor,
)
from vitkit.weights.formats.official import absent_from_libraries, with_channels

BIT_NORM_EPS = 1e-5
BIT_STANDARDIZATION_EPS = 1e-8
"""The epsilons of all norms and convolutions; no `config.json` has them (transformers `modeling_bit.py`)."""


@dataclass(frozen=True)
class BitSettings(ModelSettings):
    """The fields of a BiT ResNet's `config.json`, with transformers' defaults."""

    model_type: str = "bit"
    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer_type: str = "preactivation"
    hidden_act: str = "relu"
    global_padding: str | None = None
    num_groups: int = 32
    drop_path_rate: float = 0.0
    embedding_dynamic_padding: bool = False
    output_stride: int = 32
    width_factor: float = 1


def compact_size(size: tuple[int, int]) -> int | tuple[int, int]:
    """Write the size of a square as a single number, as transformers does."""
    return size[0] if size[0] == size[1] else size


RADIO = "radio_model."
"""The beginning of the names of C-RADIO, which is not read."""


def recognises(source: Source) -> bool:
    """Recognise the format by the names of the arrays, or by a `config.json` of transformers beside them."""
    stems = {f".{family.names['stem'][0]}.weight" for family in FAMILIES.values()}
    theirs = (*stems, ".embedder.convolution.weight")
    return any(f".{key}".endswith(theirs) or key.startswith(RADIO) for key in source.shapes) or (
        {"model_type", "transformers_version"} <= source.config.keys()
    )


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the model that `config.json` and the arrays describe.

    Raises:
        VitkitError: no `config.json`, a kind of model that is not ours, or a part of it that we do not have.
    """
    if any(key.startswith(RADIO) for key in source.shapes):
        raise VitkitError(
            f"{source.path}: C-RADIO has eight tokens before the patches, positions that are cropped and no "
            "final norm, and is not read: load DINOv3 or SigLIP 2 of a fixed size, which are."
        )
    if not source.config:
        raise VitkitError(
            f"{source.path} has the names of Hugging Face, which do not say everything: put the config.json "
            "(and the preprocessor_config.json) that came with it beside it."
        )
    if (kind := model_type(source)) in FAMILIES:
        return read_vit(source, hints)
    if kind == "bit":
        return read_bit(source, hints)
    if kind.startswith("siglip2"):
        raise VitkitError(
            f"{source.path}: SigLIP 2 for images of any shape (NaFlex, '{kind}') is not read: load one of a "
            "fixed size, such as hf:google/siglip2-base-patch16-224, or the same in timm's layout."
        )
    if kind == "vit-hybrid":
        raise VitkitError(
            f"{source.path}: hybrids of Hugging Face ('vit-hybrid') are not read: load the same weights "
            "from the original release's .npz, R50+ViT-B_16 say, or from timm's file."
        )
    read = ", ".join(sorted({*FAMILIES, "bit"}))
    raise VitkitError(f"{source.path}: of Hugging Face's models, {read} are read, found {kind!r}.")


def read_bit(source: Source, hints: table.Hints) -> table.Translation:
    settings = read_fields(BitSettings, source.config, str(source.path.with_name("config.json")))
    prefix = prefix_of(source, "embedder.convolution.weight")
    stages = len(settings.depths)
    if settings.depths and (min(settings.depths) < 1 or sum(settings.depths) > len(source.shapes)):
        raise VitkitError(
            f"{source.path}: config.json gives depths {settings.depths}. Expected at least one unit in each "
            "stage, and in all not more than its arrays can hold."
        )
    refuse(
        source,
        {
            f"layers of the kind {settings.layer_type}": settings.layer_type != "preactivation",
            f"the activation {settings.hidden_act}": settings.hidden_act != "relu",
            f"padding {settings.global_padding}": settings.global_padding is not None,
            "dynamically padded max pooling (embedding_dynamic_padding)": settings.embedding_dynamic_padding,
            f"hidden_sizes {settings.hidden_sizes} for {stages} stages": len(settings.hidden_sizes) != stages,
            f"num_groups {settings.num_groups}, below 1": settings.num_groups < 1,
            f"an output_stride of {settings.output_stride}, which dilates": settings.output_stride
            < 2 ** (stages + 1),
            f"a width_factor of {settings.width_factor} (transformers builds only 1)": (
                settings.width_factor != 1
            ),
        },
    )
    if rate := settings.drop_path_rate:
        source.notes.append(f"trained with drop_path_rate {rate}, which is not here; predictions have none")
    processor, mean, std = read_pixels(source, settings.num_channels)
    size = size_of(source, processor, "crop_size" if processor.do_center_crop else "size") or hints.image_size
    if size is None:
        raise table.NotRecordedError(
            f"{source.path}: nothing here says the size of the images: give image_size=(height, width), "
            "224x224 usually, or put preprocessor_config.json beside the weights."
        )
    classes = table.first_axis(source, "classifier.1.weight", 2)
    config = ResNetConfig(
        image_size=size,
        layers=settings.depths,
        root_width=settings.embedding_size,
        stage_widths=settings.hidden_sizes,
        groups=settings.num_groups,
        in_channels=settings.num_channels,
        max_pool_padding="zeros",
        num_classes=classes,
        norm_eps=BIT_NORM_EPS,
        standardization_eps=BIT_STANDARDIZATION_EPS,
        image_mean=mean,
        image_std=std,
    )
    config = with_channels(config, settings.embedding_size, settings.hidden_sizes)
    refuse(source, dict.fromkeys(absent_from_libraries(config), True))
    card = make_card(source, settings, processor, config)
    return table.Translation(config, bit_rows(config, prefix), card)


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write the folder that `from_pretrained` reads: weights, `config.json` and `preprocessor_config.json`.

    A `ViTForImageClassification` or `BitForImageClassification`; without a head a `BitModel` or a `ViTModel`,
    whose pooler is our tanh layer (where there is none:
    `ViTModel.from_pretrained(path, add_pooling_layer=False)`).

    Raises:
        VitkitError: a model of ours is at `path`.
    """
    config, settings = model.config, _settings(model.config, model.card)
    prefix = f"{settings.model_type}." if config.num_classes else ""
    if settings.model_type == "bit":
        rows = bit_rows(config, prefix)
    else:
        rows = table.named_rows(config, choose_names(None, BERT, prefix))
    return write_folder(
        path,
        table.to_file_tensors(model.state_dict(), rows),
        {"config.json": to_json(settings), "preprocessor_config.json": write_processor(model, notes)},
        metadata={"format": "pt"},
    )


def _unsupported_vit(config: ViTConfig) -> Iterator[str]:
    """Name the parts of a ViT that transformers cannot build; its hybrid is retired."""
    yield from table.unsupported_values(config, table.PLAIN)
    if config.representation_size and config.num_classes:
        yield "a tanh layer before the head (load with head='new' to drop it)"


def _lost_of_a_vit(config: ViTConfig) -> list[str]:
    """Name the numerics that transformers' ViT fixes and ours does not."""
    phrases = ["dropout after the GELU, which they do not apply"] if config.dropout else []
    if config.drop_path:
        phrases.append(f"stochastic depth {config.drop_path:g}, which training alone uses")
    return phrases


def _lost_of_a_bit(config: ResNetConfig) -> list[str]:
    """Name the numerics that transformers' BiT fixes and ours does not."""
    return table.differences(
        "theirs",
        ("a GroupNorm epsilon of", config.norm_eps, BIT_NORM_EPS),
        ("a weight standardisation epsilon of", config.standardization_eps, BIT_STANDARDIZATION_EPS),
        ("max-pooling padded with", config.max_pool_padding, "zeros"),
    )


def _settings(config: Any, card: Card) -> ViTSettings | BitSettings:
    """Write a configuration as transformers' `config.json`."""
    names = card.class_names or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    family = {"ViT": "ViT", "ResNet": "Bit"}[config.family]
    shared: dict[str, Any] = {
        "architectures": (f"{family}ForImageClassification" if config.num_classes else f"{family}Model",),
        "problem_type": SIGMOID if card.loss == "sigmoid" else None,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "num_channels": config.in_channels,
    }
    if family == "Bit":
        return BitSettings(
            **shared,
            output_stride=max(32, 2 ** (len(config.layers) + 1)),
            embedding_size=config.root_channels,
            hidden_sizes=config.stage_channels,
            num_groups=config.groups,
            depths=config.layers,
        )
    return ViTSettings(
        **shared,
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        image_size=compact_size(config.image_size),
        patch_size=compact_size(config.patch_size),
        hidden_act={"tanh": "gelu_pytorch_tanh", "erf": "gelu", "quick": "quick_gelu"}[config.gelu],
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
    )


HOLDINGS = {
    "ViT": table.Holding(write, _unsupported_vit, _lost_of_a_vit),
    "ResNet": table.Holding(write, absent_from_libraries, _lost_of_a_bit),
}


CHECKPOINT_FORMAT = table.CheckpointFormat("huggingface", recognises, read, HOLDINGS)


def bit_rows(config: ResNetConfig, prefix: str) -> list[table.Row]:
    """List every parameter of a BiT ResNet with its name in Hugging Face transformers."""
    parts = ("norm1", "conv1", "norm2", "conv2", "norm3", "conv3")
    unit = {**{part: part for part in parts}, "proj": "downsample.conv"}
    names = {f"stages.{part}": f"{prefix}encoder.stages.#.layers.#.{name}" for part, name in unit.items()}
    names |= {"root": f"{prefix}embedder.convolution", "norm": f"{prefix}norm", "head": "classifier.1"}
    return table.named_rows(config, names)
