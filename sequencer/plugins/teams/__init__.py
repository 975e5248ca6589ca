"""Teams: a list of tasks becomes a graph that several agents work on."""
