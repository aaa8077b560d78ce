"""Values and gradients against public implementations that others wrote: lightly and
pytorch-metric-learning.

Where the two sides differ, the test asserts the exact relation and says which side is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import lightly.loss
import pytest
import pytorch_metric_learning.losses
import torch
from lightly.loss import emp_ssl_loss
from torch import Tensor

from regbench import methods
from regbench.methods import Regularizer

Loss = Callable[[Tensor, Tensor], Tensor]
shapes = pytest.mark.parametrize(
    ("n", "q", "seed"), [(2, 3, 0), (5, 9, 1), (16, 4, 2), (33, 40, 3), (64, 7, 4)]
)


def draw(n: int, q: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, q, dtype=torch.float64, generator=generator)
    z2 = z1 + 0.5 * torch.randn(n, q, dtype=torch.float64, generator=generator)
    return z1.requires_grad_(), z2.requires_grad_()


def assert_same(ours: Tensor, theirs: Tensor, z: tuple[Tensor, Tensor], rtol: float = 1e-9) -> None:
    """Equal values, and equal gradients with respect to the raw embeddings."""
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=rtol)
    found, wanted = torch.autograd.grad(ours, z), torch.autograd.grad(theirs, z)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * b.abs().max().item())


def weightless_barlow(redundancy_weight: float) -> Regularizer:
    """The paper's loss: without the factor 0.024 of the code behind its checkpoint, which
    lightly does not have.
    """
    return methods.build("barlow_twins", redundancy_weight=redundancy_weight, scale=1.0)


@shapes
def test_nt_xent_of_lightly(n: int, q: int, seed: int) -> None:
    z = draw(n, q, seed)
    theirs = lightly.loss.NTXentLoss(temperature=0.3)(*z)
    assert_same(methods.build("simclr", temperature=0.3).loss(*z), theirs, z)


@shapes
def test_nt_xent_of_pytorch_metric_learning(n: int, q: int, seed: int) -> None:
    """Its default distance is the cosine similarity; the two views of an image share a label."""
    z = draw(n, q, seed)
    labels = torch.arange(n).repeat(2)
    theirs = pytorch_metric_learning.losses.NTXentLoss(temperature=0.3)(torch.cat(z), labels)
    # It takes denominators down to the dtype's smallest number into the logarithm, which changes
    # nothing here.
    assert_same(methods.build("simclr", temperature=0.3).loss(*z), theirs, z, rtol=1e-7)


@shapes
def test_dcl_of_lightly(n: int, q: int, seed: int) -> None:
    z = draw(n, q, seed)
    theirs = lightly.loss.DCLLoss(temperature=0.2)(*z)
    assert_same(methods.build("dcl", temperature=0.2).loss(*z), theirs, z)


@shapes
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
def test_dclw_of_lightly_stops_the_gradient_of_the_weights(n: int, q: int, seed: int) -> None:
    """The paper's weight is a function of the embeddings and nothing in it stops the gradient: ours
    keeps it.

    The gradients differ by just that of the weights.
    """
    z = draw(n, q, seed)
    ours = methods.build("dclw", temperature=0.2).loss(*z)
    theirs = lightly.loss.DCLWLoss(temperature=0.2)(*z)
    cosine = torch.nn.functional.cosine_similarity(*z)
    weights = 2 - n * (cosine / 0.5).softmax(dim=0)
    through_the_weights = -(weights * cosine.detach()).mean() / 0.2
    assert_same(ours, theirs + through_the_weights - through_the_weights.detach(), z)


@shapes
def test_vicreg(n: int, q: int, seed: int) -> None:
    """Both follow the official code: variances halved, covariances not."""
    z = draw(n, q, seed)
    ours = methods.build("vicreg", alignment_weight=3.0, variance_weight=7.0, covariance_weight=0.5)
    by_lightly = lightly.loss.VICRegLoss(3.0, 7.0, 0.5)
    by_pml = pytorch_metric_learning.losses.VICRegLoss(3.0, 7.0, 0.5, eps=1e-4)
    for theirs in (by_lightly(*z), by_pml(z[0], ref_emb=z[1])):
        assert_same(ours.loss(*z), theirs, z)


@shapes
def test_barlow_twins_of_lightly(n: int, q: int, seed: int) -> None:
    """Lightly normalises by a batch normalisation of its own, with the same ε = 1e-5."""
    z = draw(n, q, seed)
    theirs = lightly.loss.BarlowTwinsLoss(lambda_param=0.1)(*z)
    assert_same(weightless_barlow(0.1).loss(*z), theirs, z, rtol=1e-7)


@shapes
def test_koleo_of_lightly(n: int, q: int, seed: int) -> None:
    """Lightly adds its ε = 1e-8 to each coordinate's difference, as torch's PairwiseDistance
    does: hence 1e-6.
    """
    z = draw(n, q, seed)
    theirs = lightly.loss.KoLeoLoss()
    ours = methods.build("koleo", alignment_weight=0.0, uniformity_weight=1.0)
    assert_same(ours.loss(*z), 0.5 * (theirs(z[0]) + theirs(z[1])), z, rtol=1e-6)


@shapes
def test_tico_of_lightly(n: int, q: int, seed: int) -> None:
    """With β = 0, without memory.

    Lightly regularizes its first view, ours both: the mean of both orders.
    """
    z = draw(n, q, seed)
    theirs = lightly.loss.TiCoLoss(beta=0.0, rho=3.0)
    both = 0.5 * (theirs(z[0], z[1]) + theirs(z[1], z[0]))
    assert_same(methods.build("tico", covariance_weight=3.0).loss(*z), both, z)


@shapes
def test_frossl_of_lightly(n: int, q: int, seed: int) -> None:
    """Lightly has the authors' multi-view function, which does not centre."""
    z = draw(n, q, seed)
    theirs = lightly.loss.FroSSLLoss(invariance_weight=0.7)(list(z))
    assert_same(methods.build("frossl", alignment_weight=0.7, centered=False).loss(*z), theirs, z)


@shapes
def test_mmcr_of_lightly_lacks_the_normalisation(n: int, q: int, seed: int) -> None:
    """Lightly takes the embeddings as they are.

    The paper has unit vectors, and so ours. λ = 0 as published.
    """
    z = draw(n, q, seed)
    u1, u2 = (torch.nn.functional.normalize(x, dim=1)[:, None] for x in z)
    theirs = lightly.loss.MMCRLoss(lmda=0.0)(u1, u2)
    assert_same(methods.build("mmcr").loss(*z), theirs, z, rtol=1e-7)


@shapes
def test_total_coding_rate_of_lightly_has_the_wrong_sign(n: int, q: int, seed: int) -> None:
    """EMP-SSL maximises the coding rate, so the loss has it with a minus, as ours; lightly's has it
    with a plus.

    Lightly leaves the normalisation to the caller.
    """
    z = draw(n, q, seed)
    views = torch.stack([torch.nn.functional.normalize(x, dim=1) for x in z])
    rate, invariance = emp_ssl_loss.tcr_loss(views, eps=0.2), emp_ssl_loss.invariance_loss(views)
    theirs = lightly.loss.EMPSSLLoss(tcr_eps=0.2, inv_coef=3.0)(list(views))
    torch.testing.assert_close(theirs, rate + 3 * invariance)
    ours = methods.build("tcr", alignment_weight=3.0, distortion=0.2)
    assert_same(ours.loss(*z), -rate + 3 * invariance, z, rtol=1e-8)


@pytest.mark.parametrize("seed", [0, 1])
def test_w_mse_of_lightly(seed: int) -> None:
    """On a batch that is one sub-batch.

    Lightly computes the Cholesky factor in single precision: hence 1e-4.
    """
    n, q = 16, 4
    z = draw(n, q, seed)
    theirs = lightly.loss.WMSELoss(embedding_dim=q, w_size=n, eps=1e-4)(torch.cat(z).float())
    ours = methods.build("w_mse", epsilon=1e-4).loss(*z)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)


@shapes
def test_visreg_of_lightly(n: int, q: int, seed: int) -> None:
    """Lightly computes the normal quantiles in single precision: hence 1e-5.

    Both of its kinds of views are ours.

    It has ε in the shape only, as the paper's Algorithm 1; ours, as the authors' code, in the scale
    too. With ε = 1e-9 that cannot be seen.
    """
    z = draw(n, q, seed)
    torch.manual_seed(5)
    ours = methods.build("visreg", directions=20, regularization_weight=0.6, epsilon=1e-9).loss(*z)
    torch.manual_seed(5)
    torch.manual_seed(int(torch.randint(2**62, ())))  # the engine's seed of this call
    views = torch.stack(z)
    theirs = lightly.loss.VISRegLoss(lambda_param=0.6, num_slices=20, eps=1e-9)
    assert_same(ours, theirs(local_proj=views, global_proj=views), z, rtol=1e-5)


def test_auh_is_the_loss_of_the_authors_snippet() -> None:
    """Wang and Isola's own four lines: the logarithm of the mean over pairs of torch.pdist."""
    z = draw(20, 6, 9)
    u1, u2 = (torch.nn.functional.normalize(x, dim=1) for x in z)
    alignment = (u1 - u2).norm(dim=1).pow(2).mean()
    uniformity = sum(torch.pdist(u).pow(2).mul(-2.0).exp().mean().log() for u in (u1, u2))
    theirs = alignment + 0.5 * uniformity
    # Their alignment sums over coordinates, ours is the mean: λ = q.
    assert_same(methods.build("auh", scale=2.0, alignment_weight=6.0).loss(*z), theirs, z)


def test_a_batch_of_many_images_in_single_precision() -> None:
    z1, z2 = (x.detach().float().requires_grad_() for x in draw(256, 128, 11))
    ours = methods.build("simclr", temperature=0.1).loss(z1, z2)
    theirs = lightly.loss.NTXentLoss(0.1)(z1, z2)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    assert math.isfinite(ours.item())
