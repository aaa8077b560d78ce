"""Evaluations of a frozen backbone, each a plug-in in a file of its own.

`base.py` says what one is.
"""
