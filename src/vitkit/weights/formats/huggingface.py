"""Folders of Hugging Face's transformers, read and written: Vision Transformers and BiT.

A family of Vision Transformers is one value: the names of its tensors, its defaults of `config.json`, its
poolings. Files on the hub keep the names that a family began with, while its modules have had others since
release 5: both are read, and the first name that a file has is taken. Towers for text are left aside. ViT and
BiT are written, with the names of the hub, which transformers' `from_pretrained` loads.

`config.json` gives the arithmetic, by the fields of transformers with its own defaults, the arrays give the
shapes, `preprocessor_config.json` gives the pixels (`huggingface_processor.py`).

From top to bottom: the families; their `config.json`; reading them; BiT; which of them a file is; writing.

Facts: transformers 5.24, `models/*/modeling_*.py` and `configuration_*.py`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.models import config as models
from vitkit.models.config import Card, Gelu, PoolKind, ResNetConfig, ViTConfig, height_and_width
from vitkit.models.image_model import ImageModel
from vitkit.weights import table
from vitkit.weights.files.source import Source, read_fields, write_folder
from vitkit.weights.formats import huggingface_processor as processors
from vitkit.weights.formats import timm
from vitkit.weights.formats.huggingface_processor import ModelSettings, make_card, model_type, refuse, size_of
from vitkit.weights.formats.official import absent_from_libraries, with_channels

Names = Mapping[str, tuple[str, ...]]
"""The names of each part as in `table.Names`, behind the prefix of the trunk, the hub's first; those of a
part of a block follow the names of `blocks` and its number."""

OF_5 = "attention.q_proj attention.k_proj attention.v_proj"
"""Queries, keys and values since release 5."""
BERT: Names = {
    "stem": ("embeddings.patch_embeddings.projection",),
    "class_token": ("embeddings.cls_token",),
    "positions.embedding": ("embeddings.position_embeddings",),
    "blocks": ("encoder.layer", "layers"),
    "blocks.norm1": ("layernorm_before",),
    "blocks.attention.qkv": (
        "attention.attention.query attention.attention.key attention.attention.value",
        OF_5,
    ),
    "blocks.attention.out": ("attention.output.dense", "attention.o_proj"),
    "blocks.norm2": ("layernorm_after",),
    "blocks.mlp.fc1": ("intermediate.dense", "mlp.fc1"),
    "blocks.mlp.fc2": ("output.dense", "mlp.fc2"),
    "norm": ("layernorm",),
    "pre_logits": ("pooler.dense",),
}
"""ViT, and what transformers made of it; the names of the layers are older than it, those of BERT."""
IJEPA: Names = {part: names for part, names in BERT.items() if part != "class_token"}
DEIT: Names = {**BERT, "register_tokens": ("embeddings.distillation_token",)}
BEIT: Names = {
    **BERT,
    "blocks.attention_scale": ("lambda_1",),
    "blocks.mlp_scale": ("lambda_2",),
    "blocks.attention.relative_bias": (
        "attention.attention.relative_position_bias.relative_position_bias_table",
        "relative_position_bias.relative_position_bias_table",
    ),
    "norm": ("pooler.layernorm", "layernorm"),
}
DINOV2: Names = {
    **BERT,
    "register_tokens": ("embeddings.register_tokens",),
    "blocks": ("encoder.layer",),
    "blocks.norm1": ("norm1",),
    "blocks.norm2": ("norm2",),
    "blocks.mlp.fc1": ("mlp.fc1", "mlp.weights_in", "mlp.gate_proj mlp.up_proj"),
    "blocks.mlp.fc2": ("mlp.fc2", "mlp.weights_out", "mlp.down_proj"),
    "blocks.attention_scale": ("layer_scale1.lambda1",),
    "blocks.mlp_scale": ("layer_scale2.lambda1",),
}
DINOV3: Names = {
    **DINOV2,
    "stem": ("embeddings.patch_embeddings",),
    "blocks": ("layer", "model.layer"),
    "blocks.attention.qkv": (OF_5,),
    "blocks.attention.out": ("attention.o_proj",),
    "blocks.mlp.fc1": ("mlp.gate_proj mlp.up_proj", "mlp.up_proj"),
    "blocks.mlp.fc2": ("mlp.down_proj",),
    "norm": ("norm",),
}
SIGLIP: Names = {
    "stem": ("embeddings.patch_embedding",),
    "positions.embedding": ("embeddings.position_embedding.weight",),
    "blocks": ("encoder.layers",),
    "blocks.norm1": ("layer_norm1",),
    "blocks.attention.qkv": ("self_attn.q_proj self_attn.k_proj self_attn.v_proj",),
    "blocks.attention.out": ("self_attn.out_proj",),
    "blocks.norm2": ("layer_norm2",),
    "blocks.mlp.fc1": ("mlp.fc1",),
    "blocks.mlp.fc2": ("mlp.fc2",),
    "norm": ("post_layernorm",),
    "pooling.probe": ("head.probe",),
    "pooling.attention.qkv": ("head.attention.in_proj_",),
    "pooling.attention.out": ("head.attention.out_proj",),
    "pooling.norm": ("head.layernorm",),
    "pooling.mlp.fc1": ("head.mlp.fc1",),
    "pooling.mlp.fc2": ("head.mlp.fc2",),
}
CLIP: Names = {
    **SIGLIP,
    "class_token": ("embeddings.class_embedding",),
    "pre_norm": ("pre_layrnorm",),  # sic
}


@dataclass(frozen=True)
class Family:
    """The tensors of one family's models, and what they compute with them."""

    names: Names
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of `config.json` that are not ViT's."""
    pool: PoolKind = "token"
    """The features of the model alone, its `pooler_output`."""
    classifier_pool: PoolKind = "token"
    """The features that its `...ForImageClassification` reads."""
    classifier_norm: bool = True
    """Whether these come from tokens behind the final norm."""
    rule: models.Interpolation = "huggingface"
    """The rule by which it resizes positions."""
    position: models.PositionKind = "learned"
    training: tuple[str, ...] = ()
    """Fields that act in training alone, and are another rule there than here."""


TRAINING = ("hidden_dropout_prob", "drop_path_rate")
DINOV3_TRAINING = (*TRAINING, "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
CLIP_FAMILY = Family(
    CLIP,
    {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    classifier_pool="mean",
    classifier_norm=False,  # transformers hands on `last_hidden_state`, which CLIP's last norm has not seen
    training=TRAINING,
)
DINOV2_FAMILY = Family(DINOV2, {"layer_norm_eps": 1e-6}, classifier_pool="token+mean", training=TRAINING)
SIGLIP_DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
FAMILIES: Mapping[str, Family] = {
    "vit": Family(BERT),
    "deit": Family(DEIT),
    "vit_mae": Family(BERT),
    "ijepa": Family(IJEPA, pool="mean", classifier_pool="mean"),
    "beit": Family(BEIT, {"drop_path_rate": 0.1, "layer_scale_init_value": 0.1}),
    "dinov2": DINOV2_FAMILY,
    "dinov2_with_registers": replace(DINOV2_FAMILY, rule="timm"),
    "dinov3_vit": Family(DINOV3, {"layer_norm_eps": 1e-5}, position="none", training=DINOV3_TRAINING),
    "siglip": Family(SIGLIP, SIGLIP_DEFAULTS, "map", "mean", training=TRAINING),
    "clip": CLIP_FAMILY,
    "metaclip_2": CLIP_FAMILY,
}
"""The families by the `model_type` of `config.json`, without the ending of a tower that is stored alone."""


FORMS: dict[Gelu, tuple[str, ...]] = {
    "erf": ("gelu", "gelu_python"),
    "tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
    "quick": ("quick_gelu",),
}
"""Transformers' names of the forms of GELU (`activations.py`), the written one first."""
GELU = {name: form for form, names in FORMS.items() for name in names}


@dataclass(frozen=True)
class ViTSettings(ModelSettings):
    """The fields of a ViT's `config.json`, with transformers' defaults: those that are written."""

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
class FamilySettings(ViTSettings):
    """The fields that other families have beside them."""

    head_dim: int | None = None
    attention_dropout: float = 0.0
    drop_path_rate: float = 0.0
    query_bias: bool = True
    key_bias: bool = False
    value_bias: bool = True
    proj_bias: bool = True
    mlp_bias: bool = True
    layerscale_value: float = 1.0
    layer_scale_init_value: float = 0.0
    use_swiglu_ffn: bool = False
    use_gated_mlp: bool = False
    vision_use_head: bool = True
    rope_theta: float = 100.0
    pos_embed_shift: float | None = None
    pos_embed_jitter: float | None = None
    pos_embed_rescale: float | None = 2.0
    use_mean_pooling: bool = True
    use_absolute_position_embeddings: bool = False
    use_relative_position_bias: bool = False
    use_shared_relative_position_bias: bool = False


def read_settings(source: Source, family: Family) -> FamilySettings:
    """Read `config.json`; what a whole model says of its tower for images stands in an object of its own."""
    whole, where = source.config, str(source.path.with_name("config.json"))
    own: Any = {}
    if any(key.startswith("vision_config") for key in whole):
        # The second name is that of releases before 4.21, and goes before the first as it does there.
        own = whole.get("vision_config_dict") or whole.get("vision_config") or {}
        if not isinstance(own, dict):
            raise VitkitError(f"{where}: vision_config: expected an object, found {str(own)[:40]}.")
    labels = {key: whole.get(key) for key in ("architectures", "problem_type", "id2label", "label2id")}
    fields = {**(own or whole), **labels, "model_type": whole["model_type"]}
    present = {key: value for key, value in fields.items() if value is not None}
    return read_fields(FamilySettings, {**family.defaults, **present}, where)


def read_vit(source: Source, hints: table.Hints) -> table.Translation:
    """Read a ViT of one of the families.

    Raises:
        VitkitError: it has a part that models here have not, or its names are not those of its family.
    """
    kind = model_type(source)
    family = FAMILIES[kind]
    settings = read_settings(source, family)
    prefix = processors.prefix_of(source, f"{family.names['stem'][0]}.weight")
    names = choose_names(source, family.names, prefix)
    sizes = table.read_sizes(source, names)
    width = sizes["width"]
    given = settings.num_attention_heads or hints.num_heads
    heads = table.require_heads(source, given, width, ", nor does config.json")
    classes = table.first_axis(source, "classifier.weight", 2)
    is_classifier = classes > 0
    projected = 0 if is_classifier else table.first_axis(source, "visual_projection.weight", 2)
    pooler = f"{prefix}pooler.dense.weight"
    has_pooler = kind in ("vit", "deit") and not is_classifier and pooler in source
    _refuse(source, settings, width // heads, has_pooler)
    pool = family.classifier_pool if is_classifier else family.pool
    position, after_pooling = family.position, False
    if kind == "beit":
        after_pooling = settings.use_mean_pooling
        pool = "mean" if after_pooling else "token"
        by_offset = "relative_bias" if settings.use_relative_position_bias else "none"
        position = "learned" if settings.use_absolute_position_embeddings else by_offset  # type: ignore[assignment]
    if pool == "map" and not settings.vision_use_head:
        pool = "mean"
        source.notes.append(
            "it has no pooling of its own (vision_use_head): the mean of the patches is taken"
        )
    processor, mean, std = processors.read_pixels(source, sizes["in_channels"])
    gated = settings.use_gated_mlp or settings.use_swiglu_ffn
    # DINOv2's registers have no position: that of the class token is added to it once and for all.
    is_folded, is_rotary = kind == "dinov2_with_registers", kind == "dinov3_vit"
    config = ViTConfig(
        **sizes,
        image_size=height_and_width(settings.image_size),
        num_heads=heads,
        num_classes=classes or projected,
        pool=pool,
        extra_class_token="class_token" in names and pool not in ("token", "token+mean"),
        register_tokens=table.count_tokens(source, names.get("register_tokens", "")),
        class_token_position=not is_folded,
        position=position,
        rotary=replace(models.DINOV3_ROTARY, temperature=settings.rope_theta) if is_rotary else None,
        mlp="swiglu" if gated else "gelu",
        layer_scale=(settings.layer_scale_init_value or settings.layerscale_value)
        if table.numbered(names.get("blocks.attention_scale", ""), "0") in source
        else None,
        norm_before_blocks="pre_norm" in names,
        norm_after_pooling=after_pooling,
        final_norm=family.classifier_norm or not is_classifier,
        representation_size=table.first_axis(source, pooler, 2) if has_pooler else None,
        dropout=0.0 if family.training else settings.hidden_dropout_prob,
        attention_dropout=settings.attention_probs_dropout_prob or settings.attention_dropout,
        drop_path=settings.drop_path_rate if kind == "beit" else 0.0,
        gelu=GELU.get(settings.hidden_act, "erf"),
        norm_eps=settings.layer_norm_eps,
        image_mean=mean,
        image_std=std,
    )
    absent = ((name, getattr(settings, name)) for name in family.training)
    if phrases := ", ".join(f"{name} {value:g}" for name, value in absent if value):
        source.notes.append(f"trained with {phrases}, which is not here; predictions have none")
    unbiased = _unbiased(kind, settings, names)
    if projected:
        settings = replace(settings, id2label={})
        source.notes.append(f"its {projected} outputs are CLIP's projection for comparisons with texts")
        names["head"] = "visual_projection"
        unbiased.add(names["head"])
    placed = table.folded_position(names["class_token"], names["positions.embedding"]) if is_folded else []
    rows = table.named_rows(config, names, unbiased, placed)
    card = make_card(source, settings, processor, config, family.rule)
    unused = "beside a classifier, which does not look at it"
    beside = (
        (re.escape(prefix) + r"pooler\.dense\.", f"a pooler {unused}"),
        (re.escape(prefix) + r"head\.", f"attention pooling {unused}"),
        (r"visual_projection\.", f"a projection {unused}"),
        (re.escape(names["norm"]) + r"\.", f"a norm {unused}"),
    )
    more = (*table.OF_WHOLE_MODELS, *(beside if config.num_classes else ()))
    ignored = table.left_out(source, rows, more)
    return table.Translation(config, rows, card, ignored)


def choose_names(source: Source | None, alternatives: Names, prefix: str) -> dict[str, str]:
    """Choose the name of each part, the first that the file has; without a file, the hub's."""

    def is_there(name: str) -> bool:
        keys = [table.numbered(each, "0") for each in name.split()]
        return source is not None and all(key in source or f"{key}.weight" in source for key in keys)

    names, blocks = {"head": "classifier"}, alternatives["blocks"]
    for part, candidates in alternatives.items():
        starts = [f"{prefix}{name}.#." for name in blocks] if part.startswith("blocks.") else [prefix]
        full = [
            " ".join(f"{start}{each}" for each in name.split()) for start in starts for name in candidates
        ]
        names[part] = next(filter(is_there, full), full[0])
    return names


def _refuse(source: Source, settings: FamilySettings, head_dim: int, has_pooler: bool) -> None:
    """Refuse what models here have not."""
    kind, gated = settings.model_type, settings.use_gated_mlp
    expected = "silu" if gated else "a form of GELU"
    computes = settings.hidden_act == "silu" if gated else settings.hidden_act in GELU
    refuse(
        source,
        {
            "two classifiers, of the class token and of the token for distillation, whose mean is the answer "
            "(cls_classifier, distillation_classifier)": "distillation_classifier.weight" in source,
            "queries, keys and values without bias (qkv_bias false)": not settings.qkv_bias,
            f"the activation {settings.hidden_act} (expected {expected})": not computes
            and not settings.use_swiglu_ffn,
            f"a pooler with the activation {settings.pooler_act}": (
                has_pooler and settings.pooler_act != "tanh"
            ),
            f"heads of {settings.head_dim} values (head_dim)": settings.head_dim not in (None, head_dim),
            "relative positions that all layers share (use_shared_relative_position_bias), which BEiT has "
            "before it is fine-tuned": settings.use_shared_relative_position_bias,
            "absolute and relative positions together": kind == "beit"
            and settings.use_absolute_position_embeddings
            and settings.use_relative_position_bias,
        },
    )


def _unbiased(kind: str, settings: FamilySettings, names: table.Names) -> set[str]:
    """Name the layers without a bias, where the family has some."""
    query, key, value = names["blocks.attention.qkv"].split()
    biases = {key: kind != "beit", names["stem"]: FAMILIES[kind].names is not CLIP}
    if kind == "dinov3_vit":
        biases |= {query: settings.query_bias, key: settings.key_bias, value: settings.value_bias}
        biases[names["blocks.attention.out"]] = settings.proj_bias
        mlp = (*names["blocks.mlp.fc1"].split(), names["blocks.mlp.fc2"])
        biases |= dict.fromkeys(mlp, settings.mlp_bias)
    return {name for name, is_there in biases.items() if not is_there}


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


NOT_READ = {
    "siglip2": "SigLIP 2 for images of any shape (NaFlex) is not read: load one of a fixed size, such as "
    "hf:google/siglip2-base-patch16-224, or the same in timm's layout",
    "vit-hybrid": "hybrids of Hugging Face ('vit-hybrid') are not read: load the same weights from the "
    "original release's .npz, R50+ViT-B_16 say, or from timm's file",
}
"""Beginnings of a `model_type` that people ask for, and what to load in their place."""
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
        raise VitkitError(f"{source.path}: {timm.OTHERS['radio']}.")
    if not source.config:
        raise VitkitError(
            f"{source.path} has the names of Hugging Face, which do not say everything: put the config.json "
            "(and the preprocessor_config.json) that came with it beside it."
        )
    if (kind := model_type(source)) in FAMILIES:
        return read_vit(source, hints)
    if kind == "bit":
        return read_bit(source, hints)
    if advice := next((advice for start, advice in NOT_READ.items() if kind.startswith(start)), None):
        raise VitkitError(f"{source.path}: {advice}.")
    read = ", ".join(sorted({*FAMILIES, "bit"}))
    raise VitkitError(f"{source.path}: of Hugging Face's models, {read} are read, found {kind!r}.")


def read_bit(source: Source, hints: table.Hints) -> table.Translation:
    settings = read_fields(BitSettings, source.config, str(source.path.with_name("config.json")))
    prefix = processors.prefix_of(source, "embedder.convolution.weight")
    stages = len(settings.depths)
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
    processor, mean, std = processors.read_pixels(source, settings.num_channels)
    size = size_of(source, processor, "crop_size" if processor.do_center_crop else "size") or hints.image_size
    why = "no preprocessor_config.json beside it says the size of its images"
    classes = table.first_axis(source, "classifier.1.weight", 2)
    config = ResNetConfig(
        image_size=table.require_image_size(source, size, why),
        layers=settings.depths,
        root_width=settings.embedding_size,
        stage_widths=settings.hidden_sizes,
        groups=settings.num_groups,
        in_channels=settings.num_channels,
        max_pool_padding="zeros",
        num_classes=classes,
        norm_eps=timm.GROUP_NORM_EPS,
        standardization_eps=timm.STANDARDIZATION_EPS,
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
    vit_names = choose_names(None, BERT, prefix)
    is_bit = settings.model_type == "bit"
    rows = bit_rows(config, prefix) if is_bit else table.named_rows(config, vit_names)
    return write_folder(
        path,
        table.to_file_tensors(model.state_dict(), rows),
        {
            "config.json": to_json(settings),
            "preprocessor_config.json": processors.write_processor(model, notes),
        },
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


def _settings(config: Any, card: Card) -> ViTSettings | BitSettings:
    """Write a configuration as transformers' `config.json`."""
    names = card.class_names or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    family = {"ViT": "ViT", "ResNet": "Bit"}[config.family]
    shared: dict[str, Any] = {
        "architectures": (f"{family}ForImageClassification" if config.num_classes else f"{family}Model",),
        "problem_type": processors.SIGMOID if card.loss == "sigmoid" else None,
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
        hidden_act=FORMS[config.gelu][0],
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
    )


HOLDINGS = {
    "ViT": table.Holding(write, _unsupported_vit, _lost_of_a_vit),
    "ResNet": table.Holding(write, absent_from_libraries, partial(timm.lost_of_a_bit, library="theirs")),
}


CHECKPOINT_FORMAT = table.CheckpointFormat("huggingface", recognises, read, HOLDINGS)


def bit_rows(config: ResNetConfig, prefix: str) -> list[table.Row]:
    """List every parameter of a BiT ResNet with its name in Hugging Face transformers."""
    start = f"{prefix}encoder.stages.#.layers.#."
    names = {f"stages.{part}": f"{start}{name}" for part, name in timm.UNIT.items()}
    names |= {"root": f"{prefix}embedder.convolution", "norm": f"{prefix}norm", "head": "classifier.1"}
    return table.named_rows(config, names)
