"""The walk-through's plug-ins, each installed as a wheel of its own: together they make a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.settings.compose import PLUG_INS
from regbench.benchmark.settings.listing import listing
from regbench.benchmark.settings.sweep import load_run
from regbench.plugins import own_names
from tests.command import python, run
from tests.conftest import TINY
from tests.plugin import install
from tests.test_documentation import blocks

GROUPS = {"imq": "regbench.methods", "ncm": "regbench.evaluations"}
GROUPS |= {"convnet": "regbench.backbones", "nadam": "regbench.optimizers"}
GROUPS |= {"by_name": "regbench.sources"}
# Of other wheels too: their modules, by the kind of plug-in, and what is wrong with them.
BROKEN = {
    "gone": ("method", "", "ModuleNotFoundError: No module named 'gone_plugin'"),
    "quits": ("method", "import sys; sys.exit('no licence')", "SystemExit: no licence"),
    "untold": (
        "method",
        """
from regbench.methods.base import Metadata, register
from regbench.methods.simclr import SimCLR
from regbench.settings import settings
@register("half")
@settings
class Half(SimCLR): ...
@register("untold")
class Untold(SimCLR):
    metadata = Metadata(title="no url")
""",
        "TypeError: Metadata.__init__() missing",
    ),
    "silent": (
        "method",
        "from regbench.methods.simclr import SimCLR\nclass Silent(SimCLR): ...",
        "RegbenchError: no class of silent_plugin has @register(NAME)",
    ),
    "bare": (
        "method",
        "from regbench.methods.simclr import *\n@register('bare')\nclass Bare(SimCLR): ...",
        "RegbenchError: Bare needs @settings below @register",
    ),
    "unset": (
        "evaluation",
        """
from regbench.benchmark.evaluate.knn import KNN, register
from regbench.settings import settings
@register("unset")
@settings
class Unset(KNN):
    needed: int
""",
        "RegbenchError: the setting needed is missing",
    ),
}
# The module of a sound one is in a package, which the script imports first.
PACKED = """
from regbench.methods.simclr import *
from regbench.settings import settings
@register("packed")
@settings
class Packed(SimCLR): ...
"""
preset = PACKED.replace('"packed"', '"unfit", cold={"temperature": -1}')
BROKEN["unfit"] = ("method", preset, "RegbenchError: temperature=-1 must be a number, above 0")
LONGEST = {"imq": 28, "ncm": 31, "convnet": 17, "nadam": 14, "by_name": 25}


def examples() -> dict[str, str]:
    """The code blocks of the walk-through, by the name that they register."""
    found = {}
    documents = ("docs/tutorials/add_a_regularizer.md", "CONTRIBUTING.md")
    for block in (block for document in documents for block in blocks(document, "python")):
        if match := re.search(r'^@register\("(\w+)"\)', block, re.MULTILINE):
            found[match[1]] = block
    return found


def test_the_examples_are_short() -> None:
    for name, code in examples().items():
        lines = re.sub(r'""".*?"""', "", code, flags=re.DOTALL).splitlines()
        assert len([line for line in lines if line.strip()]) <= LONGEST[name], name


# In one process, because each imports torch.
PREPARE_AND_TRAIN = """
import sys
from pathlib import Path
import packed
from regbench.cli import main
source, settings = sys.argv[1], sys.argv[2:]
prepare = ["prepare", "plants", "--source-dir", source]
of_data = [setting for setting in settings if setting.startswith(("dataset.", "runtime.data_dir", "method="))]
main([*prepare, *of_data], standalone_mode=False)
main(["train", "dataset=plants", *settings], standalone_mode=False)
for broken in ("method=gone_plugin", "method=half", "evaluation.protocols=[unset_plugin]"):
    assert main(["train", "dataset=plants", *settings, broken], standalone_mode=False) == 2
Path(source, "level_000.jpg").rename(Path(source, "stray.jpg"))
main([*prepare, *of_data, "--force"])
"""


def test_plug_ins_of_other_wheels_make_a_run(tiny_source: Path, tmp_path: Path) -> None:
    code, site = examples(), tmp_path / "site"
    assert code.keys() == GROUPS.keys() == LONGEST.keys()
    for name, group in GROUPS.items():
        install(site, f"{name}_plugin", code[name], group)
    for name, (kind, module, _) in BROKEN.items():
        paths = install(site, f"{name}_plugin", module, f"regbench.{kind}s")
    (site / "gone_plugin.py").unlink()
    install(site, "packed", PACKED)
    (site / "packed").mkdir()
    (site / "packed.py").rename(site / "packed" / "inner.py")
    (site / "packed" / "__init__.py").write_text("import packed.inner")
    # The source's preset is the user's; its images are those of the tiny data set.
    preset = tmp_path / "config" / "regbench" / "dataset" / "plants.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(blocks("CONTRIBUTING.md", "yaml")[0])
    folder = tmp_path / "plants"
    folder.mkdir()
    for path in (tiny_source / "train").glob("*/*.jpg"):
        (folder / f"{path.parent.name}_{path.name}").symlink_to(path)
    settings = ["optimizer=nadam"]
    settings += [override for override in TINY if not override.startswith("dataset")]
    settings += ["method=imq", "network.backbone=convnet", "network.backbone.width=24"]
    settings += ["optimizer.base_lr=0.01", "evaluation.protocols=[ncm,retrieval]"]
    settings += ["dataset.source.resize_px=24"]
    settings += [f"runtime.data_dir={tmp_path / 'data'}", f"runtime.runs_dir={tmp_path / 'runs'}"]
    environment = {"PYTHONPATH": paths, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = python(PREPARE_AND_TRAIN, str(folder), *settings, env=os.environ | environment)
    assert done.returncode == 2, done.stderr
    assert "packed" not in done.stderr
    *lines, without_gone, without_half, without_unset, line = done.stderr.splitlines()
    for name, (kind, _, cause) in BROKEN.items():
        (told,) = [line for line in lines if f"{name}_plugin" in line]
        assert told.startswith(f"{kind} '{name}_plugin' cannot be loaded: {cause}")
        assert told.endswith(f"remove it: pip uninstall {name}_plugin; all else goes on without it")
        assert f"entry point of regbench.{kind}s" in told
    gone = "method 'gone_plugin' cannot be loaded: ModuleNotFoundError"
    assert without_gone.startswith(f"regbench: {gone}")
    assert without_half.startswith("regbench: unknown method 'half'")
    why = "evaluation 'unset_plugin' cannot be loaded: RegbenchError: the setting needed"
    assert why in without_unset
    wanted = "mend it, or give another folder, with CLASS_NUMBER.jpg, several of each class"
    assert line.endswith(f" cannot be used: stray.jpg has no class; {wanted}")
    (path,) = (tmp_path / "runs").glob("*/*/record.json")
    record = json.loads(path.read_bytes())
    assert (record["method"], record["cell"]["dataset"]["source"]["separator"]) == ("imq", "_")
    assert record["cell"]["network"]["backbone"] == {"name": "convnet", "width": 24}
    seen = (record["cell"]["optimizer"]["name"], record["cell"]["optimizer"]["weight_decay"])
    assert seen == ("nadam", 0.05)
    scores = {score["name"]: score for score in record["scores"]}
    assert {"ncm_top1", "ncm_top5", "retrieval_recall1", "retrieval_recall10"} <= set(scores)
    assert scores["ncm_top1"]["title"] == "nearest class mean top-1"
    assert scores["ncm_top1"]["value"] > 40  # of three classes
    assert 0 < scores["retrieval_recall1"]["value"] <= scores["retrieval_recall10"]["value"] <= 100


def test_the_names_of_our_plug_ins_are_known_without_their_import() -> None:
    for registry in (*PLUG_INS.values(), EVALUATIONS):
        assert own_names(registry.kind) == registry.names()


# A notebook: a cell that runs twice, and a sweep of a method of its own.
NOTEBOOK = """
import sys
from regbench.benchmark.evaluate.base import register
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.settings.sweep import load_grid, load_run
from regbench.methods.base import register as register_method
from regbench.methods.simclr import SimCLR
from regbench.settings import settings
from regbench.sweeps.local import run_sweep
@register_method("own")
@settings
class VICReg(SimCLR): pass
load_run([])  # imports another class of this name
def define(default):
    @register("mine")
    @settings
    class Mine(KNN):
        extra: int = default
for default in (1, 2):
    define(default)
    found, _ = load_run(["evaluation.protocols=[mine]", "evaluation.mine.k=3"])
    assert (found.evaluation["mine"].extra, found.evaluation["mine"].k) == (default, 3)
run_sweep(load_grid(["method=own", f"runtime.runs_dir={sys.argv[1]}"]))
"""


def test_a_plug_in_of_a_notebook_is_registered_again_in_its_process_alone(
    tmp_path: Path,
) -> None:
    done = python(NOTEBOOK, str(tmp_path))
    *_, said = done.stderr.splitlines()
    assert said.endswith(
        "VICReg is defined in the script that calls, and cells run in other processes: make it an "
        "entry point of a package, or train it by regbench.train"
    )


# What each job of a sweep begins with, in the process that jobs are forked from.
READ_A_CELL = """
import json, sys
import regbench.sweeps.preload
from regbench.benchmark.settings.cell import Cell
before = {*sys.modules}
Cell.stored(json.loads(sys.argv[1]))
print(*[name for name in sys.modules if name not in before and name.startswith("regbench.")])
"""


def test_the_fork_server_of_a_sweep_has_imported_what_reads_a_cell() -> None:
    cell, _ = load_run(TINY)
    done = python(READ_A_CELL, json.dumps(cell.plain()), check=True)
    assert done.stdout.split() == []


REFUSALS = {
    "train method=vicregg": "unknown method 'vicregg'; did you mean vicreg",
    "train method=vicreg,SimCLR": "unknown method 'SimCLR'; did you mean simclr?",
    "sweep quickstart network.backbone=resnet-50": "unknown backbone 'resnet-50'; did "
    "you mean resnet50",
    "tune quickstart_tuning optimizer=adamv": "unknown optimizer 'adamv'; did you mean adam",
    "prepare imagefolder dataset.source=ImageFolder": "unknown source 'ImageFolder'; did "
    "you mean imagefolder",
    "train evaluation.protocols=[knn,probes]": "evaluation.protocols: unknown evaluation 'probes'; did "
    "you mean probe",
    "evaluate runs/a/b --only kn": "--only: unknown evaluation 'kn'; did you mean knn",
}
# Here the import of torch fails.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from regbench.cli import main
for command in sys.argv[1:]:
    assert main(command.split(), standalone_mode=False) == 2
"""


def test_a_name_is_refused_before_torch_is_imported() -> None:
    done = python(WITHOUT_TORCH, *REFUSALS)
    assert done.returncode == 0, done.stderr
    for line, refusal in zip(done.stderr.splitlines(), REFUSALS.values(), strict=True):
        assert line.startswith(f"regbench: {refusal}")


def test_every_setting_of_a_cell_is_listed_with_its_meaning() -> None:
    listed = {setting.name: setting for _, found in listing() for setting in found}
    names = {*(f"evaluation.{name}" for name in EVALUATIONS.names()), "method"}
    cell, _ = load_run([f"evaluation.protocols=[{','.join(EVALUATIONS.names())}]"])

    def leaves(node: object, path: str) -> list[str]:
        if not isinstance(node, dict) or (path in names and not node):
            return [path]
        found = []
        for key, value in node.items():
            found += leaves(value, f"{path}.{key}" if path else key)
        return found

    plain = cell.plain()
    del plain["method"]
    of_plug_ins = {"optimizer.name", "network.backbone.name", "dataset.source.name"}
    wanted = set()
    for leaf in leaves(plain, ""):
        if leaf not in of_plug_ins and ".dataset." not in leaf:
            wanted.add(re.sub(r"views\.view\d", "views.KIND", leaf))
    assert wanted <= set(listed)
    assert all(setting.meaning and setting.kind for setting in listed.values())
    assert listed["evaluation.places205.epochs"].default == "28"
    words = run("settings", "runtime.lease").output.split()
    assert words[:4] == ["runtime", "runtime.lease_s", "=", "60.0"]
    assert run("settings", "nothing").exit_code == 2
