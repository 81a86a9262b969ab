"""Describe the machine of a run: its device and memory, and the fastest way to compute a model on it.

The rule that chooses among the ways to compute has no clock: the same machine chooses the same every time,
and so a run is repeatable (`docs/decisions.md`). `docs/results/speed.md` has measurements.

The chosen way is compared with the plain one before anything depends on it. `models/known_parts.py` finds
what is added to a part; a line that is changed within a part's `forward` it cannot see, and its copy in
another way would go on computing the old line. So before the first step of a run and before the first answer
of a model that was loaded, a few images are computed in both ways. That both agree is remembered: a machine
pays once for an architecture that is trained, and once for the weights of an answer.
"""

import copy
import ctypes
import json
import math
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from torch import Tensor, nn
from torch.utils._triton import has_triton  # public functions do not say whether torch.compile can work

from vitkit.config import to_json
from vitkit.data.stream.loader import Batch
from vitkit.durable import cache_folder
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.kernels.block import compiled_block, compiled_gelu, onednn_is_faster
from vitkit.models import build, fast, zoo
from vitkit.models.config import PLAIN, Compute, Phase, Precision, ResNetConfig, ViTConfig
from vitkit.models.image_model import ImageModel, autocast
from vitkit.models.parts import Dropout
from vitkit.world import world_of_environment

MOST_THREADS = 4096
"""Largest number of threads, several times the cores of the largest machines: more is a mistyped option."""

NARROWEST_BFLOAT16 = 96
"""Width from which bfloat16 is chosen on a processor that has it. At 96 training is 1.7 times as fast, and
short runs end as well. At 64 it is 1.1 times as fast, and the digits end a little worse
(docs/results/speed.md)."""

MOST_EXPLICIT_TOKENS = 640
"""Tokens up to which explicit attention is chosen. It holds a weight for every pair of them, whose memory
grows with the square. 384 pixels in patches of 16 are 577 tokens; 640 leaves room for a few more."""

MOST_COMPILED_FLOAT32_TOKENS = 256
"""Tokens up to which a block is compiled in float32 whatever the memory. It holds the attention weights,
which PyTorch's fused attention does not: at 197 tokens a step takes a fifth more memory for it, at 577 two
thirds more."""

ATTENTION_SHARE = 0.25
"""Fraction of the free memory that the attention weights of a step may take where there are more tokens."""

EVALUATED = 128
"""Images that an evaluation computes at a time unless another number is given."""

BFLOAT16_FEATURES = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets with products of bfloat16, as `torch.cpu.get_capabilities` names them."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h: the free memory above which it is handed back, and the size from which a piece
of memory is requested from the system alone."""


class InterruptedTraining(VitkitError):  # noqa: N818 (it is no error: the run stopped as it should)
    """A run that was stopped by a signal, with every finished step committed.

    The exit code is 128 and the signal's number, as shells have it: 130 for SIGINT (Ctrl-C), 143 for SIGTERM,
    129 for SIGHUP (the terminal is gone), 138 for SIGUSR1 on Linux (a SLURM job's time is nearly over).
    """

    def __init__(self, where: str, again: str, signal_number: int) -> None:
        super().__init__(f"Stopped {where}. Continue with: {again}")
        self.where, self.signal_number = where, signal_number
        self.exit_code = 128 + signal_number


def find_device(name: str) -> torch.device:
    """Return the device of a name: "auto", "cpu", "cuda" or "gpu", which is the same, "cuda:1".

    Each process that torchrun starts on a machine gets a GPU of its own.

    Raises:
        VitkitError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    name = re.sub("^gpu", "cuda", name)
    world = world_of_environment()
    if name == "cuda" and world.on_machine > 1:
        name = f"cuda:{world.local_rank}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        # PyTorch's own is a page, or the list of every device that it was ever built for.
        first = str(error).splitlines()[0].split(". ")[0][:200].rstrip(".") + "."
        if first.startswith(("Expected one of", "Invalid dev")):
            first = "it is no device of PyTorch."
        choose = "Choose auto, cpu, or cuda for a GPU of NVIDIA."
        raise VitkitError(f"The device '{name}' cannot be used: {first} {choose}") from error
    return device


def require_threads(threads: int | None) -> None:
    """Refuse a number of threads that PyTorch would not take; None leaves the choice to PyTorch.

    Raises:
        VitkitError: it is below 1 or above `MOST_THREADS`.
    """
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise VitkitError(f"threads is from 1 to {MOST_THREADS:,}, found {threads}.")


@contextmanager
def deterministic(device: torch.device, fast: bool = False) -> Iterator[None]:
    """Have a GPU add up in a fixed order within the block, so that a run ends with the same bits again.

    The switches are global to the process: only training sets them. On a processor nothing is switched.

    Args:
        device: that computes.
        fast: add up in the quickest order instead, and multiply float32 by TF32.

    Raises:
        VitkitError: an operation has no kernel with a fixed order on this GPU.
    """
    if device.type != "cuda":
        yield
        return
    switches: Any = torch.utils.deterministic  # without type hints
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fills, products = switches.fill_uninitialized_memory, torch.get_float32_matmul_precision()
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if fast:
        torch.set_float32_matmul_precision("high")
    else:
        # cuBLAS adds up in a fixed order with a workspace of one of two sizes: this is the faster one.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # All memory would be written once more, with NaN, before it is written.
        switches.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        operation, without, _ = str(error).partition(" does not have a deterministic implementation")
        if not without:
            raise
        raise VitkitError(
            f"{operation} has no fixed order of adding up on this GPU, so that the run could not end with "
            "the same bits again. Train with --fast, which gives that up, or on a processor."
        ) from error
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.set_float32_matmul_precision(products)
        switches.fill_uninitialized_memory = fills
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def keep_freed_memory(keeps: bool = True) -> None:
    """Have the C library keep the memory that a step frees, for the next step to take.

    Left to itself, glibc hands most of it back to the system at every step and asks for it again, and the
    system clears each page anew: 3 to 18 per cent of the time of a step. In exchange, the process stays 2
    to 20 per cent larger than its largest step, because some of the pieces fit nothing. Pieces of more than
    32 MiB, glibc's limit, are handed back as before: to keep those too gained no more. Nothing is changed in
    other C libraries, or where the user set glibc's own variables.

    Args:
        keeps: False has it hand all back, for states that hardly fit: the blocks of a sharded model are
            collected and freed in turn; held by glibc, they take more memory than the division saves
            (docs/results/speed.md).
    """
    variables = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in variables):
        return
    # To hand back, pieces that are smaller than a block's smallest matrix.
    trim, mmap = (2**31 - 1, 32 * 2**20) if keeps else (128 * 2**10, 256 * 2**10)
    with suppress(AttributeError, OSError):  # another allocator may have been loaded
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, trim)
        libc.mallopt(M_MMAP_THRESHOLD, mmap)


def memory_used(device: torch.device) -> int:
    """Return the peak memory in bytes so far: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory(root: Path = Path("/")) -> int | None:
    """Estimate the bytes of memory that this process can still get; None if unknown.

    On Linux: the smallest of MemAvailable in /proc/meminfo and the free memory of each control group above
    this process (version 1 or 2, as containers and Slurm set them). Elsewhere: the memory of the machine,
    used or not.

    Args:
        root: the folder that holds /proc and /sys.
    """
    amounts = list(_below_group_limits(root))
    lines = _text(root / "proc/meminfo").splitlines()
    amounts += (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if amounts:
        return max(0, min(amounts))
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _below_group_limits(root: Path) -> Iterator[int]:
    """Yield the bytes that each control group above this process has left; cached files count as free."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
            limit, used, cache = "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mounts = [root / "sys/fs/cgroup/memory"]
            limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        for mount in mounts:
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                most, now = (_text(folder / name).strip() for name in (limit, used))
                if most.isdigit() and now.isdigit():
                    lines = _text(folder / "memory.stat").splitlines()
                    statistics = dict(line.split(" ", 1) for line in lines)
                    yield int(most) - int(now) + int(statistics.get(cache, "0"))
                if folder == mount:
                    break


def _text(path: Path) -> str:
    """Read a small file of the system; empty if it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def device_features(device: torch.device) -> frozenset[str]:
    """List the features of a device: instruction sets of a processor; "bfloat16" and "triton" of a GPU."""
    if device.type == "cuda":
        offered = {"bfloat16": torch.cuda.is_bf16_supported(), "triton": has_triton()}
        return frozenset(name for name, value in offered.items() if value)
    if device.type != "cpu":
        return frozenset()
    # Absent before PyTorch 2.12 or so: then nothing is chosen that needs an instruction set.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return frozenset(name for name, value in capabilities.items() if value is True)


def choose_compute(
    config: ViTConfig | ResNetConfig,
    *,
    device: str,
    features: Collection[str],
    phase: Phase,
    precision: Precision = "auto",
    exact: bool = False,
    compiler: bool = False,
    images: int = 0,
    memory: int = 0,
) -> Compute:
    """Choose how a model computes, by its configuration and the machine; nothing is timed.

    Args:
        config: of the model.
        device: "cpu", "cuda".
        features: by `device_features`.
        phase: the purpose of the computation.
        precision: "auto" leaves the choice to the rule.
        exact: Whether to compute in the plain way, and on a processor in float32 unless `precision` is
            bfloat16.
        compiler: whether there are compiled kernels, or they can be compiled.
        images: computed at a time.
        memory: free bytes.
    """
    vit = config if isinstance(config, ViTConfig) else None  # a ResNet computes in the plain way alone
    if precision == "auto" and device == "cpu":
        # A finished model computes in float32: an evaluation must not depend on the instruction sets of the
        # machine. Convolutions gain as dense layers do: the training step of narrow BiT ResNets was 1.4 to
        # 2.2 times as fast in bfloat16 (a core of an EPYC with avx512_bf16).
        wide = config.width >= NARROWEST_BFLOAT16
        pays = wide and phase == "training" and not BFLOAT16_FEATURES.isdisjoint(features) and not exact
        precision = "bfloat16" if pays else "float32"
    elif precision == "auto":
        precision = "bfloat16" if "bfloat16" in features else "float32"
    if exact or vit is None:
        return Compute(precision)
    compiled = compiler and device == "cpu" and fast.COMPILED_GELU.computes(vit)
    most, size = (MOST_EXPLICIT_TOKENS, 2) if precision == "bfloat16" else (MOST_COMPILED_FLOAT32_TOKENS, 4)
    # A training step holds the weights of all layers.
    layers = vit.depth if phase == "training" else 1
    weights = images * layers * vit.num_heads * vit.num_tokens**2 * size
    fits = vit.num_tokens <= most or 0 < weights <= ATTENTION_SHARE * memory
    # A compiled block drops no attention weights.
    drops = phase == "training" and vit.attention_dropout > 0
    block = compiled and fast.block_can_be_compiled(vit) and fits and not drops
    explicit = device == "cpu" and precision == "bfloat16" and vit.num_tokens <= MOST_EXPLICIT_TOKENS
    explicit = explicit and fast.EXPLICIT_ATTENTION.computes(vit)
    return Compute(
        precision,
        attention="explicit" if explicit else "fused",
        last_block="class_token" if fast.CLASS_TOKEN.computes(vit) else "every_token",
        gelu="compiled" if compiled else "pytorch",
        pixels="folded" if phase != "training" and fast.FOLDED_PIXELS.computes(vit) else "normalized",
        block="compiled" if block else "modules",
        # Half a minute of compiling pays in training alone; on a processor it did not pay at all.
        graph="compiled" if device == "cuda" and phase == "training" and "triton" in features else "eager",
    )


def choose_for(
    config: zoo.ModelConfig,
    device: torch.device,
    precision: Precision,
    *,
    phase: Phase,
    exact: bool,
    images: int = EVALUATED,
    compile_it: bool = True,
) -> Compute:
    """Choose how a model computes on a device, by `choose_compute` with the features of this machine.

    Args:
        config, precision, phase, exact: as for `choose_compute`.
        device: where it computes.
        images: computed at a time.
        compile_it: whether kernels are compiled that are not in the cache.
    """
    chosen = choose_compute(
        config,
        device=device.type,
        features=device_features(device),
        phase=phase,
        precision=precision,
        exact=exact,
        compiler=not exact and compiled_gelu(compile_it) is not None,
        images=images,
        memory=available_memory() or 0,
    )
    if is_plain(chosen):
        return chosen
    if chosen.block == "compiled" and chosen.precision == "float32" and compile_it and onednn_is_faster():
        chosen = replace(chosen, products="onednn")
    # A configuration says nothing of a part that the source has besides: a model of one block is asked, so
    # that what is written down is what is computed. A block is compiled for the chosen precision alone.
    trial = build.build_empty(replace(cast("ViTConfig", config), depth=1))
    compute_as(trial, replace(chosen, graph="eager"), compile_it=compile_it)
    return replace(trial.chosen, graph=chosen.graph)


def compute_as(
    model: ImageModel, chosen: Compute, objective: nn.Module | None = None, compile_it: bool = True
) -> None:
    """Have a model, and the blocks of its objective, compute as chosen, as far as this machine can.

    Without a compiler PyTorch's operations are used; without a GPU there is no torch.compile.
    """
    gelu = compiled_gelu(compile_it) if chosen.gelu == "compiled" else None
    onednn = chosen.products == "onednn"
    block = compiled_block(chosen.precision, compile_it, onednn) if chosen.block == "compiled" else None
    here = replace(
        chosen,
        gelu=chosen.gelu if gelu is not None else "pytorch",
        block=chosen.block if block is not None else "modules",
        products=chosen.products if block is not None and block.onednn else "pytorch",
        graph=chosen.graph if torch.cuda.is_available() else "eager",
    )
    drops = any(isinstance(part, Dropout) and part.rate for part in model.modules())
    drawing = compiled_block("float32", compile_it) if drops else None
    fast.compute_as(model, here, gelu, block, None if drawing is None else drawing.keep_mask, objective)


def prepare(
    model: ImageModel,
    precision: Precision,
    exact: bool,
    phase: Phase,
    weights: str | None = None,
    compile_it: bool = True,
) -> Precision:
    """Have a model compute its predictions in the fastest way chosen for the device that it is on.

    Args:
        model: on its device.
        precision, exact, phase: as for `choose_for`.
        weights: their hash, by which the comparison of the ways is remembered; None: it is made anew.
        compile_it: whether kernels are compiled that were not before, which takes some seconds.

    Returns:
        The precision for autocast.

    Raises:
        VitkitError: the fastest way gives another result than the plain one.
    """
    device = model.pixel_mean.device
    chosen = choose_for(model.config, device, precision, phase=phase, exact=exact, compile_it=compile_it)
    compute_as(model, chosen, compile_it=compile_it)
    if weights is None:
        require_same_features(model)
    else:
        facts = ["features", weights, *sorted(device_features(device))]
        compare_once(model, facts, lambda: require_same_features(model))
    return model.chosen.precision


IMAGES = 4
"""Training images on which a run is compared: in bfloat16 they cost about 56 passes forward, once for each
architecture and machine."""
NOISE = 0.02
"""The largest number that is added to a weight before training is compared: of a branch or a head that begins
at zero nothing would be seen. Weights of trained models are about as large."""
FLOAT32_TOLERANCE = 1e-4
"""The largest norm of a difference, over the norm of the plain way's result, in float32. Measured on two
cores of a Zen 4 with AVX-512 (24 November 2026): 1.9e-6 at most, over the variants of
`tests/models/test_fast.py` and models from ViT-Ti/16 to ViT-B/32."""
ROUNDINGS = 4.0
"""The same in bfloat16, over the plain way's own largest difference from float32, which is 0.01 to 0.07 and
depends on model and objective. Measured over the same models: 1.9 at most."""
MAXIMUM_TOLERANCE = 0.5
"""The same in bfloat16 where the head sees the largest of the tokens: rounding decides which one that is,
and so where its gradient goes. Measured: 0.20 at most."""
LEAST_PART = 1e-3
"""Gradients of a smaller part of the norm of all are compared with that part: some are zero but for rounding,
such as those of the keys' bias."""

Results = Mapping[str, Tensor]
"""The results of one way by name: the features, or the loss and the gradients that there are."""


def is_plain(chosen: Compute) -> bool:
    """Whether a way is the plain one, in either precision, so that there is nothing to compare."""
    return replace(chosen, graph="eager") == replace(PLAIN, precision=chosen.precision)


def require_same_gradients(model: ImageModel, objective: nn.Module, batch: Batch, total_steps: int) -> None:
    """Refuse to train a model whose chosen way gives another loss or other gradients than the plain one.

    Copies compute, in evaluation mode, so that nothing is dropped at random, and random generators are put
    back. torch.compile is left out: it would take half a minute, and makes its graph of the chosen way.

    Args:
        model: on its device, with its way chosen.
        objective: as for `Trainer`.
        batch: a few training images.
        total_steps: of the run.

    Raises:
        VitkitError: results are further apart than the tolerance.
    """
    if is_plain(model.chosen):
        return
    device = model.pixel_mean.device
    trial, task = copy.deepcopy(model).eval(), copy.deepcopy(objective).to(device).eval()
    trained = nn.ModuleDict({"model": trial, "objective": task}).requires_grad_()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        with torch.no_grad():
            for weights in trained.parameters():
                weights.add_(torch.empty_like(weights).uniform_(-NOISE, NOISE))

        def gradients(precision: Precision) -> Results:
            torch.manual_seed(0)
            trained.zero_grad()
            with autocast(device, precision):
                loss, _ = task(trial, batch.to(device), 0, total_steps)
            loss.backward()
            named = ((name, weights.grad) for name, weights in trained.named_parameters())
            of_weights = {f"the gradient of {name}": grad for name, grad in named if grad is not None}
            return {"the loss": loss.detach(), **of_weights}

        compute_as(trial, model.chosen, task)
        _refuse_difference(trial, gradients, "Train in the plain way: begin the run with --exact.", task)


def compare_once(model: ImageModel, facts: Sequence[Any], compare: Callable[[], None]) -> None:
    """Compare both ways, unless they agreed before, and remember that they agreed.

    Args:
        model: on its device, with its way chosen.
        facts: all that the comparison depends on beside the model's configuration and way, as plain data.
        compare: raises an error where the ways do not agree.
    """
    remembered = cache_folder() / "compared" / hash_computation(model, facts)
    if not remembered.exists():
        compare()
        with suppress(OSError):  # then it is compared again next time
            remembered.parent.mkdir(parents=True, exist_ok=True)
            remembered.touch()


def hash_weights(model: ImageModel) -> str:
    """Hash a model's parameters and those of its `Novelty`: a tenth of a second for ViT-B."""
    digest = xxhash.xxh3_128()
    others = {} if model.novelty is None else model.novelty.tensors()
    for name, tensor in [*model.state_dict().items(), *others.items()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def hash_computation(model: ImageModel, facts: Sequence[Any]) -> str:
    """Hash all that the result of a model's computation depends on.

    Args:
        model: its configuration and way are hashed, and the source that computes it: somebody may have
            changed a part and not its copy.
        facts: the weights and what else there is, as plain data.
    """
    own = to_json(model.config), to_json(model.chosen), model.pixel_mean.device.type, torch.__version__
    digest = xxhash.xxh3_128(json.dumps([*own, *facts]).encode())
    source = Path(__file__).parents[1]
    rooms = ("kernels", "models", "engines")
    for path in sorted(path for room in rooms for path in (source / room).rglob("*")):
        if path.suffix in (".c", ".py"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def require_same_features(model: ImageModel) -> None:
    """Refuse to answer by a model whose chosen way gives other features than the plain one.

    Raises:
        VitkitError: features, or embeddings of patches, are further apart than the tolerance.
    """
    chosen = model.chosen
    if is_plain(chosen):
        return
    device, shape = model.pixel_mean.device, (model.config.in_channels, *model.config.image_size)
    trial = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    # One image: a prediction of a few should not wait for more.
    pixels = torch.randint(0, 256, (1, *shape), generator=torch.Generator().manual_seed(0))
    pixels = pixels.to(device, torch.uint8)

    def features(precision: Precision) -> Results:
        with autocast(device, precision):
            results = {"an image's features": trial.features(pixels)}
            # A ViT alone folds pixels, where they are more than the weights of the patch embedding.
            if chosen.pixels == "folded":
                weights = trial.get_parameter("stem.weight").numel()
                many = pixels.expand(1 + weights // math.prod(shape), *shape)
                results["the embedding of patches"] = cast("Any", trial).patches(many)
        return results

    with evaluation_mode(trial):
        _refuse_difference(trial, features, "Compute in the plain way: with --exact.")


def _refuse_difference(
    model: ImageModel,
    compute: Callable[[Precision], Results],
    advice: str,
    objective: nn.Module | None = None,
) -> None:
    """Refuse a model whose chosen way gives other results than the plain one, by more than rounding.

    Results of the plain way that are not finite are for the step or the answer itself to refuse.

    Args:
        model: with its way chosen; the plain way is chosen for it here.
        compute: computes the results by the model, in a precision.
        advice: ends the error.
        objective: as for `compute_as`.
    """
    chosen, plain_way = model.chosen, replace(PLAIN, precision=model.chosen.precision)
    quick = compute(chosen.precision)
    compute_as(model, plain_way, objective)
    plain = compute(chosen.precision)
    name, difference = largest_difference(quick, plain)
    tolerance = FLOAT32_TOLERANCE
    if plain_way != PLAIN:  # the plain way in float32 shows the rounding of bfloat16
        compute_as(model, PLAIN, objective)
        tolerance = ROUNDINGS * largest_difference(plain, compute(PLAIN.precision))[1]
        if model.config.pool == "max":
            tolerance = max(tolerance, MAXIMUM_TOLERANCE)
    # Written so that a difference that is not a number does not pass.
    if difference <= tolerance or not all(value.isfinite().all() for value in plain.values()):
        return
    values = {own.name: getattr(chosen, own.name) for own in fields(chosen) if own.name != "precision"}
    ways = [f"{name} {value}" for name, value in values.items() if value != getattr(PLAIN, name)]
    raise VitkitError(
        f"The chosen way to compute this model ({', '.join(ways)}) gives another result than the plain "
        f"way: {name} differs by {difference:.2g} of its size, where rounding in {chosen.precision} is below "
        f"{tolerance:.2g}. Something in the model is computed in the plain way alone. {advice}"
    )


def largest_difference(quick: Results, expected: Results) -> tuple[str, float]:
    """Find the result with the largest norm of the difference, over the norm of what is expected.

    A result that one of the two lacks is zero there.
    """
    norms, zero = {name: value.double().norm().item() for name, value in expected.items()}, torch.zeros(())
    least = max(LEAST_PART * math.hypot(*norms.values()), 1e-30)  # never a division by zero
    differences = {
        name: (quick.get(name, zero).double() - expected.get(name, zero).double()).norm().item()
        / max(norms.get(name, 0.0), least)
        for name in sorted(expected.keys() | quick.keys())
    }
    # What is not a number is the largest.
    return max(differences.items(), key=lambda pair: math.inf if math.isnan(pair[1]) else pair[1])
