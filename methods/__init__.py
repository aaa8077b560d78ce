"""Regularizers of self-supervised learning: one file each, found by themselves.

A new method is one file in this folder (or in another wheel, through the entry-point group
`regbench.methods`) with one class: see docs/tutorials/add_a_regularizer.md.
"""

from regbench.methods.base import (
    METHODS,
    Loss,
    LossModule,
    Metadata,
    NotComputable,
    Regularizer,
    register,
)
from regbench.methods.forms.engine import Engine

build, defaults, names, registry_name = METHODS.build, METHODS.defaults, METHODS.names, METHODS.name

__all__ = [
    "METHODS",
    "Engine",
    "Loss",
    "LossModule",
    "Metadata",
    "NotComputable",
    "Regularizer",
    "build",
    "defaults",
    "names",
    "register",
    "registry_name",
]
