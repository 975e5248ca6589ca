"""A pull request as a request: what its reviewers and its checks have said reaches the agent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.acceptance.cli_process import CASES, cli


def test_reviews_decision_and_failed_checks_are_part_of_the_request(tmp_path: Path) -> None:
    shutil.copytree(CASES / "pr-reviews-dropped", tmp_path, dirs_exist_ok=True)
    done = cli(tmp_path, "start", "--file", "pull.json", "--no-run")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "sync" / "runs").glob("*/definition.json")
    request = json.loads(path.read_text(encoding="utf-8"))["request"]
    assert request["comments"] == [
        "ann requested changes:\n\nThe pause has to grow; a fixed one hammers the server.",
        "The review decision is: changes requested",
        "These checks have failed:\n\n- tests: failure, https://github.com/acme/app/actions/runs/1",
    ]
    assert "not a part of the request" not in done.stderr


def test_omitted_fields_are_named_once(tmp_path: Path) -> None:
    shutil.copytree(CASES / "pr-reviews-dropped", tmp_path, dirs_exist_ok=True)
    pull = json.loads((tmp_path / "pull.json").read_text(encoding="utf-8"))
    pull |= {"files": [{"path": "upload.py"}], "milestone": {"title": "2.0"}, "isDraft": True}
    pull |= {"projectItems": [], "state": "OPEN"}
    (tmp_path / "pull.json").write_text(json.dumps(pull), encoding="utf-8")
    done = cli(tmp_path, "start", "--file", "pull.json", "--no-run")
    assert done.returncode == 0, done.stderr
    (line,) = (one for one in done.stderr.splitlines() if "not a part of the request" in one)
    names = "files, milestone; --comment adds what matters"
    assert line == f"notice: pull.json: not a part of the request: {names}"
