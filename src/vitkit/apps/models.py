"""`vitkit models`: what can be made, and how large it is."""

from typing import Annotated

import tyro
from rich.table import Table

from vitkit.analysis.cost import forward_flops, parameters
from vitkit.apps import console
from vitkit.errors import VitkitError
from vitkit.models.zoo import list_models, vit_config


def main(arguments: list[str]) -> None:
    def command(
        pattern: Annotated[str, tyro.conf.Positional] = "*", image_size: int = 224, num_classes: int = 1000
    ) -> None:
        """List models with their sizes. Other patches and sizes can be named too: ViT-96x6x3/4.

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
            config = vit_config(name, num_classes, image_size)
            table.add_row(
                name,
                *(str(value) for value in (config.depth, config.width, config.num_heads, config.num_tokens)),
                f"{parameters(config):,}",
                console.number(forward_flops(config, head=True)),
            )
        console.out.print(table)
        console.out.print(
            "\nNext: vitkit train --model NAME --data PATH, or from Python vitkit.create_model(NAME)"
        )

    tyro.cli(command, args=arguments, prog="vitkit models")
