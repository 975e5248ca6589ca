"""From settings to the parts of a project, each kind in a registry."""
