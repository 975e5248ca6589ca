"""What fuzzing starts from: real files of this project, and the words that they are made of."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sequencer import Head
from tests.property.amounts import in_memory
from tests.property.test_hostile_state import made

ROOT = Path(__file__).parents[2]
_YAML = (
    b"workflows: {w: {steps: [a, {name: b, timeout_s: 1e3, model: no}], review: {every: 2}}}\n",
    b"a: &x [1, 2]\nlimits: {max_steps: *x}\n",
    b"agents:\n  t: {kind: command, argv: ['{python}', -c, \"{model}\"], env: {A: b}}\n",
    b"supervisor_prompt: x.md\nrouter: {enabled: true, mode: only, prompt: r, allowlist: [a]}\n",
    b"'<<': 1\n? [a]\n: 2\n", b"--- |\n x\n...\n", b"%YAML 1.1\n---\na: !!int 3\n",
    b"\xef\xbb\xbfrun: {}",
)  # fmt: skip
_JSON = (
    b'{"step_index": -1, "token": 1.0, "revision": 9223372036854775808}', b'{"a": NaN, "a": 1e999}',
    b'{"schema_version": 2}', b'{"x": "\\ud800"}', b"[" * 70 + b"]" * 70, b"{}", b"null",
)  # fmt: skip
_COUNTERS = (b"-1", b"1.0", b"true", b"9223372036854775808", b"1e2", b"null", b"[]", b'"1"', b"2")
_NAMES = (
    b"a\0text", b"a.md\0\xef\xbb\xbfbom", b"../a\0", b"up/a\0x", b"prompts/a/b\0\xff", b"/a\0",
    b"fifo\0", b"down/b\0", b"b.md\0", b"loop/a\0", b".\0", b"C:\\a\0", b"a//b\0",
    b"../prompts/a\0", b"./a\0", b"down/../a\0", b"\xc3\xa4\0",
)  # fmt: skip
_ANSWERS = (
    b"main", b" reviewer.md \n", b"team/plan.txt", b"./main.md", b"main\nreviewer", b"", b"[]",
    "ö".encode(), b"main\xe2\x80\xa8", b"../main.md", b"MAIN.md", b"main.md\0", b"\x1cmain",
)  # fmt: skip


def _run_files() -> Iterator[tuple[bytes, bytes]]:
    for how in ("claimed", "at rest"):
        with in_memory() as folder:
            run = made(folder, how)
            yield run.state, run.journal


def seeds(target: str) -> list[bytes]:
    """Return the inputs that *target* begins with."""
    if target == "head":
        states = [state for state, _ in _run_files()]
        odd = [state.replace(b'"step_index": 1,', b'"step_index": %b,' % value)
               for state in states for value in _COUNTERS]  # fmt: skip
        older = (ROOT / "examples" / "hoidn-migration").glob("*.json")
        return [*states, *odd, *_JSON, *(p.read_bytes() for p in older)]
    if target == "journal":
        journals = [journal for _, journal in _run_files()]
        lines = [line for journal in journals for line in journal.splitlines()]
        bare = [line.partition(b',"checksum"')[0] + b"}" for line in lines]
        return [*journals, *bare, b"\n".join(bare), *_JSON]
    if target == "settings":
        files = [ROOT / "orchestration.yaml", *(ROOT / "examples").glob("*/orchestration.yaml")]
        return [*(path.read_bytes() for path in files), *_YAML]
    if target == "prompt":
        texts = [path.read_bytes() for path in (ROOT / "prompts").glob("*.md")]
        return [*_NAMES, *(b"a\0" + text for text in texts)]
    return list(_ANSWERS)


def _keys(schema: Any) -> Iterator[str]:
    """Yield each key that *schema*, a JSON schema, knows."""
    parts = list(schema.values()) if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"]
    for part in parts if isinstance(parts, list) else ():
        yield from _keys(part)


def words(target: str) -> list[bytes]:
    """Return what no mutation of bytes would find by itself."""
    if target in ("head", "journal"):
        keys = [f'"{name}":' for name in (*Head.model_fields, "also", "head", "checksum")]
        return [key.encode() for key in (*keys, '"\\ud800"', "NaN", "-Infinity", "1e999", "true")]
    if target == "settings":
        schema = json.loads((ROOT / ".orchestration.schema.json").read_text())
        more = ("steps", "review", "every", "step", "kind", "argv", "&a ", "*a", "!!str ", "<<: ")
        return [word.encode() for word in (*sorted(set(_keys(schema))), *more)]
    return [b"..", b"/", b".md", b"main", b"prompts", b"\n", b"\0", b"\xe2\x80\xa8", b"up", b"down"]


def mutants(target: str, count: int, seed: int) -> Iterator[bytes]:
    """Yield *count* inputs near the seeds: what a fuzzer does, without looking at coverage."""
    chance = random.Random(f"{target} {seed}")  # noqa: S311 - no secret
    begun, known = seeds(target), words(target)
    yield from begun
    for _ in range(count - len(begun)):
        data = bytearray(chance.choice(begun))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data) + 1)
            until = min(at + chance.choice((0, 1, 1, 4, 40)), len(data))
            other = chance.choice(begun)
            cut = chance.randrange(len(other) + 1)
            put = chance.choice(
                (b"", chance.randbytes(1), chance.choice(known), other[cut : cut + 60])
            )
            data[at:until] = put
        yield bytes(data)
