"""`vitkit card`: what a checkpoint is and how it computes, without loading its weights."""

import json
import shlex
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.analysis.cost import forward_flops, parameters
from vitkit.apps import console
from vitkit.config import to_json
from vitkit.models.image_model import by
from vitkit.models.resnet import ResNetConfig
from vitkit.models.weights import Identity, identify
from vitkit.models.zoo import ModelConfig

CLASSES_SHOWN = 10


def described(identity: Identity) -> str:
    """One line: name, size, classes, dialect."""
    config = identity.config
    name = identity.card.name or ("ResNet" if isinstance(config, ResNetConfig) else "ViT")
    classes = f"{config.num_classes:,} classes" if config.num_classes else "no head"
    return (
        f"{name} at {by(config.image_size)}, {classes}, {console.number(parameters(config))} parameters "
        f"({identity.dialect} layout)"
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
        form = "tanh form, the original's" if config.gelu == "tanh" else "exact"
        lines += [f"GELU: {form}", f"LayerNorm epsilon {config.norm_eps:g}"]
        if config.backbone is not None:
            eps = f"{config.backbone.standardization_eps:g}"
            rule = f"std + {eps}" if config.backbone.standardization == "std" else f"sqrt(var + {eps})"
            lines += [
                f"GroupNorm epsilon {config.backbone.norm_eps:g}",
                f"kernels standardised as w / ({rule})",
            ]
    lines.append(f"pixels: mean {_values(config.image_mean)}, std {_values(config.image_std)} (of [0, 1])")
    return lines


def _values(numbers: tuple[float, ...]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else ", ".join(f"{number:g}" for number in numbers)


def main(arguments: list[str]) -> None:
    def command(
        file: Annotated[str, tyro.conf.Positional],
        num_heads: int | None = None,
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
    ) -> None:
        """Say what a checkpoint is: architecture, arithmetic, preprocessing, class names, origin.

        Args:
            file: a run folder, a file or folder of any library, or an address (hf:..., https://...).
            num_heads: of the attention, where the file does not say it.
            json_output: print everything as JSON.
        """
        identity = identify(file, num_heads=num_heads)
        if json_output:
            console.out.print_json(json.dumps(_record(identity)))
            return
        config, card = identity.config, identity.card
        grid = Table.grid(padding=(0, 2))
        cost = (
            f"{parameters(config):,} parameters, {console.number(forward_flops(config, head=True), 'FLOPs')}"
        )
        names = card.class_names
        shown = ", ".join(names[:CLASSES_SHOWN]) + (", ..." if len(names) > CLASSES_SHOWN else "")
        rows: list[tuple[str, list[str]]] = [
            ("model", [described(identity), f"{cost} per image"]),
            ("architecture", [f"{key} {_plain(value)}" for key, value in _differences(config)]),
            ("arithmetic", arithmetic(config)),
            ("preprocessing", [f"{key} {_plain(value)}" for key, value in card.preprocessing.items()]),
            ("classes", [shown or f"{config.num_classes:,}, without names"]),
            ("origin", [f"{key} {_plain(value)}" for key, value in card.origin.items()]),
            ("left out", [f"{', '.join(keys)} ({reason})" for reason, keys in identity.left_out.items()]),
        ]
        for name, lines in rows:
            for line in lines:
                grid.add_row(f"[bold]{name}[/]", escape(line))
                name = ""
        console.out.print(grid)
        place = shlex.quote(file)
        console.out.print(
            f"\nNext: vitkit predict {place} IMAGE, vitkit inspect {place}, vitkit convert {place} OUT",
            markup=False,
        )

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
        (name, value)
        for name, value in to_json(config).items()
        if name in defaults and getattr(config, name) != defaults[name]
    ]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _record(identity: Identity) -> dict[str, Any]:
    return {
        "file": str(identity.file),
        "dialect": identity.dialect,
        "parameters": parameters(identity.config),
        "architecture": to_json(identity.config),
        **to_json(identity.card),
        "left_out": identity.left_out,
    }
