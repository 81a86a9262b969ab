"""The parts that ViT and BiT share in transformers' files: names, heads, labels and the card."""

from collections.abc import Mapping

from vitkit.errors import VitkitError
from vitkit.models.card import Card
from vitkit.models.zoo import ModelConfig
from vitkit.weights.assumptions import Assumption, assumed_resizing, assumed_statistics
from vitkit.weights.card import ModelCard, Task
from vitkit.weights.files.source import Source
from vitkit.weights.formats.huggingface.pixels import read_rule
from vitkit.weights.formats.huggingface.settings import SIGMOID, BitSettings, Processor, ViTSettings


def refuse(source: Source, features: Mapping[str, bool]) -> None:
    found = [words for words, there in features.items() if there]
    if found:
        raise VitkitError(f"{source.path} has what no model of ours has: {'; '.join(found)}.")


def prefix_of(source: Source, key: str) -> str:
    """Return the prefix of the trunk's names: "vit." under a classifier, nothing in a trunk alone."""
    found = [name for name in source.shapes if name.endswith(key)]
    if not found:
        raise VitkitError(
            f"{source.path}: its config.json says {source.config['model_type']}, but no {key} is there."
        )
    return found[0].removesuffix(key)


def outputs_of(source: Source, weight: str) -> int:
    """Return the number of outputs of a linear layer; 0 where there is none."""
    shape = source.shapes.get(weight, (0, 0))
    if len(shape) != 2:
        raise VitkitError(f"{source.path}: {weight} is no matrix, its shape is {shape}.")
    return shape[0]


def labels_of(card: Card, num_classes: int) -> tuple[str, ...]:
    """Class names, or what transformers writes where there are none."""
    return card.class_names or tuple(f"LABEL_{i}" for i in range(num_classes))


def problem_type(card: Card) -> str | None:
    return SIGMOID if card.loss == "sigmoid" else None


def make_card(
    source: Source,
    settings: ViTSettings | BitSettings,
    classes: int,
    processor: Processor,
    config: ModelConfig,
) -> ModelCard:
    labels = settings.id2label
    names: tuple[str, ...] = ()
    if classes and labels and any(name != f"LABEL_{i}" for i, name in labels.items()):
        if set(labels) != {str(i) for i in range(classes)}:
            raise VitkitError(
                f"{source.path}: id2label in config.json has {len(labels)} names for {classes} classes."
            )
        names = tuple(str(labels[str(i)]) for i in range(classes))
    task = Task(loss="sigmoid") if settings.problem_type == SIGMOID else None
    rule = read_rule(source, processor, config.image_size)
    assumed: list[Assumption] = []
    if processor.do_normalize and not {"image_mean", "image_std"} <= source.preprocessor.keys():
        whose = "the default of their image processor"
        assumed.append(assumed_statistics(config.image_mean, config.image_std, whose))
    if not source.preprocessor:
        assumed.append(assumed_resizing(rule, "as their ViTImageProcessor does"))
    return ModelCard(class_names=names, task=task, preprocessing=rule, assumed=tuple(assumed))
