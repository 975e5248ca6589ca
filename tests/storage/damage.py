"""state.json and the journal, broken byte by byte and bit by bit, and what the store makes of it.

There are three right answers: the accepted head, with a notice; an edit by hand, with a
record in the journal; a refusal with exit code 3 that leaves every byte in its place.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequencer import FileStore, Head, commands
from sequencer.errors import StateRefused
from sequencer.testing import ScratchProject
from tests.contract import store_cases as cases
from tests.long.report import Report, Size
from tests.property.amounts import in_memory

EVERY = 11
"""Of so many inputs one is tried on every push, all in the long form. Odd: it meets each bit."""
WRITER_EVERY = 8
"""Of so many inputs one is also given to a writer on every push; all are in the long form."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run at rest: the bytes of its two files, and the heads that were accepted."""

    folder: Path
    state: bytes
    journal: bytes
    heads: tuple[Head, ...]

    @classmethod
    def make(cls, folder: Path, *, is_claimed: bool) -> Accepted:
        """Accept one step in *folder*, and begin the next one if *is_claimed*."""
        path = folder / "made" / "state.json"
        store = FileStore(path)
        cases.begin(store)
        token = cases.claim(store).token
        (cases.commit_and_claim if is_claimed else cases.commit)(store, token)
        store.close()
        journal = path.with_name("journal.jsonl").read_bytes()
        heads = tuple(
            Head.model_validate(json.loads(line)["head"]) for line in journal.splitlines()
        )
        (folder / "run").mkdir()
        return cls(folder / "run", path.read_bytes(), journal, heads)

    @property
    def last_record(self) -> int:
        """Return where the journal's last record begins."""
        return self.journal.rindex(b"\n", 0, -1) + 1

    def as_text(self, head: Head) -> bytes:
        return head.model_dump_json(indent=2).encode() + b"\n"

    def put(self, state: bytes | None, journal: bytes) -> Path:
        """Write the two files into a folder that holds nothing else."""
        if [entry.name for entry in self.folder.iterdir()] != ["journal.jsonl"]:
            shutil.rmtree(self.folder)
            self.folder.mkdir()
        if state is not None:
            (self.folder / "state.json").write_bytes(state)
        (self.folder / "journal.jsonl").write_bytes(journal)
        return self.folder / "state.json"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one input."""

    kind: str
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """Two damaged files, and what the answer may be."""

    name: str
    state: bytes | None
    journal: bytes
    newest: Head
    allowed: frozenset[str]


def ask(run: Accepted, given: Input, *, writes: bool) -> Answer:
    """Return what a reader, and a writer if it *writes*, make of the two files."""
    path = run.put(given.state, given.journal)
    store = FileStore(path)
    try:
        view = store.view()
        found = _reading(given, view.head, view.notices)
        if writes and not found.wrong:
            return _writing(store, path, given, found)
    except StateRefused as refused:
        return _refused(path, given, refused, writes=writes)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is a violation)
        return Answer("bug", repr(error))
    else:
        return found
    finally:
        store.close()


def _reading(given: Input, head: Head | None, notices: tuple[str, ...]) -> Answer:
    newest, written = given.newest, _content(given.state)
    if head is None:
        return Answer("default", "a run that was never begun")
    if head == newest and written == newest.model_dump(mode="json"):
        return Answer("same")
    is_edit = written is not None and written.get("revision") == newest.revision
    is_ours = head.run_id == newest.run_id and head.token >= newest.token
    is_as_written = written is not None and head.step_index == written.get("step_index")
    is_told = any("by hand" in text for text in notices)
    if head != newest and is_edit and is_ours and is_as_written and is_told:
        return Answer("edited")
    if head == newest:
        return Answer("restored", "" if notices else "without a word about what stood there")
    return Answer("invented", f"step_index {head.step_index}, token {head.token}, {notices}")


def _content(state: bytes | None) -> dict[str, Any] | None:
    """Return the object in *state*; None if it is none, has a key twice, or has NaN in it.

    The standard library reads it, so that a mistake in the program's own reader shows.
    """
    try:
        text = (state or b"").decode()
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _refuse(name: str) -> float:
    raise ValueError(name)


def _writing(store: FileStore, path: Path, given: Input, found: Answer) -> Answer:
    """Let a writer come to what a reader *found*, and look at what it leaves."""
    newest, state = given.newest, given.state
    head, said = store.update(lambda _: None), store.take_notices()
    last = list(store.history())[-1]
    kept = [one.read_bytes() for one in path.parent.glob("state.json.*") if one.is_file()]
    if json.loads(path.read_bytes()) != head.model_dump(mode="json"):
        return Answer(found.kind, "state.json is not the head that was returned")
    if found.kind == "edited":
        is_recorded = last["event"] == "edited" and last["revision"] == newest.revision + 1
        return Answer(found.kind, "" if is_recorded and said else f"recorded as {last}")
    if head != newest or last["revision"] != newest.revision:
        return Answer(found.kind, f"a writer made revision {head.revision} of it")
    if found.kind == "restored" and not said:
        return Answer(found.kind, "restored without a notice")
    there = None if state is None else _content(state)
    is_edit = there is not None and there.get("revision") == newest.revision
    is_same = there == newest.model_dump(mode="json")
    if state is not None and (there is None or (is_edit and not is_same)) and state not in kept:
        return Answer(found.kind, "what stood in state.json is lost")
    cases.commit(store, head.claims[0].token if head.claims else cases.claim(store).token)
    is_next = cases.check_files(path.parent) == newest.step_index + 1
    return Answer(found.kind, "" if is_next else "the next step is not accepted once")


def _refused(path: Path, given: Input, refused: StateRefused, *, writes: bool) -> Answer:
    there = path.read_bytes() if path.exists() else None
    if there != given.state or path.with_name("journal.jsonl").read_bytes() != given.journal:
        return Answer("refused", f"and changed a file: {refused}")
    if refused.exit_code != 3 or str(path.parent) not in str(refused):
        return Answer("refused", f"without a place: {refused}")
    if writes:
        try:
            FileStore(path).update(lambda _: None)
        except StateRefused:
            return Answer("refused")
        return Answer("refused", "a writer takes what a reader refuses")
    return Answer("refused")


RESTORED, REFUSED = frozenset({"restored"}), frozenset({"refused"})


def truncated_heads(run: Accepted) -> Iterator[Input]:
    newest = run.heads[-1]
    for length in range(len(run.state)):
        # The last byte is a newline behind the object.
        allowed = RESTORED if length < len(run.state) - 1 else frozenset({"same"})
        yield Input(f"head of {length} bytes", run.state[:length], run.journal, newest, allowed)


def other_heads(run: Accepted) -> Iterator[Input]:
    newest = run.heads[-1]
    for name, state in {
        "nothing": None,
        "a NUL page": bytes(4096),
        "NUL of its own length": bytes(len(run.state)),
        "a NUL page behind it": run.state + bytes(4096),
        "itself twice": run.state * 2,
        "conflict markers": b"<<<<<<< a\n" + run.state + b"=======\n" + run.state + b">>>>>>> b\n",
    }.items():
        yield Input(f"head: {name}", state, run.journal, newest, RESTORED)


def flipped(data: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield *data* with one bit flipped, for each bit from byte *first* on."""
    for bit in range(first * 8, len(data) * 8):
        made = bytearray(data)
        made[bit // 8] ^= 1 << (bit % 8)
        yield bit, bytes(made)


def flipped_heads(run: Accepted) -> Iterator[Input]:
    allowed = frozenset({"restored", "edited", "refused"})
    for bit, state in flipped(run.state, 0):
        yield Input(f"head, bit {bit}", state, run.journal, run.heads[-1], allowed)


def damaged_ends(run: Accepted) -> Iterator[tuple[str, bytes]]:
    """Yield the journal with its last record torn at every byte, and with every bit flipped."""
    for length in range(run.last_record, len(run.journal)):
        yield f"journal of {length} bytes", run.journal[:length]
    for bit, journal in flipped(run.journal, run.last_record):
        yield f"journal, bit {bit}", journal


def damaged_journals(run: Accepted, size: Size) -> Iterator[Input]:
    """Yield each damaged end beside the head that it had, the one before, and none.

    On every push each of them meets one of the three in turn.
    """
    newest, behind = run.heads[-1], run.heads[-2]
    older = run.as_text(behind)
    for number, (name, journal) in enumerate(damaged_ends(run)):
        beside = (
            # The head shows that the record was durable once: something has eaten it.
            Input(f"{name}, head whole", run.state, journal, newest, REFUSED),
            # Its writer was stopped before it replaced the head: it never counted.
            Input(f"{name}, head behind", older, journal, behind, frozenset({"same"})),
            Input(f"{name}, no head", None, journal, behind, RESTORED),
        )
        yield from beside if size is Size.LONG else (beside[number % 3],)


def gaps(folder: Path, steps: int) -> Iterator[str]:
    """Damage each record but the last in turn; yield what is not refused with its place."""
    for number in range(steps):
        project = ScratchProject(folder / f"gap-{number}")
        run = project.run()
        run.commands.begin()
        for step in range(steps):
            run.do(commands.Accept(f"step {step}"))
        path = project.folder / "sync" / "state.json"
        journal = path.with_name("journal.jsonl")
        lines = journal.read_bytes().splitlines(keepends=True)
        lost = bytearray(lines[number])
        lost[len(lost) // 2] ^= 1
        journal.write_bytes(b"".join([*lines[:number], bytes(lost), *lines[number + 1 :]]))
        path.unlink()
        for text in (*_refusing(path, number, lines), *_repairing(project, number, lines)):
            yield f"gap at revision {number + 1}: {text}"
        shutil.rmtree(project.folder)


def _refusing(path: Path, number: int, lines: list[bytes]) -> Iterator[str]:
    behind = sum(map(len, lines[: number + 1]))
    for verb in (FileStore(path).view, lambda: cases.begin(FileStore(path))):
        try:
            verb()
            yield "not refused"
        except StateRefused as refused:
            if refused.exit_code != 3 or f"before byte {behind}" not in str(refused):
                yield f"refused without its place: {refused}"


def _repairing(project: ScratchProject, number: int, lines: list[bytes]) -> Iterator[str]:
    behind, at = sum(map(len, lines[: number + 1])), sum(map(len, lines[:number]))
    shown = project.run_command("repair", "--json")
    (report,) = shown.json["journals"]
    if (shown.exit_code, shown.json["action"]) != (3, "rebuild"):
        yield f"repair ends with {shown.exit_code} and would {shown.json['action']}"
    if [line["offset"] for line in report["bad_lines"]] != [at]:
        yield f"repair says {report['bad_lines']}"
    lost = [{"offset": behind, "first": number + 1, "last": number + 1}] if number else []
    if report["gaps"] != lost:
        yield f"repair says {report['gaps']}"
    made = project.run_command("repair", "--apply")
    if made.exit_code != 0:
        yield f"repair --apply ends with {made.exit_code}: {made.stderr}"
    elif project.run().do(commands.Accept("after the repair")).head.step_index != len(lines):
        yield "the repair lost a step"


def heads(folder: Path, size: Size) -> Report:
    """Cut the head off at every byte, flip every bit of it, put other things in its place."""

    def inputs(run: Accepted) -> Iterator[Input]:
        yield from other_heads(run)
        yield from truncated_heads(run)
        yield from flipped_heads(run)

    return _tried(folder, size, inputs)


def journals(folder: Path, size: Size) -> Report:
    """Tear the last record at every byte, flip every bit of it; damage each one before it."""
    report = _tried(folder, size, lambda run: damaged_journals(run, size))
    steps = 6 if size is Size.SHORT else 40
    wrong = (*report.violations, *gaps(folder, steps))
    return Report({"inputs": report.counts["inputs"] + steps}, wrong, report.figures)


def _tried(folder: Path, size: Size, inputs: Callable[[Accepted], Iterator[Input]]) -> Report:
    if size is Size.SHORT:
        # Files that are damaged on purpose need no disk that keeps them.
        with in_memory() as made:
            return _asked(made, size, inputs)
    return _asked(folder, size, inputs)


def _asked(folder: Path, size: Size, inputs: Callable[[Accepted], Iterator[Input]]) -> Report:
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    every = WRITER_EVERY if size is Size.SHORT else 1
    for is_claimed in (False,) if size is Size.SHORT else (False, True):
        run = Accepted.make(folder / f"{is_claimed}", is_claimed=is_claimed)
        stride = EVERY if size is Size.SHORT else 1
        for number, made in enumerate(itertools.islice(inputs(run), 0, None, stride)):
            writes = number % every == 0
            answer = ask(run, made, writes=writes)
            kinds[answer.kind] += 1
            if answer.wrong or answer.kind not in made.allowed:
                wrong.append(f"{made.name} (claimed: {is_claimed}): {answer.kind} {answer.wrong}")
    told = {f"{kind}_inputs": float(number) for kind, number in sorted(kinds.items())}
    return Report({"inputs": kinds.total()}, tuple(wrong), told)
