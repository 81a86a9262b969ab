"""The preprocessing that a model's weights were made for."""

from vitkit.data.transforms import Preprocessing, read_preprocessing
from vitkit.models.image_model import ImageModel


def preprocessing_of(model: ImageModel) -> Preprocessing:
    """Return how images become the model's input; without a record, as the original evaluates: stretched."""
    return read_preprocessing(model.card.preprocessing, model.config.image_size, "model.json: preprocessing")
