"""Data sets on the disk: how they are prepared, what they hold, and whether it is whole."""
