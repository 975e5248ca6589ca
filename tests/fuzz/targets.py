"""What is fuzzed: one function for each door through which bytes of others come in.

A target takes any bytes. What it calls may refuse them with the deliberate error that
belongs to the door, and with nothing else; what is accepted has to be sound. `Broken` says
what did not hold. Standard library and the project alone: the fuzzer is another module's.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sequencer import Head, SequenceKind
from sequencer.errors import ConfigurationError, CorruptState, NewerSchema, StateRefused
from sequencer.history.facts import list_facts
from sequencer.project.settings import load
from sequencer.store.head import parse_head, read_head, write_head
from sequencer.store.journal import checksum, decode, scan
from sequencer.store.strictjson import parse_object
from sequencer.workflows.prompts import PromptReader, relative_name
from sequencer.workflows.router import RouterRefused, parse_answer
from tests.property.amounts import in_memory
from tests.property.test_hostile_state import ensure_believable, made

Check = Callable[[bytes], None]
ROOT = Path(__file__).parents[2]
CANARY = "the canary"
ALLOWED = frozenset({"main.md", "reviewer.md", "team/plan.txt", "ö.md"})


class Broken(AssertionError):
    """Something that was accepted is not sound."""


def ensure(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


# --- state.json --------------------------------------------------------------------


@contextmanager
def head_target() -> Iterator[Check]:
    """A head: refused with exit code 3, or written and read back the same; restored or edited."""
    with in_memory() as folder:
        run, path = made(folder, "claimed"), folder / "alone.json"

        def check(data: bytes) -> None:
            try:
                content = parse_object(data)
            except ValueError:
                return
            json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
            # What the store makes of it, beside the journal of a run that somebody is in.
            ensure_believable(run, data)
            try:
                head = parse_head(content, "state.json")
            except StateRefused as refused:
                ensure(refused.exit_code == StateRefused.exit_code, "another exit code")
                return
            ensure(all(map(is_counter, (head.step_index, head.token, head.revision))), "no counter")
            write_head(path, head)
            again = read_head(path)
            ensure(again.problem is None, f"written, but not readable: {again.problem}")
            ensure(Head.model_validate(again.content) == head, "read back differently")
            ensure(set(content) <= set(again.content or {}), "a field was lost")

        yield check


def is_counter(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


# --- journal.jsonl -----------------------------------------------------------------


def sealed(line: bytes) -> bytes:
    """Return *line* with a right checksum, which no fuzzer would find."""
    body = line.removesuffix(b"}")
    return body + b',"checksum":"' + checksum(body).encode() + b'"}'


@contextmanager
def journal_target() -> Iterator[Check]:
    """Journal lines: skipped, refused with exit code 3, or winners without a gap."""

    def check(data: bytes) -> None:
        lines = data.split(b"\n")
        for one in (data, b"\n".join(map(sealed, lines)), b"\n".join([*map(sealed, lines), b""])):
            try:
                found = scan(one, 0, None, "journal.jsonl")
            except (CorruptState, NewerSchema):
                continue
            revisions = [record.revision for record in found.winners]
            expected = list(range(revisions[0], revisions[0] + len(revisions))) if revisions else []
            ensure(revisions == expected, f"winners {revisions}")
            for record in found.winners:
                ensure(one[record.offset : record.end - 1] == record.line, "another place")
                ensure(decode(record.line) == record.data, "decoded differently")
                list_facts(record.data)
            ensure(found.size == len(one), "not read to the end")

    yield check


# --- orchestration.yaml ------------------------------------------------------------


@contextmanager
def settings_target() -> Iterator[Check]:
    """A configuration: refused with exit code 2 and a place, or one that can be used."""
    with in_memory() as folder:
        path = folder / "orchestration.yaml"

        def check(data: bytes) -> None:
            path.write_bytes(data)
            try:
                found = load(folder, env={})
            except ConfigurationError as refused:
                ensure(refused.exit_code == ConfigurationError.exit_code, "another exit code")
                ensure(str(refused), "refused without a word")
                return
            workflow = found.default_workflow()
            workflow.digest()
            if workflow.kind == "cycle":
                (told,) = SequenceKind(workflow).list_upcoming(None, 1, 5)
                ensure(told.iteration == 6, "described differently")
            for name in (found.prompts_dir, found.state_file, found.logs_dir):
                ensure(name.is_absolute(), f"{name} is not absolute")
            json.dumps([row[:2] for row in found.rows()], default=str).encode("utf-8", "replace")

        yield check


# --- prompts -----------------------------------------------------------------------


def prompts_folder(root: Path) -> Path:
    """Return a folder with files inside, the canary outside, and links between them."""
    prompts = root / "prompts"
    (prompts / "a" / "b").mkdir(parents=True)
    for outside in ("a.md", "b.md", "prompts.md", "secret"):
        (root / outside).write_text(CANARY)
    for inside in ("a.md", "a/b.md", "a/b/a.md", "ä.md"):
        (prompts / inside).write_text("inside")
    for link, target in (("up", ".."), ("down", "a"), ("b.md", "../b.md"), ("loop", "loop")):
        (prompts / link).symlink_to(target)
    os.mkfifo(prompts / "fifo.md")
    return prompts


@contextmanager
def prompt_target() -> Iterator[Check]:
    """A prompt's name and text, divided by the first NUL."""
    with in_memory() as root:
        prompts = prompts_folder(root)
        place = prompts / "fuzzed.md"

        def check(data: bytes) -> None:
            raw, _, content = data.partition(b"\0")
            for name in (raw.decode("utf-8", "surrogateescape"), raw.decode("utf-8", "replace")):
                try:
                    text = PromptReader(prompts).read(name)
                except ConfigurationError as refused:
                    ensure(CANARY not in str(refused), "the message holds the canary")
                    ensure(len(str(refused)) < 20_000, "an endless message")
                else:
                    ensure(text == "inside", f"{name!r} read {text[:40]!r}")
                    ensure(".." not in relative_name(prompts, name).split("/"), "a way out")
            place.write_bytes(content)
            try:
                text = PromptReader(prompts).read("fuzzed.md")
            except ConfigurationError:
                with contextlib.suppress(UnicodeDecodeError):
                    content.decode("utf-8")
                    raise Broken("a UTF-8 text was refused") from None
            else:
                ensure(text.encode() in (content, content[3:]), "not the same text")
            place.unlink()

        yield check


# --- the router --------------------------------------------------------------------


@contextmanager
def router_target() -> Iterator[Check]:
    """A router's answer: one of the allowed prompts as it stands there, or refused."""

    def check(data: bytes) -> None:
        for text in (data.decode("utf-8", "replace"), data.decode("utf-8", "surrogateescape")):
            try:
                prompt = parse_answer(text, ALLOWED)
            except RouterRefused as refused:
                ensure(refused.answer.isprintable(), "an answer that moves a terminal")
                ensure(len(str(refused)) < 5_000, "an endless message")
                ensure(text not in ALLOWED, "an allowed answer was refused")
            else:
                ensure(prompt in ALLOWED, f"{prompt!r} is not allowed")
                ensure(text.strip() in (prompt, prompt.removesuffix(".md")), f"{text!r} was bent")

    yield check


TARGETS: dict[str, Callable[[], contextlib.AbstractContextManager[Check]]] = {
    "head": head_target,
    "journal": journal_target,
    "settings": settings_target,
    "prompt": prompt_target,
    "router": router_target,
}
