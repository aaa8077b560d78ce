"""Presets: data sets, augmentations, networks, clusters and sweeps."""
