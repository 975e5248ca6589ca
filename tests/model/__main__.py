"""``python -m tests.model [--long]``: the model and all its mutants, one line each."""

from __future__ import annotations

import argparse
import time

from tests.isolation import isolate
from tests.model.mutants import LONG_BOUNDS, MUTANTS, PRODUCT_BOUNDS, explore, rules_for
from tests.scratch_folders import scratch_folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--long", action="store_true", help="three workers, without mutants")
    is_long = parser.parse_args().long
    chosen = LONG_BOUNDS if is_long else PRODUCT_BOUNDS
    rows = [
        (f"the protocol: {name}", rules_for(name), bounds, False) for name, bounds in chosen.items()
    ]
    if not is_long:
        rows += [(name, protocol, bounds, True) for name, (protocol, bounds) in MUTANTS.items()]
    is_good = True
    for name, protocol, bounds, is_mutant in rows:
        started = time.perf_counter()
        verdict = explore(protocol, bounds)
        is_good &= (verdict.violation is not None) == is_mutant
        said = verdict.violation or "holds"
        seconds = time.perf_counter() - started
        print(f"{name:45} {verdict.states:>9} states {seconds:7.1f} s  {said}", flush=True)
    print("as it has to be" if is_good else "NOT AS IT HAS TO BE")
    return 0 if is_good else 1


if __name__ == "__main__":
    with scratch_folder() as own:
        # The runs that it asks belong to nobody who calls it.
        isolate(own)
        raise SystemExit(main())
