"""Rows set as tables, ours and the paper's."""
