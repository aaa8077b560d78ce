"""Slurm: jobs that run the cells of a sweep, and what is done with them."""
