"""Losses of more than two views, against plain loops over their publications' formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench import methods
from regbench.methods import Engine, Regularizer
from regbench.methods.forms.decomposed import Decomposed
from tests.methods.forms import every_method
from tests.refusals import is_refused

SHARES = [(2, 2), (3, 3), (3, 1), (8, 2)]


def draw(count: int, n: int = 9, q: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    first = torch.randn(n, q, dtype=torch.float64, generator=generator)
    noise = torch.randn(count, n, q, dtype=torch.float64, generator=generator)
    return [first + 0.4 * each for each in noise]


def ordered_pairs(count: int, global_views: int) -> list[tuple[int, int]]:
    return [(g, v) for g in range(global_views) for v in range(count) if v != g]


def mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(dim=0)


def total(terms: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


def evaluate(
    method: Regularizer, views: Sequence[Tensor], global_views: int, form: str = "auto"
) -> methods.Loss:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return method(*views, engine=Engine(form=form), global_views=global_views)


def pair(method: Regularizer, z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
    return evaluate(method, [z1, z2], 2).terms


@every_method
def test_the_kind_says_how_views_are_taken(method: Regularizer) -> None:
    assert method.kind in ("pairwise", "decomposed", "native")
    for count, global_views in SHARES:
        views = draw(count)
        loss = evaluate(method, views, global_views)
        if method.kind == "pairwise":
            # Of two global views the first one is the anchor, where that matters.
            ordered = [(min(g, v), max(g, v)) for g, v in ordered_pairs(count, global_views)]
            expected = mean([total(pair(method, views[g], views[v])) for g, v in ordered])
        elif isinstance(method, Decomposed):
            # With a view twice, the two-view loss is the regularizer of that view.
            both = [pair(method, z, z) for z in views]
            twice = [total(terms) - terms["alignment"] for terms in both]
            if method.to_center:
                unit = [F.normalize(z) if method.unit else z for z in views]
                center = mean(unit[:global_views])
                spread = mean([(u - center).square().mean() for u in unit])
                alignment = method.alignment_scale(views[0].shape[1]) * spread
            else:
                pairs = ordered_pairs(count, global_views)
                alignment = mean([pair(method, views[g], views[v])["alignment"] for g, v in pairs])
            expected = alignment + mean(twice)
        else:
            expected = total(pair(method, *views)) if count == 2 else loss.total
        torch.testing.assert_close(loss.total, expected, rtol=1e-11, atol=1e-11)


def lejepa(views: list[Tensor], global_views: int) -> Tensor:
    """MINIMAL.md of rbalestr-lab/lejepa, with the center of train.py of HaiyuWu/visreg: that of
    the global views.
    """
    weight, frequencies = 0.02, torch.linspace(0, 3, 17, dtype=torch.float64)
    directions = F.normalize(torch.randn(views[0].shape[1], 16, dtype=torch.float64), dim=0)
    center = mean(views[:global_views])
    statistics = []
    for z in views:
        summed = torch.zeros((), dtype=torch.float64)
        for a in directions.T:
            for k, t in enumerate(frequencies):
                normal = math.exp(-(t.item() ** 2) / 2)
                real, imaginary = (z @ a * t).cos().mean() - normal, (z @ a * t).sin().mean()
                summed += (1 if k in (0, 16) else 2) * 3 / 16 * normal * (real**2 + imaginary**2)
        statistics.append(len(z) * summed / 16)
    alignment = mean([(z - center).square().mean() for z in views])
    return weight * mean(statistics) + (1 - weight) * alignment


def visreg(views: list[Tensor], global_views: int) -> Tensor:
    """train.py and losses/visreg.py of HaiyuWu/visreg, with its paper's λ = 0.9."""
    directions = F.normalize(torch.randn(views[0].shape[1], 64, dtype=torch.float64), dim=0)
    center = mean(views[:global_views])
    loss = 0.1 * mean([(z - center).square().mean() for z in views])
    for z in views:
        n = len(z)
        m = z.mean(dim=0)
        deviation = ((z - m).square().sum(dim=0) / n).sqrt() + 1e-6
        p = (((z - m) / deviation.detach()) @ directions).sort(dim=0).values
        levels = torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)
        target = math.sqrt(2) * torch.erfinv(2 * levels - 1)
        shape = (p - target[:, None]).square().mean()
        statistics = m.square().mean() + (deviation - 1).square().mean() + shape
        loss = loss + 0.9 / len(views) * statistics
    return loss


def mmcr(views: list[Tensor], global_views: int) -> Tensor:
    """loss_mmcr.py of ThomasYerxa/mmcr with its λ at 0.5."""
    unit = [F.normalize(z) for z in views]
    images = [torch.stack(rows) for rows in zip(*unit, strict=True)]
    local = mean([torch.linalg.matrix_norm(image, "nuc") for image in images])
    centroids: Tensor = torch.linalg.matrix_norm(mean(unit), "nuc")
    return 0.5 * local - centroids


def emp_ssl(views: list[Tensor], global_views: int) -> Tensor:
    """main.py and loss.py of tsb0601/EMP-SSL."""
    unit = [F.normalize(z) for z in views]
    n, q = views[0].shape
    similarity = mean([F.cosine_similarity(z, mean(unit), dim=1).mean() for z in unit])
    rate = mean([torch.logdet(torch.eye(q) + q / (n * 0.2) * z.T @ z) / 2 for z in unit])
    return -200 * similarity - rate


def frossl(views: list[Tensor], global_views: int) -> Tensor:
    """multiview_frossl_loss_func of OFSkean/FroSSL."""
    unit = [z / z.norm(dim=0) for z in views]
    q = views[0].shape[1]
    loss = torch.zeros((), dtype=torch.float64)
    for z in unit:
        covariance = z.T @ z / (z.T @ z).trace()
        loss = loss + 2 * covariance.norm().log() + len(views) * q * F.mse_loss(z, mean(unit))
    return loss


def ivne(views: list[Tensor], global_views: int) -> Tensor:
    """train_ivne_imagenet100.py of jaeill/CVPR23-VNE."""
    pairs = [(i, j) for i in range(global_views) for j in range(i + 1, len(views))]
    cosines = [F.cosine_similarity(views[i], views[j]).mean() for i, j in pairs]
    entropies = []
    for z in views:
        eigenvalues = torch.linalg.svdvals(F.normalize(z) / math.sqrt(len(z))) ** 2
        entropies.append(-(eigenvalues * eigenvalues.log()).sum())
    return -(4.16 * mean(cosines) + mean(entropies))


def w_mse(views: list[Tensor], global_views: int) -> Tensor:
    """methods/w_mse.py of htdt/self-supervised for whole batches."""
    white = []
    for z in views:
        centred = z - z.mean(dim=0)
        covariance = (1 - 1e-4) * centred.T @ centred / (len(z) - 1) + 1e-4 * torch.eye(z.shape[1])
        white.append(centred @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T)
    pairs = itertools.combinations(white, 2)
    return mean([(2 - 2 * F.cosine_similarity(a, b)).mean() for a, b in pairs])


def intl(views: list[Tensor], global_views: int) -> Tensor:
    """methods/intl.py of winci-ai/INTL, over the images, which pairs the first view with every
    other.
    """
    normal = []
    for z in views:
        x = z - z.mean(dim=1, keepdim=True)
        sigma = x @ x.T / (z.shape[1] - 1)
        p = torch.eye(len(z), dtype=torch.float64)
        for _ in range(4):
            p = 1.5 * p - 0.5 * torch.linalg.matrix_power(p, 3) @ (sigma / sigma.trace())
        normal.append(p @ x / sigma.trace().sqrt())
    traces = [(w.var(dim=1) - 1).square().sum() for w in normal]
    pairs = [
        2 - 2 * F.cosine_similarity(w, normal[0]).mean() + 0.05 * (trace + traces[0])
        for w, trace in zip(normal[1:], traces[1:], strict=True)
    ]
    return mean(pairs)


def ssl_hsic(views: list[Tensor], global_views: int) -> Tensor:
    """kernels.py of google-deepmind/ssl_hsic with the kernel in place of its random features,
    without a constant.
    """
    unit = [F.normalize(z) for z in views]
    n, count = len(views[0]), len(views)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return 1 / (1 + (a - b).square().sum(dim=-1)).sqrt()

    whole = torch.cat(unit)
    k = kernel(whole[:, None], whole)
    centering = torch.eye(n * count, dtype=torch.float64) - 1 / (n * count)
    positive = mean([kernel(a, b).mean() for a, b in itertools.permutations(unit, 2)])
    dependence: Tensor = (centering @ k @ centering).norm() / (n * count)
    return -positive + k.mean() + 3 * dependence


def sfrik(views: list[Tensor], global_views: int, *, local: bool = True) -> Tensor:
    """swav_multi_crop_forward of valeoai/sfrik; `local` is its option reg_small."""
    unit = [F.normalize(z) for z in views]
    q = views[0].shape[1]
    pairs = ordered_pairs(len(views), global_views)
    alignment = mean([F.mse_loss(unit[g], unit[v]) for g, v in pairs])
    energies = []
    for z in unit if local else unit[:global_views]:
        t = z @ z.T
        second, third = (q * t**2 - 1) / (q - 1), ((q + 2) * t**3 - 3 * t) / (q - 1)
        energies.append((t + 40 * second + 40 * third).mean())
    return 4000 * alignment + mean(energies)


PUBLISHED: dict[str, tuple[str, dict[str, Any], Callable[[list[Tensor], int], Tensor]]] = {
    "LeJEPA": ("sigreg", {"directions": 16, "regularization_weight": 0.02}, lejepa),
    "VISReg": ("visreg", {"directions": 64}, visreg),
    "MMCR": ("mmcr", {"local_weight": 0.5}, mmcr),
    "EMP-SSL": ("tcr", {}, emp_ssl),
    "FroSSL": ("frossl", {"centered": False}, frossl),
    "I-VNE+": ("ivne", {}, ivne),
    "W-MSE": ("w_mse", {}, w_mse),
    "INTL": ("intl", {}, intl),
    "SSL-HSIC": ("ssl_hsic", {}, ssl_hsic),
    "SFRIK": ("sfrik", {}, sfrik),
    "SFRIK, global crops": ("sfrik", {"regularize_local": False}, partial(sfrik, local=False)),
}
ALL_GLOBAL = ("MMCR", "EMP-SSL", "FroSSL", "W-MSE", "SSL-HSIC")
"""Publications whose views are all alike."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_losses_of_many_views(name: str) -> None:
    method_name, changes, loop = PUBLISHED[name]
    method = methods.build(method_name, **changes)
    for count, global_views in [(4, 4), (8, 2), (5, 1)]:
        global_views = count if name in ALL_GLOBAL else 1 if name == "INTL" else global_views
        views = [z.requires_grad_() for z in draw(count, n=12, q=5)]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            expected = loop(views, global_views)
        gradients = torch.autograd.grad(expected, views)
        # training takes "auto", which is not computed as "textbook" is
        for form in ("auto", *method.forms):
            engine = Engine(form=form, draw_seed=lambda: 0)
            found = method.loss(*views, engine=engine, global_views=global_views)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
            for a, b in zip(torch.autograd.grad(found, views), gradients, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9 * b.abs().max().item())


def test_wrong_views_are_refused() -> None:
    method = methods.build("vicreg")
    z = draw(3)
    with is_refused("two or more"):
        method.loss(z[0])
    with is_refused(r"two or more .* not none"):
        method.loss()
    with is_refused("of one shape"):
        method.loss(z[0], z[1], z[2][:4])
    for global_views in (0, 4):
        with is_refused(f"global_views={global_views} of 3 views"):
            method.loss(*z, global_views=global_views)


def test_gradients_of_sums_of_views_scale() -> None:
    """Autograd gives one tensor for both views, which the backward pass must not scale twice."""

    class Sum(Regularizer):
        metadata = methods.build("vicreg").metadata

        def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
            return {"sum": (z1_NQ + z2_NQ).mean(), "product": (z1_NQ + z2_NQ).square().sum()}

    views = [z.requires_grad_() for z in draw(2)]
    for loss in (Sum().loss, lambda *views: Sum().loss(*views, engine=Engine(form="textbook"))):
        gradients = torch.autograd.grad(3 * loss(*views), views)
        expected = torch.autograd.grad(3 * total(Sum().terms(*views)), views)
        torch.testing.assert_close(gradients, expected)


def test_a_formula_of_two_views_beside_two_parts_is_refused() -> None:
    with is_refused(r"Other: .* derive from Regularizer"):

        class Other(Decomposed):
            def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
                return {}
