"""Losses as modules: in a list, copied, pickled and saved with a model."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from regbench import methods
from regbench.methods import Engine
from tests.refusals import is_refused

EVERY = methods.names()
Views = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def views() -> Views:
    torch.manual_seed(0)
    first, second = torch.randn(2, 8, 6).unbind()
    return first, second


@pytest.mark.parametrize("name", EVERY)
def test_a_module_is_the_loss_and_has_no_state(name: str, views: Views) -> None:
    method = methods.build(name)
    module = method.module()
    assert not module.state_dict()
    assert not list(module.parameters())
    torch.manual_seed(1)
    expected = method.loss(*views)
    torch.manual_seed(1)
    assert saved(copy.deepcopy(module))(*views).item() == expected.item()
    assert str(method) in str(module)


@pytest.mark.parametrize("name", EVERY)
def test_a_loss_is_the_same_in_inference_mode(name: str, views: Views) -> None:
    """As where a trainer validates; also of tensors that were made there, and after it."""
    method = methods.build(name)
    losses = [method.module(form=form) for form in ("auto", *method.forms)]
    wanted = [seeded(loss, views) for loss in losses]
    with torch.inference_mode():
        made = tuple(view.clone() for view in views)
        assert [seeded(loss, views) for loss in losses] == wanted
        assert [seeded(loss, made) for loss in losses] == wanted
    assert [seeded(loss, made) for loss in losses] == wanted


def seeded(loss: nn.Module, views: tuple[torch.Tensor, ...]) -> float:
    torch.manual_seed(1)
    value: torch.Tensor = loss(*views)
    return value.item()


def saved(module: nn.Module) -> nn.Module:
    """What is left of a module that was saved whole and loaded."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)
        self.losses = nn.ModuleList([methods.build("vicreg").module()])

    def forward(self, *views: torch.Tensor) -> torch.Tensor:
        return torch.stack([loss(*map(self.head, views)) for loss in self.losses]).sum()


def test_modules_live_in_a_model(views: Views) -> None:
    model = Model()
    model.load_state_dict(Model().state_dict())
    assert set(model.state_dict()) == {"head.weight", "head.bias"}
    model.to(torch.float64)
    total: torch.Tensor = model(*(view.double() for view in views))
    assert total.dtype == torch.float64
    total.backward()
    assert model.head.weight.grad is not None
    assert model.head.weight.grad.abs().sum() > 0


def test_views_and_form_reach_the_loss(views: Views) -> None:
    method, three = methods.build("vicreg"), (*views, views[0] + 1)
    assert method.module()(*three, global_views=2) == method.loss(*three, global_views=2)
    assert method.module()(*three) != method.loss(*three, global_views=2)
    first = views[0].requires_grad_()
    textbook = method.module(form="textbook")
    (gradient,) = torch.autograd.grad(textbook(first, views[1]), first, create_graph=True)
    assert gradient.requires_grad  # of the textbook form alone there are second derivatives
    assert textbook(*views) == method.loss(*views, engine=Engine(form="textbook"))
    with is_refused("unknown form 'quick'"):
        method.module(form="quick")
