"""What GitHub runs and shows for this repository. Linted by zizmor and actionlint in CI itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.documents import ROOT

FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
SKILL = ROOT / "skills" / "sequencer" / "SKILL.md"
_USES = re.compile(r"^\s*-? *uses: (\S+)(.*)$", re.MULTILINE)
_PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def read(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict), path
    return found


def jobs(name: str) -> dict[str, Any]:
    found = read(FOLDER / "workflows" / f"{name}.yml")["jobs"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_hash_and_shows_its_version(path: Path) -> None:
    used = _USES.findall(path.read_text())
    assert used
    assert [name for name, _ in used if not _PINNED.fullmatch(name)] == []
    assert [name for name, comment in used if not re.fullmatch(r" # v\d+\.\d+\.\d+", comment)] == []
    # The same action is the same everywhere.
    pins = {name.partition("@")[0]: name for other in WORKFLOWS
            for name, _ in _USES.findall(other.read_text())}  # fmt: skip
    assert [name for name, _ in used if pins[name.partition("@")[0]] != name] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_no_permissions_and_jobs_only_what_they_need(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert job["permissions"], name
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            # What is pasted into a script is run.
            assert "${{" not in step.get("run", "")
    triggers = workflow[True]  # YAML 1.1 reads `on` so.
    assert "pull_request_target" not in triggers


def test_every_version_of_python_is_tested_on_linux_and_macos() -> None:
    expected = ["3.11", "3.12", "3.13", "3.14"]
    for name, system in (("everything", "ubuntu-"), ("macos", "macos-")):
        job = jobs("ci")[name]
        assert job["strategy"]["matrix"]["python"] == expected
        assert job["runs-on"].startswith(system)
    text = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.11"' in text
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert set(named) <= set(expected)


def test_a_release_is_built_without_a_key_and_published_after_attestation() -> None:
    release = jobs("release")
    assert list(release) == ["build", "attest", "pypi", "github"]
    assert [job.get("needs") for job in release.values()] == [None, "build", "attest", "pypi"]
    writes = {name: {scope for scope, may in job["permissions"].items() if may == "write"}
              for name, job in release.items()}  # fmt: skip
    assert writes == {
        "build": set(),
        "attest": {"id-token", "attestations"},
        "pypi": {"id-token"},
        "github": {"contents"},
    }
    assert "secrets." not in (FOLDER / "workflows" / "release.yml").read_text()
    assert release["pypi"]["environment"]["name"] == "pypi"


def test_a_bug_report_requires_the_output_of_check_report() -> None:
    bug = read(FOLDER / "ISSUE_TEMPLATE" / "bug.yml")
    asked = {field["id"]: field for field in bug["body"] if "id" in field}
    assert asked["report"]["attributes"]["label"] == "sequencer check --report"
    assert asked["report"]["validations"]["required"]
    for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml"):
        assert path.stem == "config" or {"name", "description", "body"} <= set(read(path))


def test_the_paths_of_code_owners_and_updates_exist() -> None:
    owned = re.findall(r"^#? ?(/\S+)", (FOLDER / "CODEOWNERS").read_text(), re.MULTILINE)
    assert owned
    assert [path for path in owned if not list(ROOT.glob(path.strip("/")))] == []
    updates = read(FOLDER / "dependabot.yml")["updates"]
    kinds = {update["package-ecosystem"] for update in updates}
    assert kinds == {"github-actions", "pip"}


def test_the_skill_has_the_form_that_agents_read() -> None:
    _, front, body = SKILL.read_text().split("---\n", 2)
    found = yaml.safe_load(front)
    assert set(found) <= {"name", "description", "license", "compatibility", "metadata"}
    assert found["name"] == SKILL.parent.name
    assert 0 < len(found["description"]) <= 1024
    assert len(found["compatibility"]) <= 500
    assert len(body.splitlines()) < 500
