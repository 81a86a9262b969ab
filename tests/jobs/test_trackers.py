"""Logs of other programs hold what metrics.jsonl holds, each step once, however often a run was stopped."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal
from unittest.mock import MagicMock

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing, Interrupting
from vitkit.cli.main import run as run_command
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
        who, names = line.get("evaluator", line["kind"]), line.keys() - {"kind", "step", "epoch", "evaluator"}
        numbers = {f"{who}/{name}": line[name] for name in names}
        contents.setdefault(line["step"], {"epoch": line["epoch"]}).update(numbers)
    return contents


def stop_and_go_on(folder: Path, *trackers: Any) -> None:
    """Train a run that is interrupted after two steps, and goes on to its end."""
    with pytest.raises(InterruptedTraining):
        vitkit.train(SMALL, folder, listener=vitkit.log_to(*trackers, listener=Interrupting(1)))
    vitkit.train(SMALL, folder, listener=vitkit.log_to(*trackers))


def fake(monkeypatch: pytest.MonkeyPatch, name: str) -> MagicMock:
    """Put in the place of Weights & Biases, or of trackio, what sends nothing."""
    module = MagicMock(__spec__=importlib.util.spec_from_loader(name, None))
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    return fake(monkeypatch, "wandb")


def sent(module: MagicMock) -> list[tuple[int, dict[str, float]]]:
    """List the steps with the numbers that were sent of them."""
    return [(call.kwargs["step"], call.args[0]) for call in module.init.return_value.log.call_args_list]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A run that sends its numbers, and was interrupted after two of six steps."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        fake(patch, "wandb")
        with pytest.raises(InterruptedTraining):
            vitkit.train(SMALL, folder, listener=vitkit.log_to("wandb", listener=Interrupting(1)))
    return folder


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_each_step_is_sent_once_and_the_run_is_continued(
    name: Literal["wandb", "trackio"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = fake(monkeypatch, name)
    module.finish.side_effect = lambda: print("* Trackio has finished")
    stop_and_go_on(tmp_path / "run", name)
    received: dict[int, dict[str, float]] = {}
    for step, numbers in sent(module):
        assert not received.get(step, {}).keys() & numbers.keys(), "a number was sent twice"
        received.setdefault(step, {}).update(numbers)
    assert received == expected(tmp_path / "run")
    identity = json.loads((tmp_path / "run" / f"{name}.json").read_text())["id"]
    assert module.init.call_count == 2
    for _, options in module.init.call_args_list:
        assert options["resume"] == "allow" and options["config"]["training"]["steps"] == 6
        assert str(tmp_path) not in json.dumps(options["config"])
        if name == "wandb":
            assert (options["id"], options["name"]) == (identity, "run")
        else:
            assert (options["project"], options["name"]) == ("vitkit", f"run-{identity}")
            assert not {"space_id", "server_url", "bucket_id", "webhook_url"} & options.keys()
            assert not (options["embed"] or options["auto_log_cpu"] or options["auto_log_gpu"])
    if name == "wandb":
        codes = [call.kwargs["exit_code"] for call in module.init.return_value.finish.call_args_list]
        assert codes == [1, 0]  # one that was interrupted, and one that ended
    else:
        assert module.finish.call_count == 2 and "Trackio" not in capsys.readouterr().out


def test_a_log_named_twice_is_written_once(stopped: Path, tmp_path: Path, wandb: MagicMock) -> None:
    """And what is heard besides goes on being heard."""
    folder, heard = shutil.copytree(stopped, tmp_path / "run"), Hearing()
    vitkit.train(resume=folder, log=["wandb"], listener=vitkit.log_to("wandb", listener=heard))
    steps = [step for step, _ in sent(wandb)]
    assert wandb.init.call_count == 1 and steps == sorted(steps)
    assert heard.measured == metrics(folder)[-len(heard.measured) :] and heard.done["training"] == 6
    assert "report" in dict(heard.rows)


def test_steps_are_sent_again_only_where_they_were_not_sent(
    stopped: Path, tmp_path: Path, wandb: MagicMock
) -> None:
    """A killed run makes steps again which it has sent; what was committed without the log is made up for."""
    for name, last, steps in (("ahead", 4, [5, 6]), ("behind", None, [1, 2, 3, 4, 5, 6])):
        wandb.reset_mock()
        folder = shutil.copytree(stopped, tmp_path / name)
        facts = json.loads((folder / "wandb.json").read_text())
        assert facts["step"] == 2
        (folder / "wandb.json").unlink()
        if last is not None:  # as if killed in step 5
            (folder / "wandb.json").write_text(json.dumps({**facts, "step": last}))
        vitkit.train(SMALL, folder, listener=vitkit.log_to("wandb"))
        assert sorted({step for step, _ in sent(wandb)}) == steps


def test_without_a_network_numbers_wait_in_the_folder(tmp_path: Path, wandb: MagicMock) -> None:
    heard, unreachable = Hearing(), RuntimeError("api_key not configured (no-tty)\nmore text")
    wandb.init.side_effect = [unreachable, wandb.init.return_value]
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to("wandb", listener=heard))
    (warning,) = [sentence for sentence in heard.warnings if "Weights & Biases" in sentence]
    assert "(api_key not configured (no-tty))" in warning and "wandb sync" in warning
    options = wandb.init.call_args.kwargs
    assert (options["mode"], options["dir"]) == ("offline", str(tmp_path / "run"))
    assert len(sent(wandb)) > 6


@pytest.mark.parametrize(("name", "title"), [("wandb", "Weights & Biases"), ("trackio", "trackio")])
def test_a_package_that_fails_does_not_end_the_run(
    name: Literal["wandb", "trackio"], title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fails on the way, the other at its beginning."""
    module, heard = fake(monkeypatch, name), Hearing()
    failing = module.init.return_value.log if name == "wandb" else module.init
    failing.side_effect = BrokenPipeError("the service has gone")
    vitkit.train(SMALL, tmp_path / "run", listener=vitkit.log_to(name, listener=heard))
    (warning,) = [sentence for sentence in heard.warnings if title in sentence]
    assert "takes no more numbers (the service has gone): the run goes on" in warning
    assert (tmp_path / "run" / "model.safetensors").exists()
    recorded = json.loads((tmp_path / "run" / f"{name}.json").read_text())["step"]
    assert recorded == (1 if name == "wandb" else 0)


def test_a_run_that_was_given_sends_nothing(stopped: Path, tmp_path: Path, wandb: MagicMock) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    assert run_command(["train", "--resume", str(folder), "--quiet"]) == 0
    wandb.init.assert_not_called()
    refused("expected eight small letters and digits", SentRecord, "../../x")


def test_the_command_line_names_what_is_missing_and_is_quiet(
    tmp_path: Path, cli: Cli, wandb: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name)
    )
    options = "--recipe digits --model ViT-16x1x2/4 --image-size 8 --steps 4 --log-every 2 --quiet --log"
    line = ["train", "--out", str(tmp_path / "run"), *options.split()]
    message = cli([*line, "wandb,tensorboard"], 1).err.splitlines()[-1]
    assert message.endswith("not installed: pip install 'vitkit[tensorboard]'.")
    assert not (tmp_path / "run").exists()
    refused("choose tensorboard, wandb or trackio", vitkit.log_to, "tensorbored")
    printed = cli([*line, "wandb"])
    assert sorted({step for step, _ in sent(wandb)}) == [2, 4]
    # The result of a command, and no progress.
    assert printed.out.strip().startswith("Next:") and printed.err == ""


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


def test_the_example_of_the_page_logs_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "trackers.md").read_text()
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "mlflow" in code]
    mlflow, names, logged = MagicMock(), dict[str, Any](), dict[int, dict[str, float]]()
    mlflow.log_metrics = lambda numbers, step: logged.setdefault(step, {}).update(numbers)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    exec(compile(example, "trackers.md", "exec"), names)
    vitkit.train(SMALL, tmp_path / "run", listener=names["MLflowListener"]())
    (begun,) = mlflow.start_run.call_args_list
    assert [*begun.args, *begun.kwargs.values()] == ["run"] and sorted(logged) == [1, 2, 3, 4, 5, 6]
    last = [line for line in metrics(tmp_path / "run") if line["kind"] == "validation"][-1]
    assert logged[6]["validation/accuracy"] == last["accuracy"]
