"""The front door of models: names of this library and of timm, with new weights or published ones."""

from pathlib import Path

import torch

from vitkit.errors import VitkitError
from vitkit.models import build, zoo
from vitkit.models.image_model import ImageModel
from vitkit.text import without_places
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.formats.timm.architectures import TimmName, parse_timm_name, timm_config
from vitkit.weights.loading import load
from vitkit.weights.model_card import log_notes
from vitkit.weights.published import find_start_named, starts

CLASSES, SIDE = 1000, 224
"""Classes and pixels of a model where the caller gives none: ImageNet's, as in timm."""


def create_model(
    name: str,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    pretrained: bool = False,
    in_chans: int | None = None,
    generator: torch.Generator | None = None,
) -> ImageModel:
    """Create a model, with new weights or with published ones.

    `create_model("vit_base_patch16_224", pretrained=True, num_classes=10)` gives the model of timm's name:
    with its exact GELU, its epsilons and the weights that timm has for it. `create_model("ViT-B/16")` is the
    paper's, with the numerics of its authors' code.

    Args:
        name: of the zoo's grammar, such as `ViT-B/16`, `R50+ViT-B/16` or `BiT-R50x1`; or of timm, with a tag
            or without; or, with `pretrained`, of `vitkit.starts`, or an address such as hf:org/name.
        num_classes: K, the number of logits; left out, 1000, or the published weights' own. Another number
            than theirs replaces their head by a new one of zeros (paper 3.1).
        image_size: pixels, one number or `(height, width)`; left out, that of the name, else 224. Positions
            of published weights are resized (paper 3.2).
        pretrained: whether the weights are published ones. They are fetched where they are not on this
            machine yet: nothing is fetched without it.
        in_chans: channels of the images; left out, 3, or the weights' own. The filters of published weights
            are summed for one channel, and repeated and scaled for others, as timm does it.
        generator: source of new weights; left out, PyTorch's default one.

    Returns:
        The model: with new weights in training mode, with published ones in evaluation mode.

    Raises:
        VitkitError: no model of this name, or no published weights of it; or they cannot be fetched, where
            the message says what to fetch elsewhere and where to put it.

    For another activation or dropout, change the configuration and build from that:
    `vitkit.build_model(dataclasses.replace(vitkit.model_config("ViT-B/16"), gelu="erf"))`.
    """
    timm_name = parse_timm_name(name)
    if pretrained:
        path = _published(name, timm_name)
        options = LoadOptions(num_classes, image_size, channels=in_chans)
        loaded = load(path, options)
        log_notes(path, loaded.notes, loaded.identity.left_out)
        return loaded.model
    classes = CLASSES if num_classes is None else num_classes
    if timm_name is None:
        config = zoo.model_config(name, classes, SIDE if image_size is None else image_size)
    else:
        config = timm_config(timm_name, classes, timm_name.side if image_size is None else image_size)
    if in_chans is not None:
        config = zoo.with_channels(config, in_chans)
    return build.build_model(config, generator)


def _published(name: str, timm_name: TimmName | None) -> str:
    """Find where the weights of a name are published.

    Returns:
        A name of `vitkit.starts`, or an address.

    Raises:
        VitkitError: there are none, or several.
    """
    if find_start_named(name) is not None:
        return name
    address = name if name.startswith("hf:") else f"hf:{name}" if timm_name is None else timm_name.address
    listed = next((start for start in starts() if address in start.addresses), None)
    if listed is not None and not Path(listed.name).exists():  # a file here of that name would go first
        return listed.name
    if timm_name is not None and not timm_name.tag:
        raise VitkitError(f"timm has no weights of {name}: leave pretrained out, or choose another model.")
    if timm_name is not None or name.startswith("hf:"):
        return address
    name = zoo.zoo_name(name)
    if published := [start.name for start in starts() if start.model == name]:
        raise VitkitError(
            f"{name} is an architecture, and its published weights have names of their own: "
            f"{', '.join(published)}."
        )
    if Path(name).exists():
        raise VitkitError(f"{without_places(name)} is on this machine: load it with vitkit.load_model.")
    zoo.model_config(name)  # an unknown name has an error of its own
    raise VitkitError(
        f"No weights of {name} are published where vitkit looks for them. Give the name of one of "
        "vitkit.starts(), of timm, or an address (hf:org/name); or leave pretrained out, for new weights."
    )
