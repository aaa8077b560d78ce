"""Sweeps: grids of cells, tuning and search, how their cells stand, and processes of this
machine that run them.
"""
