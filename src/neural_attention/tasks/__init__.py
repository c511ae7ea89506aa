"""Tasks: the data of an experiment and the way it is scored, one module a task."""
