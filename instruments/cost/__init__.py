"""Time and memory of losses, for `regbench cost`, and what all measurements share."""
