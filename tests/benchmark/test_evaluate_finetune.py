"""Fine-tuning against a plain loop, alone and after a kill."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench.benchmark.evaluate import state as states
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.finetune import FineTuned, FineTuning
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.settings.sweep import load_run

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Batches = Iterator[tuple[Tensor, Tensor]]
RATES = (0.02, 0.3)


def config(**changes: object) -> FineTuning:
    settings: dict[str, object] = {"epochs": 4, "weight_decay": 0.01}
    settings["dataset"] = load_run([])[0].dataset
    settings |= {"backbone_learning_rates": RATES[:1], "head_learning_rates": RATES[1:]}
    return FineTuning(**(settings | changes))  # type: ignore[arg-type]


def small_backbone() -> nn.Module:
    """A frozen convolution with BN, which has seen some images."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        convolution = [nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
        module = nn.Sequential(*convolution, *pooled)
        module(torch.randn(20, 2, 6, 6))
    return module.eval().requires_grad_(False)


def batches(sizes: tuple[int, ...] = (16, 16, 5)) -> Callable[[int], Batches]:
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


Claimed = Callable[[Path], Attempt]


def tuned(attempt: Attempt, module: nn.Module) -> tuple[FineTuned, State]:
    state = State(attempt, "labels1", "key", CPU)
    return FineTuned(Encoder(module, 5), 3, config(), RATES, 7, CPU), state


def test_weights_are_those_of_a_plain_loop(tmp_path: Path, claimed: Claimed) -> None:
    module = small_backbone()
    before = copy.deepcopy(module.state_dict())
    network, state = tuned(claimed(tmp_path), module)
    network.fit(batches(), state)
    found, expected = network.network.state_dict(), by_hand(module, (16, 16, 5)).state_dict()
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
    network, state = tuned(claimed(tmp_path), module)
    network.fit(batches((16, 1)), state)
    for name, value in by_hand(module, (16,)).state_dict().items():
        torch.testing.assert_close(network.network.state_dict()[name], value)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [1, 3])
def test_training_goes_on_after_a_kill_as_if_there_was_none(
    at: int, tmp_path: Path, claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SAVE_EVERY_S", 0.0)
    module = small_backbone()
    walked: list[int] = []

    def killed(epoch: int) -> Batches:
        for number, batch in enumerate(batches()(epoch)):
            if (epoch, number) == (at, 1):
                raise Killed
            yield batch

    def counted(epoch: int) -> Batches:
        walked.append(epoch)
        return batches()(epoch)

    network, state = tuned(claimed(tmp_path), module)
    with pytest.raises(Killed):
        network.fit(killed, state)
    resumed, state = tuned(claimed(tmp_path), module)
    resumed.fit(counted, state)
    assert walked == list(range(at, 4))
    undisturbed, state = tuned(claimed(tmp_path / "other"), module)
    undisturbed.fit(batches(), state)
    for name, value in undisturbed.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name
