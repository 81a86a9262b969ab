"""`vitkit models`: what can be made, and how large it is."""

import difflib
import fnmatch
from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.table import Table

from vitkit.analysis.cost import forward_flops, parameters
from vitkit.cli import console
from vitkit.errors import VitkitError
from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.zoo import ModelConfig, list_models, model_config
from vitkit.text import format_count


def shape(config: ModelConfig) -> tuple[str, str, str, str]:
    """Layers, width, heads and tokens in words; a dash for what a model does not have.

    A ResNet's layers are the units of each stage; a hybrid has both.
    """
    if isinstance(config, ResNetConfig):
        heads = str(config.num_heads) if config.mixing == "axial" else "-"
        return "-".join(map(str, config.layers)), str(config.width), heads, "-"
    units = "-".join(map(str, config.backbone.layers)) + " + " if config.backbone else ""
    layers = f"{units.removeprefix(' + ')}{config.depth}"
    return layers, str(config.width), str(config.num_heads), str(config.num_tokens)


def matching(patterns: Sequence[str]) -> list[str]:
    """The names that any of the patterns matches, in order; all without a pattern.

    A pattern that no name matches is tried without regard to case, then, without wildcards, as a part of a
    name, then as a name of the grammar.

    Raises:
        VitkitError: a pattern that is none of these.
    """
    known = list_models()
    found = dict.fromkeys(known if not patterns else [])
    for pattern in patterns:
        found |= dict.fromkeys(_matching(pattern, known))
    return list(found)


def _matching(pattern: str, known: list[str]) -> list[str]:
    small = pattern.lower()
    names = fnmatch.filter(known, pattern) or [name for name in known if fnmatch.fnmatch(name.lower(), small)]
    if not names and not set(pattern) & set("*?["):
        names = [name for name in known if small in name.lower()] or _composed(pattern)
    if names:
        return names
    lowered = {name.lower(): name for name in known}
    near = [lowered[name] for name in difflib.get_close_matches(small, lowered)]
    hint = f"Near it: {', '.join(near)}." if near else "All are listed by vitkit models."
    raise VitkitError(f"No name matches '{pattern}'. {hint}")


def _composed(name: str) -> list[str]:
    try:
        model_config(name)
    except VitkitError as error:
        if str(error).startswith("No model is named"):
            return []
        raise  # a name whose numbers do not fit
    return [name]


def main(arguments: list[str]) -> None:
    def command(
        patterns: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
        image_size: int = 224,
        num_classes: int = 1000,
    ) -> None:
        """List models with their sizes. Other patches, sizes and options can be named too: ViT-96x6x3/4-gap.

        Args:
            patterns: of names, 'ViT-B*' say, or parts of names; left out, all models.
            image_size: pixels a side.
            num_classes: of the head.
        """
        names = matching(patterns)
        table = Table(
            "model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image", box=None
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for name in names:
            config = model_config(name, num_classes, image_size)
            flops = format_count(forward_flops(config, head=True))
            table.add_row(name, *shape(config), f"{parameters(config):,}", flops)
        console.out.print(table)
        console.out.print(
            "\nNext: vitkit cost NAME, or vitkit train --model NAME --data PATH, or from Python "
            "vitkit.create_model(NAME)"
        )

    tyro.cli(command, args=arguments, prog="vitkit models")
