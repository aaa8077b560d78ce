"""Bundles: finished cells in one file, which goes to others and can be checked there."""
