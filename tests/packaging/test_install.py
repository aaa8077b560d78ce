"""The built wheel and sdist, installed beside Hugging Face's `datasets`: both work, and neither
touches the other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("methods", "datasets", "benchmark", "instruments", "sweeps", "slurm", "reports", "tracks")
# Prints where `datasets` would be imported from.
WHOSE_DATASETS = "from importlib.util import find_spec; print(find_spec('datasets').origin)"
# Imports both packages, and prints a name that only Hugging Face's has.
BOTH = """
import datasets, regbench.datasets.config
print(datasets.__file__, datasets.load_dataset.__name__, regbench.datasets.config.__file__, regbench.__version__)
"""


def sources() -> dict[str, Path]:
    """Every file that users get: path inside the import package's parent -> file in the working
    tree.
    """
    package = ROOT / "src" / "regbench"
    own = [*package.glob("*"), *(package / "cli").glob("*")]  # the other folders are links
    files = {f"regbench/{path.relative_to(package)}": path for path in own if path.is_file()}
    for folder in ROOMS:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT)
            # What measures this project for its documents is not for users.
            is_ours = name.parts[:2] == ("instruments", "speed")
            is_hidden = any(part.startswith((".", "__pycache__")) for part in name.parts)
            if path.is_file() and not is_ours and not is_hidden:
                files[f"regbench/{name}"] = path
    return files


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Standard output of `command`, free of this process's Python settings.

    A failure shows all that it printed.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV"))}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(python: Path, *arguments: str | Path, cwd: Path) -> str:
    """Runs this environment's pip on the environment of `python`, offline."""
    command = (sys.executable, "-m", "pip", "-q", "--no-input", "--python", python)
    return run([*command, *arguments], cwd)


@dataclass(frozen=True)
class Built:
    """The two distributions of the working tree."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Builds the sdist from a copy of the tree, and the wheel from the unpacked sdist, as an
    index would get them.
    """
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("src", "results", *ROOMS):  # tracks/ has links to bundles
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    code = "import sys, setuptools.build_meta as b; print('built', b.build_{}(sys.argv[1]))"
    output = run([sys.executable, "-c", code.format("sdist"), folder], tree)
    sdist = folder / output.split()[-1]
    (folder / "unpacked").mkdir()
    run(["tar", "-xzf", sdist, "-C", folder / "unpacked"], folder)
    (unpacked,) = (folder / "unpacked").iterdir()
    output = run([sys.executable, "-c", code.format("wheel"), folder], unpacked)
    return Built(sdist=sdist, wheel=folder / output.split()[-1])


@dataclass(frozen=True)
class Environment:
    """A virtual environment with Hugging Face's `datasets` in its own site-packages."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def files(self) -> set[Path]:
        return {path.relative_to(self.folder) for path in self.folder.rglob("*")}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A fresh environment; what regbench depends on it sees through links to this one's packages.

    `datasets` is copied file by file, as an installer lays it out, so that an overwriting
    installation would hit these files and an uninstallation could delete them.
    """
    ours = Path(sysconfig.get_path("purelib"))
    env = Environment(tmp_path / "venv")
    run([sys.executable, "-m", "venv", "--without-pip", env.folder], tmp_path)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = Path(run([env.python, "-c", where], tmp_path).strip())

    hugging_face = distribution("datasets").files or []
    assert hugging_face
    for file in hugging_face:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (theirs / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ours / file, theirs / file)

    links = tmp_path / "links"
    links.mkdir()
    for entry in ours.iterdir():
        name = entry.name.removeprefix("__editable__.")
        if entry.suffix != ".pth" and not name.startswith(("regbench", "datasets", "__pycache__")):
            (links / entry.name).symlink_to(entry)
    (theirs / "links.pth").write_text(f"{links}\n")
    return env


def test_wheel_holds_every_source_file_and_no_other_package(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        contents = {name: archive.read(name) for name in names}
    expected = sources()
    assert names == set(expected)
    assert contents == {name: path.read_bytes() for name, path in expected.items()}
    # Whatever else changes, these must be there: data that no import would miss.
    conf = ("benchmark/conf/sweep/quickstart.yaml", "benchmark/conf/published.csv")
    tracks = ("tracks/scenes.tar.xz", "tracks/latents.tar.xz")
    data = ("py.typed", "datasets/sources/imagenet100.txt", *tracks, *conf)
    assert {f"regbench/{name}" for name in data} <= names


def test_sdist_holds_sources_readme_and_license(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
        others = [member.name for member in archive if not (member.isfile() or member.isdir())]
    assert {"LICENSE", "README.md", "pyproject.toml"} <= files
    assert {f"src/{name}" for name in sources()} <= files
    assert others == [], "links would dangle where the sdist is unpacked"


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
def test_lives_beside_hugging_face_datasets(
    kind: str, built: Built, environment: Environment, tmp_path: Path
) -> None:
    python = environment.python
    before = environment.files()
    whose = run([python, "-c", WHOSE_DATASETS], tmp_path)
    assert whose.startswith(str(environment.folder))

    file = getattr(built, kind)
    alone = ("--no-compile", "--no-deps", "--no-index", "--no-build-isolation")
    pip(python, "install", *alone, file, cwd=tmp_path)

    theirs, name, ours, version = run([python, "-c", BOTH], tmp_path).split()
    assert (theirs, name) == (whose.strip(), "load_dataset")
    assert ours.startswith(str(environment.folder))
    assert version == distribution("regbench").version
    assert "Usage: regbench" in run([environment.folder / "bin" / "regbench", "--help"], tmp_path)
    assert run([python, "-c", WHOSE_DATASETS], tmp_path) == whose
    # The repository's root has a folder datasets/ of its own, and `python -c` puts the current
    # folder first.
    assert run([python, "-c", WHOSE_DATASETS], ROOT) == whose

    pip(python, "uninstall", "--yes", "regbench", cwd=tmp_path)
    assert environment.files() == before
    assert run([python, "-c", WHOSE_DATASETS], tmp_path) == whose
