"""The conformance checks catch what they are for: each method here breaks one promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from regbench import methods
from regbench.instruments import conformance
from regbench.instruments.conformance import CHECKS, CheckResult, check_sharded, run_check
from regbench.methods import Metadata, Regularizer
from regbench.methods.forms.decomposed import StreamedView
from regbench.methods.forms.engine import Shard
from regbench.methods.rbf import RBF
from regbench.settings import settings
from regbench.spaces import Range, Space
from tests.command import done, refusal, run

METADATA = replace(RBF.metadata, title="broken")


@settings
class Broken(RBF):
    """A kernel, published in 2023, with something wrong."""

    metadata: ClassVar[Metadata] = METADATA


class WrongGradient(Broken):
    def kernel_and_derivative(self, t: Tensor, q: int) -> tuple[Tensor, Tensor]:
        phi, slope = super().kernel_and_derivative(t, q)
        return phi, 1.001 * slope


class WrongStreamedValue(Broken):
    def kernel_and_derivative(self, t: Tensor, q: int) -> tuple[Tensor, Tensor]:
        phi, slope = super().kernel_and_derivative(t, q)
        return phi + 1e-6, slope


@settings
class Plain(Regularizer):
    """The same kernel, published in 2023, by the formula of two views alone."""

    scale: float = 2.0
    alignment_weight: float = 100.0
    metadata: ClassVar[Metadata] = METADATA
    space: ClassVar[Space | None] = {"scale": Range(1, 10)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return RBF(scale=self.scale, alignment_weight=self.alignment_weight).terms(z1_NQ, z2_NQ)


class WeighsByPosition(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        weight_N = torch.arange(len(z1_NQ)).to(z1_NQ)
        return {"alignment": (weight_N * (z1_NQ - z2_NQ).square().sum(dim=1)).sum()}


class SeesTheFirstViewMore(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return {**super().terms(z1_NQ, z2_NQ), "more": z1_NQ.square().sum()}


class SeesAnAxis(SeesTheFirstViewMore):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return {"axis": (z1_NQ[:, 0] - z2_NQ[:, 0]).square().sum()}


class LikesCollapse(SeesTheFirstViewMore):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        terms = Plain.terms(self, z1_NQ, z2_NQ)
        return terms | {"uniformity": -terms["uniformity"]}


class IgnoresPairs(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return {**super().terms(z1_NQ, z2_NQ), "alignment": 0 * z1_NQ.sum()}


class Rounds(SeesTheFirstViewMore):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        low = (z.bfloat16().to(z.dtype) if z.dtype == torch.float32 else z for z in (z1_NQ, z2_NQ))
        return Plain.terms(self, *low)


class UsesTheWrongDtype(Broken):
    def __call__(self, *views_NQ: Tensor, **options: Any) -> Any:
        return super().__call__(*(view_NQ.double() for view_NQ in views_NQ), **options)


class DividesByTheSpread(SeesTheFirstViewMore):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return {"spread": 1 / z1_NQ.var(dim=0).sum() + 1 / z2_NQ.var(dim=0).sum()}


class HidesNaN(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return super().terms(*(z_NQ.where(z_NQ.isfinite(), 0) for z_NQ in (z1_NQ, z2_NQ)))


class ForgetsTheOtherRanks(Broken):
    def add_regularizer(self, view: StreamedView) -> dict[str, Tensor]:
        return super().add_regularizer(view._replace(shard=Shard([len(view.z_NQ)])))


class OverflowsForAWideKernel(Plain):
    space: ClassVar[Space | None] = {"scale": Range(1, 1e30)}

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return {name: term * self.scale**2 for name, term in super().terms(z1_NQ, z2_NQ).items()}


@settings
class RefusesWhatLiesBeyondItsSpace(Broken):
    scale: Annotated[float, Field(le=20)] = 2.0
    space: ClassVar[Space] = {"scale": Range(1, 10)}  # a tuning may go on to 100


class ComputesInFloat32(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return super().terms(z1_NQ.float(), z2_NQ.float())


class DrawsInTheirDtype(Plain):
    random = True

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        return {"drawn": (z1_NQ - z2_NQ + torch.randn_like(z1_NQ)).square().mean()}


class Fails(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        raise ValueError("not written yet")


def checked(method: Regularizer, check: str) -> CheckResult:
    """The result of a check that applies."""
    result = run_check(method, check)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (WrongGradient, "gradient"),
        (ComputesInFloat32, "gradient"),
        (WrongGradient, "forms"),
        (WrongStreamedValue, "forms"),
        (WeighsByPosition, "order of images"),
        (SeesTheFirstViewMore, "order of views"),
        (SeesTheFirstViewMore, "lengths"),
        (SeesAnAxis, "rotation"),
        (LikesCollapse, "minimum"),
        (IgnoresPairs, "views matter"),
        (Rounds, "float32"),
        (UsesTheWrongDtype, "half precision"),
        (DividesByTheSpread, "finite"),
        (HidesNaN, "broken embeddings"),
        (OverflowsForAWideKernel, "search space"),
        (RefusesWhatLiesBeyondItsSpace, "search space"),
        (Fails, "gradient"),
    ],
)
def test_a_broken_method_fails(broken: type[Broken | Plain], check: str) -> None:
    finding = checked(broken(), check)
    assert not finding.ok
    assert finding.where
    sound = Plain() if issubclass(broken, Plain) else Broken()
    assert checked(sound, check).ok


def test_what_broke_and_the_size_of_the_error_are_said() -> None:
    failed = checked(Fails(), "float32")
    assert (failed.error, failed.where) == (math.inf, "ValueError: not written yet")
    low = checked(ComputesInFloat32(), "gradient")
    assert "of a lower precision than the embeddings" in low.where
    drawn = checked(DrawsInTheirDtype(), "float32")
    assert not drawn.ok and "in float32: torch.randn(..., device=z.device).to(z)" in drawn.where
    # Numbers of each image's own are of the same distribution in any order.
    assert checked(DrawsInTheirDtype(), "order of images").ok
    wrong = checked(WrongGradient(alignment_weight=0.0), "gradient")
    assert wrong.error == pytest.approx(1e-3, rel=1e-3)


def test_claims_that_are_not_made_are_not_checked() -> None:
    vicreg = methods.build("vicreg")
    assert run_check(vicreg, "rotation") is None
    assert run_check(vicreg, "lengths") is None


class FailsOnOneRank(Plain):
    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        if dist.is_initialized() and dist.get_rank() == 1:
            raise OSError("this rank has no disk")
        return super().terms(z1_NQ, z2_NQ)


def test_a_method_that_breaks_over_ranks_fails() -> None:
    many = {"sound": Broken(), "forgets": ForgetsTheOtherRanks(), "fails": FailsOnOneRank()}
    findings = check_sharded(many)
    assert [finding.ok for finding in findings.values()] == [True, False, False]
    assert findings["forgets"].error < math.inf
    no_disk = "rank 1: textbook form over 2 ranks: OSError: this rank has no disk"
    assert findings["fails"].where == no_disk


@settings
class Undocumented(Broken):
    """A kernel."""

    strength: float = 1.0
    word: str = "plain"

    metadata: ClassVar[Metadata] = replace(METADATA, url="nowhere", published="")


@pytest.fixture
def undocumented() -> Iterator[str]:
    methods.register("undocumented")(Undocumented)
    yield "undocumented"
    methods.METHODS.unregister("undocumented")


def test_missing_documentation_is_named(undocumented: str) -> None:
    finding = checked(methods.build(undocumented), "documentation")
    assert finding.error == 5
    named = ("metadata.published", "metadata.url with https://", "its year in the docstring")
    for missing in (*named, "strength under", "word under"):
        assert missing in finding.where
    method = methods.build(undocumented)
    object.__setattr__(method, "metadata", replace(METADATA, reference="Somebody"))
    where = checked(method, "documentation").where
    assert 'a year, or "unpublished", in metadata.reference' in where
    # What is unpublished needs neither year nor address.
    object.__setattr__(method, "metadata", replace(METADATA, reference="unpublished", url=""))
    where = checked(method, "documentation").where
    assert "year" not in where and "url" not in where


def test_hyperparameters_that_do_not_come_back_are_named(undocumented: str) -> None:
    assert checked(methods.build(undocumented, strength=2.5), "configuration").ok
    finding = checked(methods.build(undocumented, word=" with spaces "), "configuration")
    assert finding.error == 2
    assert "word=' with spaces ' came back as 'with spaces'" in finding.where


@pytest.fixture
def sharded_without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(many: Mapping[str, Regularizer]) -> dict[str, CheckResult]:
        return {name: CheckResult("sharded", 1e-9, 0.0, "") for name in many}

    monkeypatch.setattr(conformance, "check_sharded", found)


def test_command(undocumented: str, sharded_without_processes: None) -> None:
    result = run("check", "rbf", undocumented)
    assert result.exit_code == 1
    assert "rbf: passed (16 of 16 checks)" in result.output
    assert "undocumented: FAILED (15 of 16 checks)" in result.output
    assert "documentation" in result.output
    assert "1 of 2 methods failed" in result.output


def test_command_shows_all_checks_of_one_method(sharded_without_processes: None) -> None:
    output = done("check", "simclr").output
    assert all(check in output for check in [*CHECKS, "sharded"])


def test_command_refuses_unknown_methods() -> None:
    assert "did you mean simclr" in refusal("check", "simclear")
