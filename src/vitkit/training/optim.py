"""Optimisers, decay groups, clipping, schedules and Polyak averaging.

The arithmetic follows the original's optax chains (original-code: vision_transformer `train.py:135-145`,
big_vision `optax.py`): clip, optimiser, learning rate, decay.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.training.optim_config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """The rate of update number `step`, counted from 0: with warm-up the first update has rate 0.

    A pure function of the step (vision_transformer `utils.py:57-96`), in float32 as there: the warm-up
    multiplies the decayed rate.
    """
    peak, warmup = np.float32(config.learning_rate), config.warmup_steps
    progress = np.float32(min(max(step - warmup, 0) / max(total_steps - warmup, 1), 1.0))
    one = np.float32(1)
    if config.schedule == "cosine":
        rate = peak * np.float32(0.5) * (one + np.cos(np.float32(np.pi) * progress))
    elif config.schedule == "linear":
        end = np.float32(config.linear_end)
        rate = end + (peak - end) * (one - progress)
    else:
        rate = peak
    if step < warmup:
        rate *= np.float32(step) / np.float32(warmup)
    return float(rate)


def decay_groups(
    model: nn.Module, config: OptimizerConfig, scales: Mapping[nn.Parameter, float] | None = None
) -> list[dict[str, Any]]:
    """Group parameters by whether they decay, and by the factor of their learning rate, the largest first.

    Only the kernels of dense layers and convolutions decay, as big_vision's mask `.*/kernel$` has it: no
    bias, norm, position embedding or class token.

    Args:
        model: whose parameters are grouped, in the order in which it lists them.
        config: says what decays how much.
        scales: the factors that are not 1, the `scale` of a group; parameters with factor 0 are in no group.
    """
    kernels = {
        id(module.weight)
        for module in model.modules()
        if isinstance(getattr(module, "weight", None), Tensor)
        and not isinstance(module, nn.LayerNorm | nn.GroupNorm)
    }
    # The order of the groups decides the numbers of the parameters in a checkpoint.
    groups: list[dict[str, Any]] = []
    found = {parameter: (scales or {}).get(parameter, 1.0) for parameter in model.parameters()}
    for scale in sorted({1.0, *found.values()} - {0.0}, reverse=True):
        decayed: list[nn.Parameter] = []
        kept: list[nn.Parameter] = []
        for parameter, own in found.items():
            if own == scale:
                (decayed if config.decay_all or id(parameter) in kernels else kept).append(parameter)
        groups.append({"params": decayed, "weight_decay": config.weight_decay, "scale": scale})
        groups.append({"params": kept, "weight_decay": 0.0, "scale": scale})
    return groups


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next update, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def create_optimizer(
    model: nn.Module, config: OptimizerConfig, scales: Mapping[nn.Parameter, float] | None = None
) -> torch.optim.Optimizer:
    """The optimiser of `config` over all parameters of `model`; the trainer sets the rate at every step.

    Args:
        model, config: what is moved, and how.
        scales: factors of the learning rate, as in `decay_groups`.
    """
    groups = decay_groups(model, config, scales)
    betas = (config.beta1, config.beta2)
    if config.optimizer == "sgd":
        return SGD(groups, momentum=config.momentum, momentum_dtype=getattr(torch, config.momentum_dtype))
    if config.momentum_dtype == "bfloat16":
        return BFloat16AdamW(groups, betas=betas, eps=config.eps)
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.eps, fused=True)


def state_names(optimizer: torch.optim.Optimizer) -> set[str]:
    """The names of the tensors that one of our optimisers keeps for each parameter it has moved."""
    return {"momentum"} if isinstance(optimizer, SGD) else {"step", "exp_avg", "exp_avg_sq"}


class SGD(torch.optim.Optimizer):
    """SGD with momentum as optax computes it: the update is exact, the stored momentum may be bfloat16."""

    def __init__(self, params: Any, momentum: float, momentum_dtype: torch.dtype) -> None:
        # JAX's weak typing rounds the decay to the type of the momentum it multiplies.
        self.decay = torch.tensor(momentum, dtype=momentum_dtype).item()
        self.momentum_dtype = momentum_dtype
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p, dtype=self.momentum_dtype)
            stored = [self.state[p]["momentum"] for p in parameters]
            momentum = [m.float() for m in stored]
            torch._foreach_mul_(momentum, self.decay)
            torch._foreach_add_(momentum, [p.grad for p in parameters])
            if group["weight_decay"]:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, momentum, alpha=-group["lr"])
            torch._foreach_copy_(stored, momentum)


class BFloat16AdamW(torch.optim.Optimizer):
    """AdamW whose first moment is stored as bfloat16, as big_vision's (`scale_by_adam(mu_dtype)`)."""

    def __init__(self, params: Any, betas: tuple[float, float], eps: float) -> None:
        self.betas, self.eps = betas, eps
        self.decay = torch.tensor(betas[0], dtype=torch.bfloat16).item()
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        beta1, beta2 = self.betas
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.bfloat16)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                count = int(state["step"])
                first = state["exp_avg"].float().mul_(self.decay).add_(p.grad, alpha=1 - beta1)
                second = state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                scale = (second / (1 - beta2**count)).sqrt_().add_(self.eps)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(first / (1 - beta1**count), scale, value=-group["lr"])
                state["exp_avg"].copy_(first)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale gradients down to a global norm, as optax does: by max/norm, and only when the norm is above.

    Returns:
        The global norm before clipping, a scalar tensor.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if max_norm is not None:
        torch._foreach_mul_(gradients, torch.where(norm < max_norm, 1.0, max_norm / norm))
    return norm


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, updates: int) -> None:
    """Polyak averaging: `average` moves a step towards `model`.

    The decay rises with the number of updates so far, min(decay, (1 + n) / (10 + n)), so that a short run
    does not end near its first weights (TensorFlow's ExponentialMovingAverage does the same).
    """
    decay = min(decay, (1 + updates) / (10 + updates))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
