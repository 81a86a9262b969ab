"""BiT ResNets of Hugging Face's transformers: read."""

from vitkit.errors import VitkitError
from vitkit.models.resnet_config import ResNetConfig
from vitkit.weights.files.source import Source
from vitkit.weights.formats.huggingface.common import (
    make_card,
    outputs_of,
    prefix_of,
    refuse,
)
from vitkit.weights.formats.huggingface.names import bit_rows
from vitkit.weights.formats.huggingface.pixels import read_pixels, size_of
from vitkit.weights.formats.huggingface.settings import (
    BIT_NORM_EPS,
    BIT_STANDARDIZATION_EPS,
    BitSettings,
    settings_of,
)
from vitkit.weights.formats.resnet_channels import absent_from_libraries, with_channels
from vitkit.weights.table import Hints, NotRecordedError, Translation


def read_bit(source: Source, hints: Hints) -> Translation:
    settings = settings_of(BitSettings, source, "config.json")
    prefix = prefix_of(source, "embedder.convolution.weight")
    stages = len(settings.depths)
    if settings.depths and (min(settings.depths) < 1 or sum(settings.depths) > len(source.shapes)):
        raise VitkitError(
            f"{source.path}: config.json gives depths {settings.depths}. Expected at least one unit in each "
            "stage, and in all not more than its arrays can hold."
        )
    refuse(
        source,
        {
            f"layers of the kind {settings.layer_type}": settings.layer_type != "preactivation",
            f"the activation {settings.hidden_act}": settings.hidden_act != "relu",
            f"padding {settings.global_padding}": settings.global_padding is not None,
            "dynamically padded max pooling (embedding_dynamic_padding)": settings.embedding_dynamic_padding,
            f"hidden_sizes {settings.hidden_sizes} for {stages} stages": len(settings.hidden_sizes) != stages,
            f"num_groups {settings.num_groups}, below 1": settings.num_groups < 1,
            f"an output_stride of {settings.output_stride}, which dilates": settings.output_stride
            < 2 ** (stages + 1),
            f"a width_factor of {settings.width_factor} (transformers builds only 1)": (
                settings.width_factor != 1
            ),
        },
    )
    if settings.drop_path_rate:
        source.notes.append(
            f"trained with drop_path_rate {settings.drop_path_rate}, which is not here; predictions have none"
        )
    processor, mean, std = read_pixels(source, settings.num_channels)
    size = size_of(source, processor, "crop_size" if processor.do_center_crop else "size") or hints.image_size
    if size is None:
        raise NotRecordedError(
            f"{source.path}: nothing here says the size of the images: give image_size=(height, width), "
            "224x224 usually, or put preprocessor_config.json beside the weights."
        )
    classes = outputs_of(source, "classifier.1.weight")
    config = ResNetConfig(
        image_size=size,
        layers=settings.depths,
        num_classes=classes,
        root_width=settings.embedding_size,
        stage_widths=settings.hidden_sizes,
        groups=settings.num_groups,
        in_channels=settings.num_channels,
        norm_eps=BIT_NORM_EPS,
        standardization_eps=BIT_STANDARDIZATION_EPS,
        max_pool_padding="zeros",
        image_mean=mean,
        image_std=std,
    )
    config = with_channels(config, settings.embedding_size, settings.hidden_sizes)
    refuse(source, dict.fromkeys(absent_from_libraries(config), True))
    card = make_card(source, settings, classes, processor, config)
    return Translation(config, bit_rows(config, prefix), card)
