"""Evaluation while training: how accurate a network is after an epoch, found on a copy of its
backbone.
"""

from __future__ import annotations

import copy

from torch import nn

from regbench.benchmark.evaluate.base import Scores
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.state import state_kind
from regbench.benchmark.machine.compute import Compute
from regbench.benchmark.rundir.checkpoint import remove_tensors
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.scoring import subject_of
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.network import SiameseNetwork


def monitored_scores(
    cell: Cell, network: SiameseNetwork, backbone: nn.Module, compute: Compute, attempt: Attempt
) -> Scores:
    """Evaluate a network in training on the split that choices are made on.

    A copy of the spare `backbone` gets the network's weights, so the network stays as it is.

    Returns:
        One score of each evaluation of `evaluation.while_training`: the one that hyperparameters
        are chosen by.

    Raises:
        LeaseLost: If another process has taken over the run.
    """
    backbone = copy.deepcopy(backbone).to(compute.device)
    backbone.load_state_dict(network.backbone.state_dict())
    encoder = Encoder(backbone, network.representation_dim)
    subject = subject_of(cell, encoder, compute, Choices(attempt)).unrecorded()
    config = cell.evaluation
    found = [config[name].select(name, subject)[0] for name in config.while_training]
    # The next evaluation is of other weights, so the kept state of this one is of no more use.
    remove_tensors(attempt.directory, state_kind("*"), attempt.number)
    return found
