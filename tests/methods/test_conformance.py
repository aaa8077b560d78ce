"""What every registered method must do, whoever wrote it; a new method is tested by being registered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from regbench import RegbenchError, methods
from regbench.instruments.conformance import check_names, check_sharded, run_check
from regbench.methods import Engine, Regularizer, pairwise
from regbench.methods.engine import FORMS
from tests.methods.forms import VARIANTS, every_method
from tests.methods.test_engine import draw


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@every_method
def test_conformance(method: Regularizer) -> None:
    findings = [finding for check in check_names() if (finding := run_check(method, check))]
    assert not [finding for finding in findings if not finding.ok]


def test_one_to_four_processes_give_the_same_as_one() -> None:
    findings = check_sharded(VARIANTS)
    assert not {name: finding for name, finding in findings.items() if not finding.ok}
    assert findings.keys() == VARIANTS.keys()


@every_method
def test_terms_are_scalars_that_sum_to_the_loss(method: Regularizer) -> None:
    total, terms = method(*draw(6, 4))
    assert all(term.shape == () and not term.requires_grad for term in terms.values())
    assert total.item() == pytest.approx(sum(term.item() for term in terms.values()), rel=1e-12)


@pytest.mark.parametrize(
    ("shape1", "shape2"),
    [*itertools.permutations([(4, 3), (4, 2), (3, 3)], 2), ((1, 3), (1, 3)), ((12,), (12,)), ((2, 3, 4),) * 2],
)
def test_impossible_shapes_are_refused(shape1: tuple[int, ...], shape2: tuple[int, ...]) -> None:
    for method in VARIANTS.values():
        with pytest.raises(RegbenchError, match="n >= 2"):
            method(torch.ones(shape1), torch.ones(shape2))


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(RegbenchError, match="unknown form 'fast'"):
        Engine(form="fast")
    for method in VARIANTS.values():
        for form in set(FORMS) - {"auto", *method.forms}:
            with pytest.raises(RegbenchError, match=f"has no {form} form; it has textbook"):
                method(*draw(4, 3), engine=Engine(form=form))


@every_method
def test_second_derivatives_are_refused_or_right(method: Regularizer) -> None:
    z1, z2 = (z.requires_grad_() for z in draw(4, 3))
    (gradient,) = torch.autograd.grad(method.loss(z1, z2, engine=Engine(form="textbook")), z1, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RegbenchError, match='no second derivative; give engine=Engine\\(form="textbook"\\)'):
        torch.autograd.grad(method.loss(z1, z2), z1, create_graph=True)


def test_textbook_form_has_the_second_derivative() -> None:
    sfrik = methods.build("sfrik")
    z = tuple(z.requires_grad_() for z in draw(3, 2))
    assert torch.autograd.gradgradcheck(lambda a, b: sfrik.loss(a, b, engine=Engine(form="textbook")), z)


def test_float32_sums_of_rbf_over_many_panels_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many panels a sum has, as rbf's has here, it is off by no more than a float32's last digit."""
    monkeypatch.setitem(pairwise.PANEL_BYTES, "cpu", 1)
    z1, z2 = (z.float() for z in draw(5000, 3))
    method, engine = methods.build("rbf"), Engine(form="gram")
    exact, found = method(z1.double(), z2.double(), engine=engine).terms, method(z1, z2, engine=engine).terms
    for name, value in exact.items():
        assert found[name].item() == pytest.approx(value.item(), rel=torch.finfo(torch.float32).eps), name
