"""Logs of other programs hold what metrics.jsonl holds, each step once, however often a run was stopped."""

import importlib.util
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing, Interrupting
from vitkit.cli.main import run as run_command
from vitkit.errors import VitkitError
from vitkit.jobs.trackers import SentRecord
from vitkit.runs.machine import InterruptedTraining

SMALL = small_run(6, evaluate_every=3, log_every=1)
pytestmark = pytest.mark.usefixtures("without_report")


def metrics(folder: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))


def expected(folder: Path) -> dict[int, dict[str, float]]:
    """Give the contents that a log must have: by step, the numbers of metrics.jsonl by their source."""
    contents: dict[int, dict[str, float]] = {}
    for line in metrics(folder):
        who = line.get("evaluator", line["kind"])
        numbers = {
            f"{who}/{name}": value
            for name, value in line.items()
            if name not in ("kind", "step", "epoch", "evaluator")
        }
        contents.setdefault(line["step"], {"epoch": line["epoch"]}).update(numbers)
    return contents


def stop_and_go_on(folder: Path, *trackers: Any) -> None:
    """Train a run that is interrupted after two steps, and goes on to its end."""
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, folder, listener=vitkit.log_to(*trackers, listener=Interrupting(1)))
    vitkit.train(SMALL, folder, listener=vitkit.log_to(*trackers))


def test_what_is_heard_besides_goes_on_being_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_wandb(monkeypatch)
    heard = Hearing()
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb", listener=heard))
    assert heard.measured == metrics(tmp_path / "run") and heard.done["training"] == 6
    assert {"data", "report"} <= {heading for heading, _ in heard.rows}


class FakeWandb(types.ModuleType):
    """Weights & Biases without a server: what is sent by each run."""

    def __init__(self, reachable: bool) -> None:
        super().__init__("wandb")
        self.reachable = reachable
        self.begun: list[dict[str, Any]] = []
        self.sent: list[tuple[int, Mapping[str, float]]] = []
        self.codes: list[int] = []
        self.__spec__ = importlib.util.spec_from_loader("wandb", None)

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802 (as the package has it)
        return settings

    def init(self, **options: Any) -> Any:
        if not self.reachable and options.get("mode") != "offline":
            raise RuntimeError("api_key not configured (no-tty)\nmore words")
        self.begun.append(options)
        return types.SimpleNamespace(
            log=lambda numbers, step: self.sent.append((step, numbers)),
            finish=lambda exit_code: self.codes.append(exit_code),
        )


def fake_wandb(monkeypatch: pytest.MonkeyPatch, reachable: bool = True) -> FakeWandb:
    fake = FakeWandb(reachable)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_is_sent_each_step_once_and_continues_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch)
    stop_and_go_on(tmp_path / "run", "wandb")
    sent: dict[int, dict[str, float]] = {}
    for step, numbers in fake.sent:
        assert not sent.get(step, {}).keys() & numbers.keys(), "a number was sent twice"
        sent.setdefault(step, {}).update(numbers)
    assert sent == expected(tmp_path / "run")
    assert len({options["id"] for options in fake.begun}) == 1 and len(fake.begun) == 2
    assert all(options["resume"] == "allow" and options["name"] == "run" for options in fake.begun)
    assert fake.codes == [1, 0]  # one that was interrupted, and one that ended
    assert str(tmp_path) not in json.dumps(fake.begun[0]["config"])
    assert fake.begun[0]["config"]["training"]["steps"] == 6


def test_a_log_that_is_named_twice_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_wandb(monkeypatch)
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, tmp_path / "run", log=["wandb"], listener=Interrupting(1))
    vitkit.train(resume=tmp_path / "run", log=["wandb"], listener=vitkit.log_to("wandb"))
    assert len(fake.begun) == 2
    assert [step for step, _ in fake.sent] == sorted(step for step, _ in fake.sent)


def test_steps_that_a_killed_run_makes_again_are_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch)
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb", listener=Interrupting(1)))
    record = json.loads((tmp_path / "run" / "wandb.json").read_text())
    assert record["step"] == 2
    (tmp_path / "run" / "wandb.json").write_text(json.dumps({**record, "step": 4}))  # as if killed in step 5
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb"))
    assert sorted({step for step, _ in fake.sent}) == [1, 2, 5, 6]


def test_steps_that_were_committed_and_not_sent_are_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch)
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, tmp_path / "run", listener=Interrupting(1))  # without the log
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb"))
    assert sorted({step for step, _ in fake.sent}) == [1, 2, 3, 4, 5, 6]


def test_without_a_network_the_numbers_wait_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, heard = fake_wandb(monkeypatch, reachable=False), Hearing()
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb", listener=heard))
    (warning,) = [sentence for sentence in heard.warnings if "Weights & Biases" in sentence]
    assert "(api_key not configured (no-tty))" in warning and "wandb sync" in warning
    assert fake.begun[0]["mode"] == "offline" and len(fake.sent) > 6
    assert fake.begun[0]["dir"] == str(tmp_path / "run")


def test_a_package_that_fails_on_the_way_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, heard = fake_wandb(monkeypatch), Hearing()

    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError("the service has gone")

    failing = types.SimpleNamespace(log=fail, finish=fail)
    monkeypatch.setattr(fake, "init", lambda **_: failing)
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb", listener=heard))
    (warning,) = [sentence for sentence in heard.warnings if "Weights & Biases" in sentence]
    assert "takes no more numbers (the service has gone): the run goes on" in warning
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert json.loads((tmp_path / "run" / "wandb.json").read_text())["step"] == 1


def fake_trackio(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    """Make a trackio, which prints, and which only its own `finish` makes forget the run."""
    fake = FakeWandb(reachable=True)
    begin = fake.init

    def init(**options: Any) -> Any:
        print("* Trackio project initialized: vitkit")
        return begin(**options)

    monkeypatch.setattr(fake, "init", init)
    monkeypatch.setattr(fake, "finish", lambda: fake.codes.append(0), raising=False)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return fake


def test_trackio_is_given_each_step_once_and_continues_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_trackio(monkeypatch)
    stop_and_go_on(tmp_path / "run", "trackio")
    sent: dict[int, dict[str, float]] = {}
    for step, numbers in fake.sent:
        assert not sent.get(step, {}).keys() & numbers.keys(), "a number was sent twice"
        sent.setdefault(step, {}).update(numbers)
    assert sent == expected(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "trackio.json").read_text())
    assert [options["name"] for options in fake.begun] == [f"run-{record['id']}"] * 2 and fake.codes == [0, 0]
    for options in fake.begun:
        assert options["project"] == "vitkit" and options["resume"] == "allow"
        assert not {"space_id", "server_url", "bucket_id", "webhook_url"} & options.keys()
        assert not (options["embed"] or options["auto_log_cpu"] or options["auto_log_gpu"])
        assert str(tmp_path) not in json.dumps(options["config"])
    assert "Trackio" not in capsys.readouterr().out


def test_a_trackio_that_does_not_begin_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, heard = fake_trackio(monkeypatch), Hearing()

    def fail(**_: object) -> None:
        raise OSError("database is locked")

    monkeypatch.setattr(fake, "init", fail)
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("trackio", listener=heard))
    (warning,) = [sentence for sentence in heard.warnings if "trackio" in sentence]
    assert warning.startswith("trackio takes no more numbers (database is locked): the run goes on")
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert json.loads((tmp_path / "run" / "trackio.json").read_text())["step"] == 0


def test_a_run_that_was_given_away_sends_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_wandb(monkeypatch)
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb", listener=Interrupting(1)))
    fake.begun.clear()
    assert run_command(["train", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert fake.begun == []
    with pytest.raises(VitkitError, match="expected eight small letters and digits"):
        SentRecord("../../x")


def test_the_command_line_names_what_is_missing_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    fake_wandb(monkeypatch)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name)
    )
    line = ["train", "--recipe", "digits", "--steps", "2", "--out", str(tmp_path / "run")]
    assert run_command([*line, "--log", "wandb,tensorboard"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith("not installed: pip install 'vitkit[tensorboard]'.")
    assert not (tmp_path / "run").exists()
    with pytest.raises(VitkitError, match="choose tensorboard, wandb or trackio"):
        vitkit.log_to("tensorbored")  # type: ignore[arg-type]


def test_the_command_line_keeps_logs_and_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fake = fake_wandb(monkeypatch)
    options = (
        "--recipe digits --model ViT-16x1x2/4 --image-size 8 --steps 4 --log-every 2 --log wandb --quiet"
    )
    assert run_command(["train", *options.split(), "--out", "run"]) == 0
    assert sorted({step for step, _ in fake.sent}) == [2, 4]
    printed = capsys.readouterr()
    # What comes next is the result of a command, and no progress.
    assert printed.out.split() and printed.out.strip().startswith("Next:") and printed.err == ""


EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}))
"""


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed: pip install 'vitkit[tensorboard]'")
    code = (
        "import sys; from pathlib import Path; from tests.jobs.test_trackers import *; "
        "stop_and_go_on(Path(sys.argv[1]), 'tensorboard')"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True, cwd=root)
    command = [sys.executable, "-W", "ignore", "-c", EVENTS, str(tmp_path / "run" / "tensorboard")]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    measured = expected(tmp_path / "run")
    assert set(shown) == {name for numbers in measured.values() for name in numbers}
    for name, points in shown.items():
        steps = [step for step, numbers in measured.items() if name in numbers]
        assert [step for step, _ in points] == steps, name
        assert [value for _, value in points] == pytest.approx([measured[step][name] for step in steps])


def test_the_example_of_the_page_on_trackers_logs_to_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "trackers.md").read_text()
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "mlflow" in code]
    mlflow: Any = types.ModuleType("mlflow")
    runs: list[str] = []
    logged: dict[int, dict[str, float]] = {}

    @contextmanager
    def start_run(run_name: str) -> Iterator[None]:
        runs.append(run_name)
        yield

    mlflow.start_run = start_run
    mlflow.log_metrics = lambda numbers, step: logged.setdefault(step, {}).update(numbers)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    names: dict[str, Any] = {}
    exec(compile(example, "trackers.md", "exec"), names)
    vitkit.train(SMALL, tmp_path / "run", listener=names["MLflowListener"]())
    assert runs == ["run"] and sorted(logged) == [1, 2, 3, 4, 5, 6]
    last = [line for line in metrics(tmp_path / "run") if line["kind"] == "validation"][-1]
    assert logged[6]["validation/accuracy"] == last["accuracy"]
