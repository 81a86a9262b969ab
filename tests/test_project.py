"""The pages and settings around the package say what is so."""

import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_workflows_run_what_anybody_can_run_and_nothing_else() -> None:
    for workflow in WORKFLOWS.iterdir():
        text = workflow.read_text()
        assert re.findall(r"^\s*-?\s*run:(.*)$", text, re.MULTILINE) == [" .ci/run"], workflow.name
        steps = re.findall(r"uses: ([\w/-]+)@v\d+$", text, re.MULTILINE)
        assert steps == ["actions/checkout", "actions/setup-python"] and text.count("uses:") == 2
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_python_of_the_workflow_is_the_oldest_and_the_extra_all_has_what_people_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (version,) = re.findall(r'python-version: "([\d.]+)"', (WORKFLOWS / "ci.yml").read_text())
    assert project["requires-python"] == f">={version}"
    extras = project["optional-dependencies"]
    (names,) = re.findall(r"vitkit\[(.*)\]", "".join(extras["all"]))
    assert {*names.split(",")} == extras.keys() - {"all", "coverage", "dev", "docs", "mutants", "ray"}


def test_pages_for_contributors_name_commands_that_are_there() -> None:
    text = "".join((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "SECURITY.md"))
    for path in re.findall(r"`((?:scripts|tests|\.ci)/[\w./-]+)`|\]\(([\w./-]+)\)", text):
        assert (ROOT / (path[0] or path[1])).exists(), path
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {*re.findall(r"make (test|slow|demo)\b", text)} <= {*targets}
