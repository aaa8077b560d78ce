"""The scripts that docs/results/audit.md confirms its findings by print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regbench import RegbenchError
from regbench.instruments.audit import adapters
from regbench.instruments.audit.probes import run_probe
from regbench.instruments.audit.target import SIZE
from tests.waiting import PATIENCE_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "audit.md"
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+")


def numbers(phrase: str, processes: int = 1) -> list[float]:
    """Run the script of the page that has a phrase in it, and read the numbers that it prints."""
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (script,) = (block for block in blocks if phrase in block)
    command = [sys.executable, "-W", "ignore", "-c", script]
    if processes > 1:
        launcher = f"-m torch.distributed.run --standalone --no-python --nproc-per-node {processes}"
        command = [sys.executable, *launcher.split(), *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    missing = re.search(r"^(ModuleNotFoundError|ImportError): .*$", result.stderr, re.M)
    if missing:
        pytest.skip(missing[0])
    assert result.returncode == 0, result.stderr
    found: list[float] = []
    for line in result.stdout.splitlines():
        if " | " not in line:  # a library's own log is not the script's
            found += map(float, NUMBER.findall(line))
    return found


@pytest.mark.slow
def test_lightlys_coding_rate_rewards_a_single_point() -> None:
    assert numbers("EMPSSLLoss") == pytest.approx([3.51, 1.52], abs=0.01)


@pytest.mark.slow
def test_solo_learns_barlow_twins_is_short_by_the_number_of_ranks() -> None:
    """Needs a checkout of solo-learn in PYTHONPATH."""
    mean, slope = numbers("barlow_loss_func", processes=2)
    assert (mean, slope) == pytest.approx((-0.00108, -0.00216), rel=0.02)


@pytest.mark.slow
def test_conventions_of_lightly_and_stable_pretraining() -> None:
    of_equal_views, expected, one, ten, gradient, slope = numbers("BarlowTwinsLoss(lambd=0.0)")
    assert of_equal_views == pytest.approx(expected, rel=1e-3)
    assert ten == pytest.approx(10 * one, rel=1e-6)
    assert abs(gradient - slope) > 0.01 * abs(slope)


@pytest.mark.slow
def test_lejepa_of_stable_pretraining_drops_the_mean_over_ranks() -> None:
    together, alone, whole = numbers("import EppsPulley", processes=2)
    assert together == pytest.approx(2 * alone, rel=1e-4)
    assert (together, whole) == pytest.approx((3.149, 1.838), rel=0.01)


@pytest.mark.slow
def test_tico_of_stable_pretraining_rewards_a_single_point() -> None:
    assert numbers("import TiCO") == pytest.approx([2.69, 2.78, 0, 20], abs=0.01)


@pytest.mark.slow
def test_moments_of_lejepa_drop_the_mean_over_ranks() -> None:
    """Needs a checkout of lejepa in PYTHONPATH."""
    found, alone, together = numbers("import Moments", processes=2)
    assert found == pytest.approx(alone, rel=1e-4)
    assert (found, together) == pytest.approx((0.112, 0.077), rel=0.01)


@pytest.mark.slow
def test_the_coding_rate_of_emp_ssl_pytorch_falls_with_the_batch() -> None:
    expected = [16, 1.04, 6.49, 64, 0.30, 6.96, 256, 0.08, 7.12]
    assert numbers("emp_ssl_pytorch") == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_conventions_of_more_than_two_views() -> None:
    pooled, times_the_views, weight, all_positives, pairs = numbers("SlicedEppsPulley(64)")
    assert pooled == pytest.approx(times_the_views, rel=1e-4)
    assert weight == pytest.approx(0.08, rel=1e-4)
    assert abs(all_positives - pairs) > 0.01 * pairs


def table_of_weights() -> dict[tuple[str, str], tuple[str, str]]:
    """Read the factors of the page by loss and argument; those of the others are 1."""
    (section,) = re.findall(r"^## Weights\n(.*?)^## ", PAGE.read_text(), re.M | re.S)
    factors = {}
    for line in section.splitlines():
        if line.startswith("|"):
            weights, ours, published = (cell.strip() for cell in line.strip("|").split("|"))
            for loss, argument in re.findall(r"`([\w-]+:\w+)\.(\w+)`", weights):
                factors[loss, argument] = (ours, published)
    return factors


FACTORS = table_of_weights()


LOSSES = [loss for losses in adapters.libraries().values() for loss in losses.values()]
WEIGHTED = {loss.name: loss for loss in LOSSES if loss.weights}


def test_the_page_names_weights_of_adapters() -> None:
    known = {(name, argument) for name, loss in WEIGHTED.items() for argument in loss.weights}
    assert FACTORS and set(FACTORS) <= known


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # libraries import what others have deprecated
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_are_what_the_page_says(name: str) -> None:
    """Needs the library, and a checkout of solo-learn and of lejepa in PYTHONPATH."""
    loss = WEIGHTED[name]
    try:
        loss.make(*SIZE, loss.dtype)
    except RegbenchError as error:
        pytest.skip(str(error))
    (finding,) = run_probe(loss, "weights")
    # Without the numbers behind a form of n and q.
    told = re.sub(r" \(\d[^)]*\)", "", finding.text).split("; ")
    wanted = []
    for argument, (_, setting) in loss.weights.items():
        ours, published = FACTORS.get((name, argument), ("1", "1"))
        theirs = f"× {published} = the publication's"
        if published == "none":
            theirs = "the publication has none"
        wanted.append(f"{argument} × {ours} = {setting}, {theirs}")
        if ours == "no multiple":
            wanted[-1] = f"{argument} is no multiple of {setting}"
    assert told == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "growth"),
    [("pytorch-metric-learning:NTXentLoss", "n^3.0 q^0.0"), ("lightly:MMCRLoss", "n^1.1 q^1.9")],
)
def test_losses_that_keep_cubes_for_backward(name: str, growth: str) -> None:
    (found,) = run_probe(WEIGHTED[name], "memory")
    assert found.text.endswith(f"growing as {growth}")
