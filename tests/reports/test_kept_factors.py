"""What is kept of the factors that images are made of: tables, numbers and the heat map of the
page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from regbench.reports import write_report
from tests.reports.conftest import of_each, probed, settings
from tests.reports.reading import Make


@pytest.fixture(scope="session")
def report(recorder: Callable[[Path], Make], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factors")
    record = recorder(folder / "runs")
    for seed, tilt in enumerate((0.7, 0.9)):
        kept = {"tilt_deg_representation": tilt, "kind_representation": 40.0}
        record("VICReg", seed, **probed(**kept, tilt_deg_embedding=-0.001))
    record("VICReg", 2, status="diverged", knn=None, linear=None)
    raw = {"baseline": "raw_pixels", "epochs": 0, "method": settings("untrained")["method"]}
    record("raw pixels", cell=raw, **probed(tilt_deg_representation=-0.25))
    record("AUH")
    write_report(folder / "runs", folder / "report")
    return folder


def test_the_page_shades_what_is_kept(report: Path, new_page: Callable[..., Page]) -> None:
    page = new_page(color_scheme="light")
    page.goto((report / "report" / "index.html").as_uri())
    places = page.locator("#s1-factors_representation tbody td")
    assert of_each(places, "each.style.getPropertyValue('--shade')") == ["40%", "80%", "", "0%"]
    weak, strong, unknown, none = of_each(places, "getComputedStyle(each).backgroundColor")
    assert len({strong, weak, unknown}) == 3
    assert none != strong
    assert places.nth(1).get_attribute("title") == "0.800 ± 0.141, n = 2"
    expect(page.locator("#s1-cells tbody tr").first).to_be_visible()
    heads = page.locator("#s1-cells thead th").all_inner_texts()
    assert not any("factor" in head for head in heads)
    expect(page.locator("#s1-factors_representation tbody th").first).to_have_text("VICReg †")
    assert "tilt" not in page.locator("#reading").inner_text()
