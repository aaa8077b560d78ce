"""Time and memory of losses and loaders, for `regbench cost` and `regbench loader-bench`."""
