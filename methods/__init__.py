"""Regularizers of self-supervised learning: one file each, found by themselves.

A new method is one file in this folder (or in another wheel, through the entry-point group `regbench.methods`)
with one class: see CONTRIBUTING.md.
"""

from regbench.methods.base import Metadata, Regularizer, build, defaults, names, register, registry_name

__all__ = ["Metadata", "Regularizer", "build", "defaults", "names", "register", "registry_name"]
