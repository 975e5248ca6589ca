"""The pages of one step and of one log: attempts, prompt, answer, usage, changes, lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from sequencer.cli.views.runs import Open
from sequencer.cli.views.states import STATE_DISPLAYS
from sequencer.cli.views.step_logs import LOG_NAME, RequestedLogs, open_log, read_mtime_ns
from sequencer.cli.views.text import file_size, one_line, strip_controls
from sequencer.engine.logs import read_log_token, read_sent_texts
from sequencer.engine.prompt_context.earlier_outputs import read_output
from sequencer.errors import SequencerError, UnknownName, quote_words
from sequencer.history.story import StoryEntry
from sequencer.model.head import Head
from sequencer.model.outcome import read_usage
from sequencer.plugins.web.diffs import read_diff
from sequencer.plugins.web.live import read_lines
from sequencer.plugins.web.pages import Page, Query, list_need_cards, parse_number
from sequencer.plugins.web.records import facts_after
from sequencer.plugins.web.site import RunRow, Site
from sequencer.store import folder as folders
from sequencer.store import results

TAIL_BYTES = 24 * 1024
"""How much of a log's end the page of its step shows."""
PAGE_BYTES, PAGE_LINES = 24 * 1024, 1000
"""How much of a log one log page shows; with markup it is up to five times as large."""
MAX_PROMPT = 20_000
"""Characters of a sent text that the page of its step shows."""
MAX_HITS, HIT_CHARS = 100, 160
"""Lines that a search returns, and how many characters of each are shown."""
BLOCK_BYTES = 1024 * 1024


def build_step_page(site: Site, query: Query, project: str, run: str, key: str) -> Page:
    """Return the page of the step *key*: a step_index or a node's id.

    Raises:
        UnknownName: there is no such step.
    """
    site_project = site.project(project)
    row = site_project.row(run)
    head = row.head
    is_net = head is not None and head.begun_at is not None
    # The newest part of a long run is quick to read; only an older step needs all of it.
    tries = site_project.story(row, is_whole=False).steps.get(key)
    tries = tries or site_project.story(row).steps.get(key)
    name = _find_step_name(row, key) if tries is None else tries.name
    title = row.titles.get(key, "") if is_net else ""
    attempt = tries.tries[_choose_attempt_index(query, len(tries.tries))] if tries else None
    outcome = {} if attempt is None else _full_outcome(row, attempt)
    log = None if attempt is None else _read_log_end(row, attempt, outcome)
    token = tries.last.token if tries else 0
    needs = [card for card in list_need_cards(row) if card.ask and card.token == token]
    look = "pending" if attempt is None else attempt.state
    context = {
        "row": row,
        "key": key,
        "name": name,
        "title": title,
        "tried": tries,
        "one": attempt,
        "look": STATE_DISPLAYS["asked" if needs and tries and attempt is tries.last else look],
        "run_look": row.look,
        "outcome": outcome,
        "usage": read_usage(outcome.get("usage") or {}),
        "answer": _read_answer(row, outcome),
        "most_prompt": MAX_PROMPT,
        "prompt_command": f"sequencer {Open(row.run).option}log --prompt "
        f"{quote_words(one_line(name)) if attempt is None else attempt.step_index + 1}",
        "prompts": _prompts(row, name, outcome, log),
        "diff": None if attempt is None else read_diff(row, attempt),
        "log": log,
        "elsewhere": _describe_remote_log(row, attempt)
        if attempt is not None and log is None
        else "",
        "needs": needs,
        "is_net": is_net,
        "can_retry": look == "failed" and row.changed is None and (is_net or _is_stuck(head, key)),
    }
    folders = (row.run.store.state_path.parent,)
    return Page(
        "step.html", title or name, context, folders, "runs", is_remote=site_project.is_remote
    )


def _is_stuck(head: Head | None, key: str) -> bool:
    """Return whether the sequence at *head* has failed at the step *key* since the last retry."""
    return head is not None and head.failures_in_row > 0 and key == str(head.step_index)


def _find_step_name(row: RunRow, key: str) -> str:
    """Return the name of the step *key*, which was never started.

    Raises:
        UnknownName: there is no such step.
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
            descriptions = row.run.next(1, int(key))
            if descriptions:
                return descriptions[0].step
    raise UnknownName("step", key, row.project.story(row).steps)


def _choose_attempt_index(query: Query, count: int) -> int:
    """Return the index of the requested attempt of *count*; by default, of the newest."""
    number = parse_number(query.get("try"))
    return number - 1 if 0 < number <= count else count - 1


def _full_outcome(row: RunRow, attempt: StoryEntry) -> Mapping[str, Any]:
    """Return the outcome of *attempt* from the journal, with all of a long answer."""
    for fact in facts_after(row.run, attempt.revision - 1) if attempt.revision else ():
        if fact["revision"] > attempt.revision:
            break
        is_of_attempt = fact["step"] == attempt.step and fact["token"] == attempt.token
        if is_of_attempt and fact.get("outcome"):
            outcome: Mapping[str, Any] = fact["outcome"]
            return outcome
    return attempt.outcome


def _read_answer(row: RunRow, outcome: Mapping[str, Any]) -> str:
    name = outcome.get("output_file")
    if name is None:
        return str(outcome.get("output") or "")
    try:
        store = row.run.store
        folder = results.output_path(store.state_path.parent, name).parent.name
        return read_output(store.find_result_folder(folder) / results.OUTPUT)
    except SequencerError as error:
        return str(error)


class ShownPrompt(Struct, frozen=True):
    """A text that was sent to the agent, or the prompt's file as it is now."""

    title: str
    note: str
    text: str

    @property
    def more(self) -> int:
        """Return the number of characters that the page leaves out."""
        return max(len(self.text) - MAX_PROMPT, 0)


def _prompts(
    row: RunRow, name: str, outcome: Mapping[str, Any], log: Mapping[str, Any] | None
) -> list[ShownPrompt]:
    """Return the texts that the agent got; if its log has none, the prompt as it is now."""
    if log is not None and (sent_texts := log["sent"]) is not None:
        prompts = [
            ShownPrompt(
                sent.name.capitalize(), "as it was sent", sent.data.decode("utf-8", "replace")
            )
            for sent in sent_texts.texts
            if sent.data
        ]
        if sent_texts.texts[-1].name == "prompt":
            return prompts
        note = "the log has what the step's agent then got"
        return [replace(prompt, note=f"as it was sent; {note}") for prompt in prompts]
    file, text = _prompt_file(row, name, outcome)
    note = "as it is now, before values are filled in"
    if log is not None:
        note += "; the log does not have what was sent"
    return [ShownPrompt(f"Prompt {file}", note, text)] if text else []


def _prompt_file(row: RunRow, name: str, outcome: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the prompt's file, and its text or why it can't be read."""
    try:
        workflow = row.run.workflow_for(row.head)
        step = {step.name: step for step in workflow.own_steps}.get(name)
        if step is not None and step.text is not None:
            return "", step.text
        file = str(outcome.get("prompt") or (step.prompt_name if step else ""))
        return file, row.project.project.prompts.read(file) if file else ""
    except SequencerError as error:
        return "", str(error)


# --- logs --------------------------------------------------------------------------


def _read_log_end(
    row: RunRow, attempt: StoryEntry, outcome: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the end of the log of *attempt* and where it is; None: there is no log here."""
    recorded_path = outcome.get("log")
    name = Path(str(recorded_path)).name if recorded_path else _find_newest_log(row, attempt)
    path = _find_log(row, name, str(recorded_path or ""))
    if path is None or (row.project.is_remote and read_log_token(path) != attempt.token):
        # Machines give their logs the same names, so this may be another attempt's.
        return None
    size = path.lstat().st_size
    with open_log(path) as file:
        sent_texts = read_sent_texts(file.fileno())
        start = _find_line_start(file, max(size - TAIL_BYTES, 0))
    # Skip the log's start: the page shows the step and the sent texts in other places.
    start = max(start, 0 if sent_texts is None else sent_texts.end)
    text, end = read_lines(path, start)
    return {
        "name": name,
        "sent": sent_texts,
        "text": text,
        "to": end,
        "size": file_size(size),
        "url": f"{row.url}/log/{quote(name)}",
    }


def _describe_remote_log(row: RunRow, attempt: StoryEntry) -> str:
    """Return where the log of another machine's attempt is; empty: not known."""
    dispatch = row.run.dispatch
    if dispatch is None:
        return ""
    matching = (
        remote for remote in dispatch.list_ended_attempts() if remote.token == attempt.token
    )
    return next((f"on {remote.host}: {remote.log}" for remote in matching), "")


def _find_newest_log(row: RunRow, attempt: StoryEntry) -> str:
    """Return the name of the newest log of the step of *attempt*; empty: none."""
    log_query = RequestedLogs(row.project.project, row.run, (str(attempt.step_index + 1),))
    logs = [log for log in log_query.find_logs() if log.iteration == attempt.step_index + 1]
    return logs[-1].path.name if logs else ""


def _find_log(row: RunRow, name: str, recorded_path: str = "") -> Path | None:
    """Return the path of the log called *name*; None: there is none. A name is never a path.

    If branches have several logs of this name: the one at *recorded_path*, or the newest.
    """
    if not LOG_NAME.fullmatch(name):
        return None
    log_query = RequestedLogs(row.project.project, row.run)
    paths = [folder / name for folder in log_query.folders if name in folders.list_names(folder)]
    matching = (
        [path for path in paths if str(path).endswith(f"/{recorded_path}")] if recorded_path else []
    )
    return max(matching or paths, key=read_mtime_ns, default=None)


def log_path(site: Site, project: str, run: str, name: str) -> Path:
    """Return the path of the log called *name*.

    Raises:
        UnknownName: the run has no such log; a name never becomes a path.
    """
    with site.lock:
        path = _find_log(site.project(project).row(run), name)
    if path is None:
        raise UnknownName("log", name, [])
    return path


def build_log_page(site: Site, query: Query, project: str, run: str, name: str) -> Page:
    """Return the page of a log: a part of it with numbered lines, or the hits of a search."""
    row = site.project(project).row(run)
    path = log_path(site, project, run, name)
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        last_start, offset = _find_page_start(file, size), query.get("from")
        start = (
            min(_find_line_start(file, parse_number(offset)), last_start) if offset else last_start
        )
        file.seek(start)
        data = file.read(PAGE_BYTES)
        previous_start = _find_page_start(file, start) if start else None
        first_number = _count_lines_before(file, start) + 1
        find = query.get("q", "")
        hits = [*islice(_hits(file, find), MAX_HITS)] if find else []
    ends = [match.end() for match in islice(re.finditer(b"\n", data), PAGE_LINES)]
    is_end = start + len(data) >= size and len(ends) < PAGE_LINES
    end = len(data) if is_end or not ends else ends[-1]
    lines = strip_controls(data[:end].decode("utf-8", "replace")).split("\n")
    context = {
        "row": row,
        "name": name,
        "lines": lines[:-1] if lines and not lines[-1] else lines,
        "first": first_number,
        "from": start,
        "to": start + end,
        "size": size,
        "size_words": file_size(size),
        "before": previous_start,
        "after": start + end if start + end < size else None,
        "is_open": end > 0 and not data[:end].endswith(b"\n"),
        "find": find,
        "hits": hits,
        "most": MAX_HITS,
    }
    return Page("log.html", name, context, (), "runs")


def _find_page_start(file: BinaryIO, offset: int) -> int:
    """Return the offset where the page that ends at *offset* starts."""
    first_start = _find_line_start(file, max(offset - PAGE_BYTES, 0))
    file.seek(first_start)
    data, position = file.read(offset - first_start), offset - first_start
    # One more, because the newline that ends the last line does not start another.
    for _ in range(PAGE_LINES + 1):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return first_start
    return first_start + position + 1


def _find_line_start(file: BinaryIO, offset: int) -> int:
    if offset <= 0:
        return 0
    file.seek(offset - 1)
    data = file.read(CHUNK)
    position = data.find(b"\n")
    return offset if position < 0 else offset + position


CHUNK = 64 * 1024


def _count_lines_before(file: BinaryIO, offset: int) -> int:
    file.seek(0)
    sizes = (min(BLOCK_BYTES, offset - start) for start in range(0, offset, BLOCK_BYTES))
    return sum(file.read(size).count(b"\n") for size in sizes)


def _hits(file: BinaryIO, find: str) -> Iterator[tuple[int, int, str]]:
    """Yield (number, offset, text) for each line that contains *find*, ignoring case.

    For a long line, the text is the part around the first match.
    """
    pattern = find.casefold().encode()
    file.seek(0)
    offset = 0
    for line_number, line in enumerate(iter(lambda: file.readline(BLOCK_BYTES), b""), 1):
        if (position := line.lower().find(pattern)) >= 0:
            start = max(position - HIT_CHARS // 3, 0) if len(line) > HIT_CHARS else 0
            text = strip_controls(line[start:][:HIT_CHARS].decode("utf-8", "ignore")).strip()
            yield line_number, offset, f"…{text}" if start else text
        offset += len(line)


def download_log(site: Site, project: str, run: str, name: str) -> Response:
    """Return the whole log as a download, which a browser never shows as a page."""
    file = open_log(log_path(site, project, run, name))

    def parts() -> Iterator[bytes]:
        with file:
            while data := file.read(BLOCK_BYTES):
                yield data

    headers = {"content-disposition": f"attachment; filename*=utf-8''{quote(name)}"}
    return StreamingResponse(parts(), media_type="text/plain; charset=utf-8", headers=headers)
