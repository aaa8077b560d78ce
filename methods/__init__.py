"""Regularizers of self-supervised learning: one file each, found by themselves.

A new method is one file in this folder (or in another wheel, through the entry-point group `regbench.methods`)
with one class: see CONTRIBUTING.md.
"""

from regbench.methods.base import Loss, Metadata, Regularizer, build, defaults, names, register, registry_name
from regbench.methods.engine import Engine

__all__ = ["Engine", "Loss", "Metadata", "Regularizer", "build", "defaults", "names", "register", "registry_name"]
