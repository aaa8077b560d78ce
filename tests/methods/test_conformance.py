"""What every registered method must do, whoever wrote it.

A new method is tested by being registered.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from regbench import methods
from regbench.instruments.conformance import CHECKS, check_sharded, left_out, run_check
from regbench.methods import Engine, Regularizer
from regbench.methods.forms import pairwise
from regbench.methods.forms.engine import FORMS
from regbench.processes import Place, Processes
from tests.methods.forms import VARIANTS, every_method
from tests.methods.test_engine import draw, joined
from tests.refusals import is_refused

pytestmark = pytest.mark.usefixtures("one_thread")


@every_method
def test_conformance(method: Regularizer) -> None:
    findings = [finding for check in CHECKS if (finding := run_check(method, check))]
    assert not [finding for finding in findings if not finding.ok]


@every_method
def test_a_claim_that_is_not_made_does_not_hold(method: Regularizer) -> None:
    claims = left_out(method)
    if method.metadata.title == "Weak-SIGReg":
        pytest.skip("its sketch, which no rotation leaves as it is, has more dimensions than these")
    for name in {"rotation", "lengths"} & claims.keys():
        outcome = CHECKS[name].measure(method)
        assert outcome is not None
        assert outcome[0] > 1e-6, f"{claims[name]} could be claimed"


@pytest.mark.slow
def test_one_to_four_processes_give_the_same_as_one() -> None:
    findings = check_sharded(VARIANTS)
    assert not {name: finding for name, finding in findings.items() if not finding.ok}
    assert findings.keys() == VARIANTS.keys()


def states_after_two_steps(here: Place) -> dict[str, dict[str, Tensor]]:
    """Show what each method keeps this rank's rows of two batches, of which a single process
    has all.
    """
    found = {}
    for name, method in VARIANTS.items():
        settings: dict[str, Any] = dict.fromkeys(method.of_training, 0.5)
        if method.prototypes:
            settings["prototypes"] = 5
        transform = replace(method, **settings).target_transform(5)  # type: ignore[type-var]
        if transform is not None:
            for seed in range(2):
                drawn = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(seed))
                p1, p2, t1, t2 = drawn[:, here.rank :: here.world]
                transform([t1, t2], [p1, p2], 0.5, dist.group.WORLD if here.world > 1 else None)
            found[name] = transform.state_dict()
    return found


def test_what_a_method_keeps_is_of_the_whole_batch_on_every_rank() -> None:
    wanted = states_after_two_steps(Place(0, 1, ""))
    assert wanted["dino"] and wanted["tico"]
    with Processes(2, joined) as ranks:
        for found in ranks.ask(states_after_two_steps):
            torch.testing.assert_close(found, wanted)


@every_method
def test_terms_are_scalars_that_sum_to_the_loss(method: Regularizer) -> None:
    total, terms = method(*draw(6, 4))
    assert all(term.shape == () and not term.requires_grad for term in terms.values())
    assert total.item() == pytest.approx(sum(term.item() for term in terms.values()), rel=1e-12)


@pytest.mark.parametrize("form", ["auto", "textbook"])
@pytest.mark.parametrize(("name", "function"), [("mec", "terms"), ("intl", "view_terms")])
def test_terms_without_names_are_refused(
    name: str, function: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = methods.build(name)
    monkeypatch.setattr(type(method), function, lambda *_: torch.ones(()))
    with is_refused("terms must return a dictionary of scalars, such as "):
        method(*draw(6, 4), engine=Engine(form=form))


IMPOSSIBLE: list[tuple[tuple[int, ...], ...]]
IMPOSSIBLE = [(shape, shape) for shape in ((1, 3), (4, 0), (12,), (2, 3, 4))]
IMPOSSIBLE += itertools.permutations([(4, 3), (4, 2), (3, 3)], 2)


@pytest.mark.parametrize(("shape1", "shape2"), IMPOSSIBLE)
def test_impossible_shapes_are_refused(shape1: tuple[int, ...], shape2: tuple[int, ...]) -> None:
    for method in VARIANTS.values():
        with is_refused("n >= 2 and q >= "):
            method(torch.ones(shape1), torch.ones(shape2))


@every_method
def test_embeddings_of_one_dimension_are_refused_or_have_a_value(method: Regularizer) -> None:
    views = [z.requires_grad_() for z in draw(6, 1)]
    for form in ("auto", *method.forms):
        with is_refused("q >= 2, not") if method.least_dim > 1 else nullcontext():
            loss = method.loss(*views, engine=Engine(form=form))
            numbers = [loss, *(g.sum() for g in torch.autograd.grad(loss, views))]
            assert torch.stack(numbers).isfinite().all(), form


def test_unknown_forms_are_refused() -> None:
    with is_refused("unknown form 'fast'"):
        Engine(form="fast")
    for method in VARIANTS.values():
        for form in set(FORMS) - {"auto", *method.forms}:
            with is_refused(f"has no {form} form; it has textbook"):
                method(*draw(4, 3), engine=Engine(form=form))


@every_method
def test_second_derivatives_are_refused_or_right(method: Regularizer) -> None:
    z1, z2 = (z.requires_grad_() for z in draw(4, 3))
    textbook = method.loss(z1, z2, engine=Engine(form="textbook"))
    (gradient,) = torch.autograd.grad(textbook, z1, create_graph=True)
    assert gradient.requires_grad
    with is_refused('no second derivative; give engine=Engine\\(form="textbook"\\)'):
        torch.autograd.grad(method.loss(z1, z2), z1, create_graph=True)


def test_textbook_form_has_the_second_derivative() -> None:
    sfrik = methods.build("sfrik")
    z = tuple(z.requires_grad_() for z in draw(3, 2))
    textbook = partial(sfrik.loss, engine=Engine(form="textbook"))
    assert torch.autograd.gradgradcheck(textbook, z)


def test_float32_sums_of_rbf_over_many_panels_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many panels a sum has, as rbf's has here, it is off by no more than a float32's
    last digit.
    """
    monkeypatch.setitem(pairwise.PANEL_BYTES, "cpu", 1)
    z1, z2 = (z.float() for z in draw(5000, 3))
    method, engine = methods.build("rbf"), Engine(form="gram")
    exact = method(z1.double(), z2.double(), engine=engine).terms
    found = method(z1, z2, engine=engine).terms
    last_digit = torch.finfo(torch.float32).eps
    for name, value in exact.items():
        assert found[name].item() == pytest.approx(value.item(), rel=last_digit), name
