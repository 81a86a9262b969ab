"""`scripts/environment` takes PyTorch's CPU build where there is no GPU, and says it where it cannot."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[1]


def _make_wheel(folder: Path, version: str) -> None:
    """Write a wheel of a package `torch` that holds nothing but its name."""
    folder.mkdir(parents=True)
    described = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": "",
        f"{described}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{described}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nTag: py3-none-any\n",
    }
    files[f"{described}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{described}/RECORD"])
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Serve an index of CPU builds as PyTorch's is laid out: a folder `torch` that lists one wheel."""
    _make_wheel(tmp_path / "index" / "torch", "99.0+cpu")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "index")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _make(tmp_path: Path, new: Path, index: str, gpu: bool = False) -> tuple[str, str]:
    """Run the script where the registry has torch 99.0; return the version that came and what was said."""
    environment = tmp_path / "venv"
    if not environment.exists():
        tmp_path.mkdir()
        shutil.copytree(new, environment, symlinks=True)
        _make_wheel(tmp_path / "registry", "99.0")
    tools = tmp_path / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "nvidia-smi").write_text("#!/bin/sh\n" + ("echo 'GPU 0: a card'\n" if gpu else "exit 9\n"))
    (tools / "nvidia-smi").chmod(0o755)
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    settings |= {
        "PATH": f"{tools}:{settings['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHON": sys.executable,
    }
    said = subprocess.run(
        [ROOT / "scripts" / "environment", environment, "--no-index", "--find-links", tmp_path / "registry"],
        env=settings | {"TORCH_CPU_INDEX": index, "TORCH": "torch>=99"},
        capture_output=True,
        text=True,
        check=True,
    )
    (described,) = environment.glob("lib/python*/site-packages/torch-*.dist-info")
    return described.name.removeprefix("torch-").removesuffix(".dist-info"), said.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has several builds for Linux alone")
def test_pytorch_comes_as_the_cpu_build_where_there_is_no_gpu_and_is_not_exchanged(
    tmp_path: Path, new_environment: Path, index: str
) -> None:
    nowhere = "http://127.0.0.1:9"
    assert _make(tmp_path / "cpu", new_environment, index) == ("99.0+cpu", "")
    assert _make(tmp_path / "cpu", new_environment, nowhere, gpu=True) == ("99.0+cpu", "")
    version, said = _make(tmp_path / "unanswered", new_environment, nowhere)
    assert version == "99.0" and said == (
        f"No CPU build of PyTorch from {nowhere}: pip takes the usual one, "
        "whose CUDA libraries can be several GB\n"
    )
    assert _make(tmp_path / "gpu", new_environment, index, gpu=True) == ("99.0", "")
