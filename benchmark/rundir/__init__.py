"""A run directory: who may write into it, which files it holds and how they are read back."""
