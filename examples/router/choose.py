"""A stand-in for a model: answers with the name of the next prompt."""

import json
import sys
from pathlib import Path

question = sys.stdin.read()
state = json.loads(question[question.index("{") :])
print("fix.md" if Path("broken.txt").exists() else state["next"]["prompt"])
