"""A grid of runs: submission, status, resumption."""
