"""What works on a machine, and how fast: `regbench doctor`."""
