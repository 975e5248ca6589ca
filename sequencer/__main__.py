"""``python -m sequencer`` is the same as ``sequencer``."""

from __future__ import annotations

from sequencer.cli import main

if __name__ == "__main__":
    main()
