"""Optimisers, decay groups, rates by layer, clipping, schedules and Polyak averaging.

The arithmetic follows the original's optax chains (vision_transformer `train.py:135-145`, big_vision
`optax.py`): clip, optimiser, learning rate, decay.

Layers, whose weights may be frozen or learn slowly, are numbered as in BEiT and MAE (`util/lr_decay.py`
there): 0 is all that comes before the first block, block i is i + 1, and the final norm, the pooling and the
head come after the last one.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.training.config import OptimizerConfig
from vitkit.training.gradients import collect, take_local

EPS = 1e-8
"""Number that Adam adds to the denominator, so that it never divides by 0 (optax's default)."""
LINEAR_END = 1e-5
"""Learning rate at which the linear schedule ends, as in the original code."""


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Compute the learning rate of update number `step`, counted from 0: with warm-up the first one is 0.

    A pure function of the step (vision_transformer `utils.py:57-96`). The schedule decays from the end of the
    warm-up to the end of the run; the warm-up multiplies the decayed rate, as there.
    """
    # All of it in float32, as the original computes it: in float64 the end of a cosine differs, where
    # 1 + cos is a small difference of large numbers. Python's floats would make any of these products
    # float64.
    peak, warmup = np.float32(config.learning_rate), config.warmup_steps
    # From 0 at the end of the warm-up to 1 at the end of the run; a run may be all warm-up, hence the 1.
    progress = np.float32(min(max(step - warmup, 0) / max(total_steps - warmup, 1), 1.0))
    if config.schedule == "cosine":
        rate = peak * np.float32(0.5) * (np.float32(1) + np.cos(np.float32(np.pi) * progress))
    elif config.schedule == "linear":
        end = np.float32(LINEAR_END)
        rate = end + (peak - end) * (np.float32(1) - progress)
    else:  # constant
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
        model: its parameters are grouped, in the order in which it lists them.
        config: the weight decay.
        scales: the `scale` of a parameter's group, the factor of its learning rate; 1 where it is left out.
            Parameters with factor 0 are in no group.

    Returns:
        Two groups for each factor, the decaying one first. Their order numbers the optimiser's state in
        checkpoints.
    """
    # A module's `weight` is a kernel unless the module is a norm; position embeddings, tokens and scales have
    # other names.
    kernels = {
        id(module.weight)
        for module in model.modules()
        if isinstance(getattr(module, "weight", None), Tensor)
        and not isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm)
    }
    groups: list[dict[str, Any]] = []
    factors = {parameter: (scales or {}).get(parameter, 1.0) for parameter in model.parameters()}
    for scale in sorted({1.0, *factors.values()} - {0.0}, reverse=True):
        parameters = [parameter for parameter, factor in factors.items() if factor == scale]
        for decay, decays in ((config.weight_decay, True), (0.0, False)):
            of_group = [parameter for parameter in parameters if (id(parameter) in kernels) is decays]
            groups.append({"params": of_group, "weight_decay": decay, "scale": scale})
    return groups


def create_optimizer(
    model: nn.Module, config: OptimizerConfig, scales: Mapping[nn.Parameter, float] | None = None
) -> torch.optim.Optimizer:
    """Create the optimiser of `config` over all parameters of `model`.

    Its learning rate is 0 until the trainer sets it, which it does at every step.

    Args:
        model, config: the parameters, and how they are updated.
        scales: factors of the learning rate, as in `decay_groups`.
    """
    groups = decay_groups(model, config, scales)
    betas = (config.beta1, config.beta2)
    match config.optimizer:
        case "sgd":
            return SGD(groups, momentum=config.momentum, momentum_dtype=getattr(torch, config.momentum_dtype))
        case "muon":
            return Muon(groups, hidden_matrices(model), betas)
        case "adamw" | "adam":  # "adam" is the same with a weight decay of 0
            if config.momentum_dtype == "bfloat16":
                return BFloat16AdamW(groups, betas)
            return AdamW(groups, betas)


def state_names(optimizer: torch.optim.Optimizer, parameter: Tensor) -> set[str]:
    """Give the names of the tensors that an optimiser of `create_optimizer` keeps for a parameter."""
    if isinstance(optimizer, SGD):
        return {"momentum"}
    if isinstance(optimizer, Muon) and id(parameter) in optimizer.matrices:
        return {"momentum_buffer"}
    return {"step", "exp_avg", "exp_avg_sq"}


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """List the matrices of a Transformer's blocks: the weights `(outputs, inputs)` of their dense layers.

    Stem, positions, head, norms, biases and the kernels of convolutions are not among them.

    Args:
        model: an `ImageModel`, or a module that has one.
    """
    layers = [layer for part in model.modules() if isinstance(part, ImageModel) for layer in part.layers()]
    return [dense.weight for layer in layers for dense in layer.modules() if isinstance(dense, nn.Linear)]


class Optimizer(torch.optim.Optimizer):
    """PyTorch's, without the decorators whose first call imports `torch._dynamo`, which takes a second: no
    optimiser is in a compiled graph here."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(Optimizer, torch.optim.AdamW):
    """PyTorch's fused one: one kernel for all parameters of a group. Its rate is 0 until it is set."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

    def __init__(self, params: Any, betas: tuple[float, float]) -> None:
        super().__init__(params, lr=0.0, betas=betas, eps=EPS, fused=True)


class SGD(Optimizer):
    """SGD with momentum as optax computes it: the update is exact, the stored momentum may be bfloat16.

    Args:
        params: parameter groups, each with its `weight_decay`.
        momentum: decay of the momentum, from 0 to below 1.
        momentum_dtype: the type in which the momentum is stored between steps.
    """

    def __init__(self, params: Any, momentum: float, momentum_dtype: torch.dtype) -> None:
        # In JAX a Python number takes the type of the array that it multiplies, so the original's decay is
        # rounded to the momentum's type: 0.9 becomes 0.8984375 in bfloat16.
        self.decay = torch.tensor(momentum, dtype=momentum_dtype).item()
        self.momentum_dtype = momentum_dtype
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0})
        # As PyTorch's fused optimisers have it: a step changes nothing where `found_inf` is 1.
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update. `closure` is PyTorch's and is not called.

        Momentum is summed in float32 and rounded only when it is stored, after the update has used it.
        """
        skipped: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p, dtype=self.momentum_dtype)
            stored = [take_local(self.state[p]["momentum"]) for p in parameters]
            gradients = [take_local(p.grad) for p in parameters]
            momentum = [m.float() for m in stored]
            rate: float | Tensor = group["lr"]
            decay: float | Tensor = self.decay
            # Decoupled: the decay takes lr * weight_decay off the weights and never enters the momentum.
            shrinkage: float | Tensor = 1 - rate * group["weight_decay"]
            if skipped is not None:
                gradients = _zero_where(skipped > 0, gradients)
                rate, decay, shrinkage = (
                    torch.where(skipped > 0, still, value)
                    for still, value in ((0.0, rate), (1.0, decay), (1.0, shrinkage))
                )
            torch._foreach_mul_(momentum, decay)
            torch._foreach_add_(momentum, gradients)
            weights = [take_local(p) for p in parameters]
            if group["weight_decay"]:
                torch._foreach_mul_(weights, shrinkage)
            if isinstance(rate, Tensor):
                torch._foreach_add_(weights, torch._foreach_mul(momentum, -rate))
            else:
                torch._foreach_add_(weights, momentum, alpha=-rate)
            if self.momentum_dtype != torch.float32:  # else they are one
                torch._foreach_copy_(stored, momentum)


def _zero_where(condition: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Give tensors, or zeros where a scalar condition holds, without waiting for it."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    parts = torch.split(torch.where(condition, 0.0, flat), [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


class Muon(Optimizer):
    """Muon for the matrices of the blocks, and AdamW for all other parameters.

    Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") replaces the
    momentum of a matrix by the nearest orthogonal one, by five Newton-Schulz steps in bfloat16. Its update is
    scaled by 0.2 times the root of the longer side, which makes it about as large as AdamW's, so that AdamW's
    rates and decay serve for both (Liu et al. 2025, "Muon is Scalable for LLM Training", arXiv 2502.16982,
    2.2). The queries, keys and values of a block are one matrix here, as they are stored.

    Args:
        groups: parameter groups, each with its `weight_decay`.
        matrices: the parameters that Muon updates.
        betas: of AdamW.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], matrices: Iterable[Tensor], betas: tuple[float, float]
    ) -> None:
        self.matrices = {id(matrix) for matrix in matrices}
        hidden: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for group in groups:
            for part, is_hidden in ((hidden, True), (others, False)):
                of_part = [p for p in group["params"] if (id(p) in self.matrices) is is_hidden]
                part.append({**group, "params": of_part})
        super().__init__([*hidden, *others], {"lr": 0.0, "weight_decay": 0.0})
        # The two use the groups and the state of this optimiser, not copies, so that rates are set and states
        # loaded in one place. The momentum is 0.95, as in the release.
        self.muon: Any = torch.optim.Muon(hidden, lr=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        self.adamw = AdamW(others, betas)
        self.muon.state = self.adamw.state = self.state
        self._step_supports_amp_scaling = True  # as `SGD`

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update. `closure` is PyTorch's and is not called."""
        skipped: Tensor | None = getattr(self, "found_inf", None)
        changed, before = list[Tensor](), list[Tensor]()
        if skipped is not None:  # PyTorch's Muon skips no step: what it changes is put back
            setattr(self.adamw, "found_inf", skipped)  # noqa: B010
            changed = [p for group in self.muon.param_groups for p in group["params"] if p.grad is not None]
            changed += [self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)) for p in changed]
            before = [tensor.clone() for tensor in changed]
        self.muon.step()
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(torch.where(cast("Tensor", skipped) > 0, old, tensor))
        self.adamw.step()


class BFloat16AdamW(Optimizer):
    """AdamW whose first moment is stored as bfloat16, as big_vision's (`scale_by_adam(mu_dtype)`).

    Args:
        params: parameter groups, each with its `weight_decay`.
        betas: decay of the first and of the second moment.
    """

    def __init__(self, params: Any, betas: tuple[float, float]) -> None:
        self.betas = betas
        # Rounded as in `SGD`. The factor 1 - beta1 below is not: there beta1 multiplies no bfloat16 array.
        self.decay = torch.tensor(betas[0], dtype=torch.bfloat16).item()
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0})
        self._step_supports_amp_scaling = True  # as `SGD`

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update. `closure` is PyTorch's and is not called.

        Where `found_inf` is 1 only the steps are counted.
        """
        beta1, beta2 = self.betas
        skipped: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = [self.state[p] for p in parameters]
            for p, state in zip(parameters, states, strict=True):
                if not state:
                    state["step"] = torch.zeros(())  # a tensor, as PyTorch's Adam keeps it
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.bfloat16)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
            counts = [int(state["step"]) for state in states]
            weights = [take_local(p) for p in parameters]
            gradients = [take_local(p.grad) for p in parameters]
            stored = [take_local(state["exp_avg"]) for state in states]
            decays: list[float | Tensor] = [self.decay, beta2, 1 - group["lr"] * group["weight_decay"]]
            if skipped is not None:
                gradients = _zero_where(skipped > 0, gradients)
                decays = [torch.where(skipped > 0, 1.0, decay) for decay in decays]
            # The update uses the moment before it is rounded to bfloat16, which happens in the last line.
            first = [moment.float() for moment in stored]
            torch._foreach_mul_(first, decays[0])
            torch._foreach_add_(first, gradients, alpha=1 - beta1)
            second = [take_local(state["exp_avg_sq"]) for state in states]
            torch._foreach_mul_(second, decays[1])
            torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
            # Moments begin at 0; dividing by 1 - beta**count makes up for it (Kingma and Ba 2015). eps is
            # added after the root, as optax and PyTorch do.
            scales = torch._foreach_div(second, [1 - beta2**count for count in counts])
            torch._foreach_sqrt_(scales)
            torch._foreach_add_(scales, EPS)
            torch._foreach_mul_(weights, decays[2])
            moments = torch._foreach_div(first, [1 - beta1**count for count in counts])
            if skipped is not None:
                torch._foreach_mul_(moments, torch.where(skipped > 0, 0.0, 1.0))
            torch._foreach_addcdiv_(weights, moments, scales, value=-group["lr"])
            torch._foreach_copy_(stored, first)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float | None) -> Tensor:
    """Scale gradients down to a global norm, as optax does: by max/norm, and only when the norm is above.

    PyTorch's `clip_grad_norm_` adds 1e-6 to the norm, and so gives other bits.

    Args:
        parameters: all of which the norm is computed; without a gradient they are passed over.
        max_norm: the largest norm that is not scaled down; None: nothing is scaled.

    Returns:
        The global norm before clipping, a scalar tensor.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = collect(torch.nn.utils.get_total_norm(gradients))
    # On a CPU the comparison costs nothing, and it saves a product with 1. On a GPU Python would wait for it,
    # so there the product is always computed, by 1 where the norm is within.
    within = norm.device.type == "cpu" and max_norm is not None and bool(norm < max_norm)
    if max_norm is not None and not within:
        scale = torch.where(norm < max_norm, 1.0, max_norm / norm)
        torch._foreach_mul_([take_local(gradient) for gradient in gradients], scale)
    return norm


class PolyakAverage:
    """The Polyak average of the weights of a model, or of an objective, that is trained.

    Args:
        average: a copy of it, whose weights become the average.
        model: what is trained. Its parameters and buffers stay the same tensors.
    """

    def __init__(self, average: nn.Module, model: nn.Module) -> None:
        # Listed once: to look for them in the modules takes some hundredths of a small model's step.
        self.averages = [take_local(parameter) for parameter in average.parameters()]
        self.weights = [take_local(parameter) for parameter in model.parameters()]
        self.buffers = list(zip(average.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self, decay: float, updates: int) -> None:
        """Move the average a step towards the weights. Buffers are not learned: it takes the model's.

        Args:
            decay: the fraction of the average that stays (paper, Table 2: 0.9999).
            updates: n, the updates made before the last one.
        """
        # The decay rises with the number of updates, so that a short run is not averaged with its first
        # weights. The numbers 1 and 10 are TensorFlow's (`ExponentialMovingAverage`).
        decay = min(decay, (1 + updates) / (10 + updates))
        torch._foreach_lerp_(self.averages, self.weights, 1 - decay)
        for averaged, buffer in self.buffers:
            averaged.copy_(buffer)


HEAD = ("head.", "pre_logits.")
"""Beginnings of the names of the head's parameters, the tanh layer of pre-training among them."""
AFTER = ("norm.", "pooling.", *HEAD)
"""Beginnings of the names of all parameters after the last layer."""


def rate_scales(model: ImageModel, config: OptimizerConfig) -> dict[nn.Parameter, float]:
    """Compute the factor of each parameter's learning rate; 0 where it is frozen.

    Raises:
        VitkitError: more layers are to be frozen than the model has, or it has no head to train alone.
    """
    layers, named = model.layers(), dict(model.named_parameters())
    depth, head = len(layers), {weights for name, weights in named.items() if name.startswith(HEAD)}
    refuse_layers(depth, config)
    numbers = {weights: depth + 1 if name.startswith(AFTER) else 0 for name, weights in named.items()}
    for number, layer in enumerate(layers, start=1):
        numbers |= dict.fromkeys(layer.parameters(), number)
    if config.freeze == "backbone":
        if not head:
            raise VitkitError("The model has no head that could be trained alone: leave out freeze.")
        return {parameter: float(parameter in head) * config.head_rate for parameter in numbers}
    last_frozen = config.freeze_layers if config.freeze_layers else -1
    return {
        parameter: 0.0
        if number <= last_frozen
        else config.layer_decay ** (depth + 1 - number) * (config.head_rate if parameter in head else 1.0)
        for parameter, number in numbers.items()
    }


def refuse_layers(depth: int, config: OptimizerConfig) -> None:
    """Refuse to freeze more layers than the `depth` of the model.

    Raises:
        VitkitError: it has fewer.
    """
    if config.freeze_layers > depth:
        raise VitkitError(
            f"The model has {depth} layers, so freeze_layers is from 0 to {depth}, found "
            f"{config.freeze_layers}."
        )
