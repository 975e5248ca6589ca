"""A project whose settings change while its pages are rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.plugins.web.site import ShownProject, Site
from sequencer.testing import ScratchProject


def test_a_run_that_is_read_while_its_settings_change_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {"kind": "procedure", "steps": ["main", "reviewer"]}
    settings: dict[str, Any] = {"agent": "rehearsal", "workflow": {"name": "a"}}
    scratch = ScratchProject(tmp_path / "p", {**settings, "workflows": {"a": steps}})
    assert scratch.run_command("run", "--max-steps", "1").exit_code == 0
    (shown,) = Site([scratch.folder]).projects.values()
    read, file = ShownProject._read_row, scratch.folder / "orchestration.yaml"

    def change_and_read(self: ShownProject, *arguments: Any) -> Any:
        if "reviewer" in (text := file.read_text()):
            file.write_text(text.replace("reviewer", "supervisor"))
        assert self.project.settings
        return read(self, *arguments)

    monkeypatch.setattr(ShownProject, "_read_row", change_and_read)
    row = shown.row("-")
    monkeypatch.undo()
    for found in (row, shown.row("-")):
        steps_now = found.run.workflow_for(found.head).steps
        assert [step.name for step in steps_now] == ["main", "supervisor"]
