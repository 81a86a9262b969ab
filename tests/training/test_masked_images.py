"""Objectives of hidden patches: targets, masks and losses by hand; faults known of other libraries."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.helpers.refusals import refused
from vitkit.data.stream.loader import Batch
from vitkit.models.build import build_model
from vitkit.models.config import PositionKind, ViTConfig
from vitkit.models.image_model import BatchRows
from vitkit.models.parts import PatchStem
from vitkit.models.position import sincos_2d
from vitkit.models.vit import ViT
from vitkit.training.config import MAEConfig, MaskedImagesConfig, MaskedPatchesConfig, SimMIMConfig
from vitkit.training.objectives import (
    MAE,
    OBJECTIVE_OF,
    AbsoluteBaseline,
    Baseline,
    MaskedImages,
    MaskedPatches,
    SquaredBaseline,
    class_colours,
    colour_classes,
    pixel_values,
    take_patches,
)

CONFIG = ViTConfig((16, 24), (4, 4), width=16, depth=2, num_heads=2, mlp_dim=32, num_classes=0)
SMALL_MAE = MAEConfig(decoder_width=16, decoder_depth=1, decoder_heads=2)
OBJECTIVES = (
    MaskedPatchesConfig(),
    MaskedPatchesConfig("4x4-colours"),
    MaskedPatchesConfig("pixels"),
    SimMIMConfig(),
    SMALL_MAE,
)


def parts(
    config: MaskedImagesConfig, model_config: ViTConfig = CONFIG, seed: int = 0
) -> tuple[ViT, MaskedImages]:
    """Build a model and an objective whose head is not zero, so that its predictions differ."""
    torch.manual_seed(seed)
    model = build_model(model_config)
    assert isinstance(model, ViT)
    objective = OBJECTIVE_OF[type(config)](config, model_config)
    nn.init.normal_(objective.head.weight, std=0.1)
    return model, objective


def images(count: int = 3, config: ViTConfig = CONFIG) -> Tensor:
    """Draw images whose patches have colours of their own, and noise."""
    generator = torch.Generator().manual_seed(1)
    colours = torch.randint(0, 256, (count, config.in_channels, *config.grid), generator=generator)
    colours = colours.repeat_interleave(4, 2).repeat_interleave(4, 3)
    noise = torch.randint(-40, 41, colours.shape, generator=generator)
    return (colours + noise).clamp(0, 255).to(torch.uint8)


def batch_of(pixels: Tensor, mask: list[bool] | None = None) -> Batch:
    readable = torch.ones(len(pixels), dtype=torch.bool) if mask is None else torch.tensor(mask)
    return Batch(pixels, {}, readable, torch.arange(len(pixels)))


def loss(model: ViT, objective: MaskedImages, batch: Batch, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    value, _ = objective.forward(model, batch, 0, 1)
    return value


# Targets.


def test_mean_colours_are_three_bits_a_channel_the_first_channel_highest() -> None:
    patch = torch.zeros(1, 2, 3, 4, 4, dtype=torch.uint8)
    patch[0, 0, 0], patch[0, 0, 1], patch[0, 0, 2] = 255, 64, 31
    patch[0, 1, 0] = torch.tensor([31, 33, 31, 33]).repeat(4, 1)  # a mean of exactly 32 is of the upper class
    assert colour_classes(patch, 1).tolist() == [[[7 * 64 + 2 * 8 + 0], [1 * 64]]]
    patch[0, 1, 0, 0, 0] = 30  # now it is below
    assert colour_classes(patch, 1)[0, 1].tolist() == [0]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 17), st.integers(1, 17), st.integers(0, 2**32 - 1))
def test_parts_of_patches_are_averaged_by_area_whatever_the_size(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width))
    classes = colour_classes(torch.from_numpy(pixels.astype(np.uint8))[None, None, None], 4)

    def overlap(part: int, pixel: int, side: int) -> Fraction:
        low, high = Fraction(part * side, 4), Fraction((part + 1) * side, 4)
        return max(Fraction(0), min(high, Fraction(pixel + 1)) - max(low, Fraction(pixel)))

    for row in range(4):
        for column in range(4):
            total = sum(
                overlap(row, i, height) * overlap(column, j, width) * int(pixels[i, j])
                for i in range(height)
                for j in range(width)
            )
            mean = total / (Fraction(height, 4) * Fraction(width, 4))
            assert classes[0, 0, 4 * row + column] == min(int(mean / 32), 7)


def test_the_colour_of_a_class_is_the_middle_of_its_values() -> None:
    classes = torch.arange(512)
    colours = class_colours(classes, 3)
    assert colours.min() == 16 and colours.max() == 240
    again = colour_classes(colours.to(torch.uint8)[None, :, :, None, None], 1)
    assert torch.equal(again.flatten(), classes)


@pytest.mark.parametrize("config", OBJECTIVES)
def test_labels_are_those_of_the_pixels_also_where_images_are_normalised(config: MaskedImagesConfig) -> None:
    """In one port all labels of images in [-1, 1] are alike, and the loss falls to 0."""
    model, objective = parts(
        config, replace(CONFIG, image_mean=(0.48, 0.46, 0.41), image_std=(0.27, 0.26, 0.28))
    )
    torch.manual_seed(3)
    raw = objective.predict(model, images())
    torch.manual_seed(3)
    normalised = objective.predict(model, model.normalize(images()))
    assert torch.equal(raw.targets, normalised.targets)
    assert len(set(raw.targets.flatten().tolist())) > 20


def test_mixed_images_and_strange_floats_are_refused() -> None:
    model, objective = parts(MaskedPatchesConfig())
    pixels = model.normalize(images())
    assert torch.equal(pixel_values(model, pixels), images())
    for wrong in (0.7 * pixels + 0.3 * pixels.roll(1, 0), pixels * 3, pixels * math.nan):
        refused("mixed images", objective, model, batch_of(wrong), 0, 1)


def test_pixels_are_predicted_as_the_model_normalises_them() -> None:
    model, objective = parts(MaskedPatchesConfig("pixels"))
    hidden = objective.predict(model, images(1))
    patch = int(hidden.index[0, 0])
    row, column = divmod(patch, 6)
    right = model.normalize(images(1))[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
    torch.testing.assert_close(hidden.targets[0, 0], right.flatten())


def test_mae_divides_each_patch_by_its_own_deviation() -> None:
    model, objective = parts(SMALL_MAE)
    flat = images(1)
    flat[:, :, :4, :4] = 77
    for seed in range(10):
        torch.manual_seed(seed)
        hidden = objective.predict(model, flat)
        for place, patch in enumerate(hidden.index[0].tolist()):
            row, column = divmod(patch, 6)
            pixels = flat[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].double() / 127.5 - 1
            expected = (pixels - pixels.mean()) / (pixels.var() + 1e-6).sqrt()
            torch.testing.assert_close(
                hidden.targets[0, place].double(), expected.flatten(), atol=1e-4, rtol=1e-4
            )


# Masks.


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (MaskedPatchesConfig(), 12),
        (MaskedPatchesConfig(mask_fraction=0.15), 4),  # 3.6 of 24, rounded up
        (SimMIMConfig(), 16),  # 4 of 6 squares of 2 x 2
        (SimMIMConfig(mask_block=1), 15),
        (SMALL_MAE, 18),
    ],
)
def test_every_image_hides_as_many_patches_each_once(config: MaskedImagesConfig, count: int) -> None:
    model, objective = parts(config)
    seen = torch.zeros(24)
    for seed in range(40):
        torch.manual_seed(seed)
        index = objective.draw_hidden(model, images())
        assert index.shape == (3, count)
        assert all(len(set(row)) == count and row == sorted(row) for row in index.tolist())
        seen += torch.bincount(index.flatten(), minlength=24)
        if config == SimMIMConfig():  # squares are hidden whole
            grid = torch.zeros(24, dtype=torch.bool)
            grid[index[0]] = True
            squares = grid.reshape(2, 2, 3, 2).transpose(1, 2).flatten(2)
            assert torch.equal(squares.all(2), squares.any(2))
    # Every place is as likely as any other; of 120 draws the deviation is below 0.05.
    assert ((seen / 120 - count / 24).abs() < 0.2).all()


def test_eighty_ten_and_ten_of_a_hundred_are_replaced_swapped_and_kept() -> None:
    """In one port nothing is kept, because a probability is divided by what is left of 1."""
    model, objective = parts(MaskedPatchesConfig())
    shown, index = [], []
    for seed in range(60):
        torch.manual_seed(seed)
        hidden = objective.predict(model, images(8))
        shown.append(hidden.shown)
        index.append(hidden.index)
    here, place = torch.cat(shown), torch.cat(index)
    number = here.numel()  # 5,760: the deviation of a fraction is below 0.006
    is_mask, is_unchanged = here == -1, here == place
    is_other = ~is_mask & ~is_unchanged
    assert abs(is_mask.sum() / number - 0.8) < 0.02
    assert abs(is_other.sum() / number - 0.1) < 0.02
    assert abs(is_unchanged.sum() / number - 0.1) < 0.02
    distance = (here - place)[is_other] % 24
    assert distance.min() == 1 and distance.max() == 23  # any other patch, and never itself


def recorded(monkeypatch: pytest.MonkeyPatch, model: ViT, name: str) -> list[Tensor]:
    """Record the first argument of every call of a method of the model."""
    calls, method = list[Tensor](), getattr(model, name)

    def record(tokens: Tensor) -> Tensor:
        calls.append(tokens)
        result: Tensor = method(tokens)
        return result

    monkeypatch.setattr(model, name, record)
    return calls


def test_embeddings_are_corrupted_before_positions_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one port the mask token is a patch of pixels before a norm, not an embedding."""
    model, objective = parts(MaskedPatchesConfig(), replace(CONFIG, norm_before_blocks=True))
    assert isinstance(objective, MaskedPatches)
    placed = recorded(monkeypatch, model, "place")
    hidden = objective.predict(model, images(2))
    clean = model.patches(images(2))
    for image in range(2):
        expected = clean[image].clone()
        for patch, shown in zip(hidden.index[image].tolist(), hidden.shown[image].tolist(), strict=True):
            expected[patch] = objective.mask_token[0, 0] if shown < 0 else clean[image, shown]
        assert torch.equal(placed[0][image], expected)
    assert objective.mask_token.shape == (1, 1, CONFIG.width)


@pytest.mark.parametrize("config", OBJECTIVES)
def test_only_hidden_patches_of_readable_images_count_in_the_loss(config: MaskedImagesConfig) -> None:
    model, objective = parts(config)
    pixels = images()
    torch.manual_seed(5)
    hidden = objective.predict(model, pixels)
    by_patch = objective.losses(hidden)
    assert by_patch.shape == hidden.index.shape
    assert loss(model, objective, batch_of(pixels), 5).item() == pytest.approx(by_patch.mean().item())
    expected = by_patch[:2].mean().item()
    pixels[2] = 0
    readable = batch_of(pixels, [True, True, False])
    assert loss(model, objective, readable, 5).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "config", [MaskedPatchesConfig(token_fraction=1, other_fraction=0), SimMIMConfig(), SMALL_MAE]
)
def test_predictions_do_not_depend_on_hidden_pixels(config: MaskedImagesConfig) -> None:
    model, objective = parts(config)
    pixels = images(1)
    torch.manual_seed(2)
    before = objective.predict(model, pixels)
    cells = pixels.unfold(2, 4, 4).unfold(3, 4, 4)  # (1, 3, 4, 6, 4, 4), a view
    for patch in before.index[0].tolist():
        cells[0, :, patch // 6, patch % 6] = 255 - cells[0, :, patch // 6, patch % 6]
    torch.manual_seed(2)
    after = objective.predict(model, pixels)
    assert torch.equal(before.index, after.index) and torch.equal(before.outputs, after.outputs)
    assert not torch.equal(before.targets, after.targets)
    visible = (set(range(24)) - set(before.index[0].tolist())).pop()
    cells[0, :, visible // 6, visible % 6] = 0
    torch.manual_seed(2)
    assert not torch.equal(objective.predict(model, pixels).outputs, before.outputs)


def test_the_encoder_of_mae_sees_the_class_token_and_the_other_patches_in_their_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one port there is no class token, and positions of the decoder are learned."""
    model, objective = parts(SMALL_MAE)
    seen = recorded(monkeypatch, model, "encode")
    hidden = objective.predict(model, images(2))
    whole = model.embed(images(2))
    for image in range(2):
        visible = sorted(set(range(24)) - set(hidden.index[image].tolist()))
        assert torch.equal(seen[0][image], whole[image][[0, *(1 + patch for patch in visible)]])
    assert not {"position"} & set(dict(objective.named_parameters()))


@pytest.mark.parametrize("kind", ["learned", "sincos_2d", "sincos_2d_mae"])
def test_the_decoder_of_mae_predicts_each_hidden_patch_in_its_place(kind: PositionKind) -> None:
    """With the frequencies of the encoder, where it has fixed ones."""
    model, objective = parts(SMALL_MAE, replace(CONFIG, position=kind))
    assert isinstance(objective, MAE)
    hidden = objective.predict(model, images(2))
    placed = model.embed(images(2))
    for image in range(2):
        places = hidden.index[image].tolist()
        visible = sorted(set(range(24)) - set(places))
        seen = objective.project(
            model.encode(placed[image : image + 1, [0, *(1 + patch for patch in visible)]])
        )
        tokens = objective.mask_token.expand(1, 24, -1).clone()
        for number, patch in enumerate(visible):
            tokens[0, patch] = seen[0, 1 + number]
        decoded = torch.cat([seen[:, :1], tokens + sincos_2d((4, 6), 16, kind)], dim=1)
        for block in objective.blocks:
            decoded = block(decoded)
        expected = objective.head(objective.norm(decoded))[0, [1 + patch for patch in places]]
        torch.testing.assert_close(hidden.outputs[image], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("config", OBJECTIVES)
@pytest.mark.parametrize("pool", ["token", "mean"])
def test_a_part_of_a_batch_hides_what_the_whole_batch_would(config: MaskedImagesConfig, pool: str) -> None:
    """Several processes, and micro-batches that do not fit, compute the same loss and gradients."""
    model, objective = parts(config, replace(CONFIG, pool=pool))  # type: ignore[arg-type]
    model, objective = model.double(), objective.double()
    pixels = images(5)
    torch.autograd.backward(loss(model, objective, batch_of(pixels)))
    trained = nn.ModuleList([model, objective])
    whole = {name: p.grad.clone() for name, p in trained.named_parameters() if p.grad is not None}
    trained.zero_grad()
    for start, stop in ((0, 2), (2, 5)):
        model.take_rows(BatchRows(start, stop, 5, 7))
        part = loss(model, objective, batch_of(pixels[start:stop]))
        torch.autograd.backward(part * (stop - start) / 5)
    model.take_rows(None)
    assert whole.keys() == {name for name, p in trained.named_parameters() if p.grad is not None}
    for name, parameter in trained.named_parameters():
        if name in whole:
            torch.testing.assert_close(parameter.grad, whole[name], rtol=0, atol=1e-12, msg=name)


# Baselines.


def test_the_baseline_of_classes_is_their_entropy_and_that_of_squares_the_variance() -> None:
    baseline = Baseline(2, 4)
    baseline.add(torch.tensor([[0, 3], [0, 3], [1, 3]]))
    baseline.add(torch.tensor([[1, 3]]))
    # Two equally frequent classes, and a single one.
    assert baseline.losses() == pytest.approx((math.log(4), math.log(2) / 2))
    values = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    squared = SquaredBaseline(7)
    squared.add(values[:20])
    squared.add(values[20:])
    variance = values.var(0, correction=0).mean().item()
    assert squared.losses() == pytest.approx(((values**2).mean().item(), variance))


def test_the_baseline_of_absolute_differences_is_taken_from_the_median() -> None:
    model, objective = parts(
        SimMIMConfig(), replace(CONFIG, image_mean=(0.4, 0.5, 0.6), image_std=(0.2, 0.3, 0.1))
    )
    hidden = objective.predict(model, images(9))
    targets = hidden.targets.flatten(0, 1)
    baseline = AbsoluteBaseline(model)
    baseline.add(targets[:5])
    baseline.add(targets[5:])
    nothing, constant = baseline.losses()
    assert nothing == pytest.approx(targets.abs().mean().item(), rel=1e-5)
    best = (targets - targets.quantile(0.5, dim=0, interpolation="lower")).abs().mean().item()
    assert constant == pytest.approx(best, rel=1e-5)


# Pictures.


@pytest.mark.parametrize("config", OBJECTIVES)
def test_pictures_change_hidden_patches_alone(config: MaskedImagesConfig) -> None:
    model, objective = parts(config)
    torch.manual_seed(4)
    seen, predicted = objective.picture(model, images(2))
    torch.manual_seed(4)
    hidden = objective.predict(model, images(2))
    for picture in (seen, predicted):
        assert picture.shape == images(2).shape and picture.dtype == torch.uint8
        same = (picture == images(2)).all(1).unfold(1, 4, 4).unfold(2, 4, 4).flatten(3).all(3).flatten(1)
        for image in range(2):
            changed = set(torch.nonzero(~same[image]).flatten().tolist())
            assert changed <= set(hidden.index[image].tolist())
    masked = int(hidden.index[0, (hidden.shown[0] == -1).nonzero()[0, 0]])
    row, column = divmod(masked, 6)
    assert (seen[0, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] == 128).all()


def test_a_right_prediction_is_drawn_as_the_image() -> None:
    model, objective = parts(SMALL_MAE)
    hidden = objective.predict(model, images(2))
    assert isinstance(model.stem, PatchStem)
    patches = take_patches(model.stem.cut(images(2)), hidden.index).float()
    patches = patches.reshape(*hidden.index.shape, *objective.patch_shape)
    right = objective.pixels(model, replace(hidden, outputs=hidden.targets), patches)
    torch.testing.assert_close(right, patches, atol=0.05, rtol=0)
