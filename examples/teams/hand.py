"""Stands in for a model: does each task of the two lists in a few words."""

import json
import os
import sys
from pathlib import Path

prompt = sys.stdin.read()
task = os.environ["SEQUENCER_STEP"]
greeting = Path("greeting.txt")

if task == "build":
    # Not good enough; the verifier sees it.
    greeting.write_text("Hello, world\n", encoding="utf-8")
    found = [name for name in ("manners", "places") if f'<result task="{name}"' in prompt]
    print(f"It says hello, by what {' and '.join(found)} found out.")
elif task == "verify":
    is_right = greeting.read_text(encoding="utf-8").endswith("!\n")
    print(json.dumps({"pass": is_right, "reason": "" if is_right else "It does not end with '!'."}))
elif "It does not end with" in prompt:
    greeting.write_text("Hello, world!\n", encoding="utf-8")
    print("It ends as it should.")
else:
    print(f"{task} is done.")
