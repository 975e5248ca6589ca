"""Flowcharts and teams: a marking, whose tokens go from node to node."""
