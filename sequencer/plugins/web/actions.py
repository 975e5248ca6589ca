"""What the buttons do: the changes of the command line, by the same library calls.

Each names what it was shown (the token of a gate or a question), so that a page that is
behind decides nothing else than what its reader has seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from sequencer.cli.views.runs import decider
from sequencer.engine.run import Run
from sequencer.errors import SequencerError, UnknownName, UsageRefused
from sequencer.model.head import Head
from sequencer.plugins.posting.section import activity_of
from sequencer.plugins.web.pages import number
from sequencer.plugins.web.site import Site
from sequencer.project.project import Project

Form = Mapping[str, str]
Act = Callable[[Run, Form, str], Head]


def _token(form: Form) -> int:
    if not (found := number(form.get("token"))):
        raise UsageRefused("the form does not say which question it is about")
    return found


def _text(form: Form, what: str) -> str:
    text = form.get("text", "").strip()
    if not text:
        raise UsageRefused(f"the form has no {what}", hint="go back and write it")
    return text


def _approve(run: Run, form: Form, by: str) -> Head:
    return run.approve(form.get("text") or None, by=by, token=_token(form))


def _reject(run: Run, form: Form, by: str) -> Head:
    return run.reject(form.get("text") or None, by=by, token=_token(form))


def _feedback(run: Run, form: Form, by: str) -> Head:
    return run.feedback(_text(form, "feedback"), by=by, token=_token(form))


def _answer(run: Run, form: Form, by: str) -> Head:
    said = form.get("value") or _text(form, "answer")
    return run.answer(form.get("node", ""), said, by=by, token=_token(form))


ACTS: Mapping[str, Act] = {
    "approve": _approve,
    "reject": _reject,
    "feedback": _feedback,
    "answer": _answer,
    "pause": lambda run, _form, _by: run.control.pause(),
    "resume": lambda run, _form, _by: run.control.resume(),
    "stop": lambda run, form, _by: run.control.stop(form.get("text") or None),
    "tell": lambda run, form, by: run.control.tell(
        form.get("node") or None, _text(form, "message"), by=by
    ),
    "adopt": lambda run, _form, _by: run.control.adopt(),
    "retry": lambda run, form, _by: run.control.retry(form.get("node") or None),
}
_POSTED = frozenset({"approve", "reject", "feedback", "stop"})
"""What the activity sinks are told of at once, as by the commands."""


_LETS_GO_ON = frozenset({"approve", "feedback", "answer", "resume", "retry"})


def act(site: Site, form: Form, project: str, run: str, verb: str) -> None:
    """Do *verb* with what *form* says, in the *run* of the *project* at these addresses.

    Raises:
        UnknownName: there is no such verb, project or run.
        NotTrusted: nobody has said that the project may act on this machine.
        SequencerError: the run refuses it; nothing was changed.
    """
    if verb not in ACTS:
        raise UnknownName("change", verb, ACTS)
    with site.lock:
        shown = site.project(project)
        name = shown.row(run).run.name
    head = decide(shown.acting(), name, verb, form, decider())
    with site.lock:
        shown.answered[name] = head.revision if verb in _LETS_GO_ON else 0
    shown.changed()


def decide(project: Project, run: str | None, verb: str, form: Form, by: str) -> Head:
    """Do *verb* with what *form* says in the run called *run*, as said by *by*; see `act`.

    Returns the head that stands afterwards.
    """
    # What a person writes may hold a secret that they have copied along.
    said = {key: project.redaction.hide_text(text) for key, text in form.items()}
    head = ACTS[verb](project.run(run), said, by)
    if verb in _POSTED and activity_of(project.settings).sinks:
        threading.Thread(target=_deliver, args=(project, run), daemon=True).start()
    return head


def _deliver(project: Project, run: str | None) -> None:
    """Tell the sinks; what they do not take waits, and the pages show it."""
    posting = project.posting
    try:
        if posting is not None:
            posting.deliver(run, lambda _: None)
    except SequencerError:
        return
