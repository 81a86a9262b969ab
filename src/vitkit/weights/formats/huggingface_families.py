"""The Vision Transformers of transformers as tables: what each family calls a part, and in what it differs.

A family is one value: the names of its tensors, its defaults of `config.json`, its poolings. Files on the hub
keep the names that a family began with, while its modules have had others since release 5: both are read, and
the first name that a file has is taken. Towers for text are left aside.

From top to bottom: the families; `config.json`; reading; the rows.

Facts: transformers 5.24, `models/*/modeling_*.py` and `configuration_*.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitkit.errors import VitkitError
from vitkit.models import config as models
from vitkit.models.config import Gelu, Interpolation, PoolKind, PositionKind, ViTConfig, height_and_width
from vitkit.weights import table
from vitkit.weights.files.source import Source, read_fields
from vitkit.weights.formats.huggingface_processor import (
    ModelSettings,
    make_card,
    prefix_of,
    read_pixels,
    refuse,
)

Names = Mapping[str, tuple[str, ...]]
"""The names of each part, behind the prefix of the trunk, the hub's first; those of a part of a layer follow
its number. Two names with a blank between them are two layers, which are one here: gates and values."""

BERT: Names = {
    "stem": ("embeddings.patch_embeddings.projection",),
    "class_token": ("embeddings.cls_token",),
    "positions": ("embeddings.position_embeddings",),
    "layers": ("encoder.layer", "layers"),
    "norm1": ("layernorm_before",),
    "query": ("attention.attention.query", "attention.q_proj"),
    "key": ("attention.attention.key", "attention.k_proj"),
    "value": ("attention.attention.value", "attention.v_proj"),
    "out": ("attention.output.dense", "attention.o_proj"),
    "norm2": ("layernorm_after",),
    "fc1": ("intermediate.dense", "mlp.fc1"),
    "fc2": ("output.dense", "mlp.fc2"),
    "norm": ("layernorm",),
}
"""ViT, and what transformers made of it; the names of the layers are older than it, those of BERT."""
IJEPA: Names = {part: names for part, names in BERT.items() if part != "class_token"}
DEIT: Names = {**BERT, "register_tokens": ("embeddings.distillation_token",)}
BEIT: Names = {
    **BERT,
    "attention_scale": ("lambda_1",),
    "mlp_scale": ("lambda_2",),
    "relative_bias": (
        "attention.attention.relative_position_bias.relative_position_bias_table",
        "relative_position_bias.relative_position_bias_table",
    ),
    "norm": ("pooler.layernorm", "layernorm"),
}
DINOV2: Names = {
    **BERT,
    "register_tokens": ("embeddings.register_tokens",),
    "layers": ("encoder.layer",),
    "norm1": ("norm1",),
    "norm2": ("norm2",),
    "fc1": ("mlp.fc1", "mlp.weights_in", "mlp.gate_proj mlp.up_proj"),
    "fc2": ("mlp.fc2", "mlp.weights_out", "mlp.down_proj"),
    "attention_scale": ("layer_scale1.lambda1",),
    "mlp_scale": ("layer_scale2.lambda1",),
}
DINOV3: Names = {
    **DINOV2,
    "stem": ("embeddings.patch_embeddings",),
    "layers": ("layer", "model.layer"),
    "query": ("attention.q_proj",),
    "key": ("attention.k_proj",),
    "value": ("attention.v_proj",),
    "out": ("attention.o_proj",),
    "fc1": ("mlp.gate_proj mlp.up_proj", "mlp.up_proj"),
    "fc2": ("mlp.down_proj",),
    "norm": ("norm",),
}
CLIP: Names = {
    "stem": ("embeddings.patch_embedding",),
    "class_token": ("embeddings.class_embedding",),
    "positions": ("embeddings.position_embedding.weight",),
    "pre_norm": ("pre_layrnorm",),  # sic
    "layers": ("encoder.layers",),
    "norm1": ("layer_norm1",),
    "query": ("self_attn.q_proj",),
    "key": ("self_attn.k_proj",),
    "value": ("self_attn.v_proj",),
    "out": ("self_attn.out_proj",),
    "norm2": ("layer_norm2",),
    "fc1": ("mlp.fc1",),
    "fc2": ("mlp.fc2",),
    "norm": ("post_layernorm",),
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
    rule: Interpolation = "huggingface"
    """The rule by which it resizes positions."""
    position: PositionKind = "learned"
    whole: bool = True
    """Whether dropout and stochastic depth are those of our blocks, by the same fields."""


SIGLIP = Family(
    {part: names for part, names in CLIP.items() if part not in ("class_token", "pre_norm")},
    {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    "map",
    "mean",
    whole=False,
)
CLIP_FAMILY = Family(
    CLIP,
    {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    classifier_pool="mean",
    classifier_norm=False,  # transformers hands on `last_hidden_state`, which CLIP's last norm has not seen
    whole=False,
)
DINOV2_FAMILY = Family(DINOV2, {"layer_norm_eps": 1e-6}, classifier_pool="token+mean", whole=False)
FAMILIES: Mapping[str, Family] = {
    "vit": Family(BERT),
    "deit": Family(DEIT),
    "vit_mae": Family(BERT),
    "ijepa": Family(IJEPA, pool="mean", classifier_pool="mean"),
    "beit": Family(BEIT, {"drop_path_rate": 0.1, "layer_scale_init_value": 0.1}),
    "dinov2": DINOV2_FAMILY,
    "dinov2_with_registers": replace(DINOV2_FAMILY, rule="timm"),
    "dinov3_vit": Family(DINOV3, {"layer_norm_eps": 1e-5}, position="none", whole=False),
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "clip": CLIP_FAMILY,
    "clip_vision_model": CLIP_FAMILY,
    "metaclip_2": CLIP_FAMILY,
    "metaclip_2_vision_model": CLIP_FAMILY,
}
"""The families by the `model_type` of `config.json`."""

GELU: dict[str, Gelu] = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_accurate": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
    "quick_gelu": "quick",
}
"""Transformers' names of the forms of GELU (`activations.py`)."""


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
    kind = str(source.config["model_type"])
    family = FAMILIES[kind]
    settings = read_settings(source, family)
    prefix = prefix_of(source, f"{family.names['stem'][0]}.weight")
    names = choose_names(source, family.names, prefix)
    first = f"{names['layers']}.0"
    stem, fc2 = f"{names['stem']}.weight", f"{first}.{names['fc2']}.weight"
    hidden = [f"{first}.{name}.weight" for name in names["fc1"].split()]
    if missing := [key for key in (stem, *hidden, fc2) if key not in source]:
        raise VitkitError(f"{source.path} holds no whole ViT: absent: {', '.join(missing)}.")
    table.check_axes(source, stem, 4)
    table.check_axes(source, fc2, 2)
    width, in_channels, patch_height, patch_width = source.shapes[stem]
    given = settings.num_attention_heads or hints.num_heads
    heads = table.require_heads(source, given, width, ", nor does config.json")
    classes = table.first_axis(source, "classifier.weight", 2)
    is_classifier = classes > 0
    projected = table.first_axis(source, "visual_projection.weight", 2)
    is_projected = projected > 0 and not is_classifier
    gated = settings.use_gated_mlp or settings.use_swiglu_ffn
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
    registers = _registers(source, names)
    processor, mean, std = read_pixels(source, in_channels)
    scale = settings.layer_scale_init_value if kind == "beit" else settings.layerscale_value
    config = ViTConfig(
        image_size=height_and_width(settings.image_size),
        patch_size=(patch_height, patch_width),
        width=width,
        depth=table.count_layers(source, re.escape(f"{names['layers']}.") + r"(\d+)\."),
        num_heads=heads,
        mlp_dim=source.shapes[fc2][1],
        num_classes=classes or projected,
        in_channels=in_channels,
        pool=pool,
        extra_class_token="class_token" in names and pool not in ("token", "token+mean"),
        register_tokens=registers,
        # DINOv2's registers have no position: that of the class token is added to it once and for all.
        class_token_position=kind != "dinov2_with_registers",
        position=position,
        rotary=replace(models.DINOV3_ROTARY, temperature=settings.rope_theta)
        if kind == "dinov3_vit"
        else None,
        mlp="swiglu" if gated else "gelu",
        layer_scale=scale if _has(source, names, "attention_scale") else None,
        norm_before_blocks="pre_norm" in names,
        norm_after_pooling=after_pooling,
        final_norm=family.classifier_norm or not is_classifier,
        representation_size=table.first_axis(source, pooler, 2) if has_pooler else None,
        dropout=settings.hidden_dropout_prob if family.whole else 0.0,
        attention_dropout=settings.attention_probs_dropout_prob or settings.attention_dropout,
        drop_path=settings.drop_path_rate if kind == "beit" else 0.0,
        gelu=GELU.get(settings.hidden_act, "erf"),
        norm_eps=settings.layer_norm_eps,
        image_mean=mean,
        image_std=std,
    )
    _note_training(source, settings, family)
    if any(key.startswith("text_model.") for key in source.shapes):
        source.notes.append(TEXTS)
    if is_projected:
        settings = replace(settings, id2label={})
        source.notes.append(f"its {projected} outputs are CLIP's projection for comparisons with texts")
    biases = _biases(kind, settings)
    if is_projected:
        names, biases = {**names, "head": "visual_projection"}, {**biases, "head": False}
    rows = vit_rows(config, names, biases, prefix)
    card = make_card(source, settings, processor, config, family.rule)
    return table.Translation(config, rows, card, _left_out(source, prefix, names, rows))


def choose_names(source: Source | None, alternatives: Names, prefix: str) -> dict[str, str]:
    """Choose the name of each part, the first that the file has; without a file, the hub's."""
    keys: Mapping[str, Any] = source.shapes if source is not None else {}
    layers = alternatives["layers"]
    starts = {name: f"{prefix}{name}.0." for name in layers}
    chosen = next((name for name in layers if any(key.startswith(starts[name]) for key in keys)), layers[0])
    names = {}
    for part, candidates in alternatives.items():
        of_layer = part in OF_LAYER
        start = f"{prefix}{chosen}.0." if of_layer else prefix

        def is_there(name: str, start: str = start) -> bool:
            return all(
                any(f"{start}{each}{ending}" in keys for ending in ("", ".weight")) for each in name.split()
            )

        name = next(filter(is_there, candidates), candidates[0])
        names[part] = name if of_layer else f"{prefix}{name}"
    return names | {"layers": f"{prefix}{chosen}"}


OF_LAYER = (
    *("norm1", "query", "key", "value", "out", "norm2", "fc1", "fc2"),
    *("attention_scale", "mlp_scale", "relative_bias"),
)
"""The parts of a layer; the others are parts of the model."""


def _has(source: Source, names: Mapping[str, str], part: str) -> bool:
    return part in names and f"{names['layers']}.0.{names[part]}" in source


def _registers(source: Source, names: Mapping[str, str]) -> int:
    """Count the tokens between class token and patches: registers, or DeiT's for distillation."""
    key = names.get("register_tokens", "")
    if key not in source:
        return 0
    table.check_axes(source, key, 3)
    return source.shapes[key][1]


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


def _note_training(source: Source, settings: FamilySettings, family: Family) -> None:
    """Say what acts in training alone, and is another rule there than here."""
    absent = {}
    if not family.whole:
        absent = {
            "hidden_dropout_prob": settings.hidden_dropout_prob,
            "drop_path_rate": settings.drop_path_rate,
        }
    if family.position == "none":
        names = ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")
        absent |= {name: getattr(settings, name) for name in names}
    if said := ", ".join(f"{name} {value:g}" for name, value in absent.items() if value):
        source.notes.append(f"trained with {said}, which is not here; predictions have none")


TEXTS = "its tower for texts is left aside: images alone are read here"
LEFT_OUT = (
    (r"(text_model|text_projection)\.", "the tower for texts: images alone are read here"),
    (r"logit_(scale|bias)", "the scale of comparisons with texts, which are not read here"),
    (r".*\.position_ids", "numbers of positions, which follow from the sizes"),
    (r".*relative_position_index", "numbers of offsets, which follow from the sizes"),
    (r".*\bmask_token", "the mask token of masked image modelling, which nothing here uses"),
    (r"decoder\.", "the decoder of masked image modelling, which nothing here uses"),
)
"""Patterns of names that are left out, and why; no row names them."""


def _left_out(source: Source, prefix: str, names: Mapping[str, str], rows: list[table.Row]) -> dict[str, str]:
    """Name the tensors that are left out on purpose, and why."""
    used = {name for row in rows for name in row.theirs}
    patterns = list(LEFT_OUT)
    if any(row.ours == "head.weight" for row in rows):
        unused = "beside a classifier, which does not look at it"
        patterns.append((re.escape(prefix) + r"pooler\.dense\.", f"a pooler {unused}"))
        patterns.append((re.escape(prefix) + r"head\.", f"attention pooling {unused}"))
        patterns.append((r"visual_projection\.", f"a projection {unused}"))
        patterns.append((re.escape(names["norm"]) + r"\.", f"a norm {unused}"))
    return {
        key: reason
        for pattern, reason in reversed(patterns)
        for key in source.shapes
        if key not in used and re.match(pattern, key)
    }


def _biases(kind: str, settings: FamilySettings) -> dict[str, bool]:
    """Say which layers have a bias, where the family has some without."""
    if kind == "dinov3_vit":
        names = {"query": "query", "key": "key", "value": "value", "out": "proj", "fc1": "mlp", "fc2": "mlp"}
        return {part: getattr(settings, f"{name}_bias") for part, name in names.items()}
    if kind == "beit":
        return {"key": False}
    return {"stem": False} if FAMILIES[kind].names is CLIP else {}


def vit_rows(
    config: ViTConfig, names: Mapping[str, str], biases: Mapping[str, bool], prefix: str
) -> list[table.Row]:
    """Pair every parameter of a ViT with the tensors where a family keeps it.

    Args:
        config: the model.
        names: of each part, as `choose_names` gives them.
        biases: parts without a bias, which is read as zeros.
        prefix: of the trunk.
    """

    def layer(ours: str, part: str, theirs: str) -> list[table.Row]:
        return [
            table.renamed(f"{ours}.weight", f"{theirs}.weight"),
            table.bias_or_zeros(f"{ours}.bias", theirs, biases.get(part, True)),
        ]

    rows = layer("stem", "stem", names["stem"])
    positions = names["positions"] if config.position == "learned" else ""
    if positions and not config.class_token_position:
        rows += table.folded_position(names["class_token"], positions)
    else:
        shape = (1, -1, config.width)
        if config.class_token:
            rows.append(table.reshaped("class_token", names["class_token"], shape))
        if positions:
            rows.append(table.reshaped("positions.0.embedding", positions, shape))
    if config.register_tokens:
        rows.append(table.renamed("register_tokens", names["register_tokens"]))
    if config.norm_before_blocks:
        rows += table.weight_and_bias("pre_norm", names["pre_norm"])
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"{names['layers']}.{i}"
        rows += table.weight_and_bias(f"{ours}.norm1", f"{theirs}.{names['norm1']}")
        parts = {part: f"{theirs}.{names[part]}" for part in ("query", "key", "value")}
        there = [biases.get(part, True) for part in parts]
        weights = tuple(f"{name}.weight" for name in parts.values())
        rows.append(table.stacked(f"{ours}.attention.qkv.weight", weights))
        rows.append(table.stacked_biases(f"{ours}.attention.qkv.bias", list(parts.values()), there))
        rows += layer(f"{ours}.attention.out", "out", f"{theirs}.{names['out']}")
        if config.position == "relative_bias":
            rows.append(
                table.renamed(f"{ours}.attention.relative_bias", f"{theirs}.{names['relative_bias']}")
            )
        rows += table.weight_and_bias(f"{ours}.norm2", f"{theirs}.{names['norm2']}")
        hidden = [
            f"{theirs}.{name}" for name in names["fc1"].split()
        ]  # gates and values, where they are apart
        rows.append(table.stacked(f"{ours}.mlp.fc1.weight", (f"{name}.weight" for name in hidden)))
        rows.append(
            table.stacked_biases(f"{ours}.mlp.fc1.bias", hidden, [biases.get("fc1", True)] * len(hidden))
        )
        rows += layer(f"{ours}.mlp.fc2", "fc2", f"{theirs}.{names['fc2']}")
        if config.layer_scale is not None:
            for scale in ("attention_scale", "mlp_scale"):
                rows.append(table.renamed(f"{ours}.{scale}", f"{theirs}.{names[scale]}"))
    if config.final_norm:
        rows += table.weight_and_bias("norm", names["norm"])
    if config.pool == "map":
        ours, theirs = "pooling", f"{prefix}head"
        rows.append(table.renamed(f"{ours}.probe", f"{theirs}.probe"))
        fused = (".in_proj_weight", ".in_proj_bias")  # PyTorch's own attention
        rows += table.weight_and_bias(f"{ours}.attention.qkv", f"{theirs}.attention", fused)
        rows += table.weight_and_bias(f"{ours}.attention.out", f"{theirs}.attention.out_proj")
        rows += table.weight_and_bias(f"{ours}.norm", f"{theirs}.layernorm")
        for part in ("fc1", "fc2"):
            rows += table.weight_and_bias(f"{ours}.mlp.{part}", f"{theirs}.mlp.{part}")
    if config.representation_size:
        rows += table.weight_and_bias("pre_logits", f"{prefix}pooler.dense")
    return rows + (layer("head", "head", names.get("head", "classifier")) if config.num_classes else [])
