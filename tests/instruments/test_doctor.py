"""What `regbench doctor` says of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.command import done


def test_the_inventory_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("REGBENCH_DATA_DIR", str(tmp_path / "data"))
    text = done("doctor").output
    assert "sbatch is not on the PATH" in text
    assert "regbench prepare fashion_mnist" in text
    (tmp_path / "data" / "digits").mkdir(parents=True)
    (tmp_path / "data" / "digits" / "manifest.json").touch()
    (tmp_path / "sbatch").touch(mode=0o755)
    # A driver too old for this build of PyTorch, which counts GPUs all the same.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = done("doctor").output
    assert "digits" in text and "regbench prepare fashion_mnist" not in text
    assert str(tmp_path / "sbatch") in text
    assert "1 that PyTorch cannot use" in text
