"""The test sets that models of ImageNet are compared on, and how each is scored. It needs no numpy."""

from dataclasses import dataclass
from typing import Literal

ProtocolName = Literal[
    "imagenet", "imagenet-real", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch", "objectnet"
]
"""The names of the protocols."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """One test set: how its files lie, and among which classes a model chooses."""

    layout: Literal["class folders", "validation numbers", "objectnet"]
    """class folders: named by WordNet ids, or by the numbers 0 to 999; validation numbers: files named
    ILSVRC2012_val_00000001.JPEG in any folder, and real.json; objectnet: images/ and mappings/."""
    mark: str = ""
    """The letter that marks its classes in `imagenet_classes.txt`, the only ones that the model chooses from;
    empty: it chooses from all 1,000."""
    border: int = 0
    """Pixels at each side of every image that are cut off before anything else."""


PROTOCOLS: dict[ProtocolName, EvaluationProtocol] = {
    "imagenet": EvaluationProtocol("class folders"),
    # google-research/reassessed-imagenet, README.md: any of an image's labels is right; none: left out.
    "imagenet-real": EvaluationProtocol("validation numbers"),
    # modestyachts/ImageNetV2, issue 4: folders are class numbers, which must not be sorted as text.
    "imagenet-v2": EvaluationProtocol("class folders"),
    # hendrycks/natural-adv-examples and imagenet-r, eval.py: the logits of 200 classes.
    "imagenet-a": EvaluationProtocol("class folders", mark="a"),
    "imagenet-r": EvaluationProtocol("class folders", mark="r"),
    "imagenet-sketch": EvaluationProtocol("class folders"),
    # abarbu/objectnet-template-pytorch, objectnet_pytorch_dataloader.py: two pixels of red border. A model
    # chooses among all 1,000 classes; some papers let it choose among ObjectNet's 113 alone.
    "objectnet": EvaluationProtocol("objectnet", border=2),
}
