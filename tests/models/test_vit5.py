"""ViT-5 against its authors' code: the same weights give the same logits."""

import numpy as np
import torch

from vitkit.models.vit import ViT
from vitkit.weights.create import create_model


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
