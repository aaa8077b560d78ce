"""The machine that a process runs on: its processors, its precisions, its clocks and meters."""
