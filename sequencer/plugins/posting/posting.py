"""The project's sinks as the core's `Posting`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from sequencer.engine.run import Run
from sequencer.files.yamlfile import KeyPath, format_key_path
from sequencer.model.head import Head
from sequencer.model.workflow import Workflow
from sequencer.plugins.posting import poster, results, sinks
from sequencer.plugins.posting.options import SinkPlace
from sequencer.plugins.posting.section import get_activity_options
from sequencer.project.posting import Pending
from sequencer.project.project import Project
from sequencer.project.runs import get_state_path, read_definition


def build_posting(project: Project) -> SinkPosting | None:
    """Return the posting to the activity sinks of *project*; None: it has no sinks."""
    return SinkPosting(project) if get_activity_options(project.settings).sinks else None


class SinkPosting(Struct, frozen=True):
    """Posts to the activity sinks of a project; see `Posting`."""

    project: Project

    def problems(self, run: str | None) -> Iterator[tuple[str, str]]:
        """Yield (place, problem) for each sink of the run called *run* that can't work."""
        place = self._build_sink_place(run)
        return sinks.problems(get_activity_options(self.project.settings), place, self._locate)

    def open_listener(
        self,
        run: Run,
        notice: Callable[[str], None],
        workflow: Workflow,
        on_signal: Callable[[], None],
    ) -> poster.Poster:
        """Return the listener that posts the events of *run* on *workflow*.

        *notice* gets messages for people. *on_signal* is called when a signal ends the wait for
        the last posts.

        Raises:
            ConfigurationError: a sink can't work; nothing was started.
            NotTrusted: no person has trusted the project to post.
        """
        project, options = self.project, get_activity_options(self.project.settings)
        project.trust.ensure()
        return poster.Poster(
            # The poster needs its own store: another thread reads it.
            project.store(run.name),
            sinks.make_sinks(options, self._build_sink_place(run.name), self._locate),
            project.redaction,
            notice,
            run=run.name,
            nodes=workflow.nodes,
            thoughts=options.thoughts,
            min_interval_s=options.min_interval_s,
            drain_s=options.drain_s,
            on_signal=on_signal,
        )

    def deliver(self, run: str | None, notice: Callable[[str], None]) -> None:
        """Post the operator commands of the run called *run*; failed posts wait.

        Raises: see `open_listener`.
        """
        project, options = self.project, get_activity_options(self.project.settings)
        project.trust.ensure()
        targets = sinks.make_sinks(options, self._build_sink_place(run), self._locate)
        store = project.store(run)
        poster.deliver(store, targets, project.redaction, notice=notice, drain_s=options.drain_s)

    def find_pending(self, run: Run, head: Head) -> tuple[Pending, ...]:
        """Return, for each sink of *run* at *head*, the results that it has not accepted."""
        folder = run.store.state_path.parent
        return results.find_pending(
            folder, get_activity_options(self.project.settings).sinks, head, run.store.history
        )

    def _locate(self, path: KeyPath) -> str:
        """Return where the key at *path* of a sink is written, or the sink if it is a default."""
        source = self.project.settings.get_source(*map(str, path))
        if source.kind == "default":
            source = self.project.settings.get_source(*map(str, path[:3]), "kind")
        return f"{source}: {format_key_path(path)}"

    def _build_sink_place(self, run: str | None) -> SinkPlace:
        project = self.project
        folder = get_state_path(project.settings, run).parent
        environment, issue = project.agents.environment, ("", "")
        entries = get_activity_options(project.settings).sinks.values()
        if run is not None and any(entry.from_request for entry in entries):
            definition = read_definition(project.store(run))
            if definition is not None:
                issue = definition.request.identifier, definition.request.session
        return SinkPlace(folder, project.settings.project_dir, environment, *issue)
