"""Folders of Hugging Face's transformers, read and written: ViT and BiT.

Parameters have the names that every release of transformers writes to files; the names that its modules have
had since release 5 are read too. Transformers' `from_pretrained` loads the written folders.

A DeiT without distillation is a ViT there; what they call deit has a distillation token and is refused.

`config.json` gives the arithmetic, the arrays give the shapes, `preprocessor_config.json` gives the pixels.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.models.config.card import Card
from vitkit.models.config.image_config import height_and_width
from vitkit.models.config.resnet_config import ResNetConfig
from vitkit.models.config.vit_config import Gelu, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.weights import table
from vitkit.weights.files.safetensors import write_folder
from vitkit.weights.files.source import Source, read_fields
from vitkit.weights.formats.bit import absent_from_libraries, with_channels
from vitkit.weights.formats.huggingface import settings as hf
from vitkit.weights.model_card import Assumption, ModelCard, Task, assumed_resizing, assumed_statistics

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


NAMES = {
    "layers": ("encoder.layer", "layers"),
    "query": ("attention.attention.query", "attention.q_proj"),
    "key": ("attention.attention.key", "attention.k_proj"),
    "value": ("attention.attention.value", "attention.v_proj"),
    "out": ("attention.output.dense", "attention.o_proj"),
    "fc1": ("intermediate.dense", "mlp.fc1"),
    "fc2": ("output.dense", "mlp.fc2"),
}
"""The names in an encoder layer that differ between files and the modules of release 5."""
FILES, MODULES = ({part: names[column] for part, names in NAMES.items()} for column in (0, 1))


IN_TIMM = ("dinov2", "dinov3_vit", "siglip", "clip")
"""Beginnings of the names of models whose weights are refused in this format and read in timm's."""


def recognises(source: Source) -> bool:
    """Recognise the format by the names of the arrays, or by a `config.json` of transformers beside them."""
    theirs = ("embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight")
    return any(key.endswith(theirs) for key in source.shapes) or (
        {"model_type", "transformers_version"} <= source.config.keys()
    )


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the model that `config.json` and the arrays describe.

    Raises:
        VitkitError: no `config.json`, a kind of model that is not ours, or a part of it that we do not have.
    """
    if not source.config:
        raise VitkitError(
            f"{source.path} has the names of Hugging Face, which do not say everything: put the config.json "
            "(and the preprocessor_config.json) that came with it beside it."
        )
    kind = source.config.get("model_type")
    if kind in ("vit", "deit"):
        return _read_vit(source, hints)
    if kind == "bit":
        return read_bit(source, hints)
    if kind == "vit-hybrid":
        raise VitkitError(
            f"{source.path}: hybrids of Hugging Face ('vit-hybrid') are not read: load the same weights "
            "from the original release's .npz, R50+ViT-B_16 say, or from timm's file."
        )
    in_timm = " timm's file of the same weights is read, if no MLP is gated (SwiGLU): give hf:timm/NAME."
    hint = in_timm if str(kind).startswith(IN_TIMM) else ""
    raise VitkitError(f"{source.path}: of Hugging Face's models, vit and bit are read, found {kind!r}.{hint}")


def _read_vit(source: Source, hints: table.Hints) -> table.Translation:
    settings = read_fields(hf.ViTSettings, source.config, str(source.path.with_name("config.json")))
    shapes = source.shapes
    prefix = prefix_of(source, "embeddings.cls_token")
    classes = table.first_axis(source, "classifier.weight", 2)
    pooler = f"{prefix}pooler.dense.weight"
    naming = MODULES if f"{prefix}layers.0.{MODULES['fc1']}.weight" in shapes else FILES
    stem = f"{prefix}embeddings.patch_embeddings.projection.weight"
    fc1 = f"{prefix}{naming['layers']}.0.{naming['fc1']}.weight"
    if missing := [key for key in (stem, fc1) if key not in shapes]:
        raise VitkitError(f"{source.path} holds no whole ViT: absent: {', '.join(missing)}.")
    table.check_axes(source, stem, 4)
    width, in_channels, patch_height, patch_width = shapes[stem]
    heads = table.require_heads(
        source, settings.num_attention_heads or hints.num_heads, width, ", nor does config.json"
    )
    head_dim = source.config.get("head_dim")
    refuse(
        source,
        {
            f"a distillation token ({prefix}embeddings.distillation_token)": (
                f"{prefix}embeddings.distillation_token" in source
            ),
            "queries, keys and values without bias (qkv_bias false)": not settings.qkv_bias,
            f"the activation {settings.hidden_act}": settings.hidden_act not in GELU,
            f"a pooler with the activation {settings.pooler_act}": (
                not classes and pooler in source and settings.pooler_act != "tanh"
            ),
            f"heads of {head_dim} values (head_dim)": head_dim not in (None, width // heads),
        },
    )
    processor, mean, std = hf.read_pixels(source, in_channels)
    config = ViTConfig(
        image_size=height_and_width(settings.image_size),
        patch_size=(patch_height, patch_width),
        width=width,
        depth=table.count_layers(source, re.escape(f"{prefix}{naming['layers']}.") + r"(\d+)\."),
        num_heads=heads,
        mlp_dim=table.first_axis(source, fc1, 2),
        num_classes=classes,
        in_channels=in_channels,
        representation_size=None if classes else table.first_axis(source, pooler, 2) or None,
        dropout=settings.hidden_dropout_prob,
        attention_dropout=settings.attention_probs_dropout_prob,
        gelu=GELU[settings.hidden_act],
        norm_eps=settings.layer_norm_eps,
        image_mean=mean,
        image_std=std,
    )
    card = make_card(source, settings, processor, config)
    masked = "of masked image modelling, which nothing here uses"
    ignored = {f"{prefix}embeddings.mask_token": f"the mask token {masked}"}
    ignored |= {f"decoder.0.{part}": f"the decoder {masked}" for part in ("weight", "bias")}
    if classes:
        unused = "a pooler beside a classifier, which does not look at it"
        ignored |= {f"{prefix}pooler.dense.{part}": unused for part in ("weight", "bias")}
    return table.Translation(config, vit_rows(config, prefix, naming), card, ignored)


def read_bit(source: Source, hints: table.Hints) -> table.Translation:
    settings = read_fields(hf.BitSettings, source.config, str(source.path.with_name("config.json")))
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
    if settings.drop_path_rate:
        source.notes.append(
            f"trained with drop_path_rate {settings.drop_path_rate}, which is not here; predictions have none"
        )
    processor, mean, std = hf.read_pixels(source, settings.num_channels)
    size = (
        hf.size_of(source, processor, "crop_size" if processor.do_center_crop else "size") or hints.image_size
    )
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
        norm_eps=hf.BIT_NORM_EPS,
        standardization_eps=hf.BIT_STANDARDIZATION_EPS,
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
    rows = bit_rows(config, prefix) if settings.model_type == "bit" else vit_rows(config, prefix, FILES)
    return write_folder(
        path,
        table.to_file_tensors(model.state_dict(), rows),
        {"config.json": to_json(settings), "preprocessor_config.json": hf.write_processor(model, notes)},
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
        ("a GroupNorm epsilon of", config.norm_eps, hf.BIT_NORM_EPS),
        ("a weight standardisation epsilon of", config.standardization_eps, hf.BIT_STANDARDIZATION_EPS),
        ("max-pooling padded with", config.max_pool_padding, "zeros"),
    )


def _settings(config: Any, card: Card) -> hf.ViTSettings | hf.BitSettings:
    """Write a configuration as transformers' `config.json`."""
    names = card.class_names or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    family = {"ViT": "ViT", "ResNet": "Bit"}[config.family]
    shared: dict[str, Any] = {
        "architectures": (f"{family}ForImageClassification" if config.num_classes else f"{family}Model",),
        "problem_type": hf.SIGMOID if card.loss == "sigmoid" else None,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "num_channels": config.in_channels,
    }
    if family == "Bit":
        return hf.BitSettings(
            **shared,
            output_stride=max(32, 2 ** (len(config.layers) + 1)),
            embedding_size=config.root_channels,
            hidden_sizes=config.stage_channels,
            num_groups=config.groups,
            depths=config.layers,
        )
    return hf.ViTSettings(
        **shared,
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        image_size=hf.compact_size(config.image_size),
        patch_size=hf.compact_size(config.patch_size),
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


def vit_rows(config: ViTConfig, prefix: str, naming: Mapping[str, str]) -> list[table.Row]:
    """List every parameter of a ViT with its name in Hugging Face transformers."""
    rows = [
        *table.weight_and_bias("stem", f"{prefix}embeddings.patch_embeddings.projection"),
        table.renamed("class_token", f"{prefix}embeddings.cls_token"),
        table.renamed("positions.0.embedding", f"{prefix}embeddings.position_embeddings"),
    ]
    parts = (naming["query"], naming["key"], naming["value"])
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"{prefix}{naming['layers']}.{i}"
        rows += table.weight_and_bias(f"{ours}.norm1", f"{theirs}.layernorm_before")
        for kind in ("weight", "bias"):
            rows.append(
                table.stacked(f"{ours}.attention.qkv.{kind}", (f"{theirs}.{part}.{kind}" for part in parts))
            )
        rows += table.weight_and_bias(f"{ours}.attention.out", f"{theirs}.{naming['out']}")
        rows += table.weight_and_bias(f"{ours}.norm2", f"{theirs}.layernorm_after")
        rows += table.weight_and_bias(f"{ours}.mlp.fc1", f"{theirs}.{naming['fc1']}")
        rows += table.weight_and_bias(f"{ours}.mlp.fc2", f"{theirs}.{naming['fc2']}")
    rows += table.weight_and_bias("norm", f"{prefix}layernorm")
    if config.representation_size:
        rows += table.weight_and_bias("pre_logits", f"{prefix}pooler.dense")
    if config.num_classes:
        rows += table.weight_and_bias("head", "classifier")
    return rows


def bit_rows(config: ResNetConfig, prefix: str) -> list[table.Row]:
    """List every parameter of a BiT ResNet with its name in Hugging Face transformers."""
    rows = [table.renamed("root.weight", f"{prefix}embedder.convolution.weight")]
    for s, units in enumerate(config.layers):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"{prefix}encoder.stages.{s}.layers.{u}"
            for number in (1, 2, 3):
                rows += table.weight_and_bias(f"{ours}.norm{number}", f"{theirs}.norm{number}")
                rows.append(table.renamed(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
            if u == 0:
                rows.append(table.renamed(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
    rows += table.weight_and_bias("norm", f"{prefix}norm")
    if config.num_classes:
        rows += table.weight_and_bias("head", "classifier.1")
    return rows


def refuse(source: Source, features: Mapping[str, bool]) -> None:
    if parts := [part for part, is_there in features.items() if is_there]:
        raise VitkitError(f"{source.path} has what no model of ours has: {'; '.join(parts)}.")


def prefix_of(source: Source, key: str) -> str:
    """Return the prefix of the trunk's names: "vit." under a classifier, nothing in a trunk alone."""
    names = [name for name in source.shapes if name.endswith(key)]
    if not names:
        raise VitkitError(
            f"{source.path}: its config.json says {source.config['model_type']}, but no {key} is there."
        )
    return names[0].removesuffix(key)


def make_card(
    source: Source, settings: hf.ViTSettings | hf.BitSettings, processor: hf.Processor, config: ModelConfig
) -> ModelCard:
    classes = config.num_classes
    labels = settings.id2label
    names: tuple[str, ...] = ()
    if classes and labels and any(name != f"LABEL_{i}" for i, name in labels.items()):
        if set(labels) != {str(i) for i in range(classes)}:
            raise VitkitError(
                f"{source.path}: id2label in config.json has {len(labels)} names for {classes} classes."
            )
        names = tuple(str(labels[str(i)]) for i in range(classes))
    task = Task(loss="sigmoid") if settings.problem_type == hf.SIGMOID else None
    rule = hf.read_rule(source, processor, config.image_size)
    assumed: list[Assumption] = []
    if processor.do_normalize and not {"image_mean", "image_std"} <= source.preprocessor.keys():
        custom = "the default of their image processor"
        assumed.append(assumed_statistics(config.image_mean, config.image_std, custom))
    if not source.preprocessor:
        assumed.append(assumed_resizing(rule, "as their ViTImageProcessor does"))
    return ModelCard(
        class_names=names,
        task=task,
        position_interpolation="huggingface",
        preprocessing=rule,
        assumed=tuple(assumed),
    )
