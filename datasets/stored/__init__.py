"""Data sets on the disk: their preparation, their content, and checks that it is complete."""
