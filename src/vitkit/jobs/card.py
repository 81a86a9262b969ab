"""`vitkit card`: what a checkpoint is and how it computes, without building its model."""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.analysis.cost import forward_flops, parameters
from vitkit.cli import console
from vitkit.cli.download import download
from vitkit.config import to_json
from vitkit.jobs.predict import NOT_SAID, SizeOption, said, without_predictions
from vitkit.models.image_config import format_size
from vitkit.models.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.text import format_count
from vitkit.weights import Identity, identify
from vitkit.weights.preprocessing import notable_fields

CLASSES_SHOWN = 10


def described(identity: Identity) -> str:
    """One line: name, size, classes, format."""
    config = identity.config
    name = identity.card.name or ("ResNet" if isinstance(config, ResNetConfig) else "ViT")
    classes = f"{config.num_classes:,} classes" if config.num_classes else "no head"
    return (
        f"{name} at {format_size(config.image_size)}, {classes}, "
        f"{format_count(parameters(config))} parameters ({identity.format} layout)"
    )


def arithmetic(config: ModelConfig) -> list[str]:
    """What two models with the same weights may still compute differently."""
    lines = []
    if isinstance(config, ResNetConfig):
        lines += [
            f"GroupNorm epsilon {config.norm_eps:g}",
            f"kernels standardised as w / sqrt(var + {config.standardization_eps:g})",
            f"root max-pooling padded with {config.max_pool_padding}",
        ]
    else:
        forms = {"tanh": "tanh form, the original's", "erf": "exact", "quick": "x * sigmoid(1.702 x), CLIP's"}
        form = forms[config.gelu]
        lines += [f"GELU: {form}", f"LayerNorm epsilon {config.norm_eps:g}"]
        if config.backbone is not None:
            eps = f"{config.backbone.standardization_eps:g}"
            rule = f"(std + {eps})" if config.backbone.standardization == "std" else f"sqrt(var + {eps})"
            lines += [
                f"GroupNorm epsilon {config.backbone.norm_eps:g}",
                f"kernels standardised as w / {rule}",
            ]
    lines.append(f"pixels: mean {_values(config.image_mean)}, std {_values(config.image_std)} (of [0, 1])")
    return lines


def _values(numbers: tuple[float, ...]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else ", ".join(f"{number:g}" for number in numbers)


def main(arguments: list[str]) -> None:
    def command(
        file: Annotated[str, tyro.conf.Positional],
        image_size: SizeOption = NOT_SAID,
        num_heads: int | None = None,
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
    ) -> None:
        """Say what a checkpoint is: architecture, arithmetic, preprocessing, class names, origin.

        Args:
            file: a run folder, a file or folder of any library, or an address (hf:..., https://...).
            image_size: height and width, where the file does not say it.
            num_heads: of the attention, where the file does not say it.
            json_output: print everything as JSON.
        """
        download(file)
        identity = identify(file, said(image_size), num_heads)
        if json_output:
            console.print_json(_record(identity))
            return
        config, card = identity.config, identity.card
        grid = Table.grid(padding=(0, 2))
        cost = f"{parameters(config):,} parameters, {format_count(forward_flops(config, head=True), 'FLOPs')}"
        names = card.class_names
        classes = f"{config.num_classes:,}, without names" if config.num_classes else "no head"
        shown = ", ".join(names[:CLASSES_SHOWN]) + (", ..." if len(names) > CLASSES_SHOWN else "")
        rows: list[tuple[str, list[str]]] = [
            ("model", [described(identity), f"{cost} per image"]),
            ("architecture", [f"{key} {_plain(value, key)}" for key, value in _differences(config)]),
            ("arithmetic", arithmetic(config)),
            ("preprocessing", _preprocessing(identity)),
            ("classes", [shown or classes]),
            ("origin", [f"{key} {_plain(value, key)}" for key, value in _origin(identity).items()]),
            ("left out", [f"{', '.join(keys)} ({reason})" for reason, keys in identity.left_out.items()]),
            ("notes", list(identity.notes)),
            ("weights", _weights(identity)),
        ]
        for name, lines in rows:
            for line in lines:
                grid.add_row(f"[bold]{name}[/]", escape(line))
                name = ""
        console.out.print(grid)
        place = shlex.quote(file)
        following = [f"vitkit inspect {place}", f"vitkit convert {place} OUT"]
        if not without_predictions(config):
            following = [f"vitkit predict {place} IMAGE", *following]
        console.out.print(f"\nNext: {', '.join(following)}", markup=False, soft_wrap=True)

    tyro.cli(command, args=arguments, prog="vitkit card")


def _differences(config: ModelConfig) -> list[tuple[str, Any]]:
    """The shapes: everything that is no arithmetic and not as it is in most models."""
    elsewhere = {"gelu", "norm_eps", "standardization_eps", "max_pool_padding", "image_mean", "image_std"}
    defaults = {
        name: field.default
        for name, field in type(config).__dataclass_fields__.items()
        if name not in elsewhere
    }
    return [
        (name, _backbone(config.backbone) if name == "backbone" and isinstance(config, ViTConfig) else value)
        for name, value in to_json(config).items()
        if name in defaults and getattr(config, name) != defaults[name]
    ]


def _backbone(backbone: BackboneConfig | None) -> str:
    if backbone is None or not backbone.layers:
        return "root block alone"
    width = "" if backbone.width_factor == 1 else f", {backbone.width_factor:g} times as wide"
    return f"layers {_plain(backbone.layers, 'layers')}{width}"


def _preprocessing(identity: Identity) -> list[str]:
    recorded = identity.card.preprocessing
    if recorded is None:
        return [f"not known: vitkit stretches images to {format_size(identity.config.image_size)}"]
    # A training run chose every field; of a file of another library, what is usual is left out.
    trained = identity.card.augmentation is not None
    fields = to_json(recorded) if trained else notable_fields(recorded)
    lines = [f"{key} {_plain(value, key)}" for key, value in fields.items()]
    return lines + [f"{one.what} not in the file: {one.taken}" for one in identity.card.assumed]


def _origin(identity: Identity) -> dict[str, Any]:
    """Where the weights come from, without the remarks that are among the notes."""
    shown = set(identity.notes)
    return {
        key: value
        for key, value in identity.card.history().items()
        if key != "notes" or not shown.issuperset(value if isinstance(value, list) else [value])
    }


def _weights(identity: Identity) -> list[str]:
    """The file of weights and the hash it was written with, by which other programs can know it."""
    if identity.checksum is None:
        return []
    return [f"{identity.checksum.bytes:,} bytes, when written of SHA-256", identity.checksum.sha256]


def _plain(value: Any, key: str = "") -> str:
    """A value of JSON as words."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part, name)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        join = "; " if any(isinstance(part, str | Mapping) for part in value) else ", "
        join = "x" if key.endswith("_size") else "-" if key == "layers" else join
        return join.join(_plain(part) for part in value) or "none"
    return str(value)


def _record(identity: Identity) -> dict[str, Any]:
    return {
        "file": str(identity.file),
        "dialect": identity.format,
        "parameters": parameters(identity.config),
        "architecture": to_json(identity.config),
        **to_json(identity.card),
        "origin": identity.card.history(),
        "left_out": identity.left_out,
        "notes": list(identity.notes),
        "weights": None if identity.checksum is None else to_json(identity.checksum),
    }
