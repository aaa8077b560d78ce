"""A trained backbone to take away: loaded, exported, and at work on a folder of images."""

from __future__ import annotations

import errno
import functools
import json
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torchvision import models

import regbench
from regbench.benchmark import embed
from regbench.benchmark.evaluate.features import Encoder, Images
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.settings.stored import load_config
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.assembly import build_network
from tests.command import done, refusal, run
from tests.conftest import stripes
from tests.refusals import is_refused
from tests.there import there

VIT = (
    *("network.backbone=timm", "network.backbone.model=vit_tiny_patch16_224", "precision=fp32"),
    *("network.backbone.patch_size=8", "network.backbone.options={depth: 2}"),
)
GREY = ("dataset.channels=1", "dataset.mean=[0.4]", "dataset.std=[0.2]")
SHORT = ("method=vicreg", "epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]")


def trained(overrides: list[str], *others: str) -> Path:
    """The run directory of a short training."""
    return there(regbench.train([*overrides, *SHORT, *others])).path.parent


@pytest.fixture(scope="module")
def directory(shared: list[str]) -> Path:
    return trained(shared)


@pytest.fixture(scope="module")
def resnet(shared: list[str]) -> Path:
    return trained(shared, "network=resnet18")


def own(overrides: list[str]) -> list[str]:
    return [override for override in overrides if override.startswith("runtime.")]


def test_load_gives_the_features_that_evaluations_see(
    directory: Path, shared: list[str], tiny_source: Path
) -> None:
    loaded = regbench.load(directory)
    cell, runtime = load_config(directory / "config.yaml", own(shared))
    images = Images(cell.dataset, resolve(runtime), Path())
    encoder = Encoder(loaded.module, loaded.dim)
    seen, _ = images.features(encoder, "train", "bicubic", 256)
    files = sorted((tiny_source / "train" / "level").iterdir())[:40]
    with torch.no_grad():
        found_ND = loaded.module(torch.stack([loaded.transform(file) for file in files]))
        opened_ND = loaded.module(torch.stack([loaded.transform(Image.open(f)) for f in files]))
    # Of 16 bits the upper 8 are kept, as `prepare` does.
    grey = Image.fromarray(np.linspace(0, 255, 24 * 24).reshape(24, 24).astype(np.uint8))
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 256)
    assert torch.equal(loaded.transform(deep), loaded.transform(grey))
    with is_refused("the image cannot be read: its pixels are floating"):
        loaded.transform(grey.convert("F"))
    torch.testing.assert_close(found_ND, seen.x_ND[:40], rtol=0, atol=1e-6)
    torch.testing.assert_close(opened_ND, found_ND, rtol=0, atol=1e-6)
    assert found_ND.std(dim=0).max() > 1e-3


def test_a_network_of_one_channel_sees_what_colours_look_like(
    shared: list[str], tmp_path: Path
) -> None:
    loaded = regbench.load(trained(shared, "network=resnet18", "augmentation=small_grey", *GREY))
    colours = stripes(0, 0)
    colours.save(tmp_path / "colours.png")
    for image in (colours, tmp_path / "colours.png"):
        assert torch.equal(loaded.transform(image), loaded.transform(colours.convert("L")))


NETWORKS = [["network=resnet18"], ["network=resnet18", "augmentation=small_grey", *GREY]]
for kind in ("class_token", "mean", "pooled"):
    NETWORKS.append([*VIT, f"network.backbone.representation={kind}"])


@pytest.mark.parametrize("network", NETWORKS)
def test_timm_loads_what_is_exported(network: list[str], shared: list[str], tmp_path: Path) -> None:
    directory = trained(shared, *network)
    out = tmp_path / "model.safetensors"
    assert regbench.export(directory, out) == [out, out.with_suffix(".json")]
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["cell_id"] == directory.name
    model = timm.create_model(**card["timm"], checkpoint_path=out).eval()
    loaded = regbench.load(directory)
    size = card["input"]["image_size"]
    x_NCHW = torch.randn(4, card["input"]["channels"], size, size)
    with torch.no_grad():
        expected_ND = loaded.module(x_NCHW)
        torch.testing.assert_close(model(x_NCHW), expected_ND, rtol=0, atol=1e-6)
    assert expected_ND.shape == (4, card["representation_dim"])


def test_torchvision_loads_what_is_exported(resnet: Path, tmp_path: Path) -> None:
    done("export", resnet, "--out", tmp_path / "model.safetensors")
    model = models.resnet18()
    model.fc = nn.Identity()
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    x_NCHW = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        expected_ND = regbench.load(resnet).module(x_NCHW)
        torch.testing.assert_close(model.eval()(x_NCHW), expected_ND, rtol=0, atol=1e-6)


def test_the_card_describes_the_run(directory: Path, tmp_path: Path) -> None:
    out, path = regbench.export(directory, tmp_path / "birds.safetensors")
    card, record = json.loads(path.read_text()), json.loads((directory / "record.json").read_text())
    assert card["timm"] is None  # which has no resnet_tiny
    assert card["scores"] == record["scores"]
    assert card["data"] == record["data"]
    assert card["settings"] == record["cell"]
    expected = {"channels": 3, "image_size": 24, "resize_shorter_side": 24}
    assert card["input"].items() >= expected.items()
    assert (card["method"], card["file"]) == ("VICReg", out.name)


def test_what_cannot_be_exported_is_refused_in_a_line(
    directory: Path, shared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refusal("export", directory, "--out", tmp_path / "model.pth")
    assert f"not exported as .pth; give --out {tmp_path / 'model.safetensors'}" in line
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with is_refused(r"pip install 'regbench\[onnx\]'"):
        regbench.export(directory, tmp_path / "model.safetensors", onnx=True)
    assert not list(tmp_path.iterdir())
    pixels = there(regbench.train([*shared, *SHORT, "epochs=0", "baseline=raw_pixels"]))
    with is_refused("raw pixels, which has no backbone"):
        regbench.load(pixels.path.parent)
    with is_refused("give the directory of a run that has trained"):
        regbench.load(tmp_path)


def test_networks_are_exported_for_onnx(resnet: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnx: Any = pytest.importorskip("onnx.reference")
    *_, path = regbench.export(resnet, tmp_path / "model.safetensors", onnx=True)
    x_NCHW = torch.randn(3, 3, 24, 24)  # another number of images than the example's
    (found,) = onnx.ReferenceEvaluator(str(path)).run(None, {"images": x_NCHW.numpy()})
    expected_ND = regbench.load(resnet).module(x_NCHW)
    torch.testing.assert_close(torch.from_numpy(found), expected_ND, rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------------------------------
# embeddings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """30 images in folders, one file that is none, one that is damaged, and a link to nothing."""
    for number in range(30):
        path = tmp_path / "images" / str(number % 2) / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        stripes(number % 3, 2000 + number).save(path)
    (tmp_path / "images" / "notes.txt").write_text("none")
    (tmp_path / "images" / "damaged.png").write_bytes(b"none")
    (tmp_path / "images" / "lost.png").symlink_to("nowhere.png")
    return tmp_path / "images"


def test_embed_gives_file_embedding_and_nearest_classes(
    directory: Path,
    shared: list[str],
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    (folder / "closed").mkdir()
    scandir = os.scandir

    def unless_closed(path: Any) -> Any:
        if path == folder / "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", unless_closed)
    out = tmp_path / "embeddings.parquet"
    result = run("embed", directory, folder, "--out", out, *own(shared))
    assert result.output.endswith("embeddings.parquet: 30 images\n")
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    for unread in ("damaged.png cannot be read: it is ", "lost.png cannot be read: No such file"):
        assert any(unread in message for message in warned)
    assert f"left out: {folder / 'closed'} cannot be listed (Permission denied)" in warned
    table = pd.read_parquet(out)
    assert sorted(table["file"]) == sorted(f"{n % 2}/{n:02}.png" for n in range(30))
    loaded = regbench.load(directory)
    x_NCHW = torch.stack([loaded.transform(folder / file) for file in table["file"]])
    found_ND = torch.from_numpy(np.stack(table["embedding"].tolist()))
    with torch.no_grad():
        torch.testing.assert_close(found_ND, loaded.module(x_NCHW), rtol=0, atol=1e-5)
    # The nearest class is that of the largest mean cosine with training images, by a plain loop.
    cell, runtime = load_config(directory / "config.yaml", own(shared))
    images = Images(cell.dataset, resolve(runtime), Path())
    train, _ = images.features(Encoder(loaded.module, loaded.dim), "train", "bicubic", 256)
    names = ["level", "slanted", "upright"]
    mean_CD = torch.stack([F.normalize(train.x_ND[train.y_N == c]).mean(dim=0) for c in range(3)])
    for row, x_D in zip(table["classes"], found_ND, strict=True):
        order = F.cosine_similarity(x_D, mean_CD).argsort(descending=True)
        assert list(row) == [names[c] for c in order]
    written_ns = out.stat().st_mtime_ns
    assert run("embed", directory, folder, "--out", out, *own(shared)).output == result.output
    assert out.stat().st_mtime_ns == written_ns


def test_embed_refuses_folders_without_an_image_and_other_files(
    directory: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "empty").mkdir()
    with is_refused("empty holds no image; give a folder"):
        regbench.embed(directory, tmp_path / "empty", tmp_path / "a.parquet")
    # The data set is not prepared here.
    here: dict[str, Any] = {"runtime": {"data_dir": str(tmp_path)}}
    regbench.embed(directory, folder, tmp_path / "a.parquet", **here)
    assert list(pd.read_parquet(tmp_path / "a.parquet")) == ["file", "embedding"]
    assert "nearest classes are left out: data set 'tiny' is not prepared" in caplog.text
    out = tmp_path / "b.parquet"
    pd.DataFrame({"file": ["a"]}).to_parquet(out)
    before = out.read_bytes()
    with is_refused(r"b\.parquet is there already and holds something else"):
        regbench.embed(directory, folder, out, **here)
    assert out.read_bytes() == before
    (tmp_path / "c.parquet").write_bytes(b"no parquet")
    with is_refused("holds something else"):
        regbench.embed(directory, folder, tmp_path / "c.parquet", **here)
    assert not list(tmp_path.glob(".*"))
    # Another image of the same name and size.
    (folder / "0" / "00.png").touch()
    with is_refused(r"a\.parquet is there already"):
        regbench.embed(directory, folder, tmp_path / "a.parquet", **here)
    with is_refused(rf"d\.csv: the file is a parquet file; give --out {tmp_path}/d\.parquet"):
        regbench.embed(directory, folder, tmp_path / "d.csv", **here)
    with is_refused("epochs=3: embed takes settings of the runtime only"):
        regbench.embed(directory, folder, out, epochs=3)


def count_parts(arguments: tuple[Path, Path, Path], settings: list[str], most: int) -> int:
    """Embed in parts of seven images, and return the number of parts that were computed; a kill
    comes before the one after `most` parts.
    """
    done = 0

    class Counted(embed._Embedder):
        def table(self, files: Any) -> Any:
            nonlocal done
            if files and done == most:
                os.kill(os.getpid(), signal.SIGKILL)
            done += bool(files)
            return super().table(files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embed, "PART", 7)
        patch.setattr(embed, "_Embedder", Counted)
        regbench.embed(*arguments, settings)
    return done


@pytest.mark.slow
def test_embed_goes_on_after_a_kill_to_the_same_file(
    directory: Path, shared: list[str], folder: Path, tmp_path: Path
) -> None:
    spawned = multiprocessing.get_context("spawn")
    computed, found = [], []
    # 31 files are five parts. After a kill, two are not repeated, but for those of another network.
    for out, before in (("a", directory), ("b", None), ("c", trained(shared, "seed=1"))):
        path, settings = tmp_path / f"{out}.parquet", own(shared)
        if before is not None:
            arguments = ((before, folder, path), settings, 2)
            process = spawned.Process(target=count_parts, args=arguments)
            process.start()
            process.join()
            assert process.exitcode == -signal.SIGKILL
        computed.append(count_parts((directory, folder, path), settings, 6))
        found.append(path.read_bytes())
    assert computed == [3, 5, 5]
    assert found[0] == found[1] == found[2]
    assert not list(tmp_path.glob(".*"))


# --------------------------------------------------------------------------------------------------
# weights to begin with


def begun(overrides: list[str], init: Path, *others: str) -> tuple[Path, Any]:
    """The directory and the record's cell of a run that begins with the weights of a file."""
    directory = trained(overrides, f"network.init={init}", *others)
    return directory, json.loads((directory / "record.json").read_text())


def test_a_training_goes_on_from_the_weights_of_a_file(
    directory: Path, tiny: list[str], tmp_path: Path
) -> None:
    out, card = regbench.export(directory, tmp_path / "model.safetensors")
    came, record = begun(tiny, out, "epochs=0")
    assert record["label"] == "pretrained, as it came"
    expected, found = regbench.load(directory).module, regbench.load(came).module
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value)
    scores = {(s.name, s.split): s.value for s in regbench.evaluate(directory, own(tiny))}
    assert scores == {(s["name"], s["split"]): s["value"] for s in record["scores"]}
    further, record = begun(tiny, out)
    assert record["label"] == "VICReg"
    moved = regbench.load(further).module.state_dict()["0.weight"]
    start = expected.state_dict()["0.weight"]
    other = regbench.load(trained(tiny, "seed=1")).module.state_dict()["0.weight"]
    assert 0 < (moved - start).norm() < 0.5 * (other - start).norm()
    # The weights' content decides the cell, not their place; the run repeats from its file.
    again = tmp_path / "again" / "birds.safetensors"
    again.parent.mkdir()
    out.rename(again)
    card.rename(again.with_suffix(".json"))
    assert begun(tiny, again)[0] == further
    assert trained(tiny) != further
    with is_refused(r"are not the weights of this cell: their SHA-256"):
        begun(tiny, again, f"network.init_sha256={'0' * 64}", "seed=2")
    with is_refused(r"network\.init_sha256 is without effect"):
        trained(tiny, f"network.init_sha256={'0' * 64}")
    with is_refused(r"model\.safetensors"):
        begun(tiny, out, "seed=3")
    # Nor does a run begin with a file that was replaced after its cell was made.
    cell, _ = load_run([*tiny, *SHORT, f"network.init={again}"])
    state = safetensors.torch.load_file(again)
    safetensors.torch.save_file({name: value + 1 for name, value in state.items()}, again)
    with is_refused(r"are not the weights of this cell: their SHA-256"):
        build_network(cell, torch.device("cpu"))


def test_timm_and_its_colours_are_a_start(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = timm.create_model("resnet18", num_classes=0)
    torch.save(weights.state_dict(), tmp_path / "resnet18.pth")
    own = {"file": str(tmp_path / "resnet18.pth"), "mean": (0.1, 0.2, 0.6), "std": (0.2,) * 3}
    of_file = functools.partial(timm.create_model, pretrained_cfg_overlay=own)
    monkeypatch.setattr(timm, "create_model", of_file)
    grey = ("augmentation=small_grey", "dataset.channels=1")
    settings = ["network=resnet18", "epochs=0", *grey, "network.init=timm"]
    directory = trained(tiny, *settings)
    loaded = regbench.load(directory)
    kernel = weights.get_parameter("conv1.weight").sum(dim=1, keepdim=True)
    torch.testing.assert_close(loaded.module.state_dict()["conv1.weight"], kernel)
    assert loaded.cell.dataset.mean == pytest.approx([0.3])
    assert loaded.cell.dataset.std == pytest.approx([0.2])
    # What is given counts more.
    given = regbench.load(trained(tiny, *settings, "dataset.mean=[0.4]")).cell.dataset
    assert given.mean == (0.4,)
    assert given.std == pytest.approx([0.2])


def test_weights_that_do_not_fit_are_refused_by_layer_and_shape(
    resnet: Path, tiny: list[str], tmp_path: Path
) -> None:
    out, _ = regbench.export(resnet, tmp_path / "model.safetensors")
    state = safetensors.torch.load_file(out)
    state["conv1.weight"] = state["conv1.weight"][:, :, :3, :3].contiguous()
    safetensors.torch.save_file(state, tmp_path / "small.safetensors")
    shapes = r"conv1.weight \(64, 3, 3, 3\) instead of \(64, 3, 7"
    other = f"is no resnet18: it has other shapes: {shapes}"
    for network, init, reason in (
        ("resnet18", tmp_path / "small.safetensors", other),
        ("resnet_tiny", out, "holds no resnet_tiny: .*; choose network= to fit"),
        ("resnet_tiny", "timm", "timm has no weights of resnet_tiny"),
        ("resnet18", tmp_path / "none.safetensors", "none.safetensors"),
    ):
        with is_refused(reason):
            trained(tiny, f"network={network}", f"network.init={init}")
