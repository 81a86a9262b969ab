"""Training stops at numbers that are infinite or NaN, and no checkpoint holds them."""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitkit.errors import NonFiniteError as NonFiniteError


def require_finite_weights(parameters: Iterable[Tensor], buffers: Iterable[Tensor], step: int) -> None:
    """Refuse weights that an update made infinite, which can happen though loss and gradients are finite.

    Args:
        parameters: those of the model and of its objective.
        buffers: those of the objective; integers among them are passed over.
        step: the number of the update, for the message.

    Raises:
        NonFiniteError: a value is infinite or not a number.
    """
    state = [value for value in buffers if value.is_floating_point()]
    # Norms, not the values: one number for each tensor, and a single transfer for all of them. A sum of
    # squares is infinite or no number if any of its terms is.
    norms = torch.stack(torch._foreach_norm([*parameters, *state]))
    if not bool(norms.isfinite().all()):
        raise NonFiniteError(
            f"Step {step}: the update made weights that are not finite. No checkpoint holds them; "
            "the last one committed is whole. Try a lower learning rate, or a longer warm-up."
        )
