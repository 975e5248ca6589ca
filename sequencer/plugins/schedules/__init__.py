"""Schedules: start dates of runs, and timers that call `tick`."""
