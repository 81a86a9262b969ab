"""Axial attention against full attention with a mask, and against loops."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.refusals import refused
from vitkit.models.axial import AxialBlock, AxialMixing, RelativeAttention
from vitkit.models.config import ResNetConfig, ViTConfig
from vitkit.models.parts import Block
from vitkit.models.resnet import ResNet
from vitkit.models.vit import encoder_block

CONFIG = ViTConfig((12, 20), (4, 4), width=24, depth=1, num_heads=3, mlp_dim=40, num_classes=5, pool="mean")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def new_axial_block() -> AxialBlock:
    return AxialBlock(CONFIG.grid, encoder_block(CONFIG), encoder_block(CONFIG))


def axial_block() -> AxialBlock:
    """With every parameter random, and weights so large that attention is far from even."""
    block = new_axial_block().eval()
    for number, parameter in enumerate(block.parameters()):
        nn.init.normal_(parameter, std=0.5, generator=seeded(number))
    return block


def masked(block: Block, x: Tensor, line: Tensor) -> Tensor:
    """What a block makes of tokens that see only those of the same line: attention written out."""
    batch, tokens, width = x.shape
    heads = block.attention.num_heads
    qkv = block.attention.qkv(block.norm1(x)).reshape(batch, tokens, 3, heads, width // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
    scores = scores.masked_fill(line[:, None] != line, -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
    x = x + block.attention.out(mixed)
    out: Tensor = x + block.mlp(block.norm2(x))
    return out


# In a ViT --------------------------------------------------------------------------------------------------


def test_an_axial_block_is_full_attention_within_rows_then_within_columns() -> None:
    block = axial_block()
    x = torch.randn(2, 15, 24, generator=seeded(99))
    token = torch.arange(15)
    with torch.inference_mode():
        expected = masked(block.columns, masked(block.rows, x, token // 5), token % 5)
        torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)
        swapped = masked(block.columns, masked(block.rows, x, token % 5), token // 5)
        assert (block(x) - swapped).abs().max() > 0.01


def test_taps_of_an_axial_block_are_in_raster_order() -> None:
    block = axial_block()
    taps: dict[str, Tensor] = {}
    x = torch.randn(2, 15, 24, generator=seeded(99))
    with torch.inference_mode():
        out = block(x, taps, "block03")
        assert torch.equal(out, block(x))
    parts = ("attention", "+attention", "mlp", "+mlp")
    assert set(taps) == {f"block03/{axis}/{part}" for axis in ("rows", "columns") for part in parts}
    assert torch.equal(taps["block03/columns/+mlp"], out)
    for before, axis in ((x, "rows"), (taps["block03/rows/+mlp"], "columns")):
        after = before + taps[f"block03/{axis}/attention"] + taps[f"block03/{axis}/mlp"]
        torch.testing.assert_close(after, taps[f"block03/{axis}/+mlp"], rtol=1e-5, atol=1e-5)


def test_what_axial_attention_has_not_is_refused() -> None:
    block, x = new_axial_block(), torch.zeros(1, 15, 24)
    refused("row attention and column attention", block, x, {}, "block00", True)
    refused("class token", block, torch.zeros(1, 16, 24))


# In a ResNet -----------------------------------------------------------------------------------------------


def test_relative_attention_equals_loops() -> None:
    channels, heads, lines, n = 32, 4, 2, 5
    attention = RelativeAttention(channels, heads, n, eps=1e-5).eval()
    attention.init_weights(seeded(0))
    for number, norm in enumerate(attention.children()):
        if isinstance(norm, nn.GroupNorm):  # one that neither scaled nor shifted could be left out
            nn.init.normal_(norm.weight, mean=1, std=0.3, generator=seeded(10 + number))
            nn.init.normal_(norm.bias, std=0.3, generator=seeded(20 + number))
    attention.double()
    x = torch.randn(2, channels, lines, n, generator=seeded(1), dtype=torch.float64)
    dv, dq = channels // heads, channels // heads // 2
    rq, rk, rv = attention.relative_query, attention.relative_key, attention.relative_value
    assert rq.shape == rk.shape == (2 * n - 1, dq) and rv.shape == (2 * n - 1, dv)
    with torch.inference_mode():
        attended = attention(x)
        qkv = attention.norm_qkv(attention.qkv(x))
        terms = torch.zeros(2, 3, heads, lines, n, n, dtype=torch.float64)
        outputs = torch.zeros(2, 2, channels, lines, n, dtype=torch.float64)
        places = [
            (b, h, line, i) for b in range(2) for h in range(heads) for line in range(lines) for i in range(n)
        ]
        for b, h, line, i in places:
            q = qkv[b, h * dq : (h + 1) * dq, line, i]
            for j in range(n):
                k = qkv[b, channels // 2 + h * dq : channels // 2 + (h + 1) * dq, line, j]
                offset = j - i + n - 1
                terms[b, 0, h, line, i, j] = q.dot(k)
                terms[b, 1, h, line, i, j] = q.dot(rq[offset])
                terms[b, 2, h, line, i, j] = k.dot(rk[offset])
        term_norms = (attention.norm_content, attention.norm_query, attention.norm_key)
        similarity = sum(norm(terms[:, i]) for i, norm in enumerate(term_norms))
        for b, h, line, i in places:
            weights = similarity[b, h, line, i].softmax(-1)
            for j in range(n):
                values = slice(channels + h * dv, channels + (h + 1) * dv)
                outputs[b, 0, h * dv : (h + 1) * dv, line, i] += weights[j] * qkv[b, values, line, j]
                outputs[b, 1, h * dv : (h + 1) * dv, line, i] += weights[j] * rv[j - i + n - 1]
        expected = attention.norm_value(outputs[:, 0]) + attention.norm_place(outputs[:, 1])
    torch.testing.assert_close(attended, expected, rtol=0, atol=1e-10)


def test_mixing_goes_along_rows_and_then_along_columns() -> None:
    """Each axis has the tables of its own length, and the transposed image another result."""
    size = (4, 6)
    mixing = AxialMixing(32, 4, size)
    mixing.init_weights(seeded(0))
    assert mixing.rows.relative_query.shape[0] == 11 and mixing.columns.relative_query.shape[0] == 7
    x = torch.randn(2, 32, *size, generator=seeded(1))
    with torch.inference_mode():
        expected = mixing.columns(mixing.rows(x).permute(0, 1, 3, 2)).permute(0, 1, 3, 2)
        torch.testing.assert_close(mixing(x), expected, rtol=1e-5, atol=1e-5)
        square = AxialMixing(32, 4, (5, 5))
        square.init_weights(seeded(0))
        x = torch.randn(2, 32, 5, 5, generator=seeded(1))
        assert (square(x).transpose(2, 3) - square(x.transpose(2, 3))).abs().max() > 0.1


@pytest.mark.parametrize("size", [(1, 1), (4, 6), (5, 7), (1, 4)])
def test_stride_averages_windows_and_rounds_up(size: tuple[int, int]) -> None:
    unstrided, strided = AxialMixing(32, 4, size, stride=1), AxialMixing(32, 4, size, stride=2)
    unstrided.init_weights(seeded(0))
    strided.load_state_dict(unstrided.state_dict())
    x = torch.randn(1, 32, *size, generator=seeded(1))
    with torch.inference_mode():
        whole, halved = unstrided(x), strided(x)
    assert whole.shape == x.shape
    rows, columns = -(-size[0] // 2), -(-size[1] // 2)
    assert halved.shape == (1, 32, rows, columns)
    for r in range(rows):
        for c in range(columns):
            window = whole[:, :, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2]
            torch.testing.assert_close(halved[:, :, r, c], window.mean((2, 3)), rtol=1e-4, atol=1e-5)


def test_an_axial_resnet_has_tables_for_every_stage() -> None:
    with torch.device("meta"):
        config = ResNetConfig((224, 192), (3, 4, 6, 3), 1000, mixing="axial")
        model, convolutional = ResNet(config), ResNet(dataclasses.replace(config, mixing="convolution"))
    lengths = {name: parameter.shape[0] for name, parameter in model.named_parameters() if "relative" in name}
    assert len(lengths) == 16 * 2 * 3
    for unit, size in {"0.0": (56, 48), "1.0": (56, 48), "1.1": (28, 24), "3.2": (7, 6)}.items():
        assert lengths[f"stages.{unit}.conv2.rows.relative_key"] == 2 * size[1] - 1
        assert lengths[f"stages.{unit}.conv2.columns.relative_value"] == 2 * size[0] - 1
    # Attention stands for the 3x3 convolutions and for nothing else.
    assert {name for name in model.state_dict() if "conv2" not in name} == {
        name for name in convolutional.state_dict() if "conv2" not in name
    }
    taps: dict[str, Tensor] = {}
    assert model(torch.empty(2, 3, 224, 192, device="meta"), taps=taps).shape == (2, 1000)
    assert taps["stage4"].shape == (2, 2048, 7, 6)
