"""Hydra configurations: one run (run.yaml), its groups, and the sweeps."""
