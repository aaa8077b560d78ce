"""Evaluation of a frozen backbone: weighted kNN, linear probing, transfer, few labels, and measures without labels."""

from regbench.benchmark.evaluate.evaluator import Evaluator, selection_splits
from regbench.benchmark.evaluate.features import Backbone, Features
from regbench.benchmark.evaluate.knn import weighted_knn
from regbench.benchmark.evaluate.linear import LinearHeads

__all__ = ["Backbone", "Evaluator", "Features", "LinearHeads", "selection_splits", "weighted_knn"]
