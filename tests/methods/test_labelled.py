"""Losses of labels against the formula and against other implementations, in value and gradient."""

from __future__ import annotations

import pytest
import pytorch_metric_learning.losses
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.methods import Engine
from regbench.methods.forms.labelled import supervised_contrastive


def draw(count: int, n: int = 11, q: int = 6) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(count)
    drawn = [torch.randn(n, q, dtype=torch.float64, generator=generator) for _ in range(count)]
    views = [view.requires_grad_() for view in drawn]
    # Three classes, and images that are alone in theirs.
    return views, torch.tensor([0, 1, 2, 0, 1, 2, 2, 0, 7, 2, 9])


def of_released_code(views: list[Tensor], labels: Tensor) -> Tensor:
    """SupConLoss of HobbitLong/SupContrast in loops, at τ = 0.1 and without its factor τ/0.07."""
    features = F.normalize(torch.cat(views), dim=1)
    classes = labels.repeat(len(views)).tolist()
    anchors = []
    for i, feature in enumerate(features):
        others = [j for j in range(len(features)) if j != i]
        logits = torch.stack([feature @ features[j] / 0.1 for j in others])
        log_shares = logits - logits.exp().sum().log()
        own = [log_shares[k] for k, j in enumerate(others) if classes[j] == classes[i]]
        anchors.append(-torch.stack(own).mean())
    return torch.stack(anchors).mean()


@pytest.mark.parametrize("count", [2, 3])
def test_supcon_is_that_of_the_released_code_and_of_pytorch_metric_learning(count: int) -> None:
    views, labels = draw(count)
    found = supervised_contrastive(views, labels, Engine())
    supcon = pytorch_metric_learning.losses.SupConLoss(temperature=0.1)
    library = supcon(torch.cat(views), labels.repeat(count))
    for wanted, rtol in ((of_released_code(views, labels), 1e-10), (library, 1e-8)):
        torch.testing.assert_close(found.total, wanted, rtol=rtol, atol=0)
        own = torch.autograd.grad(found.total, views, retain_graph=True)
        other = torch.autograd.grad(wanted, views)
        torch.testing.assert_close(own, other, rtol=rtol, atol=1e-10)
    torch.testing.assert_close(sum(found.terms.values()), found.total.detach())


def test_supcon_does_not_hide_embeddings_that_are_not_finite() -> None:
    views, labels = draw(2)
    with torch.no_grad():
        views[0][1] = torch.nan
    assert supervised_contrastive(views, labels, Engine()).total.isnan()
