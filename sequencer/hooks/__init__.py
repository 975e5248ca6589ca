"""A project's own code at seven points of a run: loaded, checked, and called with pluggy.

Hooks run in the order in which orchestration.yaml lists their files, then those of installed
packages by the names of their entry points. pluggy is not imported for a project without hooks.

Not promised: a sandbox. A hook is code of the project and can do whatever the program can do.
"""
