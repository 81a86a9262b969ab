"""The fields of transformers' JSON files that are read, with its own defaults."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vitkit.errors import VitkitError
from vitkit.weights.files.source import Source, read_fields

SIGMOID = "multi_label_classification"
"""Transformers' `problem_type` where every class is a yes or no of its own."""

BIT_NORM_EPS = 1e-5
BIT_STANDARDIZATION_EPS = 1e-8
"""The epsilons of all norms and convolutions; no `config.json` has them (transformers `modeling_bit.py`)."""


@dataclass(frozen=True)
class ModelSettings:
    """The fields of every model's `config.json`: its class, and the meaning of its logits."""

    architectures: tuple[str, ...] = ()
    problem_type: str | None = None
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ViTSettings(ModelSettings):
    """The fields of a ViT's `config.json`, with transformers' defaults."""

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


@dataclass(frozen=True)
class Processor:
    """The fields of a `preprocessor_config.json`, with the defaults of ViT's processor."""

    image_processor_type: str = ""
    """Its first word alone: ViT, DeiT, Bit; empty where the file does not say it."""
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


CROPPED = {"do_center_crop": True, "crop_size": 224, "resample": 3}  # 3 is Pillow's bicubic
# With the pixel statistics of OpenAI's CLIP, which transformers has as the defaults of BiT's processor too.
CLIP = {
    **CROPPED,
    "size": {"shortest_edge": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {},
    "DeiT": {"size": 256, **CROPPED},
    "Bit": CLIP,
    "CLIP": CLIP,
}
"""Defaults by the first word of `image_processor_type`, where they differ from ViT's processor."""
SHORTEST_EDGE = ("Bit", "CLIP")
"""Processors that take a size of one number for the shortest edge; the others take it for a square."""


def processor_of(source: Source) -> Processor:
    """Read `preprocessor_config.json`, with the defaults of the processor that it names.

    A size of one number is written out, as that processor understands it.
    """
    file = "preprocessor_config.json"
    fields = {key: value for key, value in source.settings.get(file, {}).items() if value is not None}
    named = fields.get("image_processor_type") or fields.get("feature_extractor_type") or ""
    if not isinstance(named, str):
        raise VitkitError(
            f"{source.path.with_name(file)}: image_processor_type: expected str, found {named!r}."
        )
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", named)
    fields = {**DEFAULTS.get(kind, {}), **fields, "image_processor_type": kind}
    by_model = {"bit": "Bit", "deit": "DeiT"}.get(str(source.config.get("model_type")), "ViT")
    if (kind or by_model) in SHORTEST_EDGE and isinstance(fields.get("size"), int):
        fields["size"] = {"shortest_edge": fields["size"]}
    return read_fields(Processor, fields, str(source.path.with_name(file)))


T = TypeVar("T")


def settings_of(kind: type[T], source: Source, file: str) -> T:
    """Read the fields of the dataclass `kind`; null means the same as a missing field.

    Raises:
        VitkitError: a value of another type, or a number above `LARGEST`.
    """
    return read_fields(kind, source.settings.get(file, {}), str(source.path.with_name(file)))
