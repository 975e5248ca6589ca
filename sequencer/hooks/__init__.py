"""A project's own code at seven points of a run: found, checked, and called with pluggy.

Files come in the order in which orchestration.yaml lists them, then installed packages by the
names of their entry points. Nothing of pluggy is imported for a project without hooks.

Not promised: a sandbox. A hook is code of the project and may do what the program may do.
"""
