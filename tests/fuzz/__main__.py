"""``python -m tests.fuzz TARGET CORPUS [libFuzzer options]``: one target under atheris.

A process of its own, because libFuzzer ends the process when it is done. An input that
takes a second or 200 MiB counts as broken like one that raises.
"""

from __future__ import annotations

import resource
import sys
import time

import atheris

with atheris.instrument_imports(include=["sequencer"]):
    from tests.fuzz.targets import TARGETS, Broken

MAX_SECONDS, MAX_KIB = 1.0, 200 * 1024


def main() -> None:
    """Fuzz for as long as the options say."""
    name = sys.argv[1]
    with TARGETS[name]() as check:

        def test_one(data: bytes) -> None:
            before = resource.getrusage(resource.RUSAGE_SELF)
            started = time.process_time()
            check(data)
            seconds = time.process_time() - started
            after = resource.getrusage(resource.RUSAGE_SELF)
            if seconds > MAX_SECONDS:
                raise Broken(f"{seconds:.1f} s for one input")
            if after.ru_maxrss - before.ru_maxrss > MAX_KIB:
                raise Broken(f"{(after.ru_maxrss - before.ru_maxrss) // 1024} MiB for one input")

        atheris.Setup([sys.argv[0], *sys.argv[2:]], test_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
