"""A server answers as `vitkit predict` does, within limits, and says no in time."""

import asyncio
import base64
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from benchmarks import load, serving_abuse

import vitkit
from tests.engines.models import NAMES, FakeRunner, fake_engines, small
from tests.helpers.image_zoo import huge_png
from tests.helpers.refusals import refused
from tests.jobs.serving.live import SETTINGS, Gate, Live, live
from vitkit.errors import VitkitError
from vitkit.jobs.serving import application, metrics, server
from vitkit.jobs.serving.batches import Batches, BusyError
from vitkit.signals import SAME_SECONDS

Exported = tuple[Path, FakeRunner]


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, gate: Gate) -> Iterator[Exported]:
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        model = small()
        runner = fake_engines(patch, model, gate)
        vitkit.export(vitkit.save_model(model, folder / "model"), folder / "mine", format="onnx")
        yield folder / "mine", runner


@pytest.fixture(scope="module")
def running(exported: Exported) -> Iterator[Live]:
    with live(*exported) as running:
        yield running


@pytest.fixture(scope="module")
def photo(exported: Exported) -> bytes:
    return (exported[0] / "golden" / "03.jpg").read_bytes()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def answered(waiting: Iterable[socket.socket]) -> None:
    for opened in waiting:
        assert opened.recv(100).startswith(b"HTTP/1.1 200 ")
        opened.close()


def predictions(running: Live, content: bytes) -> Any:
    answer = running.send("POST", "/predict", content)
    assert answer.status == 200, answer.body
    return answer.json


def test_an_image_is_answered_as_predict_answers_it(running: Live, exported: Exported, photo: bytes) -> None:
    guesses = vitkit.Predictor(exported[0])(photo)
    expected = [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
    assert predictions(running, photo) == {"predictions": expected}
    two = running.send("POST", "/predict?top=2", photo, {"Content-Type": "image/jpeg"})
    assert two.json == {"predictions": expected[:2]}


def test_several_images_are_answered_each_by_itself(running: Live, photo: bytes) -> None:
    contents = [photo, b"no image", photo]
    body = json.dumps({"images": [base64.b64encode(content).decode() for content in contents]})
    answer = running.send("POST", "/predict", body, {"Content-Type": "application/json"})
    first, unreadable, last = answer.json["images"]
    assert answer.status == 200 and first == last
    alone = predictions(running, photo)["predictions"]
    assert [guess["class"] for guess in first["predictions"]] == [guess["class"] for guess in alone]
    assert "image" in unreadable["error"]


JSON, IMAGE = "application/json; charset=utf-8", "image/jpeg"


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (JSON, '{"images": []}', 400),
        (JSON, '{"images": "a"}', 400),
        (JSON, '{"images": ["*"]}', 400),
        (JSON, '{"images": [1]}', 400),
        (JSON, "[" * 900, 400),  # deeper than Python's parser goes
        (JSON, "{" * 5000, 400),
        (JSON, "[" + "1," * 5000 + "1]", 400),
        (JSON, "\x00", 400),
        (JSON, json.dumps({"images": ["YQ=="] * 5}), 413),
        (IMAGE, b"", 422),
        (IMAGE, b"no image", 422),
        (IMAGE, b"\xff\xd8\xff", 422),
        (IMAGE, huge_png(1001, 1000), 422),
        (IMAGE, huge_png(2**31 - 1, 2**31 - 1), 422),
    ],
)
def test_what_is_no_list_or_no_image_or_too_large_a_one_is_refused(
    running: Live, content_type: str, body: str | bytes, status: int
) -> None:
    answer = running.send("POST", "/predict", body, {"Content-Type": content_type})
    assert answer.status == status and answer.json["error"]


def test_a_body_is_limited_to_the_byte_with_a_length_and_without(running: Live) -> None:
    most = SETTINGS.max_bytes
    for count, status in ((most, 422), (most + 1, 413)):
        assert running.send("POST", "/predict", bytes(count)).status == status
        chunks = (bytes(part) for part in (most // 2, most // 2, count - most))
        assert running.send("POST", "/predict", chunks).status == status
    # A length that is a lie is not waited for.
    head = b"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: 99999999999\r\n\r\n"
    with running.open(head) as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 413 ")
    assert running.server.service.held_bytes == 0


def test_all_bodies_together_are_limited(running: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "HELD_BODIES", 1)
    unfinished = load.post("/predict", bytes(SETTINGS.max_bytes))[:-1]
    with running.open(unfinished):
        until(lambda: running.server.service.held_bytes > SETTINGS.max_bytes // 2)
        answer = running.send("POST", "/predict", bytes(SETTINGS.max_bytes))
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    until(lambda: running.server.service.held_bytes == 0)


def test_a_slow_body_is_given_up(running: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "BODY_SECONDS", 0.05)
    with running.open(load.post("/predict", bytes(100))[:-1]) as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_slow_head_is_given_up_and_idle_connections_are_closed(
    running: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.05)
    for sent in (b"", b"POST /predict HTTP/1.1\r\nHost: he", load.post("/health", b"")):
        with running.open(sent) as opened, suppress(ConnectionResetError):
            while opened.recv(1000):
                pass


def test_connections_beyond_the_limit_are_closed(running: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 2)
    until(lambda: not running.server.server_state.connections)
    with running.open(b""), running.open(b""), running.open(b"") as third:
        assert third.recv(1) == b""


def test_a_full_queue_says_no_at_once_and_when_to_come_again(running: Live, gate: Gate, photo: bytes) -> None:
    with gate.closed():
        waiting = [running.open(load.post("/predict", photo)) for _ in range(SETTINGS.queue)]
        until(lambda: running.server.service.batches.accepted == SETTINGS.queue)
        more = running.send("POST", "/predict", photo)
        assert more.status == 503 and int(more.headers["Retry-After"]) >= 1
        assert running.send("GET", "/health").status == running.send("GET", "/ready").status == 200
    answered(waiting)
    assert predictions(running, photo)


def test_images_that_wait_together_are_computed_together(running: Live, gate: Gate, photo: bytes) -> None:
    running.runner.batches.clear()
    with gate.closed():
        waiting = [running.open(load.post("/predict", photo))]
        assert gate.reached.wait(60)
        waiting += (running.open(load.post("/predict", photo)) for _ in range(6))
        until(lambda: len(running.server.service.batches._waiting) == 6)
    answered(waiting)
    assert running.runner.batches == [1, SETTINGS.batch_size, 2]


def test_clients_that_have_gone_are_not_computed(running: Live, gate: Gate, photo: bytes) -> None:
    running.runner.batches.clear()
    with gate.closed():
        first = running.open(load.post("/predict", photo))
        assert gate.reached.wait(60)
        gone = [running.open(load.post("/predict", photo)) for _ in range(5)]
        until(lambda: running.server.service.batches.accepted == 6)
        for opened in gone:
            opened.close()
        until(lambda: running.server.service.batches.accepted == 1)
    answered([first])
    assert predictions(running, photo)
    assert running.runner.batches == [1, 1]


def test_a_lone_image_waits_for_no_other(exported: Exported, photo: bytes) -> None:
    """A delay of an hour would be noticed."""
    with live(*exported, delay=3600) as running:
        assert predictions(running, photo)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"GET /ready HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000,
    ],
)
def test_what_is_no_http_is_refused(running: Live, sent: bytes) -> None:
    with running.open(sent) as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 400 ")
    assert running.send("GET", "/health").status == 200


def test_tensors_of_the_inference_protocol_are_answered_with_logits(running: Live) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (3, 3, 16, 24), dtype=np.uint8)
    logits = running.server.service.model(pixels)
    described = running.send("GET", "/v2/models/mine").json
    assert described["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 3, 16, 24]}]
    assert described["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 5]}]
    tensor = {"name": "images", "datatype": "UINT8", "shape": [3, 3, 16, 24]}
    for data in (pixels.ravel().tolist(), pixels.tolist()):
        body = json.dumps({"id": "7", "inputs": [tensor | {"data": data}]})
        answer = running.send("POST", "/v2/models/mine/infer", body).json
        (output,) = answer.pop("outputs")
        assert answer == {"model_name": "mine", "model_version": "1", "id": "7"}
        assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [3, 5])
        np.testing.assert_allclose(np.reshape(output["data"], (3, 5)), logits, atol=1e-5)
    # The extension: the tensors stand behind the JSON.
    inputs = [tensor | {"parameters": {"binary_data_size": pixels.size}}]
    outputs = [{"name": "logits", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    binary = running.send("POST", "/v2/models/mine/infer", head + pixels.tobytes(), headers)
    length = int(binary.headers["Inference-Header-Content-Length"])
    assert json.loads(binary.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 60}
    received = np.frombuffer(binary.body[length:], "<f4").reshape(3, 5)
    np.testing.assert_allclose(received, logits, atol=1e-5)


TENSOR = {"name": "images", "datatype": "UINT8", "shape": [1, 3, 16, 24], "data": [0] * 1152}


WRONG_TENSORS: tuple[dict[str, Any], ...] = (
    {"name": "other"},
    {"datatype": "FP32"},
    *({"shape": [count, 3, 16, 24]} for count in (True, -1, 10**30)),
    {"shape": [1, 3, 24, 16]},
    {"data": [0] * 1151},
    *({"data": [value] * 1152} for value in (256, 0.5, "0")),
    {"data": 1152},
    {"data": [[0], 1]},
)
WRONG_OUTPUTS = ([{"name": "other"}], ["logits"], [{"name": "logits"}] * 2, [{"name": ["logits"]}])


@pytest.mark.parametrize(
    "body",
    [
        *({}, [], {"inputs": [TENSOR, TENSOR]}, {"inputs": ["images"]}),
        *({"inputs": [TENSOR | change]} for change in WRONG_TENSORS),
        *({"inputs": [TENSOR], "outputs": outputs} for outputs in WRONG_OUTPUTS),
    ],
)
def test_other_tensors_are_refused(running: Live, body: Any) -> None:
    assert running.send("POST", "/v2/models/mine/infer", json.dumps(body)).status == 400


def test_one_tensor_is_taken_and_too_many_images_and_wrong_lengths_of_json_are_not(running: Live) -> None:
    many = TENSOR | {"shape": [5, 3, 16, 24], "data": [0] * 5760}
    assert running.send("POST", "/v2/models/mine/infer", json.dumps({"inputs": [many]})).status == 413
    body = json.dumps({"inputs": [TENSOR]})
    assert running.send("POST", "/v2/models/mine/infer", body).status == 200
    for length in ("-1", "x", "9" * 9, "9" * 5000, "²"):
        headers = {"Inference-Header-Content-Length": length}
        assert running.send("POST", "/v2/models/mine/infer", body, headers).status == 400, length


def test_the_protocol_says_whether_server_and_model_are_ready(running: Live) -> None:
    paths = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/mine/ready")
    assert [running.send("GET", path).status for path in paths] == [200] * 4
    assert running.send("GET", "/v2/models/mine/ready").json == {"ready": True, "name": "mine"}
    for method, path in (("GET", ""), ("GET", "/ready"), ("POST", "/infer")):
        assert running.send(method, f"/v2/models/other{path}", b"").status == 404


def test_a_golden_set_that_differs_is_not_ready_and_answers_nothing(
    exported: Exported, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, runner = exported
    monkeypatch.setattr(runner, "change", lambda logits: logits[:, ::-1])
    with live(bundle, runner) as running:
        for method, path in (("GET", "/ready"), ("POST", "/predict")):
            answer = running.send(method, path, photo)
            assert answer.status == 503 and "logits: 0 of 16" in answer.json["error"]
        assert running.send("GET", "/v2/health/ready").status == 503
        assert running.send("GET", "/health").status == 200
        assert runner.batches


def test_a_key_is_asked_for_where_there_is_one(exported: Exported, photo: bytes) -> None:
    with live(*exported, key="0123456789abcdef") as running:
        right = {"Authorization": "Bearer 0123456789abcdef"}
        assert running.send("POST", "/predict", photo, right).status == 200
        for given in ("", "Bearer 0123456789abcdeé", "0123456789abcdef"):
            for method, path in (("POST", "/predict"), ("GET", "/metrics"), ("GET", "/v2/models/mine")):
                answer = running.send(method, path, photo, {"Authorization": given} if given else {})
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert {running.send("GET", path).status for path in application.OPEN} == {200}


def test_requests_images_and_seconds_are_counted(exported: Exported, photo: bytes) -> None:
    with live(*exported) as running:
        for body in (photo, photo, b"no image"):
            running.send("POST", "/predict", body)
        answer = running.send("GET", "/metrics")
        lines = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if line[0] != "#")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert lines['vitkit_requests_total{route="predict",status="200"}'] == "2"
        assert lines['vitkit_requests_total{route="predict",status="422"}'] == "1"
        assert lines["vitkit_images_total"] == lines["vitkit_request_seconds_count"] == "2"
        assert lines['vitkit_request_seconds_bucket{le="+Inf"}'] == "2"
        assert 0 < float(lines["vitkit_request_seconds_sum"]) < 60


def test_the_counts_of_processes_are_added_up(tmp_path: Path) -> None:
    own = metrics.Metrics(tmp_path)
    own.count_request("predict", 200, 0.02)
    own.set("vitkit_queue_images", 3)
    (tmp_path / "99999999").write_bytes((tmp_path / str(os.getpid())).read_bytes())  # it has ended
    totals = metrics.read_totals(tmp_path)
    assert totals['vitkit_requests_total{route="predict",status="200"}'] == 2
    assert [totals[f'vitkit_request_seconds_bucket{{le="{most}"}}'] for most in (0.01, 0.025)] == [0, 2]
    assert totals["vitkit_queue_images"] == 3


def test_the_page_runs_its_own_script_alone(running: Live) -> None:
    page = running.send("GET", "/").body.decode()
    assert "default-src 'none'; script-src 'self'" in page and "http" not in page.replace("http-equiv", "")
    for name in ("page.js", "page.css"):
        assert name in page and running.send("GET", f"/{name}").status == 200
    assert running.send("GET", "/../server.py").status == 404
    assert running.send("GET", "/docs").status == 404  # FastAPI's page loads its scripts from elsewhere


def test_all_routes_are_described_for_programs(running: Live) -> None:
    document = running.send("GET", "/openapi.json").json
    assert {*document["paths"]} == {
        *("/predict", "/health", "/ready", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"),
        *(f"/v2/models/mine{rest}" for rest in ("", "/ready", "/infer")),
    }
    assert {*document["paths"]["/predict"]["post"]["responses"]} >= {"200", "413", "422", "503"}
    assert running.send("GET", "/predict").headers["Allow"] == "POST"


def test_a_server_that_stops_answers_what_it_has_accepted(
    exported: Exported, gate: Gate, photo: bytes
) -> None:
    with live(*exported, drain=0.2) as running:
        with gate.closed():
            waiting = [running.open(load.post("/predict", photo)) for _ in range(SETTINGS.queue)]
            until(lambda: running.server.service.batches.accepted == SETTINGS.queue)
            running.stop()
            until(lambda: running.server.service.draining)
            answer = running.send("GET", "/ready")
            assert (answer.status, answer.headers["Connection"]) == (503, "close")
            assert "stopping" in answer.json["error"]
            until(lambda: not any(each.is_serving() for each in running.server.servers))
            with pytest.raises(OSError):
                running.open(b"")
        answered(waiting)
        running.thread.join(60)
        assert not running.thread.is_alive()


def test_a_second_interrupt_waits_for_nothing(exported: Exported, gate: Gate, photo: bytes) -> None:
    with live(*exported, drain=0) as running, gate.closed():
        opened = running.open(load.post("/predict", photo))
        assert gate.reached.wait(60)
        running.stop()
        time.sleep(SAME_SECONDS)
        running.loop.call_soon_threadsafe(running.server.stop, signal.SIGINT)
        running.thread.join(60)
        assert not running.thread.is_alive()
        opened.close()


def compute(batches: Batches, *rounds: list[Any]) -> list[Any]:
    """Give the outputs, or errors, of images that arrive together, round after round."""

    async def ask() -> list[Any]:
        running, answers = asyncio.create_task(batches.run()), list[Any]()
        for images in rounds:
            answers += await asyncio.gather(*map(batches.outputs, images), return_exceptions=True)
        running.cancel()
        return answers

    return asyncio.run(ask())


def test_a_failure_of_the_model_reaches_every_request_of_its_batch() -> None:
    fail = Mock(side_effect=VitkitError("the weights are damaged"))
    results = compute(Batches(fail, size=4, delay=0, queue=4), [np.zeros((1, 2, 2), np.uint8)] * 6)
    assert [str(result) for result in results] == ["the weights are damaged"] * 6


def test_cores_compute_few_images_together_and_many_each_by_itself() -> None:
    computed, together = list[tuple[str, int]](), threading.Barrier(2, timeout=60)

    def all_cores(images: Any) -> Any:
        computed.append(("all", len(images)))
        return images[:, 0, 0, :1].astype(np.float32)

    def one_core(images: Any) -> Any:
        together.wait()  # passes where two compute at a time alone
        computed.append(("one", len(images)))
        return images[:, 0, 0, :1].astype(np.float32)

    batches = Batches(all_cores, one_core, 2, size=3, delay=0, queue=20)
    images = [np.full((1, 2, 2), number, np.uint8) for number in range(9)]
    answers = compute(batches, images[:1], images[1:5], images[5:])
    assert [list(answer) for answer in answers] == [[number] for number in range(9)]
    assert computed == [("all", 1), *4 * [("one", 2)]]


def test_a_client_is_sent_away_for_as_long_as_the_queue_takes() -> None:
    batches = Batches(lambda images: np.zeros((len(images), 1), np.float32), size=4, delay=0, queue=200)
    with batches.accept(200):
        for rate, seconds in ((1000.0, 1), (50.0, 4), (0.001, 60)):
            batches._rate = rate
            with pytest.raises(BusyError) as raised:
                batches.refuse_more()
            assert raised.value.retry_after == seconds
    batches.refuse_more(200)


def test_what_cannot_be_served_is_refused(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, key = exported[0], tmp_path / "key"
    refused("expected a folder of vitkit export, found none", vitkit.serve, bundle.parent / "model")
    refused("batch_size is at least 1", vitkit.serve, bundle, batch_size=0)
    refused("a port from 0 to 65,535", vitkit.serve, bundle, port=70000)
    refused("expected a file with a key", vitkit.serve, bundle, key=key)
    key.write_text("short\n")
    refused("16 characters or more, found 5", vitkit.serve, bundle, key=key)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused("cannot listen on", vitkit.serve, bundle, port=taken.getsockname()[1])
    damaged = Path(shutil.copytree(bundle, tmp_path / "copy"))
    (damaged / "golden" / "01.jpg").write_bytes(b"another")
    refused("is missing, was damaged or replaced", vitkit.serve, damaged, port=0)
    monkeypatch.setattr("vitkit.jobs.serve.find_spec", lambda name: None)
    refused(r"pip install 'vitkit\[serve\]'", vitkit.serve, bundle)


def test_images_of_many_threads_are_answered_each_with_its_own(running: Live, exported: Exported) -> None:
    files = sorted((exported[0] / "golden").iterdir())
    expected = {file: vitkit.Predictor(exported[0])(file)[0] for file in files}
    with ThreadPoolExecutor(len(files)) as pool:
        contents = [file.read_bytes() for file in files * 3]
        answers = list(pool.map(lambda content: running.send("POST", "/predict", content), contents))
    for file, answer in zip(files * 3, answers, strict=True):
        if answer.status != 503:
            best = answer.json["predictions"][0]
            assert best["class"] == expected[file].name
            assert best["probability"] == pytest.approx(expected[file].probability, abs=1e-4)
    assert {guess.name for guess in expected.values()} <= {*NAMES}


def test_the_loads_of_the_benchmarks_are_answered(running: Live, photo: bytes) -> None:
    requests = [load.post("/predict", photo), load.post("/predict", b"no image")]
    closed = asyncio.run(load.closed_load(running.port, requests, 2, 0.2))
    opened = asyncio.run(load.open_load(running.port, requests, 20, 0.5))
    assert {200, 422} <= {*closed.statuses} and len(opened.statuses) == 10
    # A machine that is busy with other work may say no.
    assert {*closed.statuses, *opened.statuses} <= {200, 422, 503}
    assert closed.rate() > 0 and closed.percentile(99) >= closed.percentile(50) > 0
    until(lambda: running.server.service.batches.accepted == 0)
    assert asyncio.run(load.all_answers(running.port, requests)).counts() == {200: 1, 422: 1}
    chance = random.Random(1)
    for _ in range(50):
        with running.open(serving_abuse.mutate(requests[0], chance)), suppress(OSError):
            pass
    until(lambda: running.send("POST", "/predict", photo).status == 200)
    assert len(serving_abuse.bombs()) == 8


def test_connections_send_answers_at_once() -> None:
    """Else the body of an answer waits 40 ms for the client to acknowledge its head."""
    with (
        server.open_socket("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
