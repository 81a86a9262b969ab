"""`vitkit models`: what can be made, and how large it is."""

from typing import Annotated

import tyro
from rich.table import Table

from vitkit.analysis.cost import forward_flops, parameters
from vitkit.apps import console
from vitkit.errors import VitkitError
from vitkit.models.resnet import ResNetConfig
from vitkit.models.zoo import ModelConfig, list_models, model_config


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


def main(arguments: list[str]) -> None:
    def command(
        pattern: Annotated[str, tyro.conf.Positional] = "*", image_size: int = 224, num_classes: int = 1000
    ) -> None:
        """List models with their sizes. Other patches, sizes and options can be named too: ViT-96x6x3/4-gap.

        Args:
            pattern: of names, ViT-B* say.
            image_size: pixels a side.
            num_classes: of the head.
        """
        names = list_models(pattern)
        if not names:
            raise VitkitError(f"No name matches '{pattern}'. Known: {', '.join(list_models())}.")
        table = Table(
            "model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image", box=None
        )
        for column in table.columns[1:]:
            column.justify = "right"
        for name in names:
            config = model_config(name, num_classes, image_size)
            flops = console.number(forward_flops(config, head=True))
            table.add_row(name, *shape(config), f"{parameters(config):,}", flops)
        console.out.print(table)
        console.out.print(
            "\nNext: vitkit cost NAME, or vitkit train --model NAME --data PATH, or from Python "
            "vitkit.create_model(NAME)"
        )

    tyro.cli(command, args=arguments, prog="vitkit models")
