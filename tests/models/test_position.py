"""Resizing of position embeddings against the original's table."""

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixture_files import FOLDER, load_fixture
from tests.peers.fixed_weights import fixed_grid
from vitkit.models.config import INTERPOLATIONS, Interpolation
from vitkit.models.position import (
    LearnedPosition,
    LearnedPosition2D,
    resize_grid,
    resize_position_embedding,
)


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
