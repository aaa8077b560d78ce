"""What losses and loaders take in time and memory, for `regbench cost` and `regbench loader-bench`."""
