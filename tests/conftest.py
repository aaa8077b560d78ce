"""What the tests of runs share: a tiny data set and the settings of a run that takes a second.

A test run begins with what this machine lacks for all of them, and how to get it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regbench.benchmark.rundir.lease import Attempt, claim
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.sources import fashion_mnist
from regbench.datasets.stored.prepare import prepare
from regbench.processes import hold_blas

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background by a shell, which lets its children ignore Ctrl-C; theirs, in the
    # tests, must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each of them
    torch.set_num_threads(1)
    hold_blas(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that accepts what is printed now."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="Write golden files anew; read their difference before you commit it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to accept golden files where nobody reads them."""
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden is for somebody who reads the difference, not CI")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the tests that are left out or skipped here: a line each, with the remedy."""
    browsers = ("chromium", "chromium-browser", "google-chrome")
    is_here = {
        "browser": any(map(shutil.which, browsers)),
        "slurm": shutil.which("slurmctld"),
        "latex": shutil.which("pdflatex"),
        "fashion_mnist": fashion_mnist.DEBIAN_FOLDER.is_dir(),
        "tensorboard": importlib.util.find_spec("tensorboard"),
        "ffcv": importlib.util.find_spec("ffcv"),
        "no gpu": not torch.cuda.is_available(),
    }
    lines = [f"skipped here: {SKIPPED[name]}" for name, found in is_here.items() if not found]
    for mark, target in (("slow", "test-all"), ("exhaustive", "test-all"), ("slurm", "test-slurm")):
        if f"not {mark}" in config.option.markexpr:
            lines.append(f"left out: tests marked {mark}; to run them: make {target}")
    if "not gpu" in config.option.markexpr:
        lines.append("left out: tests marked gpu; to run them: make gpu")
    return lines


SKIPPED = {
    "browser": "the report's page in a browser; to get it: apt-get install chromium",
    "slurm": "sweeps on a real Slurm (make test-slurm); to get it: apt-get install slurmctld slurmd "
    "slurm-client munge",
    "latex": "tables set by LaTeX (make test-all); to get it: apt-get install "
    "texlive-latex-recommended",
    "fashion_mnist": "Fashion-MNIST as Debian has it; to get it: apt-get install "
    "dataset-fashion-mnist",
    "tensorboard": "TensorBoard's files; to get it: pip install 'regbench[tensorboard]', as make "
    "test does",
    "ffcv": "FFCV's loader; to get it: make clean install, which says why it fails",
    "no gpu": "a machine without a GPU; to get it: CUDA_VISIBLE_DEVICES= make test",
}


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `golden/NAME` beside the test's file."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path}; if it is right: pytest --update-golden"

    return compare


TINY = (
    *("dataset=imagefolder", "dataset.name=tiny", "dataset.num_classes=3"),
    *("dataset.image_size=24", "dataset.eval_resize=24"),
    *("dataset.source.train_per_class=40", "dataset.source.tuning_per_class=12"),
    *("augmentation=small_color", "network=resnet_tiny", "embedding_dim=16"),
    *("batch_size=32", "epochs=2", "optimizer.warmup_epochs=1"),
    *("evaluation.knn.k=5", "evaluation.probe.epochs=3", "evaluation.protocols=[knn,probe]"),
    *("runtime.device=cpu", "runtime.loader=torchvision", "runtime.threads=1"),
)


def stripes(label: int, number: int) -> Image.Image:
    """A noisy picture of level, upright or slanted stripes, by label."""
    rng = np.random.default_rng(1000 * label + number)
    row, column = np.mgrid[:28, :28]
    along = (row, column, row + column)[label]
    wave = 60 * np.sin(along * rng.uniform(0.8, 1.2) + rng.uniform(0, 6))
    noise = rng.normal(0, 15, (28, 28, 3))
    colour = rng.uniform(90, 160, 3)
    return Image.fromarray(np.clip(colour + wave[:, :, None] + noise, 0, 255).astype(np.uint8))


def striped(source: Path, kind: str = "jpg", **parts: int) -> Path:
    """Write a folder of such pictures: so many a class in each part."""
    for part, count in parts.items():
        for label, name in enumerate(("level", "slanted", "upright")):
            folder = source / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                picture = stripes(label, i + 500 * (part == "val"))
                picture.save(folder / f"{i:03d}.{kind}", quality=92)
    return source


@pytest.fixture
def lost_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system that makes each link, loses the reply, is asked again and finds the
    link there.
    """
    link = os.link

    def linked(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists", str(target))

    monkeypatch.setattr(os, "link", linked)


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images: 53 a class in train/ and 10 in val/."""
    return striped(tmp_path_factory.mktemp("tiny_source"), train=53, val=10)


@pytest.fixture(scope="session")
def tiny_data_dir(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder with "tiny" in it: 40 images a class to train, 12 to tune, 10 to test.

    Tests only read here.
    """
    data_dir = tmp_path_factory.mktemp("tiny_data")
    prepare(load_run(TINY)[0].dataset, data_dir, source_dir=tiny_source)
    return data_dir


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """The command line sets a signal handler, and a run sets torch's threads."""
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    yield
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread() -> None:
    """Tiny tensors gain nothing from several; what was there before comes back after the test."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def shared(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The overrides of `tiny` for runs that several tests read."""
    folder = tmp_path_factory.mktemp("runs")
    return [*TINY, f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={folder}"]


@pytest.fixture
def tiny(tiny_data_dir: Path, tmp_path: Path) -> list[str]:
    """Overrides for a run on it, with run directories in `tmp_path / "runs"`.

    One thread, as two runs must agree.
    """
    return [*TINY, f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={tmp_path / 'runs'}"]


@pytest.fixture
def claimed() -> Iterator[Callable[[Path], Attempt]]:
    """Begins the next attempt at a run directory, as a process does that comes after the end of
    the one before.
    """
    last: dict[Path, Attempt] = {}

    def begin(directory: Path) -> Attempt:
        if directory in last:
            last.pop(directory).end("interrupted")
        attempt = claim(directory, 60.0)
        assert attempt is not None
        last[directory] = attempt
        return attempt

    yield begin
    for attempt in last.values():
        attempt.end("interrupted")


@pytest.fixture(scope="session")
def program() -> str:
    """The installed command line."""
    return str(Path(sys.executable).with_name("regbench"))
