"""``python -m tests.model [--workers N]``: the model and all its mutants, one line each."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from tests.model.mutants import MUTANTS, PRODUCT, PRODUCT_BOUNDS
from tests.model.turn_protocol import Model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    rows = [
        (f"the protocol: {name}", PRODUCT, replace(bounds, workers=workers), False)
        for name, bounds in PRODUCT_BOUNDS.items()
    ]
    rows += [(name, protocol, bounds, True) for name, (protocol, bounds) in MUTANTS.items()]
    is_good = True
    for name, protocol, bounds, is_mutant in rows:
        started = time.perf_counter()
        verdict = Model(protocol, bounds).explore()
        is_good &= (verdict.violation is not None) == is_mutant
        said = verdict.violation or "holds"
        seconds = time.perf_counter() - started
        print(f"{name:45} {verdict.states:>9} states {seconds:7.1f} s  {said}", flush=True)
    print("it holds, and every mutant is caught" if is_good else "NOT AS IT HAS TO BE")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
