"""Overrides in, cells out: identity, round trips, refusals, sweeps."""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml

from regbench import RegbenchError, methods
from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.evaluate.base import EVALUATIONS
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.linear import LinearProbe
from regbench.benchmark.settings.architecture import needed_settings
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.compose import Composer
from regbench.benchmark.settings.preset_tree import config_folder
from regbench.benchmark.settings.presets import sweep_names
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.stored import load_config
from regbench.benchmark.settings.sweep import load_grid, load_run, load_sweep
from regbench.benchmark.training.optimizers.lars import LARSConfig
from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.reports.bundle.bundle import read_bundle
from regbench.settings import from_plain, settings
from regbench.sweeps.search import propose
from regbench.tracks.expected import SHIPPED
from tests.refusals import is_refused
from tests.sweep_file import write_sweep


@functools.cache
def cell_of(*overrides: str) -> Cell:
    return load_run(list(overrides))[0]


def refusal(*overrides: str) -> str:
    with is_refused(".") as caught:
        load_run(list(overrides))
    return str(caught.value)


# ------------------------------------------------------------------ identity


def test_an_id_is_a_digest_of_the_settings_that_no_process_or_order_changes() -> None:
    def reverse(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {key: reverse(node[key]) for key in reversed(node)}

    cell = cell_of("method=vicreg", "micro_batch_size=64")
    written = json.dumps(cell.plain(), sort_keys=True, separators=(",", ":"))
    assert cell.id == hashlib.sha256(written.encode()).hexdigest()[:12]
    assert list(reverse(cell.plain())) != list(cell.plain())
    assert Cell.stored(reverse(cell.plain())).id == cell.id


def test_the_same_settings_written_otherwise_are_the_same_cell() -> None:
    for first, second in (
        ("method=vicreg seed=3 epochs=7", "epochs=7 method=vicreg seed=3"),
        ("method.alignment_weight=4000", "method.alignment_weight=4000.0"),
        (
            "optimizer.base_lr=1 optimizer.warmup_epochs=1.0",
            "optimizer.base_lr=1.0 optimizer.warmup_epochs=1",
        ),
        ("method=sfrik_l2", "method=sfrik method.weights=[1,20] method.alignment_weight=2e3"),
        ("method=sfrik_l2", "method=sfrik method.weights=[1,20,0] method.alignment_weight=2000"),
        ("method=sfrik_l1", "method=sfrik_l2 method.weights=[1.0] method.alignment_weight=10000"),
        ("", "method=sfrik method.weights=[1,40,40] dataset=fashion_mnist seed=0"),
        ("evaluation.probe.learning_rates=[1,2]", "evaluation.probe.learning_rates=[1.0,2.0]"),
    ):
        assert cell_of(*first.split()) == cell_of(*second.split())
        assert cell_of(*first.split()).id == cell_of(*second.split()).id


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each setting with its path."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, node


OTHERS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("other_values.yaml").read_text())


def another(path: tuple[str, ...], old: Any) -> Any:
    """Another value of the setting; None where there is none."""
    for number in range(len(path)):
        if (name := ".".join(path[number:])) in OTHERS:
            return OTHERS[name]
    if isinstance(old, list):
        return [another(path, old[0]), *old[1:]] if old else [3]
    if isinstance(old, bool):
        return not old
    if isinstance(old, float):
        return old / 2 if old else 0.1
    return old + "x" if isinstance(old, str) else old + 1


def parent(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The group that has the setting of this path."""
    node = data
    for key in path[:-1]:
        node = node[key]
    return node


def with_value(cell: Cell, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    data: dict[str, Any] = copy.deepcopy(cell.plain())
    parent(data, path)[path[-1]] = value
    return data


BASE = load_run(["method=sfrik"])[0]
ALL = load_run(["method=sfrik", f"evaluation.protocols=[{','.join(EVALUATIONS.names())}]"])[0]


def test_every_setting_is_part_of_the_id() -> None:
    for path, old in leaves(ALL.plain()):
        # Of the data sets of further evaluations the name will do: they are the same class as the
        # first.
        if path[2:3] == ("dataset",) and path[3:] not in ((), ("name",)):
            continue
        if (value := another(path, old)) is not None:
            assert value != old, path
            other = Cell.stored(with_value(ALL, path, value))
            assert other != ALL, path
            assert other.id != ALL.id, path


# Settings that decide nothing beside method=sfrik, and others that each make another cell.
DECIDING_NOTHING = (
    *("evaluation.voc07.folds=5", "network.checkpointing=false", "evaluation.precision=fp32"),
    *("evaluation.while_training=[]", "dataset.shared_bits=0"),
)
DECIDING = Path(__file__).with_name("deciding.txt").read_text().splitlines()


def test_what_decides_something_is_part_of_the_id_and_nothing_else() -> None:
    for overrides in DECIDING_NOTHING:
        assert cell_of("method=sfrik", overrides).plain() == BASE.plain()
    cells = [BASE, *(cell_of("method=sfrik", *overrides.split()) for overrides in DECIDING)]
    assert len({cell.id for cell in cells}) == len(cells)
    assert [Cell.stored(cell.plain()) for cell in cells] == cells
    assert set(BASE.plain()["evaluation"]) == {
        *("protocols", "select_on", "select_by", "batch_size"),
        *BASE.evaluation.protocols,
    }


def test_the_runtime_is_not_part_of_the_id() -> None:
    other = {"data_dir": "/elsewhere", "runs_dir": "/there", "device": "cpu", "threads": 3}
    other |= {"loader": "torchvision", "workers": 7, "parallel": 2}
    cell, runtime = load_run([f"runtime.{name}={value}" for name, value in other.items()])
    assert cell.id == BASE.id
    assert {name: getattr(runtime, name) for name in other} == other


def test_the_runtime_folders_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGBENCH_DATA_DIR", "/big/data")
    monkeypatch.setenv("REGBENCH_RUNS_DIR", "/big/runs")
    runtime = load_run([])[1]
    assert (runtime.data_dir, runtime.runs_dir) == ("/big/data", "/big/runs")
    for name in ("REGBENCH_DATA_DIR", "REGBENCH_RUNS_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "")  # which is as good as not at all
    runtime = load_run([])[1]
    assert (runtime.data_dir, runtime.runs_dir) == ("data", "runs")
    assert config_folder() == Path.home() / ".config" / "regbench"


# ------------------------------------------------------------------ round trips


def test_cells_survive_json_and_yaml() -> None:
    for name in methods.names():
        method = methods.build(name)
        cell = cell_of("evaluation.probe.learning_rates=[0.5]", *needed_settings(method))
        cell = replace(cell, method=method)
        assert Cell.stored(cell.plain()) == cell
        through_json = json.loads(json.dumps(cell.plain()))
        through_yaml = yaml.safe_load(yaml.safe_dump(through_json))
        assert Cell.stored(through_json) == Cell.stored(through_yaml) == cell
        assert Cell.stored(through_json).id == cell.id


def test_a_stored_cell_does_not_depend_on_the_defaults_of_today() -> None:
    for path, _ in leaves(BASE.plain()):
        data = BASE.plain()
        del parent(data, path)[path[-1]]
        with pytest.raises(RegbenchError):
            Cell.stored(data)


def test_what_plain_data_leave_out_of_a_preset_has_the_defaults_of_the_preset() -> None:
    cell = cell_of("evaluation.protocols=[labels10]")
    data = cell.plain()
    del data["evaluation"]["labels10"]
    assert Cell.from_plain(data) == cell


def test_a_stored_cell_with_what_is_unknown_or_wrong_is_refused() -> None:
    changes: dict[str, dict[str, Any]] = {
        "epoch": {"epoch": 3},
        "epochs": {"epochs": "3"},
        "with the optimizer's name": {"optimizer": {"warmup_epochs": 1.0}},
        "temperature": {"method": {"name": "sfrik", "temperature": 1.0}},
        "weights": {"method": {"name": "sfrik", "weights": ["a"]}},
        "did you mean": {"method": {"name": "sfric"}},
    }
    for message, change in changes.items():
        with is_refused(message):
            Cell.stored({**BASE.plain(), **change})


def test_an_untrained_cell_of_a_sweep_stays_untrained_whatever_epochs_are_given() -> None:
    default, longer = load_sweep("quickstart"), load_sweep("quickstart", ["epochs=7"])
    assert [cell.label for cell in longer.cells] == [cell.label for cell in default.cells]
    untrained = [cell for cell in default.cells if not cell.epochs]
    assert [cell for cell in longer.cells if not cell.epochs] == untrained
    assert {cell.epochs for cell in longer.cells} == {0, 7}


def test_the_config_of_a_run_directory_gives_its_cell_back(tmp_path: Path) -> None:
    cell = cell_of("method=sfrik_l2", "seed=4", "evaluation.knn.k=7")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(cell.plain()))))
    same, runtime = load_config(path, ["runtime.data_dir=/data7"])
    assert same == cell
    assert runtime.data_dir == "/data7"
    changes = ["evaluation.knn.k=3", "method.weights=[2,1]", "optimizer.base_lr=2"]
    other, _ = load_config(path, changes)
    assert other.plain()["evaluation"]["knn"]["k"] == 3
    assert other.method == methods.build("sfrik", weights=(2.0, 1.0), alignment_weight=2000.0)
    assert other.optimizer.base_lr == 2
    watched, _ = load_config(path, ["evaluation.while_training=[knn]"])  # which the file leaves out
    assert watched.evaluation.while_training == ("knn",)
    with is_refused(r"evaluation\.knn\.kk"):
        load_config(path, ["evaluation.knn.kk=3"])


def test_a_setting_of_a_source_can_be_given(tmp_path: Path) -> None:
    cell = cell_of("method=sfrik_l2", "dataset=in20")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(cell.plain()))
    given = ("dataset.source.resize_px=256", "dataset.name=in20_256")
    smaller, _ = load_config(path, given)
    expected = ImageFolder(resize_px=256, train_per_class=260, tuning_per_class=260)
    assert smaller.dataset.source == expected
    assert smaller.id == cell_of("method=sfrik_l2", "dataset=in20", *given).id


# ------------------------------------------------------------------ refusals


def table(name: str) -> list[tuple[str, str]]:
    """Read what is given, and what the refusal of that begins with or holds, a tab between
    them.
    """
    lines = Path(__file__).with_name(name).read_text().splitlines()
    pairs = (line.partition("\t") for line in lines)
    return [(given.replace("\\n", "\n"), message) for given, _, message in pairs]


def test_refusals_say_in_one_line_what_is_wanted() -> None:
    wrong = []
    for given, message in table("refusals.txt"):
        said = refusal(*given.split("  "))  # an override may hold one blank
        if not said.startswith(message):
            wrong.append((given, said))
    assert not wrong


def test_a_state_without_a_teacher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.methods.simclr.SimCLR.target_transform", lambda *_: "a state")
    load_run(["method=simclr", "network.teacher=stop_gradient"])
    said = refusal("method=simclr")
    assert re.match("the target_transform of SimCLR, .* without effect with network.teacher", said)


class Colour(enum.Enum):
    RED = "red"


@settings
class Member:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be\nnegative")


@settings
class Varied:
    """Fields of every kind that a plug-in may have."""

    scale: float = 1.0
    powers: list[float] = field(default_factory=list)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    members: tuple[Member, ...] = ()
    names: frozenset[str] = frozenset()
    path: Path | None = None
    colour: Colour = Colour.RED
    member: Member | None = None
    table: ClassVar[dict[str, int]] = {}


def test_settings_of_every_type_are_made_of_plain_data() -> None:
    values: dict[str, tuple[Any, Any]] = {
        "scale": (np.float64(0.3), 0.3),
        "powers": ([1.0, 2.0], [1.0, 2.0]),
        "sizes": ({1: [1, 2]}, {"1": (1, 2)}),
        "members": ([{"size": 2}], (Member(size=2),)),
        "names": (["a", "b"], frozenset("ab")),
        "path": ("/a", Path("/a")),
        "colour": ("red", Colour.RED),
        "member": ({"size": 2}, Member(size=2)),
    }
    for name, (data, expected) in values.items():
        for given in (data, expected):
            made = getattr(from_plain(Varied, {name: given}), name)
            assert (made, type(made)) == (expected, type(expected)), name
    composed = Composer(prepared=False).compose(["cluster.extra={1: 2}"])
    assert composed.cluster.extra == {"1": 2}


def test_refusals_of_classes_and_answers_are_one_line() -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"member": {"size": -1}}, "p.member={size: -1} size must not be negative"),
        ({"powers": [1, "x"]}, "p.powers=[1,x] must be "),
        ({"members": {"size": 1}}, "p.members={size: 1} must be a list of "),
        ({"table": {}}, "unknown setting 'p.table'"),
    )
    for data, message in refused:
        with is_refused(f"^{re.escape(message)}"):
            from_plain(Varied, data, "p.")
    with is_refused(r"^Member=\{size: -1\} size must not be negative$"):
        Member(size=-1)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    answers: tuple[tuple[dict[str, Any], str], ...] = (
        ({"scale": "\ud800"}, r"own: scale=\\ud800 must be a number"),
        ({"powers": deep}, r"own: powers=\[+…"),
        ({"scale": 2**64}, f"own: scale={2**64} must be below"),
        ({"member": {"size": 1, "extra": 2}}, "unknown setting 'own: member.extra'"),
        ({"extra": 2}, "unknown setting 'own: extra'"),
    )
    for data, pattern in answers:
        with is_refused(f"^{pattern}"):
            from_plain(Varied, data, "own: ")


def numbers(cell: Cell) -> list[tuple[tuple[str, ...], Any]]:
    """Each number of a cell, or list of numbers, with its path."""
    found = []
    for path, value in leaves(cell.plain()):
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int | float) and not isinstance(first, bool):
            found.append((path, value))
    return found


def impossible(cell: Cell, path: tuple[str, ...], old: Any) -> Iterator[dict[str, Any]]:
    """The cell with numbers at that place that cannot be."""
    first = old[0] if isinstance(old, list) else old
    # Of a channel, of RDMReg's normal distribution, and the exponent of Riesz' kernel: any sign.
    signed = path[-1] in ("mean", "shift") or "riesz" in cell.plain()["method"].values()
    for wrong in (float("nan"), float("inf"), -1.0) if isinstance(first, float) else (10**20, -1):
        if wrong != -1 or not signed:
            yield with_value(cell, path, [wrong] * len(old) if isinstance(old, list) else wrong)


def test_no_number_of_a_cell_may_be_impossible() -> None:
    places = [(ALL, *node) for node in numbers(ALL)]
    for name in methods.names():
        cell = cell_of(f"method={name}", *needed_settings(methods.build(name)))
        places += [(cell, *node) for node in numbers(cell) if node[0][0] == "method"]
    for cell, path, old in places:
        for data in impossible(cell, path, old):
            with is_refused(re.escape(path[-1])):
                Cell.stored(data)


def test_a_config_that_is_no_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    contents = {
        b"": "holds no settings",
        b"- a\n- b\n": "holds no settings",
        b"a: [1\n": "is not YAML: look at line 2",
        b"\x89PNG\xff\x00": "is not YAML",
        b"[" * 5000: "is not YAML",
        b"description: x\ncells: [seed=0]\n": "is no config.yaml of a run of this version: ",
        b"method: {name: vicreg}\n": "the setting dataset is missing",
        b"method: vicreg\n": "method=vicreg must be a group of settings",
        b"method: {name: [1]}\n": "must be a group of settings with the method's name",
    }
    for content, message in contents.items():
        path.write_bytes(content)
        with is_refused(re.escape(message)) as caught:
            load_config(path)
        assert str(caught.value).startswith(str(path))
    for name in ("evaluation", "optimizer", "dataset"):
        for wrong in (None, 3, [1], "x", {"protocols": 7}):
            path.write_text(yaml.safe_dump({**BASE.plain(), name: wrong}))
            with is_refused(name):
                load_config(path)


def test_changes_of_a_config_are_refused_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(BASE.plain()))
    changes = {
        "evaluation.knn.kk=3": "unknown setting 'evaluation.knn.kk'; did "
        "you mean evaluation.knn.k,",
        "method=vicreg": "method=vicreg: give single settings of this run, such as method.",
        "evaluation.knn=3": "evaluation.knn=3: give single settings of this run, "
        "such as evaluation.knn.",
        "seed": "cannot read 'seed'; write key=value",
        "evaluation.probe.learning_rates=[1": "cannot read "
        "'evaluation.probe.learning_rates=[1'; write key=value",
        "seed=${nothing}": "seed: ",
    }
    for change, message in changes.items():
        with is_refused(re.escape(message)):
            load_config(path, [change])


def test_a_hyperparameter_of_another_method_is_refused_with_those_there_are() -> None:
    assert "method.alignment_weight" in refusal("method=vicreg", "method.alignment_weigth=3")
    _, _, meant = refusal("method=vicreg", "method.weights=[1]").rpartition("did you mean")
    assert "method.weights" not in meant


# ------------------------------------------------------------------ sweeps


preset = functools.cache(load_sweep)


def test_presets_load() -> None:
    for name, description in sweep_names().items():
        if name in ("latents_family", "latents_tuning", "pitch_heuristics", "pitch_tuning"):
            sweep = propose(name, (), 9).sweep
        else:
            sweep = preset(name)
        assert (sweep.name, sweep.description) == (name, description)
        assert len(sweep.cells) == len({cell.id for cell in sweep.cells}) > 0
    for name, rows in (("in20_table2", 18), ("in20_table3", 3), ("in100_table4", 7)):
        assert len(preset(name).cells) == rows  # those of the paper's table


def test_quickstart_holds_every_loss_of_the_paper_and_the_baselines() -> None:
    # The generalized distance is the loss of SFRIK (L=1).
    cells = preset("quickstart").cells
    assert {cell.label for cell in cells} == {
        *("untrained", "raw pixels", "PCA of pixels", "HOG", "random patches", "supervised"),
        *("SFRIK (L=1)", "SFRIK (L=2)", "SFRIK (L=3)"),
        *("RBF kernel", "AUH", "SimCLR", "VICReg"),
    }
    # A comparison: beside the method, nothing differs among the trained cells.
    trained = [cell for cell in cells if cell.is_method]
    assert len({replace(cell, method=methods.build("sfrik")).id for cell in trained}) == 1


def test_the_quickstart_has_the_weights_that_the_first_search_of_the_pitch_chose() -> None:
    chosen = {}
    for record in read_bundle(SHIPPED["quickstart"]).records:
        is_method = record.cell["epochs"] and not record.cell.get("baseline")
        if is_method and record.search == 0 and record.status == "done":
            chosen[record.label] = record.cell["method"]
    trained = [cell for cell in preset("quickstart").cells if cell.is_method]
    assert {cell.label: cell.plain()["method"] for cell in trained} == chosen


def test_table_2_is_that_of_the_papers_appendix() -> None:
    """Its lines hold the method, q, hyperparameters, base_lr and lr_head."""
    for line in Path(__file__).with_name("table_2.txt").read_text().splitlines():
        method, q, hyperparameters, base_lr, lr_head = line.split()
        settings = re.findall(r"\w+=(?:\[.*?\]|[^,]+)", hyperparameters)
        wanted = cell_of(f"method={method}", *(f"method.{setting}" for setting in settings)).method
        cells = [c for c in preset("in20_table2").cells if c.method == wanted]
        (cell,) = [c for c in cells if c.embedding_dim == int(q)]
        probe: Any = cell.evaluation["probe"]
        found = cell.optimizer.base_lr, probe.learning_rates
        assert found == (float(base_lr), (float(lr_head),))


def test_the_papers_protocol_on_in20() -> None:
    for cell in (*preset("in20_table2").cells, *preset("in20_table3").cells):
        assert (cell.batch_size, cell.epochs, cell.optimizer.warmup_epochs) == (2048, 100, 10)
        lars = LARSConfig(base_lr=cell.optimizer.base_lr, warmup_epochs=10.0)
        assert cell.optimizer == lars
        seen = (lars.weight_decay, lars.momentum, lars.trust_coefficient, lars.final_lr_fraction)
        assert seen == (1e-6, 0.9, 0.001, 0.001)
        assert cell.network.backbone == BACKBONES.build("resnet18")
        assert cell.network.projector.hidden_dim is None
        assert cell.dataset.source == ImageFolder(train_per_class=260, tuning_per_class=260)
        assert (cell.dataset.image_size, cell.dataset.eval_resize) == (224, 256)
        probe, knn = cell.evaluation["probe"], cell.evaluation["knn"]
        assert isinstance(probe, LinearProbe) and isinstance(knn, KNN)
        of_probe = (probe.features, probe.epochs, probe.batch_size, probe.momentum)
        assert of_probe == ("augmented", 100, 256, 0.9)
        assert (knn.k, knn.temperature) == (20, 0.07)
        views = tuple(cell.augmentation.views.values())
        assert [(view.blur_p, view.solarize_p) for view in views] == [(0.1, 0.2), (1.0, 0.0)]
        jitter = {(view.jitter_p, view.brightness, view.saturation, view.hue) for view in views}
        assert jitter == {(0.8, 0.4, 0.2, 0.1)}


def test_further_evaluations_have_the_papers_settings() -> None:
    """Of its Tables 11 and 12, and of its appendix on Places205."""
    evaluation = cell_of("evaluation.protocols=[labels1,labels10,places205]").evaluation
    for name, rates in {"labels1": (0.004, 1.6), "labels10": (0.02, 0.4)}.items():
        own: Any = evaluation[name]
        assert (own.backbone_learning_rates, own.head_learning_rates) == ((rates[0],), (rates[1],))
        assert own.dataset.name == f"in100_{name}"
    places: Any = evaluation["places205"]
    seen = (places.features, places.learning_rates, places.weight_decay)
    assert seen == ("augmented", (0.01,), 0.0001)
    assert (places.epochs, places.milestones, places.batch_norm) == (28, (10, 20), True)


def test_commas_multiply_the_cells() -> None:
    sweep = load_sweep("in20_table3", ["seed=0,1", "embedding_dim=1024,2048,4096"])
    assert len(sweep.cells) == 3 * 2 * 3
    found = {(cell.seed, cell.embedding_dim) for cell in sweep.cells}
    assert found == {(s, q) for s in (0, 1) for q in (1024, 2048, 4096)}


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_overrides_replace_what_the_file_says(tmp_path: Path) -> None:
    rows = "description: x\ncommon: [epochs=4 seed=1]\ncells: [method=sfrik, method=rbf epochs=6]\n"
    name = write(tmp_path / "own.yaml", rows)
    sweep = load_sweep(name, ["method=vicreg", "epochs=3", "runtime.threads=5"])
    assert sweep.runtime.threads == 5
    (cell,) = sweep.cells  # both lines have become one cell
    assert (cell.label, cell.epochs, cell.seed) == ("VICReg", 3, 1)


def test_cells_share_the_settings_that_they_have_alike() -> None:
    """So that thousands of cells are made quickly, and do not each hold all settings."""
    several = ("method=vicreg,rbf", "optimizer.base_lr=1,2", "seed=0,1")
    grid = load_grid([*several, "dataset=cifar10", "evaluation.knn.k=9"])
    assert len(grid.cells) == 8
    numbers = {"dataset": 1, "augmentation": 1, "evaluation": 1, "method": 2, "optimizer": 2}
    for name, different in numbers.items():
        assert len({id(getattr(cell, name)) for cell in grid.cells}) == different


def test_a_sweep_of_ones_own(tmp_path: Path) -> None:
    common = ["dataset=cifar10 augmentation=small_color", "seed=0,1"]
    cells = ["method=sfrik_l1,sfrik_l2 embedding_dim=64,128"]
    cells.append("method=vicreg method.variance_weight=3 seed=5")
    sweep = load_sweep(str(write_sweep(tmp_path / "widths.yaml", common, cells)))
    assert (sweep.name, sweep.description, len(sweep.cells)) == ("widths", "My own", 9)
    assert sweep.cells[-1].seed == 5
    assert sweep.cells[-1].method == methods.build("vicreg", variance_weight=3.0)
    assert {cell.dataset.name for cell in sweep.cells} == {"cifar10"}


def test_a_damaged_sweep_file_is_refused_in_one_line(tmp_path: Path) -> None:
    for text, message in table("damaged_sweeps.txt"):
        with is_refused(re.escape(message)):
            load_sweep(write(tmp_path / "own.yaml", text))
    with is_refused(r"my sweep.yaml: name=my sweep must be a name of 1 to 100 letters"):
        load_sweep(write(tmp_path / "my sweep.yaml", "description: x\ncells: [seed=0]\n"))
    (tmp_path / "own.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with is_refused(r"own\.yaml"):
        load_sweep(str(tmp_path / "own.yaml"))


MANY = (
    "method=vicreg seed=range(0,10000) optimizer.base_lr=range(1,10001)",
    "method=vicreg seed=range(0,1000000000)",
    "method=vicreg seed=shuffle(range(0,1000000000))",
    "method=vicreg optimizer.base_lr=range(0,inf)",
    "method=vicreg seed=" + ",".join(map(str, range(100_000, 120_000))),
    "method=vicreg seed=0,1,2,3,4,5,6,7,8,9,10 runtime.max_cells=10",
    "method=vicreg,simclr,rbf seed=0,1,2,3 runtime.max_cells=11",
)


@pytest.mark.parametrize("line", MANY, ids=lambda line: line[:60])
def test_more_cells_than_anybody_can_mean_are_refused(line: str, tmp_path: Path) -> None:
    file = write(tmp_path / "own.yaml", f"description: x\ncells: ['{line}']\n")
    reason = r"more cells than runtime.max_cells=1\d+; ask for fewer, or raise it"
    for grid in (lambda: load_sweep(file), lambda: load_grid(line.split())):
        with is_refused(reason) as no:
            grid()
        assert len(str(no.value)) < 300


def test_the_lines_of_a_sweep_are_counted_together(tmp_path: Path) -> None:
    lines = "".join(f"  - method=vicreg,simclr seed={seed}\n" for seed in range(4))
    file = write(tmp_path / "own.yaml", f"description: x\ncells:\n{lines}")
    assert len(load_sweep(file, ["runtime.max_cells=8"]).cells) == 8
    for most, what in ((7, "sweep own"), (3, "own.yaml: cells")):
        with is_refused(f"{what}: more cells than runtime.max_cells={most};"):
            load_sweep(file, [f"runtime.max_cells={most}"])


def test_brackets_that_would_overflow_the_parser_are_refused() -> None:
    with is_refused("…: brackets are nested too deeply"):
        load_grid([f"seed={5_000 * '['}"])


def test_a_sweep_file_needs_nothing_in_common(tmp_path: Path) -> None:
    for common in ("", "common:\n", "common: []\n"):
        text = f"description: x\n{common}cells: [seed=3]\nfinal_seeds: [4]\n"
        sweep = load_sweep(write(tmp_path / "own.yaml", text))
        assert [cell.seed for cell in sweep.cells] == [3]
        assert sweep.final_seeds == (4,)


def test_epochs_of_many_views_are_fewer_where_passes_are_to_be_equal(tmp_path: Path) -> None:
    for equal, epochs in (("", [8, 8]), ("equal: images\n", [8, 8]), ("equal: passes\n", [8, 2])):
        cells = "cells: [epochs=8, epochs=8 augmentation=small_grey_crops]\n"
        sweep = load_sweep(write(tmp_path / "own.yaml", f"description: x\n{equal}{cells}"))
        assert [cell.epochs for cell in sweep.cells] == epochs
    file = str(tmp_path / "own.yaml")
    (_, short) = load_sweep(file, ["epochs=4"]).cells
    assert (short.epochs, short.optimizer.warmup_epochs) == (1, 0.5)
    reason = "equal: passes gives 8 views 1/4 of epochs=10, which is not a whole number"
    with is_refused(f"{reason}; choose a multiple of 4"):
        load_sweep(file, ["epochs=10"])
    # Two views of the network with a gradient, and two of the teacher without: a third of a pass
    # each. Of eight views, the teacher sees the two global ones.
    for views, given, expected in (("small_grey", 8, 6), ("small_grey_crops", 13, 3)):
        overrides = [f"epochs={given}", f"augmentation={views}", "network.teacher=ema"]
        (cell,) = load_sweep(file, overrides).cells
        assert cell.epochs == expected


def test_an_unknown_sweep_is_refused_with_those_there_are() -> None:
    with is_refused(r"no sweep named 'quikstart'; known: .*quickstart.*\.yaml"):
        load_sweep("quikstart")
    with is_refused(r"/nowhere/own\.yaml cannot be read: No such file"):
        load_sweep("/nowhere/own.yaml")


def test_another_method_drops_the_hyperparameters_of_the_row() -> None:
    sweep = load_sweep("quickstart", ["method=auh", "method.scale=3"])
    trained = [cell for cell in sweep.cells if cell.epochs and cell.baseline is None]
    assert [cell.method for cell in trained] == [methods.build("auh", scale=3.0)]
    assert len(sweep.cells) == 7  # beside what no method changes


@pytest.mark.parametrize(
    ("common", "cells", "said"),
    [
        ("dataset.train_per_class=10", "dataset=digits", "dataset=digits stands after dataset.tr"),
        ("epochs=1", "method.temperature=1 method=simclr", "method=simclr stands after method.te"),
        ("network.teacher=ema network=resnet18", "method=byol", "write network.teacher after it"),
    ],
)
def test_a_files_line_drops_no_setting(common: str, cells: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path / "own.yaml", f"description: x\ncommon: [{common}]\ncells: [{cells}]\n")
    with is_refused(said):
        load_sweep(file)


def test_settings_may_be_given_as_a_mapping() -> None:
    """Nothing is then chosen in their place, to fit the epochs or the images."""
    cell, _ = load_run(["method={name:sfrik_l1,alignment_weight:5}"])
    assert cell.method == methods.build("sfrik_l1", alignment_weight=5.0)
    cell, _ = load_run(["epochs=4", "optimizer={warmup_epochs:3}"])
    assert cell.optimizer.warmup_epochs == 3
    cell, _ = load_run(["dataset=latents", "evaluation={protocols:[measures]}"])
    assert cell.evaluation.protocols == ("measures",)
    for two in (["optimizer=sgd", "optimizer={base_lr:3}"], ["evaluation={select_by:[knn]}"] * 2):
        with is_refused("would take the place of .*NAME=VALUE"):
            load_run(two)


def test_untrained_networks_are_one_cell_whatever_the_method() -> None:
    untrained = ["epochs=0", "dataset=cifar10", "evaluation.protocols=[knn,probe]"]
    one, _ = load_run([*untrained, "method=vicreg", "optimizer.base_lr=3"])
    other, _ = load_run([*untrained, "method=auh", "augmentation=small_color"])
    assert one.id == other.id
    assert one.id != load_run([*untrained, "seed=1"])[0].id


# ------------------------------------------------------------------ clusters


def test_a_profile_of_ones_own_and_settings_of_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "o'brien, müller (x)"  # which may have any name
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    profile = home / "regbench" / "cluster" / "mine.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("defaults: [slurm]\npartition: gpu\ngpus: 4\nmodules: [cuda]\n")
    file = tmp_path / "own.yaml"
    file.write_text("description: x\ncells: [method=vicreg, method=simclr cluster.nodes=2]\n")
    sweep = load_sweep(str(file), ["cluster=mine", "cluster.time_minutes=60"])
    assert sweep.scheduler == "slurm"
    first, second = sweep.clusters
    seen = (first.partition, first.gpus, first.modules, first.time_minutes)
    assert seen == ("gpu", 4, ("cuda",), 60)
    assert (first.nodes, second.nodes) == (1, 2)
    assert (first.processes, second.processes) == (4, 8)
    # Where it runs is no part of a cell.
    assert sweep.cells[0].id == load_run(["method=vicreg"])[0].id
    # What was read before does not count.
    profile.write_text("defaults: [slurm]\npartition: large\n")
    assert load_sweep(str(file), ["cluster=mine"]).clusters[0].partition == "large"
    with is_refused("unknown cluster 'yours'; known: local, mine, slurm"):
        load_run(["cluster=yours"])


def test_a_profile_may_build_on_one_of_ones_own_and_on_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GROUP", "vision")
    folder = tmp_path / "regbench" / "cluster"
    folder.mkdir(parents=True)
    ours = "account: ${oc.env:GROUP}\nmem_gib: 6e1\nextra: {nice: 5}\n"
    mine = "mem_gib: 64.5\nextra: {reservation: paper}\n"
    write(folder / "ours.yaml", f"defaults: [slurm, _self_]\n{ours}")
    write(folder / "mine.yaml", f"defaults: [ours, _self_]\n{mine}")
    both = {"nice": 5, "reservation": "paper"}
    for name, mem_gib, extra in (("ours", 60, {"nice": 5}), ("mine", 64.5, both)):
        (cluster,) = load_grid([f"cluster={name}"]).clusters
        seen = (cluster.scheduler, cluster.account, cluster.mem_gib, cluster.extra)
        assert seen == ("slurm", "vision", mem_gib, extra)
    for text, message in (
        ("defaults: [nowhere]\n", "wrong.yaml cannot be used: In 'cluster/wrong'"),
        ("partition: gpu\n", "cluster.scheduler"),
        ("account: ${oc.env:NOBODY_SET_THIS}\n", "NOBODY_SET_THIS"),
        ("account: ${\n", "wrong.yaml cannot be used"),
    ):
        (folder / "wrong.yaml").write_text(text)
        assert message in refusal("cluster=wrong")
    folder.with_name("dataset").mkdir()
    write(folder.with_name("dataset") / "wrong.yaml", "defaults: [nowhere]\n")
    said = refusal("cluster=mine", "dataset=wrong")
    assert "dataset/wrong.yaml" in said and "mine.yaml" not in said


def test_stages_have_resources_of_their_own() -> None:
    stages = "cluster.stages={pretrain: {}, tune: {gpus: 1}, final: {gpus: 1, cpus: 3}}"
    (cluster,) = load_sweep("quickstart", ["cluster=slurm", "cluster.gpus=8", stages]).clusters[:1]
    assert [cluster.at(stage).gpus for stage in STAGES] == [8, 1, 1]
    assert cluster.at("final").cpus == 3
