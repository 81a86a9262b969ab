"""The section of a page on the images that a model refuses as none of its classes."""

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitkit.data.channels import to_rgb
from vitkit.evaluation.refusal import OthersRefused, RefusalRecord
from vitkit.result import Block, Caption, Cell, Photo, Photos, Section, Text, table_of
from vitkit.tasks.page import count_cell, decode, figures, fraction_cell, shrunk

if TYPE_CHECKING:
    from vitkit.data.sources import Samples

SHOWN = 12
"""Images of each kind of mistake that are shown."""
Accepted = tuple[str, str, NDArray[np.uint8]]
"""An image of something else that is not refused: its name, the guess, and its pixels `(H, W, C)`."""


def refusal_section(
    record: RefusalRecord | None,
    samples: "Samples | None",
    others: OthersRefused | None = None,
    accepted: Sequence[Accepted] = (),
) -> Section:
    """Make the section.

    Args:
        record: of the model's own images; None where it is not at hand.
        samples: the images of the record's split; None where they are not at hand.
        others: the images of something else that were measured; None without any.
        accepted: some of these that are not refused.
    """
    blocks: list[Block] = []
    if record is not None:
        blocks.append(Text(f"It refuses {record.sentence()}."))
    if others is not None:
        blocks.append(Text(f"It refuses **{others.sentence()}**."))
    elif record is not None and record.unseen:
        blocks.append(Text(f"It refuses **{record.unseen_sentence()}**."))
    else:
        blocks.append(
            "How many images of something else it refuses is not measured yet: vitkit evaluate RUN --others "
            "FOLDER measures it, with a folder of such images."
        )
    blocks.append(
        Caption(
            "An image is refused if it is stranger than nearly all of the model's own images, by the "
            "distance of its features from the class means and by the energy of its logits. Its own images "
            "are held out, or of a head in closed form each scored without itself; each half is judged by "
            "the other."
        )
    )
    if accepted:
        blocks += [
            Photos(lambda: [_photo(*image) for image in accepted]),
            Caption("Images of something else that are not refused, and the guess."),
        ]
    if record is not None and samples is not None and record.strangest:

        def load() -> Sequence[Photo]:
            readable = ((index, decode(samples, index)) for index in record.strangest if index < len(samples))
            shown = ((index, image) for index, image in readable if image is not None)
            names = list(record.images)
            return [
                _photo(samples.key(index), names[int(samples.labels[index])], image)
                for index, image in itertools.islice(shown, SHOWN)
            ]

        blocks += [Photos(load), Caption("The model's own images that are refused, the strangest first.")]
    if record is not None:
        columns: dict[str, Callable[[str], Cell]] = {
            "class": lambda name: name,
            "images": lambda name: count_cell(record.images[name]),
            "refused": lambda name: fraction_cell(record.refused.get(name, 0) / record.images[name]),
        }
        if record.unseen:
            columns["refused without the class"] = lambda name: fraction_cell(
                record.unseen[name] / record.unseen_images[name] if record.unseen_images.get(name) else None
            )
        names = [name for name, count in record.images.items() if count]
        blocks.append(table_of(names, columns, sortable=True))
    return Section("None of these", tuple(blocks), name="refusal", menu="Refusal")


def _photo(key: str, said: str, image: NDArray[np.uint8]) -> Photo:
    source = figures().image_data_uri(shrunk(to_rgb(image)))
    return Photo(source, f"An image: {said}.", key, said)
