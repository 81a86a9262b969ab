"""Serve a model of `vitkit export` over HTTP: single images, several, and the Open Inference Protocol."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.jobs.options import StrPath, require_at_least
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.result import Result
from vitkit.runs.folder import kind_of
from vitkit.text import pluralize
from vitkit.world import usable_processors

KEY = "VITKIT_KEY"
"""The variable of the environment that may hold the key: a command line can be read by everybody."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, repr=False)
class Served(Result):
    """The result of a server that was stopped."""

    bundle: Path
    """The folder that was served."""
    answered: int
    """Requests that were answered with a prediction or with tensors."""
    refused: int
    """Requests that were sent away while the server was busy."""
    images: int
    """Images that were computed."""

    def headline(self) -> Sequence[str]:
        """Say what was answered."""
        requests = pluralize(self.answered, "request")
        return (
            f"Stopped. {requests} answered, {pluralize(self.images, 'image')} computed, "
            f"{self.refused:,} sent away while busy.",
        )

    def following(self) -> Sequence[str]:
        """Return the command that serves it again."""
        return (f"vitkit serve {shlex.quote(str(self.bundle))}",)


def serve(
    bundle: StrPath,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    processes: int = 1,
    batch_size: int = 3,
    delay: float = 5.0,
    queue: int = 64,
    max_bytes: int = 20_000_000,
    max_pixels: int = 25_000_000,
    key: StrPath | None = None,
    drain: float = 1.0,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Served:
    """Answer over HTTP with a model of `vitkit export`, until Ctrl-C or SIGTERM (the extra serve).

    POST an image to /predict; /v2 speaks the Open Inference Protocol. The golden set is checked first, and
    /ready says so. For other machines put a reverse proxy with TLS before it.

    Args:
        bundle: the folder of `vitkit export`.
        host: address to listen on; left out, this machine alone.
        port: port to listen on; 0 is any free port.
        processes: processes that serve; each has the model in memory, and its part of the processor's cores.
        batch_size: most images of a batch; each core computes a batch of its own while many images wait.
        delay: most milliseconds that an image waits for others while nothing is computed.
        queue: most images that are accepted and not answered; requests beyond are told when to come again.
        max_bytes: most bytes of a request.
        max_pixels: most pixels of an image; a larger one is refused from its header.
        key: file with the key that requests must send, as Authorization: Bearer KEY; left out, the variable
            VITKIT_KEY, and without it no key.
        drain: seconds after SIGTERM in which /ready says 503 and requests are still accepted.
        quiet: print nothing but warnings.
        listener: hears the address and remarks; left out, a notebook shows them and a script is silent.

    Raises:
        VitkitError: the bundle cannot be read, the address cannot be used, or the extra is not installed.

    Unstable: its parameters and what it returns may change in any release.
    """
    require_at_least(1, processes=processes, batch_size=batch_size, queue=queue, max_bytes=max_bytes)
    require_at_least(1, max_pixels=max_pixels)
    if not (0 <= delay <= 1000 and 0 <= drain <= 600 and 0 <= port <= 65535):
        raise VitkitError(
            "Expected a delay from 0 to 1,000 milliseconds, a drain from 0 to 600 seconds and a port from 0 "
            f"to 65,535, found {delay:g}, {drain:g} and {port}."
        )
    listener, bundle = hushed(listener, quiet), Path(bundle)
    if kind_of(bundle).kind != "exported model":
        raise VitkitError(
            f"{bundle}: expected a folder of vitkit export, found none. Export the model first: vitkit "
            "export MODEL BUNDLE."
        )
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise VitkitError(f"A server needs {' and '.join(missing)}: pip install 'vitkit[serve]'.")
    secret = _read_key(key)
    if host not in LOOPBACK and secret is None:
        listener.warn(f"Everybody who reaches {host} may use this server: give --key FILE to ask for a key.")
    from vitkit.jobs.engines import thread_count
    from vitkit.jobs.serving import server
    from vitkit.jobs.serving.metrics import ROUTES, read_totals
    from vitkit.jobs.serving.service import Settings

    with server.open_socket(host, port) as listening, tempfile.TemporaryDirectory(prefix="vitkit-") as counts:
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"

        def ready(differs: str) -> None:
            if differs:
                listener.warn(f"{differs}. Nothing is answered until it does.")
            with_key = "" if secret is None else ' -H "Authorization: Bearer $KEY"'
            listener.note(
                f"{bundle} is served at {address}, a page for photos; to stop it, press Ctrl-C.\n"
                f"Next: curl{with_key} --data-binary @photo.jpg {address}/predict"
            )

        most = max(1, min(32, queue // 2))  # a single request fills no queue
        threads = thread_count() or max(1, usable_processors() // processes)
        limits = (batch_size, delay / 1000, queue, max_bytes, max_pixels, most, secret, drain, threads)
        settings = Settings(bundle, Path(counts), *limits)
        if processes == 1:
            server.run_process(settings, listening, ready)
        else:
            os.environ.setdefault("OMP_NUM_THREADS", str(threads))
            server.run_processes(processes, settings, listening, ready)
        totals = read_totals(Path(counts))
    answered, refused = (
        sum(
            int(totals[f'vitkit_requests_total{{route="{route}",status="{status}"}}']) for route in ROUTES[:2]
        )
        for status in (200, 503)
    )
    return Served(bundle, answered, refused, int(totals["vitkit_images_total"]))


def _read_key(path: StrPath | None) -> str | None:
    """Read the key of a server from a file, or from the environment.

    Raises:
        VitkitError: the file cannot be read, or the key is too short to keep anybody out.
    """
    try:
        key = os.environ.get(KEY) if path is None else Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise VitkitError(f"{path}: expected a file with a key of ASCII characters: {error}") from error
    if key is not None and len(key) < 16:
        raise VitkitError(
            f"Expected a key of 16 characters or more, found {len(key)}. Make one: openssl rand -hex 16 > KEY"
        )
    return key
