"""Whole reports of made sweeps against files that somebody has read.

Each file of `golden/` holds the text of a terminal and every Markdown and CSV file of one report.
After a change that is meant: `pytest tests/reports/test_golden.py --update-golden`, and read the
difference.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.settings.sweep import load_run
from regbench.reports import write_report
from tests.conftest import pytest_configure
from tests.records import attempted, chosen, plan, ranked, tuning_choice
from tests.reports.conftest import GIVEN, METHODS, backbone, dataset, probed, score, settings
from tests.reports.reading import Make

GOLDEN = Path(__file__).parent / "golden"
RUNS = Path("runs")
DIVERGED: dict[str, Any] = {"status": "diverged", "knn": None, "linear": None}
TUNED: dict[str, Any] = {"status": "tuned", "knn": None, "linear": None}
# Sums of rows and of columns are 0.
LUCK = ((1.0, -1.0, 0.0), (-1.0, 0.0, 1.0), (0.0, 1.0, -1.0))


def method(label: str, weight: float) -> dict[str, Any]:
    return {"method": {"name": METHODS.get(label, label.lower()), "alignment_weight": weight}}


def tuned_among(budget: int, **more: Any) -> dict[str, Any]:
    how = {"selected_on": "tuning", "score": "knn_top1", "budget": budget, **more}
    return {"choice": {"hyperparameters": how}}


def halfway(record: Make) -> None:
    """A sweep half-way: no two numbers are the same, so that none can stand in for another."""
    for seed in range(3):
        for k, label in enumerate(("VICReg", "AUH")):
            number = seed + 10 * k
            values = {
                ("knn_top1", "test"): 70.0 + seed - 8 * k,
                ("linear_top1", "test"): 77.0 + 2 * seed - 9 * k * (seed + 1) / 2,
                ("linear_top5", "test"): 91.0 + seed / 2 - k,
                ("alignment", "test"): 1.5 + seed / 10 + k,
                ("voc07_map", "test"): 55.0 + seed / 4 - k,
                ("knn_top1", "tuning"): 61.0 + seed / 5 - 3 * k,
                ("linear_top1", "tuning"): 66.0 + seed / 8 - 4 * k,
            }
            scores = []
            for (name, split), value in values.items():
                scores.append(score(name, value, split, "" if name == "alignment" else "%"))
            cost: dict[str, Any] = {"peak_memory_kind": "CUDA allocated"}
            cost |= {"train_s": 3600.0 * (11 + number), "evaluate_s": 60.0 * (21 + 2 * number)}
            cost |= {"img_per_s": 1500.0 + 100 * number, "step_ms": 150.0 + 10 * number}
            cost |= {"loss_ms": 4.0 + number / 4, "loss_extra_bytes": (2 + number / 8) * 2**20}
            cost |= {"peak_memory_bytes": (5 + number / 8) * 2**30}
            cost |= {"energy_gpu_joules": 3.6e6 * (13 + 3 * number)}
            cost |= {"energy_cpu_joules": 3600.0 * (31 + 4 * number)}
            history = [
                {"epoch": 1, "effective_rank": 400.0, "alignment": 3.0},
                {"epoch": 2, "effective_rank": 50.0 + 2 * number, "alignment": 0.2 + number / 50},
            ]
            how = tuned_among(16 + k)
            record(label, seed, scores=tuple(scores), cost=cost, history=history, **how)
        luck = LUCK[seed]
        linear = {"SFRIK (L=1)": (600.0, 58.5), "generalized distance": (1200.0, 59.0)}
        for place, (label, (weight, mean)) in enumerate(linear.items()):
            cell = method(label, weight)
            if place == 0:
                cell["method"] = {"name": "sfrik", "weights": [1.0], "alignment_weight": weight}
                cell["method"]["regularize_local"] = True
            else:
                cell["method"]["exponent"] = 2.0
            record(label, seed, linear=mean + luck[place], knn=50.0 + luck[place], cell=cell)
        edge = {"edges": {"method.alignment_weight": "largest"}}
        record("SimCLR", seed, linear=78.0 + luck[2], **tuned_among(16, **edge))
        # What is no method has no times to compare, and neither has what diverged.
        elsewhere = {"environment": {"hardware": "another CPU"}}
        record("untrained", seed, knn=49.0, linear=59.5 + seed, **elsewhere)
        labels = {"baseline": "supervised"}
        record("supervised", seed, knn=90.0, linear=91.0 + seed, cell=labels, **elsewhere)
        record("SupCon", seed, knn=95.0, linear=96.0 + seed, cell={"baseline": "supcon"})
    memory = {"peak_memory_kind": "CUDA allocated"}
    record("RBF kernel", 0, knn=66.0, linear=68.0, environment={"git": None}, cost=memory)
    ended = [{"epoch": 1, "effective_rank": 1.0, "alignment": 0.0}]
    record("RBF kernel", 1, **DIVERGED, **elsewhere, history=ended)
    record("W-MSE", **DIVERGED)
    record("raw pixels", knn=41.0, linear=61.0, cell={"epochs": 0, "baseline": "raw_pixels"})
    record("DCL", tuning=50.0, **TUNED)
    for weight in (1.0, 2.0):
        record("TCR", cell=method("TCR", weight))
    cost = {"energy_gpu_joules": 36.0, "train_s": 0.0}
    record("KoLeo", linear=70.0, environment={"hardware": "1 x GPU", "threads": 2}, cost=cost)
    failed = [f"{i:012x}" for i in range(7)]
    cells = [{"id": name, "label": "MMCR", "seed": i} for i, name in enumerate(failed)]
    cells += [{"id": "e" * 12, "label": "VICReg", "seed": 3}]
    # The seed is finished, so another cell of it is not missing.
    cells += [{"id": "f" * 12, "label": "VICReg", "seed": 1}]
    # Whatever settings of a training the plan of an untrained network states.
    cells += [{"id": "a" * 12, "label": "untrained", "seed": 9, "epochs": 0, "embedding_dim": 16}]
    # Of another task.
    cells += [{"id": "b" * 12, "label": "AUH", "seed": 9, "dataset": "stl10"}]
    cells += [{"id": "c" * 12, "label": "AUH", "seed": 9, "backbone": "resnet50"}]
    plan(RUNS / "quickstart", *cells)
    for i, name in enumerate(failed):
        attempted(RUNS / "quickstart" / name, "failed", f"reason\n{min(i, 5)}")
    attempted(RUNS / "quickstart" / ("d" * 12), "failed", "no plan names it")


def tuning(record: Make) -> None:
    """A tuning in two dimensions of which one method has two choices, by kNN alone, of one seed."""
    entries = []
    for label, q in itertools.product(("VICReg", "AUH"), (512, 1024)):
        ranking = []
        for weight, tuning in ((1.0, 60.0), (2.0, 65.0), (3.0, 62.0)):
            cell = {"embedding_dim": q, **method(label, weight)}
            final = {"knn": 66.0 + q / 512 - len(label) / 4, "linear": None, **tuned_among(3)}
            how = final if weight == 2.0 else TUNED
            path = record(label, tuning=tuning, cell=cell, **how)
            ranking.append(ranked(path.parent.name, tuning))
        record(label, cell={"embedding_dim": q, **method(label, 9.0)}, **DIVERGED)
        setting = {"dataset": "fashion_mnist", "backbone": "resnet_tiny", "embedding_dim": q}
        setting |= {"batch_size": 256, "epochs": 3, "searched": 2}
        entry = chosen(label, ranking[1], ranking[0], ranking[2], setting=setting)
        entries.append(replace(entry, images=3000))
    optimizer = settings("SimCLR")["optimizer"] | {"base_lr": 0.7}
    record("SimCLR", knn=60.0, linear=None, cell={"optimizer": optimizer})
    adamw = load_run(["optimizer=adamw"])[0].plain()["optimizer"]
    record("SimCLR", knn=61.0, linear=None, cell={"optimizer": adamw})
    nothing: dict[str, Any] = dict.fromkeys(("embedding_dim", "batch_size", "epochs"))
    external = nothing | {"external": {"source": "torchvision:resnet50", "sha256": "0" * 64}}
    elsewhere = {"cell": external, "cost": {"train_s": None}}
    record("torchvision", method="external", knn=79.0, linear=None, **elsewhere)
    for q in (512, 1024):  # several cells, one row
        record("untrained", knn=61.0, linear=None, cell={"embedding_dim": q})
    tuning_choice(RUNS / "quickstart", *entries)


def tasks(record: Make) -> None:
    """Tasks of all kinds: recipes, the paper's, factors, errors, and what the test set chose."""
    for label, below in (("VICReg", 0.0), ("AUH", 1.0), ("SimCLR", 3.0)):
        for q in (512, 1024):
            # All dimensions count alike: here others are further below VICReg in the larger one.
            linear = 80.0 - below - 2.0 * (q == 1024 and label != "VICReg")
            for name in ("fashion_mnist", "digits"):
                place = {"embedding_dim": q, "dataset": dataset(name)}
                record(label, linear=linear, cell=place, history=[])
        error = replace(score("error", 1.0 + below, unit="nats"), higher_is_better=False)
        record(label, scores=(error,), cell={"dataset": dataset("stl10")}, history=[])
    # Equal to the best, which so is no better.
    error = replace(error, value=1.0)
    record("untrained", scores=(error,), cell={"dataset": dataset("stl10"), "epochs": 0})
    record("MMCR", linear=90.0, cell={"dataset": dataset("digits")}, history=[])
    pixels = {"epochs": 0, "baseline": "raw_pixels", "dataset": dataset("digits")}
    record("raw pixels", linear=90.0, cell=pixels)
    for seed, tilt in enumerate((0.7, 0.9)):
        kept = {"tilt_deg_representation": tilt, "kind_representation": 40.0}
        kept["tilt_deg_embedding"] = -0.001  # what rounds to zero is not negative
        record("VICReg", seed, **probed(**kept), cell={"dataset": dataset("scenes")})
    record("AUH", knn=50.0, linear=None, cell={"dataset": dataset("scenes")})
    sizes = {"batch_size": 512, "epochs": 200, "dataset": dataset("cifar10_full")}
    sizes["network"] = backbone("resnet18")
    for seed, knn in enumerate((84.0, 86.0)):
        record("SimCLR", seed, knn=knn, linear=None, sweep="lightly_cifar10", cell=sizes)
    shorter = {**sizes, "epochs": 100}
    record("SimCLR", 0, knn=80.0, linear=None, sweep="lightly_cifar10", cell=shorter)
    record("VICReg", 0, knn=83.0, linear=None, sweep="lightly_cifar10", cell=sizes)
    # The recipe on other images is not what was published.
    other = {**sizes, "dataset": dataset("digits")}
    record("SimCLR", 0, knn=70.0, linear=None, sweep="lightly_cifar10", cell=other)
    # Another sweep is not the recipe's, whatever it trains.
    own = {**sizes, "method": {"name": "barlow_twins"}}
    record("Barlow Twins", 0, knn=60.0, linear=None, sweep="mine", cell=own)
    paper(record)


def paper(record: Make) -> None:
    """Experiments of the paper, and some that are none of them."""
    in20 = {"dataset": dataset("in20"), "network": backbone("resnet18"), "embedding_dim": 8192}
    in20 |= {"batch_size": 2048, "epochs": 100}
    in100 = in20 | {"dataset": dataset("in100"), "network": backbone("resnet50"), "epochs": 200}
    for seed, linear in enumerate((46.0, 47.0)):
        record("SFRIK (L=3)", seed, linear=linear, cell=in20, history=[])
    record("VICReg", linear=41.0, cell=in20 | {"embedding_dim": 1024}, history=[])
    record("AUH", linear=41.0, cell=in20 | {"embedding_dim": 1024, "epochs": 2}, history=[])
    record("RBF kernel", linear=40.3, cell=in20, history=[])
    # The paper cites it, without an embedding dimension.
    record("SimSiam", linear=70.0, cell=in100 | {"embedding_dim": 2048}, history=[])
    labels = score("labels1_top1", 50.0)
    longer = in100 | {"epochs": 400}
    record("SFRIK (L=2)", scores=(score("linear_top1", 71.0), labels), cell=longer, history=[])
    record("SFRIK (L=2)", scores=(labels,), cell=in100, history=[])
    # Its memory is that of one of eight GPUs.
    wide = in100 | {"embedding_dim": 32768, "epochs": 3}
    for label, gigabytes in (("VICReg", 22.0), ("SFRIK (L=2)", 10.0)):
        cost = {"peak_memory_bytes": int(gigabytes * 1e9), "peak_memory_kind": "CUDA allocated"}
        for batch, gpus, kind in ((256, 8, {}), (512, 1, {}), (1024, 8, "process RSS")):
            costs = cost | ({"peak_memory_kind": kind} if kind else {})
            cell = wide | {"batch_size": batch}
            record(label, cell=cell, cost=costs, environment={"world_size": gpus}, history=[])
    # Of two that the test split chose among, it is the test split that prefers the first.
    on_test = {"choice": {"hyperparameters": {"selected_on": "test", "budget": 4}}}
    for rate, linear, knn, tuning in ((2.0, 48.0, 39.0, 31.0), (1.0, 46.5, 38.0, 32.0)):
        cell = in20 | {"optimizer": {"base_lr": rate}}
        scores = {"linear": linear, "knn": knn, "tuning": tuning}
        record("SFRIK (L=3)", sweep="test", cell=cell, history=[], **scores, **on_test)


def repeated(record: Make) -> None:
    """Three searches of each of two rows on two models of processors, and beside rows of one."""
    runs = itertools.product(("VICReg", "AUH"), range(3), range(2))
    for k, (label, search, seed) in enumerate(runs):
        how = {"hyperparameters": GIVEN | {"sha256": label, "search": search}}
        if search:
            side = "smallest" if (label, search) == ("VICReg", 2) else "largest"
            how["hyperparameters"]["edges"] = {"method.alignment_weight": side}
        number, cell = 1000 * search + seed, method(label, 10.0 + search)
        if number == 2001 and label == "AUH":
            record(label, number, cell=cell, **DIVERGED)
            continue
        hardware = f"{seed + 1} cores of {'slow' if seed else 'fast'} CPU"
        linear = 70.0 + 3 * search + 2 * seed + 0.1 * (k % 5) - 2 * (label == "AUH")
        more = {"choice": how, "environment": {"hardware": hardware}, "tuning": 60.0}
        record(label, number, linear=linear, cell=cell, **more)
    record("VICReg", 5, cell=method("VICReg", 1.0), tuning=99.0, **TUNED)
    # Neither a run of another tuning is in the row, nor one by itself of what a search chose.
    other = {"choice": {"hyperparameters": GIVEN | {"sha256": "other", "search": 1}}}
    record("VICReg", 1000, cell=method("VICReg", 2.0), tuning=10.0, **other)
    for weight in (10.0, 11.0):
        record("VICReg", 5, cell=method("VICReg", weight), tuning=60.0)
    # What is said of searches is of the rows that have several, and one has no interval.
    beside = {"dataset": dataset("digits")}
    for number in range(3):
        how = {"hyperparameters": GIVEN | {"sha256": "0", "search": number}}
        for seed in range(2):
            linear = 70.0 + number + seed
            record("VICReg", 1000 * number + seed, linear=linear, choice=how, cell=beside)
        record("AUH", number, linear=75.0 + number, cell=beside)
    for label, linear_or_none in (("SimCLR", 60.0), ("DCL", None)):
        how = {"hyperparameters": GIVEN | {"sha256": label, "search": 0}}
        record(label, linear=linear_or_none, choice=how, cell=beside)


def pairs(record: Make) -> None:
    """Rows of one loss under two names: a data set for each thing that is told of them."""
    sfrik = {"name": "sfrik", "weights": [1.0], "alignment_weight": 600.0, "regularize_local": True}
    distance = {"name": "generalized_distance", "exponent": 2.0, "alignment_weight": 1200.0}
    quadratic = {"name": "quadratic", "alignment_weight": 64.0}
    tico = {"name": "tico", "covariance_weight": 8.0}
    optimizer, network = settings("VICReg")["optimizer"], settings("VICReg")["network"]

    def rows(task: str, *losses: dict[str, Any], **more: dict[str, Any]) -> None:
        for place, loss in enumerate(losses):
            cell = {"method": loss, "dataset": dataset(task), **more.get(f"of_{place}", {})}
            for seed in range(2 if task == "seeds" else 1):
                value = {"linear": 70.0 + seed - 10 * place, "knn": 60.0 + 0.1 * seed * place}
                record(loss["name"], seed, cell=cell, **value)

    rows("seeds", sfrik, distance, {"name": "vicreg"})
    rows("rounded", quadratic, sfrik | {"weights": [0.0, 511 / 512], "alignment_weight": 64.00001})
    both = sfrik | {"weights": [0.0, 1.0], "alignment_weight": 5.0}
    rows("of_both_kinds", quadratic, tico, both)
    # What nobody trained is no loss, though its settings name one.
    untrained = {"method": quadratic, "dataset": dataset("of_both_kinds")}
    record("untrained", cell=untrained | {"epochs": 0})
    rows("weights", sfrik, distance | {"alignment_weight": 1201.0})
    rows("sizes", sfrik, distance, of_1={"embedding_dim": 2048})
    for task, of_both, of_second in (
        ("rates", {}, {"base_lr": 0.7}),
        # A factor of 2 of the loss is one of SGD's rate, and none of Adam's.
        ("sgd", {"name": "sgd"}, {}),
        ("adamw", {"name": "adamw"}, {}),
        ("a_setting_of_one", {}, {"more": 1}),
    ):
        first = {"optimizer": optimizer | of_both}
        rows(task, sfrik, distance, of_0=first, of_1={"optimizer": first["optimizer"] | of_second})
    for task, teacher in (("teacher", "stop_gradient"), ("teachers", "ema")):
        networks = [{"network": network | {"teacher": each}} for each in ("stop_gradient", teacher)]
        rows(task, {"name": "simsiam"}, {"name": "byol"}, of_0=networks[0], of_1=networks[1])
    moco = {"name": "moco_v3", "temperature": 1.0}
    rows("temperatures", {"name": "info_nce", "temperature": 0.4}, moco)
    for label, loss, error, linear in (("a", sfrik, 2.0, 75.0), ("b", distance, 1.5, None)):
        record(label, cell={"method": loss, "dataset": dataset("lacking")}, linear=linear)
        nats = {"scores": (score("error", error, unit="nats"),)}
        record(label, cell={"method": loss, "dataset": dataset("no_percentage")}, **nats)
    for search in range(3):
        choice = {"hyperparameters": GIVEN | {"search": search}}
        for label, loss, linear in (("a", sfrik, 70.0 + search), ("b", distance, 72.0 - search)):
            cell = {"method": loss, "dataset": dataset("searches")}
            record(label, 1000 * search, cell=cell, choice=choice, linear=linear)


def watched(record: Make) -> None:
    """Evaluations while training on several machines, kernels, long histories, many protocols."""
    evaluation = settings("VICReg")["evaluation"]
    for task, split, labels in (
        ("fashion_mnist", "tuning", ("VICReg", "AUH")),
        ("digits", "test", ("VICReg",)),
    ):
        for k, (label, seed) in enumerate(itertools.product(labels, range(2))):
            own = {"while_training": ["knn"], "every_epochs": 2 + 8 * (label == "AUH")}
            if split == "test":
                own["select_on"] = "test"
            history = []
            for epoch in range(1, 5):
                line: dict[str, Any] = {"epoch": epoch, "loss": 10.0 - epoch}
                line["epoch_s"] = 600.0 + 300 * seed
                if epoch % 2 == 0:
                    measured = score("knn_top1", 10.0 * epoch + k, split)
                    line["scores"] = [asdict(measured)]
                history.append(line)
            # Of one seed the last loss is no number.
            history[-1]["loss"] = float("nan") if seed else 1.0
            how = replace(score("knn_top1", 70.0 + k), protocol=f"way {k}")
            cell = {"dataset": dataset(task), "evaluation": evaluation | own}
            more: dict[str, Any] = {"spectrum": (1.0, 40.0, 2.0 * k, 0.0), "history": history}
            more["environment"] = {"hardware": f"1 x {'GPU' if label == 'AUH' else 'CPU'}"}
            record(label, seed, scores=(how,), cell=cell, cost={"monitor_s": 40.0 + seed}, **more)
    place: dict[str, Any] = {"dataset": dataset("stl10")}
    for q, spectrum in ((64, (1.0, 8.0, 2.0)), (128, (1.0, 8.0, 0.0)), (256, (1.0, 8.0, 0.0))):
        cell = place | {"embedding_dim": q}
        record("SFRIK (L=2)", cell=cell, spectrum=spectrum, linear=70.0 + q / 100)
    record("SFRIK (L=1)", spectrum=(1.0, 3.0), cell=place)
    record("VICReg", 10, cell=place | {"batch_size": 64}, environment={"git": None})
    record("untrained", cell=place | {"embedding_dim": 8, "batch_size": 8})


CASES: dict[str, Callable[[Make], None]] = {
    case.__name__: case for case in (halfway, tuning, tasks, repeated, pairs, watched)
}


def shortened(found: re.Match[str]) -> str:
    """A number with nine digits: the last ones differ between processors."""
    return f"{float(found[0]):.9g}"


def page_text(page: str) -> str:
    """What a page says beside its tables; of figures their titles and tooltips."""
    text = page[page.index("<main>") : page.index("</main>")]
    text = re.sub(r"<table.*?</table>|<details>.*?</details>", "", text, flags=re.DOTALL)
    text = re.sub(r"<svg.*?</svg>", tooltips, text, flags=re.DOTALL)
    lines = html.unescape(re.sub(r"<[^>]+>", "\n", text)).splitlines()
    return "\n".join(filter(None, map(str.strip, lines)))


def tooltips(svg: re.Match[str]) -> str:
    return "\n".join(dict.fromkeys(re.findall(r"<title>(.*?)</title>", svg[0])))


def whole_text(out: Path, terminal: str) -> str:
    """The text of a terminal, of all Markdown and CSV files but the tidy one, whose digests and
    times are of the runs, and of the page.
    """
    parts = [f"==== terminal\n{terminal}\n"]
    for path in sorted(out.iterdir()):
        if path.suffix in (".md", ".csv") and path.stem != "tidy":
            parts.append(f"==== {path.name}\n{path.read_text()}")
    parts.append(f"==== page\n{page_text((out / 'index.html').read_text())}\n")
    return re.sub(r"\d+\.\d{9,}(e-?\d+)?", shortened, "\n".join(parts))


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_the_one_that_was_read(
    name: str, record_here: Make, golden: Callable[[str, str], None]
) -> None:
    CASES[name](record_here)
    written = write_report(RUNS, Path("report"))
    text = written.leaderboard + "\n"
    # All that is told of pairs is in the notes.
    if name != "pairs":
        text = whole_text(written.page.parent, written.leaderboard)
    golden(f"{name}.txt", text)


def test_golden_files_are_those_of_the_cases() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*CASES, "scenes", "tidy"}


def test_nothing_is_accepted_where_nobody_reads_it(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "update_golden", True)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.UsageError):
        pytest_configure(pytestconfig)
