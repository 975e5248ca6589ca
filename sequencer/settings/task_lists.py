"""Lists of tasks that stand in the settings themselves, below `workflows.NAME.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer.documents.problems import located
from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError
from sequencer.settings.schema import Schema
from sequencer.settings.sources import Layers

if TYPE_CHECKING:
    from sequencer.model.team import Role
    from sequencer.workflows.teams.lists import TaskList
    from sequencer.workflows.teams.options import TeamOptions

Found = tuple[KeyPath, ConfigurationError]


def roles_of(options: TeamOptions) -> Callable[[], Mapping[str, Role]]:
    """Return what makes the roles of a project whose section `teams` is *options*."""

    def made() -> Mapping[str, Role]:
        from sequencer.workflows.teams.options import roles  # noqa: PLC0415 - teams only

        return roles(
            options.roles,
            teammate_model=options.teammate_model,
            lead_model=options.lead_model,
        )

    return made


def task_lists(
    schema: Schema,
    roles: Callable[[], Mapping[str, Role]],
    layers: Layers,
    file: Path,
    found: list[Found],
) -> dict[str, TaskList]:
    """Return the lists of tasks in *schema*, by workflow; what is wrong is added to *found*.

    *file* is the one in which settings are written.
    """
    made: dict[str, TaskList] = {}
    for name, listed in _written(layers).items():
        from sequencer.workflows.teams.lists import inline_list, list_errors  # noqa: PLC0415

        def where(path: KeyPath, above: KeyPath = ("workflows", name)) -> str:
            return located(layers.where((*above, *path)), (*above, *path))

        errors = list_errors(listed, roles(), where)
        found += [(("workflows", name, *path), error) for path, error in errors]
        # Whatever is wrong with an entry itself was found before, and its list is not here.
        entry = schema.workflows.get(name)
        if entry is not None and entry.tasks and not errors:
            tasks = entry.as_tasks()
            made[name] = inline_list(name, tasks, roles(), entry.size, file=file, where=where)
    return made


def _written(layers: Layers) -> dict[str, list[Any]]:
    """Return the entries of each list as they were written, refused ones too."""
    workflows = layers.values.get("workflows")
    written = workflows if isinstance(workflows, dict) else {}
    return {
        name: entry["tasks"]
        for name, entry in written.items()
        if isinstance(entry, dict) and isinstance(entry.get("tasks"), list)
    }
