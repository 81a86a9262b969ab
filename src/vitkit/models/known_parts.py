"""The configurations and parts that a way to compute knows: it is taken only where it knows all of them.

`fast.py`, the graph of an export and `AttentionPool` compute in the place of `Attention`, `MLP`, `Block`,
`PatchStem` and `ViT`. Something that is added to one of these (a norm of the queries, an adapter, a hook) is
not in the copy, which would leave it out in silence. So every way lists the fields of a configuration and the
contents of the parts that it computes. Where anything else is found, the plain way computes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.models.config import ViTConfig

EVERY_MODULE = frozenset({*vars(nn.Module()), "compiled", "watch", "watch_last"})
"""The attributes that PyTorch gives to every module, and `fast.compute_as` to the parts that it exchanges."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes with the functions that a module calls before and after its `forward`."""
TENSORS = (nn.Parameter, Tensor)
"""The classes of parameters. Others, such as quantised weights, compute something else."""


def contents(part: nn.Module) -> set[str]:
    """Name all that a module holds: attributes, children, parameters and buffers."""
    own = vars(part)
    return (own.keys() - EVERY_MODULE).union(own["_modules"], own["_parameters"], own["_buffers"])


with torch.random.fork_rng(devices=[]):  # an import draws no numbers from the caller's generator
    LAYERS: dict[type[nn.Module], set[str]] = {
        type(layer): contents(layer) for layer in (nn.Linear(1, 1), nn.LayerNorm(1))
    }
"""PyTorch's layers, of which every way computes the usual form, with a bias. They hold what this version of
PyTorch gives them."""

ANY = None
"""Stands for all values of a field."""
FIELDS: Mapping[str, Collection[object] | None] = dict.fromkeys(
    (
        *("image_size", "patch_size", "width", "depth", "num_heads", "mlp_dim", "num_classes", "in_channels"),
        *("backbone", "stem_channels", "stem_strides", "pool", "pool_heads", "register_tokens", "position"),
        *("class_token_position", "rotary", "position_at", "attention", "extra_class_token", "layer_scale"),
        *("norm_before_blocks", "norm_after_pooling", "representation_size", "dropout", "attention_dropout"),
        *("drop_path", "gelu", "norm_eps", "image_mean", "image_std"),
    ),
    ANY,
) | {
    name: (getattr(ViTConfig, name),)
    for name in ("norm", "qk_norm", "qkv_bias", "mlp", "mlp_norm", "final_norm")
}
"""The fields of `ViTConfig` that all ways know. While a field is not here, no way is taken. A new one belongs
here once each way computes it, or with the values that every way computes."""


@dataclass(frozen=True)
class Way:
    """All that a way to compute knows."""

    parts: Mapping[type[nn.Module], Collection[str]]
    """The classes of parts that it computes, beside and before `LAYERS`, and all that they may hold."""
    values: Mapping[str, Collection[object] | None] = field(default_factory=dict)
    """The values that it computes, of each field of which it computes more or fewer than `FIELDS` says."""

    def computes(self, config: Any) -> bool:
        """Whether it computes all that the configuration of a model asks for."""
        return not self.lacking(config)

    def lacking(self, config: Any) -> list[str]:
        """Name the fields of a configuration whose value it does not compute."""
        table = {**FIELDS, **self.values}
        return [
            own.name
            for own in fields(config)
            # None stands for ANY.
            if (values := table.get(own.name, ())) is not None and getattr(config, own.name) not in values
        ]

    def knows(self, part: nn.Module, alone: bool = False) -> bool:
        """Whether it computes all that a part and its children do; `alone`: whatever the children are.

        A hook is never known: nobody calls those of a part in whose place something else computes. (Hooks of
        all modules of a process, such as a profiler's, hear of the modules that are called.)
        """
        # The class that it was built as: a fast class names the one in whose place it computes.
        own, kind = vars(part), vars(type(part)).get("plain", type(part))
        table = self.parts.get(kind)
        layer = LAYERS.get(kind) if table is None else None
        if layer is None and table is None:
            return False
        unknown = contents(part).difference(layer or table or ())
        if (
            any(own[hooks] for hooks in HOOKS)
            or any(getattr(part, name) is not None for name in unknown)  # None: what may be there, and is not
            or any(
                type(tensor) not in TENSORS and (layer is not None or tensor is not None)
                for tensor in own["_parameters"].values()
            )
        ):
            return False
        return alone or all(child is None or self.knows(child) for child in own["_modules"].values())


@dataclass
class Watch:
    """Keeps an answer about a part and its children until something is put into one of them.

    Ways ask at every call whether they still know a part; to see that nothing has changed takes a tenth of
    the time of that. A copy asks for itself. Nothing that is kept refers to the part itself, which is freed
    with its last name.
    """

    state: list[object] | None = None
    answer: bool = False
    sized: list[dict[str, Any]] = field(default_factory=list)
    held: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, question: Callable[[], bool], part: nn.Module, children: Collection[nn.Module]) -> bool:
        """Give the answer to a question, which is always the same one, about a part and some children."""
        if self.state is None or self.state != self._look_at(part, children):
            inside = [vars(module) for child in children for module in child.modules()]
            self.held = [own[group] for own in (vars(part), *inside) for group in ("_modules", "_parameters")]
            others = [own[name] for own in (vars(part), *inside) for name in (*HOOKS, "_buffers")]
            self.sized = [*inside, *self.held, *others]
            self.answer, self.state = question(), self._look_at(part, children)
        return self.answer

    def _look_at(self, part: nn.Module, children: Collection[nn.Module]) -> list[object]:
        """List numbers that differ once something is put into a part, or exchanged in it."""
        held = [*children, *chain.from_iterable(map(dict.values, self.held))]
        size = len(vars(part)) + sum(map(len, self.sized))
        return [size, *map(id, held), *map(type, held)]

    def __reduce__(self) -> tuple[type["Watch"], tuple[()]]:
        return Watch, ()
