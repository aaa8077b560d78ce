"""Instruments beside the benchmark: is a loss right, what does it cost, what does a run need,
what has this machine.
"""
