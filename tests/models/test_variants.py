"""The ablations' ViTs: positions of D.4, pooling, registers; each against the slow way to say the same."""

import dataclasses
import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.fixture_files import FOLDER, load_fixture
from tests.helpers.random_models import same_bits
from tests.helpers.refusals import refused
from tests.models.variants import VARIANTS
from tests.peers.fixed_weights import fixed_grid
from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.config import EVA02_ROTARY, INTERPOLATIONS, Interpolation, ViTConfig
from vitkit.models.image_model import autocast
from vitkit.models.parts import Block, GatedMLP, RelativeAttention
from vitkit.models.position import (
    LearnedPosition,
    LearnedPosition2D,
    SinCosPosition2D,
    offset_places,
    resize_grid,
    resize_line,
    resize_offsets,
    resize_position_embedding,
    sincos_2d,
)
from vitkit.models.vit import ViT
from vitkit.models.zoo import vit_config
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

SMALL = ViTConfig((12, 16), (4, 4), width=24, depth=2, num_heads=3, mlp_dim=48, num_classes=5)
IMAGES = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(1))


def variant(**changes: Any) -> ViT:
    """A small model in which every parameter is random, so that each of them matters."""
    torch.manual_seed(0)
    model = build_model(dataclasses.replace(SMALL, **changes))
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    out: Tensor = model(IMAGES)
    return out


each_variant = pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)


@each_variant
def test_every_variant_learns_saves_and_loads_in_any_size(
    changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = variant(**changes)
    F.cross_entropy(model.train()(IMAGES), torch.tensor([1, 4])).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    save_model(model.eval(), tmp_path)
    again = load_model(tmp_path)
    assert again.config == model.config and same_bits(again, model)
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-6)
    with caplog.at_level(logging.WARNING, "vitkit"):
        other = load_model(tmp_path, image_size=(24, 8))
    images = torch.randn(2, 3, 24, 8, generator=torch.Generator().manual_seed(3))
    assert other(images).shape == (2, 5)
    assert isinstance(other, ViT)
    if model.config.attention == "axial" or "relative" in model.config.position or model.config.rotary:
        refused("image_size", model.features, images, any_size=True)
    else:
        torch.testing.assert_close(model.features(images, any_size=True), other.features(images))
    placeless = changes.get("position") in ("none", "sincos_2d", "sincos_2d_mae")
    assert ("from a grid of 3x4 to 6x2" in caplog.text) != placeless


@each_variant
def test_every_variant_is_the_same_explicitly_in_parts_and_in_bfloat16(changes: dict[str, Any]) -> None:
    model = variant(**changes)
    exact = logits(model)
    taps: dict[str, Tensor] = {}
    is_axial = model.config.attention == "axial"
    with torch.no_grad():
        explicit = model(IMAGES, taps=taps, attention_weights=not is_axial)
        torch.testing.assert_close(explicit, exact, rtol=0, atol=2e-6)
        patches = model.patches(IMAGES)
        assert patches.shape == (2, 12, 24)
        assert torch.equal(model.place(patches), model.embed(IMAGES))
        maps = model.feature_maps(IMAGES, [0, -1])
        model(IMAGES, taps=taps)
    # Feature maps are the patch tokens after a block, row by row.
    for feature_map, tap in zip(
        maps, ("block00/columns/+mlp" if is_axial else "block00/+mlp", "encoded"), strict=True
    ):
        assert feature_map.shape == (2, 24, 3, 4)
        tokens = taps[tap][:, model.config.prefix_tokens :]
        for row in range(3):
            for column in range(4):
                assert torch.equal(feature_map[:, :, row, column], tokens[:, 4 * row + column])
    # bfloat16 is near float32: rounding to 8 bits moves logits by a few percent of their spread.
    with autocast(torch.device("cpu"), "bfloat16"):
        rough = model(IMAGES).float()
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.1 * float(exact.std()))
    rough.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_relative_attention_as_the_paper_words_it() -> None:
    """Query content times the embedding of the offset p_q - p_k, one pair of tokens at a time."""
    model = variant(position="relative")
    taps: dict[str, Tensor] = {}
    with torch.no_grad():
        model(IMAGES, taps=taps, attention_weights=True)
        block = model.blocks[0]
        assert isinstance(block, Block) and isinstance(block.attention, RelativeAttention)
        tokens = model.config.num_tokens
        qkv = block.attention.qkv(block.norm1(taps["embedded"])).reshape(2, tokens, 3, 3, 8)
        expected = torch.zeros(2, 3, tokens, tokens)
        for q in range(tokens):
            for k in range(tokens):
                query, key = qkv[:, q, 0], qkv[:, k, 1]  # (B, h, d)
                offset = block.attention.relative[q - k + tokens - 1]
                expected[:, :, q, k] = (query * (key + offset)).sum(-1) / 8**0.5
    torch.testing.assert_close(taps["block00/attention_weights"], expected.softmax(-1), rtol=0, atol=1e-6)


def test_2d_positions_are_column_and_row() -> None:
    module = variant(position="learned_2d").positions[0]
    assert isinstance(module, LearnedPosition2D)
    position = module()
    assert position.shape == (1, 13, 24)
    row, column = 2, 1
    there = position[0, 1 + row * 4 + column]
    assert torch.equal(there[:12], module.columns[column])
    assert torch.equal(there[12:], module.rows[row])


def test_positions_at_every_layer_are_added_before_each() -> None:
    model = variant(position_at="every_layer")
    assert model.class_token is not None
    with torch.no_grad():
        tokens = torch.cat([model.class_token.expand(2, -1, -1), model.stem(IMAGES)], dim=1)
        for position, block in zip(model.positions, model.blocks, strict=True):
            tokens = block(tokens + position())
        expected = model.head(model.norm(tokens)[:, 0])
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-6)


def test_shared_positions_are_the_same_at_every_layer() -> None:
    shared = variant(position_at="every_layer_shared")
    apart = variant(position_at="every_layer")
    state = shared.state_dict()
    state["positions.1.embedding"] = state["positions.0.embedding"]
    apart.load_state_dict(state)
    assert torch.equal(logits(apart), logits(shared))


def test_pooling_reads_patches_alone() -> None:
    encoded = torch.randn(2, 2 + 12, 24, generator=torch.Generator().manual_seed(2))
    encoded[:, :2] = 100.0  # registers
    patches = encoded[:, 2:]
    for pool, expected in (("mean", patches.mean(1)), ("max", patches.max(1).values)):
        assert torch.equal(variant(pool=pool, register_tokens=2).pool(encoded), expected)


def mae_positions(grid: tuple[int, int], width: int) -> np.ndarray:
    """Compute `get_2d_sincos_pos_embed` of MAE (`util/pos_embed.py`), written from its description: numpy's
    meshgrid of (columns, rows) makes the column the first half, though that code calls it h."""
    frequencies = 1 / 10_000 ** (np.arange(width // 4) / (width / 4))
    places = np.meshgrid(np.arange(grid[1]), np.arange(grid[0]))
    angles = [place.reshape(-1, 1) * frequencies for place in places]
    return np.concatenate([part for angle in angles for part in (np.sin(angle), np.cos(angle))], axis=1)


@pytest.mark.parametrize(("grid", "width"), [((14, 14), 768), ((14, 14), 512), ((3, 4), 8), ((5, 2), 16)])
def test_positions_of_mae_have_its_authors_frequencies(grid: tuple[int, int], width: int) -> None:
    """At the sizes of its ViT-B/16 and that decoder, and on rectangles, which tell the halves apart."""
    expected = mae_positions(grid, width)
    np.testing.assert_allclose(sincos_2d(grid, width, "sincos_2d_mae")[0], expected, rtol=0, atol=1e-6)
    config = dataclasses.replace(SMALL, width=width, num_heads=1, position="sincos_2d_mae")
    position = ViT(config).positions[0]
    assert isinstance(position, SinCosPosition2D)
    np.testing.assert_allclose(position.at(grid)[0], expected, rtol=0, atol=1e-6)
    assert np.abs(sincos_2d(grid, width, "sincos_2d")[0].numpy() - expected).max() > 0.01


@given(tokens=st.integers(2, 30), new=st.integers(2, 30))
@settings(max_examples=30, deadline=None)
def test_a_resized_table_of_offsets_keeps_centre_and_ends(tokens: int, new: int) -> None:
    table = torch.randn(2 * tokens - 1, 4)
    resized = resize_line(table, 2 * new - 1)
    rows = [0, new - 1, 2 * new - 2]
    torch.testing.assert_close(resized[rows], table[[0, tokens - 1, 2 * tokens - 2]])


IMPOSSIBLE = [
    ({"position": "relative", "position_at": "every_layer"}, "not added to tokens"),
    ({"attention": "axial"}, "no class or register token"),
    ({"attention": "axial", "pool": "mean", "position": "relative"}, "no relative position"),
    ({"position": "sincos_2d", "width": 18}, "divisible by 4"),
    ({"register_tokens": -1}, "register_tokens is from 0"),
    ({"num_heads": 5}, "5 heads"),
    ({"patch_size": (32, 32)}, "smaller patch"),
    ({"image_mean": (0.5,)}, "image_mean"),
    ({"attention": "axial", "pool": "mean", "drop_path": 0.1}, "leave out drop_path"),
    ({"mlp_norm": True}, "mlp_norm is a part of gated MLPs"),
    ({"pool": "token+mean", "norm_after_pooling": True}, "another pool than 'token\\+mean'"),
    ({"final_norm": False, "norm_after_pooling": True}, "needs final_norm"),
    ({"pool": "token+mean", "extra_class_token": True}, "has a class token already"),
    ({"pool_heads": 3}, "pool_heads are of attention pooling"),
    ({"pool": "map", "pool_heads": 5}, "share its width of 24 equally"),
    ({"position": "relative_bias", "rotary": EVA02_ROTARY}, "rotary or 'relative_bias' positions"),
    ({"stem_channels": (12, 16)}, "multiples of 8"),
    ({"stem_channels": (16,)}, "2 convolutions of stride 2"),
    ({"stem_channels": (16, 32), "stem_strides": (2,)}, "a 1 or a 2 for each of the 2 stem_channels"),
    ({"stem_channels": (16, 32), "stem_strides": (1, 2)}, "2 times a 2 for patches of 4"),
    ({"stem_strides": (2, 2)}, "give both or neither"),
    ({"stem_channels": (16, 32), "patch_size": (6, 6)}, "1, 2, 4, 8"),
]


@pytest.mark.parametrize(("changes", "message"), IMPOSSIBLE)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    refused(message, variant, **changes)


@pytest.mark.parametrize("name", ["R50+ViT-B/16", "Axial-ViT-B/16"])
def test_a_vit_refuses_a_configuration_whose_parts_it_was_not_given(name: str) -> None:
    refused("build_model", ViT, vit_config(name))


# ViT-5 against its authors' code: the same weights give the same logits


def draw_weights(model: ViT) -> None:
    """Draw every parameter by its name's place in the alphabet, scales of norms around 1."""
    generator = np.random.default_rng(5)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            numbers = 0.3 * generator.standard_normal(tuple(parameter.shape)) + ("norm" in name)
            parameter.copy_(torch.from_numpy(numbers))


AUTHORS_LOGITS = (
    (-0.067629001, 0.092161173, -0.511435404, -1.209028742, 1.309984151),
    (-0.264429627, 0.625218444, 0.851272658, -1.732304675, 1.738415689),
)
"""Of `vit_models(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5, flash=False,
norm_layer=partial(RMSNorm, eps=1e-6), qkv_bias=False, num_registers=4, rope=True, reg_theta=100,
qk_norm=True)` in float64 but for its norms, for the weights and images of this file: `models_vit5.py` of
github.com/wangf3014/ViT-5 at b7b0796."""


def test_the_logits_are_those_of_the_authors_code() -> None:
    model = create_model("ViT-5-24x2x3/4", num_classes=5, image_size=16).double().eval()
    assert isinstance(model, ViT)
    draw_weights(model)
    images = torch.from_numpy(np.random.default_rng(6).standard_normal((2, 3, 16, 16)))
    with torch.no_grad():
        torch.testing.assert_close(model(images), torch.tensor(AUTHORS_LOGITS).double(), rtol=0, atol=1e-6)


# Resizing of position embeddings against the original's table


def test_every_row_of_the_original_table() -> None:
    _, _, arrays = load_fixture("e_posembed_table")
    names = [key.removeprefix("old_") for key in arrays if key.startswith("old_")]
    assert len(names) == 10
    for name in names:
        side, new, prefix = map(int, name.split("_"))
        old = torch.from_numpy(arrays[f"old_{name}"])
        resized = resize_position_embedding(old, (new, new), prefix_tokens=prefix, old_grid=(side, side))
        np.testing.assert_allclose(resized.numpy(), arrays[f"new_{name}"], rtol=0, atol=1e-6, err_msg=name)


def test_every_rule_makes_the_grids_of_its_libraries() -> None:
    """The arrays are the libraries' own; their float32 coordinates are off by some 3e-6 of these numbers."""
    with np.load(FOLDER / "p_positions.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    rules = set()
    for name, expected in arrays.items():
        rule = cast("Interpolation", name.partition("/")[0])
        resized = resize_grid(fixed_grid(), expected.shape[:2], rule)
        np.testing.assert_allclose(resized.numpy(), expected, rtol=0, atol=5e-6, err_msg=name)
        rules |= {rule}
    assert rules == INTERPOLATIONS.keys() - {"original"}
    assert {name.rpartition("/")[2] for name in arrays} == {"12x12", "5x5", "7x7", "5x11"}


@settings(max_examples=50, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 4), st.integers(0, 2))
def test_corners_stay_and_so_does_the_prefix(shape: tuple[int, int, int, int], prefix: int) -> None:
    rows, columns, new_rows, new_columns = shape
    old = torch.randn(1, prefix + rows * columns, 3)
    new = resize_position_embedding(
        old, (new_rows, new_columns), prefix_tokens=prefix, old_grid=(rows, columns)
    )
    assert new.shape == (1, prefix + new_rows * new_columns, 3)
    assert torch.equal(new[:, :prefix], old[:, :prefix])
    old_grid = old[0, prefix:].reshape(rows, columns, 3)
    new_grid = new[0, prefix:].reshape(new_rows, new_columns, 3)
    torch.testing.assert_close(new_grid[0, 0], old_grid[0, 0])
    if new_rows > 1 and new_columns > 1:
        torch.testing.assert_close(new_grid[-1, -1], old_grid[-1, -1])


@pytest.mark.parametrize(("old", "new"), [(28, 14), (16, 30), (32, 16), (24, 42)])
def test_the_last_row_and_column_stay_where_scipy_would_lose_them(old: int, new: int) -> None:
    grid = torch.randn(old, old, 2, generator=torch.Generator().manual_seed(0))
    resized = resize_grid(grid, (new, new))
    torch.testing.assert_close(resized[-1, -1], grid[-1, -1])
    assert resized[-1].abs().min() > 0 and resized[:, -1].abs().min() > 0


def test_positions_are_drawn_with_a_deviation_of_a_fiftieth() -> None:
    generator = torch.Generator().manual_seed(0)
    learned = LearnedPosition((30, 40), 64, 2), LearnedPosition2D((30, 40), 64, 20)
    for position in learned:
        position.init_weights(generator)
        for name, parameter in position.named_parameters():
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
            assert abs(parameter.mean().item()) < 0.002, name


def test_a_gated_mlp_lets_values_through_its_gates() -> None:
    mlp = GatedMLP(6, 10, norm="layer", norm_eps=0.1).double()
    mlp.init_weights(torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gates, values = (
        x @ mlp.fc1.weight[:10].T + mlp.fc1.bias[:10],
        x @ mlp.fc1.weight[10:].T + mlp.fc1.bias[10:],
    )
    hidden = gates * torch.sigmoid(gates) * values
    hidden = (hidden - hidden.mean(-1, keepdim=True)) / (
        hidden.var(-1, correction=0, keepdim=True) + 0.1
    ).sqrt()
    torch.testing.assert_close(mlp(x), hidden @ mlp.fc2.weight.T + mlp.fc2.bias)


def test_biases_of_offsets_are_those_of_each_pair_of_patches() -> None:
    """By loops: offsets are counted row by row, and three more are for the tokens before the patches."""
    rows, columns, prefix = 2, 3, 2
    places = offset_places((rows, columns), prefix)
    offsets = (2 * rows - 1) * (2 * columns - 1)
    patches = [(row, column) for row in range(rows) for column in range(columns)]
    tokens = [*[None] * prefix, *patches]
    for i, query in enumerate(tokens):
        for j, key in enumerate(tokens):
            if query is None or key is None:
                expected = offsets + (2 if query is key else 0 if query is None else 1)
            else:
                down, right = query[0] - key[0] + rows - 1, query[1] - key[1] + columns - 1
                expected = down * (2 * columns - 1) + right
            assert places[i, j] == expected, (i, j)


@pytest.mark.parametrize("rule", ["timm", "huggingface"])
def test_biases_of_offsets_keep_centre_ends_and_what_follows_them(rule: Interpolation) -> None:
    table = torch.randn(5 * 7 + 3, 2)
    fitted = resize_offsets(table, (3, 4), (6, 9), 3, rule)
    assert fitted.shape == (11 * 17 + 3, 2) and torch.equal(fitted[-3:], table[-3:])
    old, new = table[:-3].reshape(5, 7, 2), fitted[:-3].reshape(11, 17, 2)
    torch.testing.assert_close(new[5, 8], old[2, 3])
    torch.testing.assert_close(new[0, 0], old[0, 0], rtol=0, atol=1e-4)  # timm's series ends within 1e-6
    assert torch.equal(resize_offsets(table, (3, 4), (3, 4), 3, rule), table)
