"""The audit tells by which factor a weight of a loss is the textbook's and the publication's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from regbench import methods
from regbench.instruments.audit.finding import Finding
from regbench.instruments.audit.probes import run_probe
from regbench.instruments.audit.target import Target
from regbench.instruments.audit.textbook import textbook
from regbench.instruments.audit.weights import PUBLISHED
from regbench.instruments.loss_checks import draw_views, evaluate, seeded

FILE = Path(__file__).with_name("audited.py")
SIMCLR, VICREG = "simclr(temperature=0.5)", "vicreg"
VICREG_WEIGHTS = {
    "lambd": (25.0, "alignment_weight"),
    "mu": (25.0, "variance_weight"),
    "nu": (1.0, "covariance_weight"),
}


Weights = dict[str, tuple[float, str]]


def told(expression: str, claims: str, weights: Weights, detaches: str = "") -> Finding:
    name = f"{FILE}:{expression}"
    loss = Target(name=name, expression=name, claims=claims, weights=weights, detaches=detaches)
    (found,) = run_probe(loss, "weights")
    return found


@pytest.mark.parametrize(
    ("expression", "claims", "weights", "severity", "text"),
    [
        (
            "lambda z1, z2: published_vicreg(z1, z2, **weights)",
            VICREG,
            VICREG_WEIGHTS,
            "convention",
            "lambd × q (4 at n=8 q=4, 3 at n=12 q=3, 9 at n=6 q=9) = alignment_weight, × 1 = the "
            "publication's; mu × 2 = variance_weight, × 1 = the publication's; nu × 1 = "
            "covariance_weight, × 1 = the publication's",
        ),
        # The other terms may be wrong.
        (
            "lambda z1, z2: something_else(z1, z2) + vicreg(z1, z2, variance_weight=0, **weights) "
            "/ len(z1)",
            VICREG,
            {"covariance_weight": (1.0, "covariance_weight")},
            "convention",
            "covariance_weight × 1/n (0.125 at n=8 q=4, 0.08333 at n=12 q=3, 0.1667 at n=6 q=9) = "
            "covariance_weight, ",
        ),
        (
            "lambda z1, z2: vicreg(z1, z2, **weights)",
            VICREG,
            {"variance_weight": (25.0, "covariance_weight")},
            "convention",
            "variance_weight is no multiple of covariance_weight",
        ),
        (
            "lambda z1, z2: Ours('simclr', temperature=2 * weights['scale'])(z1, z2)",
            SIMCLR,
            {"scale": (0.25, "temperature")},
            "convention",
            "scale × 2 = temperature, × 2 = the publication's",
        ),
        # Whether the loss normalises is another matter.
        (
            "lambda z1, z2: raw_embeddings(z1, z2, **weights)",
            SIMCLR,
            {"temperature": (0.5, "temperature")},
            "note",
            "temperature × 1 = temperature, × 1 = the publication's",
        ),
        (
            "rbf",
            "rbf",
            {"loss": (100.0, "alignment_weight")},
            "convention",
            "loss is no multiple of alignment_weight",
        ),
        (
            "lambda z1, z2: Ours('barlow_twins', scale=1.0, **weights)(z1, z2)",
            "barlow_twins",
            {"loss": (0.024, "scale"), "redundancy_weight": (0.0051, "redundancy_weight")},
            "note",
            "loss × 1 = scale, the publication has none; redundancy_weight × 1 = "
            "redundancy_weight, × 1 = the",
        ),
    ],
)
def test_the_factor_of_a_weight_is_told(
    expression: str, claims: str, weights: Weights, severity: str, text: str
) -> None:
    found = told(expression, claims, weights)
    assert found.text.startswith(text)
    assert found.severity == severity


def test_a_gradient_that_is_not_the_textbooks_is_no_multiple() -> None:
    weights = {"temperature": (0.5, "temperature")}
    detached = "lambda z1, z2: Ours('simclr', **weights)(z1, z2.detach())"
    assert told(detached, SIMCLR, weights).text == "temperature is no multiple of temperature"
    said = told(detached, SIMCLR, weights, detaches="a view is detached")
    assert said.text == "temperature × 1 = temperature, × 1 = the publication's"


def test_lejepas_published_distance_is_a_sum_over_coordinates() -> None:
    """Its loss is (1 − λ) mean ‖z − c‖² + λ SIGReg.

    What the weight is there gives the same direction.
    """
    method = methods.build("sigreg", directions=16, regularization_weight=0.05)
    views = draw_views(8, 5, 2)
    weight = PUBLISHED[type(method), "regularization_weight"](0.05, 8, 5)

    def published(views: Sequence[torch.Tensor], seed: int = 0) -> torch.Tensor:
        distance = (views[0] - views[1]).square().sum(dim=1).mean() / 4
        with seeded(seed):
            statistic = methods.build("sigreg", directions=16, regularization_weight=1.0).terms(
                *views
            )["normality"]
        return (1 - weight) * distance + weight * statistic

    ours, our_slopes = evaluate(partial(textbook, method, global_views=2), views)
    theirs, slopes = evaluate(published, views)
    for slope, ours_NQ in zip(slopes, our_slopes, strict=True):
        torch.testing.assert_close(slope / theirs, ours_NQ / ours)
