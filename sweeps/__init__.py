"""Sweeps: grids of cells, tuning and search, the states of their cells, and the processes of this
machine that run them.
"""
