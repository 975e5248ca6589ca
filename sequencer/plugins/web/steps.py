"""The page of one step: its attempts, the prompt, the answer, what it used; and its log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from sequencer.cli.views.runs import Open
from sequencer.cli.views.states import LOOKS
from sequencer.cli.views.step_logs import LOG_NAME, AskedLogs, open_log, written_at
from sequencer.cli.views.text import file_size, one_line, plain
from sequencer.engine.logs import sent_texts, token_of
from sequencer.engine.prompt_context.earlier_outputs import read_output
from sequencer.errors import SequencerError, UnknownName, typed
from sequencer.history.story import Try
from sequencer.model.head import Head
from sequencer.model.outcome import used
from sequencer.plugins.web.diffs import diff_of
from sequencer.plugins.web.live import lines_from
from sequencer.plugins.web.pages import Page, Query, needs_of, number
from sequencer.plugins.web.site import RunRow, Site, facts_after
from sequencer.store import folder as folders
from sequencer.store import results

TAIL_BYTES = 24 * 1024
"""Of a log, on the page of its step."""
PAGE_BYTES, PAGE_LINES = 24 * 1024, 1000
"""Of a log, on a page of its own; what a page says in marks makes it up to five times as large."""
MOST_PROMPT = 20_000
"""Characters of a text that was sent, on the page of its step."""
MOST_HITS, HIT_CHARS = 100, 160
"""Lines that a search finds, and how much of each is shown."""
BLOCK_BYTES = 1024 * 1024


def step(site: Site, query: Query, project: str, run: str, key: str) -> Page:
    """Return the page of the step *key*: a step_index, or a node's id.

    Raises:
        UnknownName: there is no such step.
    """
    shown = site.project(project)
    row = shown.row(run)
    head = row.head
    is_net = head is not None and head.begun_at is not None
    found = shown.story(row, is_whole=False).steps.get(key)
    found = found or shown.story(row).steps.get(key)
    name = _name(row, key) if found is None else found.name
    title = row.titles.get(key, "") if is_net else ""
    which = found.tries[_place(query, len(found.tries))] if found else None
    fact = {} if which is None else _whole(row, which)
    log = None if which is None else _log_of(row, which, fact)
    token = found.last.token if found else 0
    needs = [one for one in needs_of(row) if one.ask and one.token == token]
    look = "pending" if which is None else which.state
    context = {
        "row": row,
        "key": key,
        "name": name,
        "title": title,
        "tried": found,
        "one": which,
        "look": LOOKS["asked" if needs and found and which is found.last else look],
        "run_look": row.look,
        "outcome": fact,
        "usage": used(fact.get("usage") or {}),
        "answer": _answer(row, fact),
        "most_prompt": MOST_PROMPT,
        "prompt_command": f"sequencer {Open(row.run).option}log --prompt "
        f"{typed(one_line(name)) if which is None else which.step_index + 1}",
        "prompts": _prompts(row, name, fact, log),
        "diff": None if which is None else diff_of(row, which),
        "log": log,
        "elsewhere": _elsewhere(row, which) if which is not None and log is None else "",
        "needs": needs,
        "is_net": is_net,
        "can_retry": look == "failed" and row.changed is None and (is_net or _is_stuck(head, key)),
    }
    folders = (row.run.store.state_path.parent,)
    return Page("step.html", title or name, context, folders, "runs", is_remote=shown.is_remote)


def _is_stuck(head: Head | None, key: str) -> bool:
    """Return whether a line at *head* has failed at the step *key* since a person said to retry."""
    return head is not None and head.failures_in_row > 0 and key == str(head.step_index)


def _name(row: RunRow, key: str) -> str:
    """Return what the step *key* is called, of one that was never begun.

    Raises:
        UnknownName: there is none.
    """
    try:
        workflow = row.run.workflow_for(row.head)
    except SequencerError:
        workflow = None
    if workflow is not None:
        nodes = {node.id for node in workflow.nodes}
        if key in nodes:
            return key
        if key.isdecimal() and len(key) < 12 and not nodes:  # noqa: PLR2004 - no index is longer
            described = row.run.next(1, int(key))
            if described:
                return described[0]["step"]
    raise UnknownName("step", key, row.project.story(row).steps)


def _place(query: Query, count: int) -> int:
    """Return which of *count* attempts is asked for; the newest without a word."""
    asked = number(query.get("try"))
    return asked - 1 if 0 < asked <= count else count - 1


def _whole(row: RunRow, one: Try) -> Mapping[str, Any]:
    """Return the outcome of an attempt as the journal has it."""
    for fact in facts_after(row.run, one.revision - 1) if one.revision else ():
        if fact["revision"] > one.revision:
            break
        if fact["step"] == one.step and fact.get("outcome") and fact["token"] == one.token:
            outcome: Mapping[str, Any] = fact["outcome"]
            return outcome
    return one.outcome


def _answer(row: RunRow, outcome: Mapping[str, Any]) -> str:
    name = outcome.get("output_file")
    if name is None:
        return str(outcome.get("output") or "")
    try:
        store = row.run.store
        folder = results.output_path(store.state_path.parent, name).parent.name
        return read_output(store.kept_result(folder) / results.OUTPUT)
    except SequencerError as error:
        return str(error)


class ShownPrompt(NamedTuple):
    """A text that the agent got, or the prompt's file as it is now."""

    title: str
    note: str
    text: str

    @property
    def more(self) -> int:
        """Return how many characters the page leaves out."""
        return max(len(self.text) - MOST_PROMPT, 0)


def _prompts(
    row: RunRow, name: str, outcome: Mapping[str, Any], log: Mapping[str, Any] | None
) -> list[ShownPrompt]:
    """Return what the agent got; where its log does not say, the prompt as it is now."""
    if log is not None and (sent := log["sent"]) is not None:
        found = [
            ShownPrompt(what.capitalize(), "as it was sent", data.decode("utf-8", "replace"))
            for what, data in sent.texts
            if data
        ]
        if sent.texts[-1].name == "prompt":
            return found
        note = "the log has what the step's agent then got"
        return [one._replace(note=f"as it was sent; {note}") for one in found]
    file, text = _prompt_file(row, name, outcome)
    note = "as it is now, before values are filled in"
    if log is not None:
        note += "; the log does not have what was sent"
    return [ShownPrompt(f"Prompt {file}", note, text)] if text else []


def _prompt_file(row: RunRow, name: str, outcome: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the prompt's file, and its text or why it can't be read."""
    try:
        workflow = row.run.workflow_for(row.head)
        made = {one.name: one for one in workflow.own_steps}.get(name)
        if made is not None and made.text is not None:
            return "", made.text
        file = str(outcome.get("prompt") or (made.prompt_name if made else ""))
        return file, row.project.project.prompts.read(file) if file else ""
    except SequencerError as error:
        return "", str(error)


# --- logs --------------------------------------------------------------------------


def _log_of(row: RunRow, one: Try, outcome: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the name and the end of an attempt's log; None: it has none."""
    named = outcome.get("log")
    name = Path(str(named)).name if named else _newest(row, one)
    path = _log_called(row, name, str(named or ""))
    if path is None or (row.project.is_remote and token_of(path) != one.token):
        # Machines give their logs the same names.
        return None
    size = path.lstat().st_size
    with open_log(path) as file:
        sent = sent_texts(file.fileno())
        start = _start_of_line(file, max(size - TAIL_BYTES, 0))
    # What says which step this is, and what was sent, has places of its own on the page.
    start = max(start, 0 if sent is None else sent.end)
    text, behind = lines_from(path, start)
    return {
        "name": name,
        "sent": sent,
        "text": text,
        "to": behind,
        "size": file_size(size),
        "url": f"{row.url}/log/{quote(name)}",
    }


def _elsewhere(row: RunRow, one: Try) -> str:
    """Return where the log of an attempt is that another machine has made; empty: not known."""
    dispatch = row.run.dispatch
    if dispatch is None:
        return ""
    made = (each for each in dispatch.made() if each.token == one.token)
    return next((f"on {each.host}: {each.log}" for each in made), "")


def _newest(row: RunRow, one: Try) -> str:
    """Return the name of the newest log of the step that *one* runs."""
    asked = AskedLogs(row.project.project, row.run, (str(one.step_index + 1),))
    found = [log for log in asked.found() if log.iteration == one.step_index + 1]
    return found[-1].path.name if found else ""


def _log_called(row: RunRow, name: str, recorded: str = "") -> Path | None:
    """Return the path of the log called *name*; None: there is none. A name never is a path.

    Of several, on different branches, that which the run has *recorded*, or the newest.
    """
    if not LOG_NAME.fullmatch(name):
        return None
    asked = AskedLogs(row.project.project, row.run)
    found = [one / name for one in asked.folders if name in folders.names(one)]
    own = [path for path in found if str(path).endswith(f"/{recorded}")] if recorded else []
    return max(own or found, key=written_at, default=None)


def log_path(site: Site, project: str, run: str, name: str) -> Path:
    """Return the path of the log called *name*.

    Raises:
        UnknownName: the run has no such log; a name never becomes a path.
    """
    with site.lock:
        path = _log_called(site.project(project).row(run), name)
    if path is None:
        raise UnknownName("log", name, [])
    return path


def log(site: Site, query: Query, project: str, run: str, name: str) -> Page:
    """Return the page of a log: a part of it, its lines numbered, or what is searched for."""
    row = site.project(project).row(run)
    path = log_path(site, project, run, name)
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        last, asked = _page_before(file, size), query.get("from")
        start = min(_start_of_line(file, number(asked)), last) if asked else last
        file.seek(start)
        data = file.read(PAGE_BYTES)
        before = _page_before(file, start) if start else None
        first = _lines_before(file, start) + 1
        find = query.get("q", "")
        hits = [*islice(_hits(file, find), MOST_HITS)] if find else []
    ends = [place.end() for place in islice(re.finditer(b"\n", data), PAGE_LINES)]
    is_end = start + len(data) >= size and len(ends) < PAGE_LINES
    end = len(data) if is_end or not ends else ends[-1]
    lines = plain(data[:end].decode("utf-8", "replace")).split("\n")
    context = {
        "row": row,
        "name": name,
        "lines": lines[:-1] if lines and not lines[-1] else lines,
        "first": first,
        "from": start,
        "to": start + end,
        "size": size,
        "size_words": file_size(size),
        "before": before,
        "after": start + end if start + end < size else None,
        "is_open": end > 0 and not data[:end].endswith(b"\n"),
        "find": find,
        "hits": hits,
        "most": MOST_HITS,
    }
    return Page("log.html", name, context, (), "runs")


def _page_before(file: BinaryIO, offset: int) -> int:
    """Return where the page starts that ends at *offset*."""
    first = _start_of_line(file, max(offset - PAGE_BYTES, 0))
    file.seek(first)
    data, place = file.read(offset - first), offset - first
    # The newline that ends the last line does not start another.
    for _ in range(PAGE_LINES + 1):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return first
    return first + place + 1


def _start_of_line(file: BinaryIO, offset: int) -> int:
    if offset <= 0:
        return 0
    file.seek(offset - 1)
    data = file.read(CHUNK)
    place = data.find(b"\n")
    return offset if place < 0 else offset + place


CHUNK = 64 * 1024


def _lines_before(file: BinaryIO, offset: int) -> int:
    file.seek(0)
    sizes = (min(BLOCK_BYTES, offset - start) for start in range(0, offset, BLOCK_BYTES))
    return sum(file.read(size).count(b"\n") for size in sizes)


def _hits(file: BinaryIO, find: str) -> Iterator[tuple[int, int, str]]:
    """Yield number, offset and text of the first lines that hold *find*, whatever its case.

    Of a long line the text is what stands around the first find.
    """
    wanted = find.casefold().encode()
    file.seek(0)
    offset = 0
    for place, line in enumerate(iter(lambda: file.readline(BLOCK_BYTES), b""), 1):
        if (at := line.lower().find(wanted)) >= 0:
            first = max(at - HIT_CHARS // 3, 0) if len(line) > HIT_CHARS else 0
            text = plain(line[first:][:HIT_CHARS].decode("utf-8", "ignore")).strip()
            yield place, offset, f"…{text}" if first else text
        offset += len(line)


def download(site: Site, project: str, run: str, name: str) -> Response:
    """Return the whole log as a file that a browser saves and never shows as a page."""
    file = open_log(log_path(site, project, run, name))

    def parts() -> Iterator[bytes]:
        with file:
            while data := file.read(BLOCK_BYTES):
                yield data

    headers = {"content-disposition": f"attachment; filename*=utf-8''{quote(name)}"}
    return StreamingResponse(parts(), media_type="text/plain; charset=utf-8", headers=headers)
