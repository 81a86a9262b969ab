import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitkit
from tests.helpers.refusals import refused
from vitkit.analysis import inspect
from vitkit.models.parts import AttentionPool, Block, PatchStem
from vitkit.models.zoo import vit_config

TOKEN = vit_config("ViT-12x3x2/4x2", num_classes=3, image_size=(12, 8))  # a grid of 3 x 4
CONFIGS = [
    TOKEN,
    dataclasses.replace(TOKEN, pool="mean"),
    dataclasses.replace(TOKEN, pool="none"),
    dataclasses.replace(TOKEN, class_token_position=False),
]
ROLLED_OUT = [
    *CONFIGS,
    dataclasses.replace(TOKEN, register_tokens=3),
    dataclasses.replace(TOKEN, register_tokens=2, position_at="every_layer"),
    dataclasses.replace(TOKEN, qk_norm=True, norm="rms"),
    dataclasses.replace(TOKEN, pool="mean", register_tokens=3),
    dataclasses.replace(TOKEN, pool="token+mean", register_tokens=2),
    dataclasses.replace(TOKEN, pool="map"),
    dataclasses.replace(TOKEN, pool="map", register_tokens=3),
    dataclasses.replace(TOKEN, pool="none", register_tokens=3),
]
"""Also those whose head reads something else than one row or all rows of the product."""


def projections(model: vitkit.ViT) -> list[torch.nn.Linear]:
    return [block.attention.qkv for block in model.blocks if isinstance(block, Block)]


def lively(config: vitkit.ViTConfig) -> vitkit.ViT:
    """With weights large enough for attention that is far from even."""
    model = vitkit.ViT(config, generator=torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for qkv in projections(model):
            qkv.weight.mul_(3)
        if model.class_token is not None:
            model.class_token.normal_(generator=torch.Generator().manual_seed(1))
    return model


def even(config: vitkit.ViTConfig) -> vitkit.ViT:
    """Queries of zero: every token attends to all tokens alike."""
    model = lively(config)
    with torch.no_grad():
        for qkv in projections(model):
            qkv.weight[: config.width] = 0
    return model


def pictures(config: vitkit.ViTConfig, count: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (count, 3, *config.image_size), dtype=torch.uint8, generator=generator)


def attention(model: vitkit.ViT, images: torch.Tensor) -> list[NDArray[np.float32]]:
    taps: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        model(images, taps=taps, attention_weights=True)
    return [taps[f"block{i:02d}/attention_weights"].numpy() for i in range(model.config.depth)]


@pytest.mark.parametrize("config", CONFIGS)
def test_attention_distance_is_that_of_each_pair_of_patches(config: vitkit.ViTConfig) -> None:
    model, images = lively(config), pictures(config)
    rows, columns = config.grid
    places = [(4 * r + 2, 2 * c + 1) for r in range(rows) for c in range(columns)]
    away = np.array([[np.hypot(y - v, x - u) for v, u in places] for y, x in places])
    first = int(config.class_token)
    paid = np.stack(attention(model, images))[..., first:, first:]  # layer, image, head, query, key
    expected = ((paid * away).sum(-1) / paid.sum(-1)).mean((1, 3))
    for batch_size in (1, 2, 16):
        measured = inspect.attention_distance(model, images, batch_size)
        assert measured == pytest.approx(expected, rel=1e-5)
    assert np.ptp(expected) > 0.1  # the heads differ: the comparison means something


def read_by_the_head(model: vitkit.ViT, image: torch.Tensor) -> NDArray[np.float64]:
    """Give the weight of each token after the last layer in what the head sees."""
    config, prefix = model.config, model.config.prefix_tokens
    first, patches = np.eye(config.num_tokens)[0], np.arange(config.num_tokens) >= prefix
    of_patches = patches / patches.sum()
    shares: dict[str, NDArray[np.float64]] = {
        "token": first,
        "mean": of_patches,
        "token+mean": (first + of_patches) / 2,
        "none": np.full(config.num_tokens, 1 / config.num_tokens),
    }
    if config.pool in shares:
        return shares[config.pool]
    pool, width = model.pooling, config.width
    assert isinstance(pool, AttentionPool)
    with torch.no_grad():
        tokens = model.encode(model.embed(image[None]))[0]
        weight, bias = pool.attention.qkv.weight, pool.attention.qkv.bias
        query = weight[:width] @ pool.probe[0, 0] + bias[:width]
        keys = tokens @ weight[width : 2 * width].T + bias[width : 2 * width]
        logits = (query * keys).double().reshape(len(tokens), config.num_heads, -1).sum(2)
    powers = np.exp(logits.numpy() / config.head_dim**0.5)
    return np.asarray((powers / powers.sum(0)).mean(1))


@pytest.mark.parametrize("config", ROLLED_OUT)
def test_attention_rollout_is_the_product_of_the_layers(config: vitkit.ViTConfig) -> None:
    model, images = lively(config), pictures(config)
    if isinstance(model.pooling, AttentionPool):
        with torch.no_grad():  # or the query would look at all tokens nearly alike
            model.pooling.probe.mul_(4)
            model.pooling.attention.qkv.weight.mul_(4)
    layers = attention(model, images)
    for image, rollout in enumerate(inspect.attention_rollout(model, images)):
        joint = np.eye(config.num_tokens)
        for weights in layers:
            mixing = weights[image].mean(0) + np.eye(config.num_tokens)
            joint = mixing / mixing.sum(1, keepdims=True) @ joint
        output = (read_by_the_head(model, images[image]) @ joint)[config.prefix_tokens :]
        expected = (output / output.sum()).reshape(config.grid)
        assert rollout == pytest.approx(expected, rel=1e-4)
        assert rollout.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size", [(64, 96), (70, 96)])
def test_attention_distance_of_a_hybrid_is_in_pixels_of_the_image(size: tuple[int, int]) -> None:
    """Its tokens are 8 places of the feature map, which has a stride of 4, so 32 pixels apart."""
    config = vit_config("R+ViT-12x2x2/16", 2, size)
    model = vitkit.build_model(config, torch.Generator().manual_seed(0))
    assert isinstance(model, vitkit.ViT) and config.grid == (2, 3)
    centres = [(32 * row, 32 * column) for row in range(2) for column in range(3)]
    expected = np.mean([np.hypot(y - v, x - u) for y, x in centres for v, u in centres])
    assert inspect.even_attention_distance(model) == pytest.approx(expected, rel=1e-6)
    with torch.no_grad():
        for qkv in projections(model):
            qkv.weight[: config.width] = 0  # every token attends to all alike
    measured = inspect.attention_distance(model, pictures(config, 2))
    assert measured == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("config", CONFIGS)
def test_even_attention(config: vitkit.ViTConfig) -> None:
    model, images = even(config), pictures(config)
    distance = inspect.even_attention_distance(model)
    assert inspect.attention_distance(model, images) == pytest.approx(distance, rel=1e-5)
    # Every patch gives the output the same, whatever the depth.
    assert inspect.attention_rollout(model, images) == pytest.approx(1 / 12, rel=1e-5)


def test_even_distance_of_two_patches() -> None:
    model = vitkit.ViT(vit_config("ViT-4x1x1/4x6", 2, (4, 12)))
    assert inspect.even_attention_distance(model) == pytest.approx(3)  # 0 and 6 pixels away


def test_model_and_its_mode_are_left_alone() -> None:
    model = vitkit.ViT(dataclasses.replace(TOKEN, dropout=0.5, attention_dropout=0.5)).train()
    images = pictures(TOKEN)
    assert (inspect.attention_rollout(model, images) == inspect.attention_rollout(model, images)).all()
    assert model.training and all(weight.requires_grad for weight in model.parameters())


def test_filters_find_planted_components() -> None:
    model = vitkit.ViT(vit_config("ViT-40x1x1/4", 2, 8))
    assert isinstance(model.stem, PatchStem)
    generator = torch.Generator().manual_seed(0)
    planted = torch.linalg.qr(torch.randn(48, 2, generator=generator))[0].T  # orthonormal rows
    strengths = torch.randn(40, 2, generator=generator) * torch.tensor([5.0, 1.0])
    with torch.no_grad():
        model.stem.weight.copy_((strengths @ planted + 3).reshape(40, 3, 4, 4))
    components, shares = inspect.patch_filters(model, 4)
    assert components.shape == (4, 4, 4, 3) and components.min() >= 0 and components.max() <= 1
    assert shares[0] > 0.9 and shares[:2].sum() == pytest.approx(1, abs=1e-5)
    strongest = (components[0] - 0.5).transpose(2, 0, 1).ravel()
    cosine = float(strongest @ planted[0].numpy() / np.linalg.norm(strongest))
    assert abs(cosine) > 0.99
    assert components[0].max() == pytest.approx(1)  # its largest value is positive


@pytest.mark.parametrize(
    ("name", "count"), [("ViT-64x1x1/8", 28), ("ViT-16x1x1/8", 15), ("ViT-64x1x1/2", 12)]
)
def test_no_more_filters_than_there_are(name: str, count: int) -> None:
    components, shares = inspect.patch_filters(vitkit.ViT(vit_config(name, 2, 8)))
    assert len(components) == len(shares) == count
    assert (np.diff(shares) <= 0).all() and 0 < shares.sum() <= 1 + 1e-6


def test_filters_of_grey_models_and_of_equal_filters() -> None:
    grey = dataclasses.replace(TOKEN, in_channels=1, image_mean=(0.5,), image_std=(0.5,))
    components, _ = inspect.patch_filters(vitkit.ViT(grey))
    assert components.shape[1:] == (4, 2, 3) and (components[..., 0] == components[..., 2]).all()
    model = vitkit.ViT(TOKEN)
    torch.nn.init.zeros_(model.stem.weight)  # type: ignore[arg-type]
    assert np.isfinite(inspect.patch_filters(model)[1]).all()


def test_filters_of_a_resnet_and_of_a_hybrid_are_those_that_see_pixels() -> None:
    resnet = vitkit.ResNet(vitkit.ResNetConfig((32, 32), (1,), 2, width_factor=0.5))
    hybrid = vitkit.build_model(vit_config("R+ViT-16x1x1/16", 2, 32))
    for model in (resnet, hybrid):
        components, _ = inspect.patch_filters(model)
        assert components.shape == (28, 7, 7, 3)


def test_filters_refuse_what_they_do_not_know() -> None:
    refused("No filters that see pixels", inspect.patch_filters, vitkit.ViT(TOKEN, stem=_Conv()))
    four = dataclasses.replace(TOKEN, in_channels=4, image_mean=(0.5,) * 4, image_std=(0.5,) * 4)
    refused("found 4", inspect.patch_filters, vitkit.ViT(four))


class _Conv(torch.nn.Module):
    def init_weights(self, generator: torch.Generator | None) -> None:
        pass


@pytest.mark.parametrize("config", CONFIGS)
def test_position_similarity(config: vitkit.ViTConfig) -> None:
    model = vitkit.ViT(config)
    similarity = inspect.position_similarity(model)
    assert similarity is not None and similarity.shape == (3, 4, 3, 4)
    patches = model.get_parameter("positions.0.embedding").detach().numpy()[0, config.prefix_positions :]
    patches /= np.linalg.norm(patches, axis=1, keepdims=True)
    assert similarity.reshape(12, 12) == pytest.approx(patches @ patches.T, abs=1e-5)


def test_what_has_no_positions_or_no_full_attention() -> None:
    columns = vitkit.ViT(dataclasses.replace(TOKEN, position="learned_2d"))
    relative = vitkit.ViT(dataclasses.replace(TOKEN, position="relative"))
    single = vitkit.ViT(vit_config("ViT-16x1x2/8", 2, 8))  # of one patch, which has nothing to show
    resnet = vitkit.ResNet(vitkit.ResNetConfig((32, 32), (1,), 2, width_factor=0.5))
    axial = vitkit.build_model(vit_config("Axial-ViT-16x1x2/4", 2, 8))
    for model, has_maps in ((columns, True), (axial, False), (resnet, False), (single, False)):
        assert inspect.has_attention_maps(model) == has_maps
    for model, has_positions in ((columns, True), (relative, False), (single, False), (resnet, False)):
        assert (inspect.position_similarity(model) is not None) == has_positions
