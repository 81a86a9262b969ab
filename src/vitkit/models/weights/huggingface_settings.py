"""The fields of transformers' JSON files that are asked for, with its own defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from vitkit.config import from_json
from vitkit.models.weights.source import Source


@dataclass(frozen=True)
class ViTSettings:
    """What a `config.json` says of a ViT; the defaults are those of transformers."""

    architectures: tuple[str, ...] = ()
    model_type: str = "vit"
    num_attention_heads: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    intermediate_size: int = 3072
    num_channels: int = 3
    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    qkv_bias: bool = True
    pooler_act: str = "tanh"
    pooler_output_size: int | None = None
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BitSettings:
    """What a `config.json` says of a BiT ResNet; the defaults are those of transformers."""

    architectures: tuple[str, ...] = ()
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
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Processor:
    """What a `preprocessor_config.json` says; the defaults are those of ViT's."""

    image_processor_type: str = ""
    do_resize: bool = True
    size: int | Mapping[str, Any] | None = None
    resample: int = 2
    do_center_crop: bool = False
    crop_size: int | Mapping[str, Any] | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | tuple[float, ...] = 0.5
    image_std: float | tuple[float, ...] = 0.5


T = TypeVar("T", ViTSettings, BitSettings, Processor)


def settings_of(kind: type[T], source: Source, file: str) -> T:
    """The fields we ask for; null is the same as absent there.

    Raises:
        VitkitError: a value of another type.
    """
    asked = {one.name for one in fields(kind)}
    said = source.settings.get(file, {}).items()
    known = {key: value for key, value in said if key in asked and value is not None}
    return from_json(kind, known, str(source.path.with_name(file)))
