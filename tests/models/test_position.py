"""Resizing of position embeddings against the original's table."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.fixture_files import load_fixture
from vitkit.errors import VitkitError
from vitkit.models.position import resize_grid, resize_position_embedding


def test_every_row_of_the_original_table() -> None:
    _, _, arrays = load_fixture("e_posembed_table")
    names = [key.removeprefix("old_") for key in arrays if key.startswith("old_")]
    assert len(names) == 10
    for name in names:
        _, new, prefix = map(int, name.split("_"))
        old = torch.from_numpy(arrays[f"old_{name}"])
        resized = resize_position_embedding(old, (new, new), prefix_tokens=prefix)
        np.testing.assert_allclose(resized.numpy(), arrays[f"new_{name}"], rtol=0, atol=1e-6, err_msg=name)


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


def test_a_linear_slope_is_kept() -> None:
    slope = torch.linspace(0, 1, 4)[:, None, None].expand(4, 3, 2)
    torch.testing.assert_close(resize_grid(slope, (7, 3))[:, 0, 0], torch.linspace(0, 1, 7))


@pytest.mark.parametrize("new_shape", [(3, 5), (14, 14), (7, 4)])
def test_bicubic_is_that_of_an_image_library(new_shape: tuple[int, int]) -> None:
    """Antialiased where the grid shrinks, with half-pixel centres. Pillow computes apart from torch."""
    grid = torch.randn(8, 9, 2, generator=torch.Generator().manual_seed(0))
    found = resize_grid(grid, new_shape, "bicubic")
    for channel in range(2):
        image = Image.fromarray(grid[:, :, channel].numpy())
        expected = np.asarray(image.resize(new_shape[::-1], Image.Resampling.BICUBIC))
        np.testing.assert_allclose(found[:, :, channel], expected, rtol=0, atol=2e-6)


def test_a_grid_that_cannot_be_is_an_error() -> None:
    with pytest.raises(VitkitError, match="square grid of patches, found 6"):
        resize_position_embedding(torch.zeros(1, 7, 2), (3, 3), prefix_tokens=1)
    with pytest.raises(VitkitError, match="2x4"):
        resize_position_embedding(torch.zeros(1, 6, 2), (3, 3), prefix_tokens=0, old_grid=(2, 4))
