"""Rows that are one loss under two names: what is said of them, and that they are one loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regbench import methods
from regbench.reports.rows.same_loss import common_terms
from regbench.reports.tables.details import accuracy_table, significance_table
from regbench.reports.tables.leaderboard import leaderboard
from regbench.reports.tables.table import to_latex
from regbench.settings import plain
from tests.reports.conftest import GIVEN, score, settings
from tests.reports.reading import Make, task, texts

LINEAR = {"name": "sfrik", "weights": [1.0], "alignment_weight": 600.0, "regularize_local": True}
DISTANCE = {"name": "generalized_distance", "exponent": 2.0, "alignment_weight": 1200.0}
QUADRATIC = {"name": "quadratic", "alignment_weight": 64.0}
TICO = {"name": "tico", "covariance_weight": 8.0}
SIMSIAM = {"name": "simsiam"}
MMD = {
    "name": "spherical_mmd",
    "spectrum": "bandlimited",
    "regularization_weight": 0.2,
    "statistic": "mmd",
    "order": 3,
}


def written(method: Any, q: int = 12, views: int = 2) -> Any:
    kinds = {"view1": {"count": 1}, "view2": {"count": views - 1}}
    return common_terms({"method": method, "embedding_dim": q, "augmentation": {"views": kinds}})


def bandlimited(order: int, *, ksd: bool = False, q: int = 12) -> dict[str, Any]:
    """SFRIK with the weights of a band-limited spectrum: dimensions of spaces of harmonics,
    times eigenvalues.
    """
    sizes = [1.0, 12.0, 77.0, 352.0][1 : order + 1]
    weights = [
        size * (degree * (degree + q - 2) if ksd else 1) for degree, size in enumerate(sizes, 1)
    ]
    weights = [0.2 * weight / sum(weights) for weight in weights]
    return LINEAR | {"weights": weights, "alignment_weight": 0.8 * q / 4}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LINEAR, DISTANCE),
        (LINEAR | {"weights": [3.0], "alignment_weight": 1800.0}, DISTANCE),
        (QUADRATIC, TICO | {"covariance_weight": 12 / 64}),
        (QUADRATIC, LINEAR | {"weights": [0.0, 11.0], "alignment_weight": 64.0 * 12}),
        (SIMSIAM, {"name": "byol"}),
        (SIMSIAM, {"name": "mec", "order": 1}),
        (SIMSIAM, TICO | {"covariance_weight": 0.0}),
        ({"name": "info_nce", "temperature": 0.3}, {"name": "moco_v3", "temperature": 0.3}),
        (MMD, bandlimited(3)),
        (MMD | {"statistic": "ksd"}, bandlimited(3, ksd=True)),
        (MMD | {"order": 1, "regularization_weight": 0.5}, LINEAR | {"alignment_weight": 3.0}),
        (MMD | {"order": 1, "statistic": "ksd"}, LINEAR | {"alignment_weight": 12.0}),
    ],
)
def test_what_is_called_the_same_loss_has_the_same_gradient(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """The table of common terms against the losses themselves, at q = 12."""
    draw = torch.Generator().manual_seed(1)
    views = [
        torch.randn(9, 12, generator=draw, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    ]
    scaled, terms = [], []
    for choice in (one, other):
        name, arguments = (
            choice["name"],
            {key: value for key, value in choice.items() if key != "name"},
        )
        method = methods.build(name, **arguments)
        found = written({"name": name, **plain(method)})
        assert found is not None
        terms.append(found)
        gradients = torch.autograd.grad(method(*views).total, views)
        scaled.append(torch.cat([gradient / found.factor for gradient in gradients]))
    assert terms[0].kernel == terms[1].kernel
    assert terms[0].alignment_weight == pytest.approx(terms[1].alignment_weight, rel=1e-12)
    torch.testing.assert_close(*scaled, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        DISTANCE | {"exponent": 1.0},
        LINEAR | {"regularize_local": False},
        {"name": "vicreg"},
        {"name": "quadratic", "alignment_weight": "odd"},
        {"name": "mec", "order": 4},
        {"name": "moco_v3", "temperature": 0.0},
        MMD | {"spectrum": "heat"},
        MMD | {"order": 10**9},
        MMD | {"order": -1},
        MMD | {"regularization_weight": 0.0},
        TICO | {"covariance_momentum": 0.9},
        {"name": "sfrik"},
        {"name": ["sfrik"]},
        None,
    ],
)
def test_what_is_no_other_loss_is_not_called_so(method: Any) -> None:
    assert written(method, 512) is None


def test_other_weights_of_a_series_are_another_kernel() -> None:
    kernels = {
        written(LINEAR | {"weights": weights}).kernel
        for weights in ([1.0, 40.0], [1.0, 41.0], [0.0, 1.0])
    }
    assert len(kernels) == 3


def test_of_more_than_two_views_the_spherical_discrepancies_are_another_loss() -> None:
    assert written(MMD, views=3) is None
    assert written(bandlimited(3), views=3) is not None
    assert (
        common_terms({"method": MMD, "embedding_dim": 12, "augmentation": {"views": [1]}}) is None
    )
    assert written(MMD, q=-5) is None  # a stranger's


@pytest.mark.parametrize("teacher", ["stop_gradient", "ema"])
def test_byol_and_simsiam_are_marked_beside_one_teacher_alone(
    runs: Path, record: Make, teacher: str
) -> None:
    network = settings("VICReg")["network"]
    record("simsiam", cell={"method": SIMSIAM, "network": network | {"teacher": "stop_gradient"}})
    record(
        "byol",
        cell={"method": {"name": "byol"}, "network": network | {"teacher": teacher}},
        linear=79.0,
    )
    found = notes(runs)
    begins = "≡ The same loss (up to a factor of 4): "
    assert [note[: len(begins)] for note in found] == [begins] * (teacher == "stop_gradient")


def test_of_infonce_and_moco_v3_the_temperature_is_the_weight(runs: Path, record: Make) -> None:
    record("info_nce", cell={"method": {"name": "info_nce", "temperature": 0.4}})
    record("moco_v3", cell={"method": {"name": "moco_v3", "temperature": 1.0}}, linear=79.0)
    assert "(λ = 256 and 640 beside the kernel log Σ exp(u·v/τ))" in notes(runs)[0]


def pair(record: Make, distance: dict[str, Any], **cell: Any) -> None:
    """Three seeds of two rows, ten points apart, and of another row."""
    for seed in range(3):
        record(
            "SFRIK (L=1)", seed, linear=70.0 + seed, knn=60.0 + 0.1 * seed, cell={"method": LINEAR}
        )
        record(
            "generalized distance",
            seed,
            linear=60.0 + seed,
            knn=60.0,
            cell={"method": distance, **cell},
        )
        record("VICReg", seed, linear=50.0 + seed, knn=50.0)


def notes(runs: Path) -> list[str]:
    return [note for note in leaderboard(task(runs)).notes if note[0] in "≡≈"]


def test_one_loss_under_two_names_is_marked_and_says_what_luck_does(
    runs: Path, record: Make
) -> None:
    pair(record, DISTANCE)
    (note,) = notes(runs)
    assert note == (
        "≡ The same loss (up to a factor of 2): SFRIK (L=1) and generalized distance. They differ "
        "by 10.00 points of linear top-1 (up to 10.00 in one of 3 seeds) and 0.10 points of kNN "
        "top-1 (up to 0.20 in one of 3 seeds). This is the floor of what to believe of other rows' "
        "differences."
    )
    summary = task(runs)
    assert [row[0].strip("*") for row in texts(leaderboard(summary))[1:]] == [
        "SFRIK (L=1) ≡",
        "generalized distance ≡",
        "VICReg",
    ]
    assert note in accuracy_table(summary).notes and note in significance_table(summary).notes
    assert r"SFRIK (L=1) $\equiv$ & " in to_latex(leaderboard(summary))
    assert leaderboard(summary).lines[0].row is summary.rows[0]


def test_what_was_searched_separately_is_one_loss_up_to_weights(runs: Path, record: Make) -> None:
    pair(record, DISTANCE | {"alignment_weight": 1201.0})
    (note,) = notes(runs)
    assert note.startswith(
        "≈ One loss up to weights: SFRIK (L=1) and generalized distance (λ = 600 and 600.5 beside "
        "the kernel u·v). They differ by 10.00 points of linear top-1 (up to 10.00 in one of 3 "
        "seeds) and 0.10 points of kNN top-1 (up to 0.20 in one of 3 seeds): by the search and by "
        "luck, not by the loss."
    )
    assert texts(leaderboard(task(runs)))[1][0] == "SFRIK (L=1) ≈"


@pytest.mark.parametrize(
    ("changed", "sign"),
    [({"base_lr": 0.7}, "≈"), ({}, "≡"), ({"name": "sgd"}, "≈"), ({"name": "adamw"}, "≡")],
)
def test_other_settings_and_sgd_make_another_training(
    runs: Path, record: Make, changed: dict[str, Any], sign: str
) -> None:
    """A factor of 2 of the loss is one of SGD's rate, and none of LARS's or Adam's."""
    both = {"optimizer": settings("VICReg")["optimizer"] | {"name": changed.get("name", "lars")}}
    own = {"optimizer": both["optimizer"] | changed}
    record("SFRIK (L=1)", cell={"method": LINEAR, **both})
    record("generalized distance", cell={"method": DISTANCE, **own}, linear=79.0)
    (note,) = notes(runs)
    told = "They differ by 4.00 points of linear top-1 and 0.00 points of kNN top-1"
    assert note[0] == sign and told in note
    assert ("SFRIK (L=1) (the same weights; other settings differ). " in note) == (sign == "≈")


def test_a_setting_that_the_lower_row_alone_has_makes_another_training(
    runs: Path, record: Make
) -> None:
    more = {"optimizer": settings("VICReg")["optimizer"] | {"more": 1}}
    record("SFRIK (L=1)", cell={"method": LINEAR, **more})
    record("generalized distance", cell={"method": DISTANCE}, linear=79.0)
    assert notes(runs)[0][0] == "≈"


def test_a_score_that_one_of_a_pair_lacks_is_not_compared(runs: Path, record: Make) -> None:
    record("SFRIK (L=1)", cell={"method": LINEAR})
    record("generalized distance", cell={"method": DISTANCE}, linear=None)
    (note,) = notes(runs)
    assert "They differ by 0.00 points of kNN top-1. This" in note and "linear" not in note


def test_a_difference_of_what_is_no_percentage_is_not_in_points(runs: Path, record: Make) -> None:
    for label, method, error in (
        ("SFRIK (L=1)", LINEAR, 2.0),
        ("generalized distance", DISTANCE, 1.5),
    ):
        record(label, cell={"method": method}, scores=(score("error", error, unit="nats"),))
    assert "They differ by 0.50 of error." in notes(runs)[0]


def test_a_row_of_pairs_of_both_kinds_is_marked_as_equal(runs: Path, record: Make) -> None:
    third = LINEAR | {"weights": [0.0, 1.0], "alignment_weight": 5.0}
    methods = {"quadratic kernel": QUADRATIC, "TiCo": TICO, "SFRIK (L=2)": third}
    for place, (label, method) in enumerate(methods.items()):
        record(label, cell={"method": method}, linear=70.0 - place)
    # What nobody trained is no loss, though its settings name one.
    record("untrained", cell={"method": QUADRATIC})
    assert [row[0] for row in texts(leaderboard(task(runs)))[1:]] == [
        "quadratic kernel ≡",
        "TiCo ≡",
        "SFRIK (L=2) ≈",
        "untrained",
    ]
    assert [note[0] for note in notes(runs)] == ["≡", "≈", "≈"]


def test_rows_of_unequal_settings_are_no_pair(runs: Path, record: Make) -> None:
    record("SFRIK (L=1)", cell={"method": LINEAR})
    record("generalized distance", cell={"method": DISTANCE, "embedding_dim": 2048})
    assert notes(runs) == []


def test_three_names_of_one_loss_are_three_pairs(runs: Path, record: Make) -> None:
    record("quadratic kernel", cell={"method": QUADRATIC})
    record("TiCo", 1, cell={"method": TICO})  # another seed is no other setting
    second = LINEAR | {
        "weights": [0.0, 511 / 512],
        "alignment_weight": 64.00001,
    }  # as somebody rounds
    record("SFRIK (L=2)", cell={"method": second})
    found = notes(runs)
    assert len(found) == 3
    assert sum("factor of 4" in note for note in found) == 2
    assert sum(note.startswith("≡ The same loss: ") for note in found) == 1


def test_of_several_searches_nothing_is_equal(runs: Path, record: Make) -> None:
    for search in range(3):
        choice = {"hyperparameters": GIVEN | {"search": search}}
        for label, method in (("SFRIK (L=1)", LINEAR), ("generalized distance", DISTANCE)):
            linear = 70.0 + search if method is LINEAR else 72.0 - search
            record(label, 1000 * search, cell={"method": method}, choice=choice, linear=linear)
    (note,) = notes(runs)
    assert note.startswith(
        "≈ One loss up to weights: SFRIK (L=1) and generalized distance (several searches). "
    )
    assert "They differ by 0.00 points of linear top-1 (up to 2.00 in one of 3 searches)" in note
