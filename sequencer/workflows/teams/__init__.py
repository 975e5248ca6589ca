"""Teams: when a request gets one, and how a list of tasks becomes a graph."""
