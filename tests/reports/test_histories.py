"""How histories are packed into bundles."""

from __future__ import annotations

import json
import lzma
import random
import tracemalloc
from typing import Any

import pytest

from regbench.reports.bundle.histories import last_row, pack, unpack

PLENTY = 10**6


def history(epochs: int) -> str:
    """A history of 18 numbers to six digits in each epoch, with scores in every tenth."""
    draw, rows = random.Random(0), []
    names = ("loss", "alignment", "uniformity", "effective_rank", "feature_spread", "learning_rate")
    times = ("epoch_s", "step_ms", "data_ms", "forward_ms", "loss_ms", "backward_ms", "optimizer_ms")
    for epoch in range(1, epochs + 1):
        level = 1 + 1 / epoch
        row: dict[str, Any] = {
            "epoch": epoch,
            **{name: level * draw.gauss(10, 0.05) for name in names},
            "images": 49920,
        }
        row |= {name: draw.gauss(100, 3) for name in times}
        row = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
        row["terms"] = {name: float(f"{level * draw.gauss(3, 0.02):.6g}") for name in ("one", "two", "three")}
        if epoch % 10 == 0:
            row["scores"] = [{"name": "knn_top1", "value": round(draw.gauss(60, 1), 2), "split": "tuning"}]
        rows.append(row)
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        *(history(epochs) for epochs in (1, 2, 30)),
        *("", "\n", "no number", "\n\n1\n2\n", '{"loss": NaN}\n{"loss": 1.0}\n', '"½ 1"\n"½ 2"\n'),
        "007 -0.0 1e+16 1e-300\n1 0.0 1.0 2.5e-300\n",
        "12345678.123456789 1e-20\n0.1 1.5\n",
        "1e999999 1\n2e999999 2\n",
    ],
)
def test_a_history_comes_back_to_the_last_byte(text: str) -> None:
    last, before = pack(text)
    assert unpack(last.encode(), before.encode(), PLENTY) == text


def test_the_last_epoch_is_read_without_the_others() -> None:
    for epochs in (1, 2, 30, 31):  # with scores and without
        text = history(epochs)
        assert last_row(pack(text)[0].encode()) == json.loads(text.splitlines()[-1])


def test_a_hundred_epochs_take_less_than_five_kilobytes() -> None:
    assert len(lzma.compress("".join(pack(history(100))).encode())) < 5000


@pytest.mark.parametrize(
    "line",
    [
        b"1",
        b"[]",
        b"{",
        b'{"lines": [0], "kinds": []}',
        b'{"lines": [[0]], "kinds": [{"text": ["a"], "numbers": []}]}',
        b'{"lines": [0, 0], "kinds": [{"text": ["a", "b"], "numbers": [[0, 1]]}]}',
        b'{"lines": [0], "kinds": [{"text": ["a"], "numbers": ["1"]}]}',
        b'{"lines": [0], "kinds": [{"text": ["a", "b"], "numbers": [[]]}]}',
        b'{"lines": [0], "kinds": [{"text": ["a", "b"], "numbers": [[999999999, 1]]}]}',
        b'{"lines": [0], "kinds": [{"text": ["a", "b"], "numbers": [[2, "x"]]}]}',
        b'{"lines": [0], "kinds": [{"text": ["a", "b"], "numbers": [{"0": 1}]}]}',
    ],
)
def test_what_was_not_packed_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="a history is not as `regbench submit` packs it"):
        unpack(b'""', line, PLENTY)


@pytest.mark.parametrize("line", [b"1", b"[]", b'"[]"', b'"1"'])
def test_a_last_line_without_numbers_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="a history is not as `regbench submit` packs it"):
        last_row(line)


def test_a_line_that_unpacks_to_too_much_is_refused() -> None:
    line = json.dumps({"lines": [0] * 1000, "kinds": [{"text": ["x" * 1000], "numbers": []}]}).encode()
    assert len(unpack(b'""', line, 1_000_999)) == 1_000_999
    with pytest.raises(ValueError, match="unpack to more than 1,000,998 bytes"):
        unpack(b'""', line, 1_000_998)


@pytest.mark.parametrize("number", ["1", "", "x"])
def test_many_columns_of_one_number_take_no_memory_before_they_are_refused(number: str) -> None:
    count = 3000
    kind = {"text": [""] * (count + 1), "numbers": [number] * count}
    line = json.dumps({"lines": [0] * count, "kinds": [kind]}).encode()
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"more than 10 bytes|is no number"):
        unpack(b'""', line, 10)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5e6  # count² references would be 72e6
