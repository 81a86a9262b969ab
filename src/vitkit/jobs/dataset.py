"""`vitkit.ImageDataset`: images as vitkit lists, splits and decodes them, for a training loop of one's
own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data import sources, transforms
from vitkit.data.config import DEFAULT_SPLITS, Preprocessing, Splits
from vitkit.errors import DecodeError, VitkitError
from vitkit.models.config import Size, height_and_width
from vitkit.models.image_model import ImageModel
from vitkit.weights.model_card import preprocessing_of

USUAL = 224
"""Height and width in pixels where neither a model nor a size is given."""


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """One split of any data that `vitkit train` takes, as a data set of PyTorch.

    >>> train = vitkit.ImageDataset("photos/", "train", model=model)
    >>> image, label = train[0]  # (C, H, W) uint8, and a number: the model normalises uint8 itself

    The splits are the default ones of `vitkit train`. Images are augmented by `transform` alone.

    Args:
        data: digits (built in), a folder of class folders or a .zip or .tar of one, a .csv or .parquet
            files.
        split: train, val or test.
        model: the model for the images, whose preprocessing they get.
        size: height and width in pixels, one number or `(height, width)`; left out, the model's, else 224.
        splits: the rule for splits that the data lacks.
        transform: a function of an image `(C, H, W)` of uint8, which returns the image to use.

    Attributes:
        class_names: the names of the classes by their numbers.

    Raises:
        VitkitError: there is no such data, or no such split.
    """

    def __init__(
        self,
        data: str,
        split: str = "train",
        *,
        model: ImageModel | None = None,
        size: Size | None = None,
        splits: Splits = DEFAULT_SPLITS,
        transform: Callable[[Tensor], Any] | None = None,
    ) -> None:
        usual = Preprocessing((USUAL, USUAL)) if model is None else preprocessing_of(model)
        pixels = height_and_width(size)
        self.preprocessing = usual if pixels is None else replace(usual, image_size=pixels)
        opened = sources.open_data(str(data), splits, self.preprocessing.decode)
        if split not in opened.splits:
            raise VitkitError(
                f"{data} has no split {split!r}, only {', '.join(opened.splits)}: give one of them, or other "
                "fractions (splits=)."
            )
        self.samples = opened.splits[split]
        self.class_names = opened.class_names
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        """Decode an image, and return it with its label.

        Raises:
            IndexError: there are fewer images.
            DecodeError: the file cannot be read; the message names it.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        number = index % len(self)
        try:
            pixels = transforms.preprocess(self.samples.decode(number), self.preprocessing)
        except DecodeError as error:
            raise DecodeError(f"{self.samples.key(number)}: {error}") from error
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        label = torch.as_tensor(self.samples.labels[number])
        return (image if self.transform is None else self.transform(image)), label
