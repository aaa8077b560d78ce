"""Fine-tuning against a plain loop, alone and after a kill."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regbench.benchmark.evaluate import state as states
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.finetune import FineTuned, FineTuning
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.settings.sweep import load_run
from tests.benchmark.test_evaluate_linear import Batches, Claimed, Epochs, watched

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
RATES = (0.02, 0.3)


def small_backbone() -> nn.Module:
    """A frozen convolution with BN, which has seen some images."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        convolution = [nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
        module = nn.Sequential(*convolution, *pooled)
        module(torch.randn(20, 2, 6, 6))
    return module.eval().requires_grad_(False)


def batches(sizes: tuple[int, ...] = (16, 16, 5)) -> Epochs:
    def epoch(number: int) -> Batches:
        generator = torch.Generator().manual_seed(number)
        for n in sizes:
            x_NCHW = torch.randn(n, 2, 6, 6, generator=generator)
            yield x_NCHW, torch.randint(3, (n,), generator=generator)

    return epoch


def by_hand(module: nn.Module, sizes: tuple[int, ...]) -> nn.Sequential:
    """VICReg's procedure with torch's own scheduler."""
    head = nn.Linear(5, 3)
    with torch.no_grad():
        head.weight.copy_((0.01 * torch.randn(5, 3, generator=torch.Generator().manual_seed(7))).T)
        head.bias.zero_()
    model = nn.Sequential(copy.deepcopy(module).requires_grad_(True), head)
    parts = zip(model, RATES, strict=True)
    groups = [{"params": part.parameters(), "lr": rate} for part, rate in parts]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for epoch in range(4):
        model.train()
        for x, y in batches(sizes)(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        scheduler.step()
    return model


def tuned(attempt: Attempt, module: nn.Module, epochs: Epochs) -> nn.Module:
    """The network after as much of its training as there is."""
    settings: dict[str, Any] = {"dataset": load_run([])[0].dataset, "weight_decay": 0.01}
    settings |= {"backbone_learning_rates": RATES[:1], "head_learning_rates": RATES[1:]}
    config = FineTuning(epochs=4, **settings)
    tuned = FineTuned(Encoder(module, 5), 3, config, RATES, 7, CPU)
    tuned.fit(epochs, State(attempt, "labels1", "key", CPU))
    return tuned.network


def test_weights_are_those_of_a_plain_loop(tmp_path: Path, claimed: Claimed) -> None:
    module = small_backbone()
    before = copy.deepcopy(module.state_dict())
    found = tuned(claimed(tmp_path), module, batches()).state_dict()
    expected = by_hand(module, (16, 16, 5)).state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    # The backbone moved, its BN statistics too, and the original has stayed as it was.
    assert not torch.equal(found["0.0.weight"], before["0.weight"])
    assert not torch.equal(found["0.1.running_mean"], before["1.running_mean"])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(p.requires_grad for p in module.parameters())
    assert not module.training


def test_a_last_batch_of_one_image_is_left_out(tmp_path: Path, claimed: Claimed) -> None:
    module = small_backbone()
    network = tuned(claimed(tmp_path), module, batches((16, 1)))
    for name, value in by_hand(module, (16,)).state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value)


@pytest.mark.parametrize("at", [1, 3])
def test_training_goes_on_after_a_kill_as_if_there_was_none(
    at: int, tmp_path: Path, claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SAVE_EVERY_S", 0.0)
    module = small_backbone()
    with pytest.raises(KeyboardInterrupt):
        tuned(claimed(tmp_path), module, watched(batches(), killed_at=(at, 1))[0])
    counted, walked = watched(batches())
    resumed = tuned(claimed(tmp_path), module, counted)
    assert walked == list(range(at, 4))
    undisturbed = tuned(claimed(tmp_path / "other"), module, batches())
    for name, value in undisturbed.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
