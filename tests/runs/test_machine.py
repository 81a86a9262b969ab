"""The device, and the memory that the machine still gives, from files of the system as Linux writes them;
and the rule by which it chooses how a model computes."""

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from vitkit.errors import VitkitError
from vitkit.models.config import PLAIN, Compute, ViTConfig
from vitkit.models.zoo import ModelConfig, model_config, vit_config
from vitkit.runs.machine import available_memory, choose_compute, deterministic, device_features, find_device

GIB = 2**30
SMALL = ViTConfig((12, 20), (4, 4), width=32, depth=2, num_heads=4, mlp_dim=48, num_classes=5)


def system(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {8 * GIB // 1024} kB\n"} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def of_version_2(path: str) -> dict[str, str]:
    folder = "sys/fs/cgroup" + path.rstrip("/")
    return {
        "proc/self/cgroup": f"0::{path}\n",
        f"{folder}/memory.max": f"{3 * GIB}\n",
        f"{folder}/memory.current": f"{2 * GIB}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
    }


GROUPS: dict[str, tuple[int, dict[str, str]]] = {
    "no control groups": (8 * GIB, {"proc/self/cgroup": "0::/\n"}),
    "a group of version 2": (GIB + GIB // 2, of_version_2("/")),
    "a group within others": (GIB + GIB // 2, of_version_2("/job/step")),
    "a limit of the group above": (
        0,
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": "1\n",
            "sys/fs/cgroup/job/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
        },
    ),
    "a group of version 1": (
        GIB,
        {
            "proc/self/cgroup": "4:cpu,memory:/job\n3:cpuset:/\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        },
    ),
}


@pytest.mark.parametrize(("free", "files"), GROUPS.values(), ids=GROUPS)
def test_memory_below_the_limits_of_control_groups(tmp_path: Path, free: int, files: dict[str, str]) -> None:
    assert available_memory(system(tmp_path, files)) == free


def test_finding_a_device_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch, "empty", lambda *arguments, **options: None)  # as if the GPU were there
    assert find_device("cuda") == torch.device("cuda")
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize("before", [None, ":16:8"])
def test_kernels_are_deterministic_while_a_run_lasts(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if before is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
    with deterministic(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()
    switches: Any = torch.utils.deterministic  # without type hints
    fills = switches.fill_uninitialized_memory
    with pytest.raises(KeyboardInterrupt), deterministic(torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not switches.fill_uninitialized_memory
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (before or ":4096:8")
        raise KeyboardInterrupt
    assert not torch.are_deterministic_algorithms_enabled()
    assert switches.fill_uninitialized_memory is fills
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == before


def test_an_operation_without_a_fixed_order_is_refused_by_name() -> None:
    """`put_` without accumulation has none on any device."""
    numbers = torch.zeros(4)
    with pytest.raises(VitkitError, match=r"put_.*no fixed order.*fast"), deterministic(torch.device("cuda")):
        numbers.put_(torch.tensor([0, 0]), torch.ones(2))
    with deterministic(torch.device("cuda"), fast=True):
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


ROUNDS = """
import ctypes, resource, sys
from vitkit.runs.machine import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
blocks = (ctypes.c_void_p * 128)()
for number in range(6):  # it takes a few until nothing more is asked for
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for place in range(128):  # of 1 MiB each; nothing of Python's may lie above them
        blocks[place] = libc.malloc(2**20)
        libc.memset(blocks[place], 1, 2**20)
    for place in reversed(range(128)):  # the last first, so that the end of the heap is free
        libc.free(blocks[place])
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
@pytest.mark.parametrize("variable", [None, pytest.param("MALLOC_TRIM_THRESHOLD_", marks=pytest.mark.slow)])
def test_freed_memory_is_kept_unless_the_user_chose(variable: str | None) -> None:
    """The system clears next to no pages in a later round of 128 MiB, or most of them."""
    own = {} if variable is None else {variable: str(2**20)}

    def pages_cleared(word: str) -> int:
        command = [sys.executable, "-c", ROUNDS, word]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **own}
        return int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)

    given_back, cleared = pages_cleared("leave"), pages_cleared("keep")
    assert given_back > 1000  # a page has 4 KiB, or is a huge one
    assert cleared > 1000 if variable else cleared < given_back / 10


def choose(model: str | ModelConfig = "ViT-S/16", **facts: object) -> Compute:
    options: dict[str, object] = {"device": "cpu", "features": {"avx512_bf16"}, "phase": "training"}
    config = model_config(model) if isinstance(model, str) else model
    return choose_compute(config, **{**options, **facts})  # type: ignore[arg-type]


def test_what_is_chosen_follows_from_machine_and_model() -> None:
    assert choose() == Compute("bfloat16", "explicit", "class_token")
    assert choose(features={"amx_bf16"}) == choose()
    assert choose(phase="prediction") == Compute("float32", "fused", "class_token", pixels="folded")
    compute = choose(phase="evaluation", precision="bfloat16")
    assert compute == Compute("bfloat16", "explicit", "class_token", pixels="folded")
    assert choose(features={"avx2"}) == Compute("float32", "fused", "class_token")
    assert choose(precision="float32") == Compute("float32", "fused", "class_token")
    assert choose(features=(), precision="bfloat16") == Compute("bfloat16", "explicit", "class_token")
    assert choose(compiler=True) == replace(choose(), gelu="compiled", block="compiled")
    assert choose(compiler=True, phase="evaluation").gelu == "compiled"
    assert choose(compiler=True, phase="prediction").gelu == "compiled"
    assert choose(compiler=True, precision="float32").block == "compiled"
    assert choose(compiler=True, phase="evaluation").block == "compiled"
    for facts in ({"exact": True}, {"device": "cuda"}):
        assert choose(compiler=True, **facts).block == "modules"
    assert choose("ViT-64x4x4/4").precision == "float32"
    assert choose("ViT-96x6x3/4").precision == "bfloat16"
    assert choose("ViT-128x6x2/4").precision == "bfloat16"
    assert choose("BiT-R50x1") == choose("BiT-R1-1x0.5") == Compute("bfloat16")
    assert choose("BiT-R50x1", phase="evaluation") == PLAIN
    assert choose("R1-1x0.5+ViT-128x2x2/8").precision == "bfloat16"
    assert choose("R1-1x0.5+ViT-64x2x2/8").precision == "float32"
    assert choose("R50+ViT-B/16", phase="prediction") == Compute("float32", "fused", "class_token")
    assert choose(device="cuda", features={"bfloat16"}) == Compute("bfloat16", "fused", "class_token")
    assert choose(device="cuda", features=()).precision == "float32"


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "drop_path"])
def test_blocks_that_drop_attention_weights_are_compiled_for_evaluation_alone(kind: str) -> None:
    config = replace(SMALL, width=64, **{kind: 0.1})  # type: ignore[arg-type]
    way = choose(config, compiler=True).block
    assert way == ("modules" if kind == "attention_dropout" else "compiled")
    assert choose(config, compiler=True, phase="evaluation").block == "compiled"


def test_long_sequences_are_compiled_where_their_attention_weights_fit_into_memory() -> None:
    """The fused attention holds none; those of 12 layers of 6 heads of 785 tokens are 89 MB an image."""
    config = vit_config("ViT-S/8", image_size=224)
    weights = 12 * 6 * 785**2 * 2
    for images, times, facts, way in (
        (1, 4, {}, "compiled"),
        (2, 4, {}, "modules"),
        (0, 1000, {}, "modules"),
        (12, 4, {"phase": "evaluation", "precision": "bfloat16"}, "compiled"),  # of a layer at a time
        (1, 4, {"precision": "float32"}, "modules"),
        (1, 8, {"precision": "float32"}, "compiled"),
    ):
        assert choose(config, compiler=True, images=images, memory=times * weights, **facts).block == way


def test_long_sequences_are_compiled_in_bfloat16_alone() -> None:
    """In float32 their attention weights would be memory that the fused attention does not take."""
    chosen = {"float32": ("compiled", "modules", "modules"), "bfloat16": ("compiled", "compiled", "modules")}
    for precision, expected in chosen.items():
        for size, block in zip((224, 384, 512), expected, strict=True):
            config = vit_config("ViT-S/16", image_size=size)
            assert choose(config, precision=precision, compiler=True).block == block


def test_long_sequences_keep_the_fused_attention() -> None:
    for size, expected in ((384, "explicit"), (512, "fused")):
        assert choose(model_config("ViT-S/16", image_size=(size, size))).attention == expected


def test_exact_is_the_first_version() -> None:
    assert choose(exact=True) == choose(exact=True, phase="prediction") == PLAIN
    assert choose(exact=True, precision="bfloat16") == Compute("bfloat16")
    assert choose(exact=True, device="cuda", features={"bfloat16"}) == Compute("bfloat16")


def test_no_capabilities_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    able = {name for name, value in torch.cpu.get_capabilities().items() if value is True}
    assert device_features(torch.device("cpu")) == able
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert device_features(torch.device("cpu")) == frozenset()
    assert device_features(torch.device("meta")) == frozenset()


def test_a_gpu_that_can_compile_trains_a_compiled_model() -> None:
    able = {"bfloat16", "triton"}
    assert choose(SMALL, device="cuda", features=able).graph == "compiled"
    for facts in ({"exact": True}, {"phase": "evaluation"}, {"features": {"bfloat16"}}, {"device": "cpu"}):
        assert choose(SMALL, **{"device": "cuda", "features": able, **facts}).graph == "eager"
