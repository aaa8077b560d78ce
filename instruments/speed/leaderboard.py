"""Measures `regbench leaderboard` on made-up bundles: python instruments/speed/leaderboard.py [CELLS [FOLDER]]."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from regbench.benchmark.rundir.choice import GIVEN
from regbench.benchmark.rundir.record_parts import NamedFile
from regbench.benchmark.rundir.tuning_choice import ChosenConfiguration, RankedConfiguration, TuningChoice
from regbench.benchmark.settings.cell import Cell
from regbench.files import cell_id, digest, signed_line
from regbench.instruments.speed.report import CHOICES, SEEDS, cells, history, record
from regbench.methods.spectrum import kernel_spectrum
from regbench.reports.bundle.bundle import Contents, write_bundle

PER_TASK = 10_000
TWICE = 100
"""Cells of each task that a second lab ran too."""

Json = dict[str, Any]


def templates(made: list[Cell]) -> list[tuple[Cell, Json, Json]]:
    """Make each cell's plain data, and what a run of it leaves, all but what differs from task to task."""
    draw, found = np.random.default_rng(0), []
    for cell in tqdm(made, desc="cells", unit="", disable=not sys.stderr.isatty()):
        left = record(cell, "made", NamedFile("metrics-0001.jsonl", ""), draw)
        spectrum = kernel_spectrum(cell.method, cell.embedding_dim, 6) if cell.seed == 0 else None
        about = {k: v for k, v in dataclasses.asdict(cell.method.metadata).items() if isinstance(v, str)}
        text = dataclasses.replace(left, spectrum=spectrum, regularizer=about).text()
        found.append((cell, cell.plain(), json.loads(text)))
    return found


def bundle(made: list[tuple[Cell, Json, Json]], task: str, out: Path) -> None:
    """Write the bundle of a task, and one of a second lab that ran some of its cells."""
    draw = np.random.default_rng(len(task))
    records: list[Json] = []
    configurations: dict[tuple[str, int], dict[str, list[Json]]] = {}
    for cell, plain, left in made:
        own = {**plain, "dataset": {**plain["dataset"], "name": task}}
        identity = cell_id(own)
        scores = [{**score, "value": round(score["value"] + float(draw.normal()), 2)} for score in left["scores"]]
        for score in scores:  # top-5 is above top-1
            score["value"] = min(100.0, score["value"] + 15 * score["name"].endswith("top5"))
        made_one = {**left, "cell": own, "cell_id": identity, "sweep": task, "scores": scores}
        records.append(made_one)
        group = configurations.setdefault((cell.label, cell.embedding_dim), {})
        group.setdefault(cell_id({**own, "seed": 0}), []).append(made_one)
    choice = json.loads(chosen(configurations, task).text())
    how = {"selected_on": "tuning", "score": "knn_top1", "budget": CHOICES, "record": f"{task}/tuning_choice.json"}
    how |= {"sha256": choice["sha256"], "edges": {}}
    winners = {entry["configuration"] for entry in choice["choices"]}
    for group in configurations.values():
        for configuration, of_it in group.items():
            for one in of_it:
                final = configuration in winners
                one["status"] = "done" if final else "tuned"
                one["choice"] = {"hyperparameters": how} if final else {}
                tuning = [s for s in one["scores"] if s["split"] == "tuning"]
                if final:
                    one["attempts"] = [{**one["attempts"][0], "started": "2026-01-03T00:00:00+00:00"}]
                    both = {s["name"] for s in tuning}
                    others = [s for s in one["scores"] if s["name"] not in both]
                    one["scores"] = [*tuning, *({**s, "split": "test"} for s in tuning), *others]
                else:
                    one["scores"] = tuning
    write(records, [choice], out / f"{task}-lab-a.zip")
    again = [json.loads(json.dumps(one)) for one in records if one["status"] == "done"][:TWICE]
    for one in again:
        one["choice"] = {"hyperparameters": dict(GIVEN)}
        one["environment"] |= {"hardware": "1 x Another GPU"}
        for score in one["scores"]:
            score["value"] = min(100.0, max(0.0, round(score["value"] + 0.1 * float(draw.normal()), 2)))
    for one in again:  # the smallest errors may have crossed the top-5
        values = {(s["name"], s["split"]): s for s in one["scores"]}
        for (name, split), score in values.items():
            if (top5 := values.get((name.replace("top1", "top5"), split))) is not None:
                score["value"] = min(score["value"], top5["value"])
    write(again, [], out / f"{task}-lab-b.zip")


def chosen(configurations: dict[tuple[str, int], dict[str, list[Json]]], task: str) -> TuningChoice:
    """Choose the best configuration of each method and dimension."""
    entries = []
    for (label, q), group in configurations.items():
        ranking = []
        for configuration, of_it in group.items():
            scores = [score for one in of_it for score in one["scores"]]
            values = [s["value"] for s in scores if (s["name"], s["split"]) == ("knn_top1", "tuning")]
            rate = {"optimizer.base_lr": of_it[0]["cell"]["optimizer"]["base_lr"]}
            ranking.append(
                RankedConfiguration(
                    cell_id=of_it[0]["cell_id"],
                    configuration=configuration,
                    epochs=100,
                    value=sum(values) / len(values),
                    status="tuned",
                    hyperparameters=rate,
                )
            )
        ranking.sort(key=lambda entry: -(entry.value or 0))
        setting = {"dataset": task, "backbone": "resnet_tiny", "embedding_dim": q, "batch_size": 256, "epochs": 100}
        best = ranking[0]
        entries.append(
            ChosenConfiguration(
                label=label,
                method=next(iter(group.values()))[0]["method"],
                setting=setting,
                chosen=best.cell_id,
                configuration=best.configuration,
                ranking=tuple(ranking),
                edges={},
                images=0,
            )
        )
    return TuningChoice(
        selected_on="tuning",
        score="knn_top1",
        budget=CHOICES,
        seeds=tuple(range(SEEDS)),
        choices=tuple(entries),
        created="2026-01-02T00:00:00+00:00",
    )


def write(records: list[Json], choices: list[Json], out: Path) -> None:
    """Sign the records and pack them."""
    records.sort(key=lambda one: str(one["cell_id"]))
    texts = []
    for number, one in enumerate(records):
        rows, rest = histories()[number % len(histories())]
        first = {**rows[0], "epoch_s": rows[0]["epoch_s"] + number}  # times alone make histories differ
        texts.append(f"{json.dumps(first)}\n{rest}")
        one["metrics"] = {**one["metrics"], "sha256": hashlib.sha256(texts[-1].encode()).hexdigest()}
        one["cost"] = {**one["cost"], "train_s": math.fsum(row["epoch_s"] for row in [first, *rows[1:]])}
        one.pop("sha256", None)
        one["sha256"] = digest(one)
    lines = [signed_line(one) for one in records]
    write_bundle(Contents(lines, [], [json.dumps(choice) for choice in choices], texts, {}), out)


@functools.cache
def histories() -> list[tuple[list[Json], str]]:
    """Make the rows of some histories, each with the text of all but the first."""
    draw = np.random.default_rng(0)
    made = [history(draw) for _ in range(50)]
    return [(rows, "".join(json.dumps(row) + "\n" for row in rows[1:])) for rows in made]


def main() -> None:
    """Print how long the site takes, and how large it and its bundles are."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else temporary)
        bundles, site = folder / "bundles", folder / "site"
        bundles.mkdir(parents=True, exist_ok=True)
        if not list(bundles.glob("*.zip")):
            whole = CHOICES * SEEDS  # tunings of one method in one dimension
            made = templates(cells(min(count, PER_TASK) // whole * whole))
            for number in range(max(1, count // PER_TASK)):
                bundle(made, f"made_up_{number:02d}", bundles)
        size_bytes = sum(path.stat().st_size for path in bundles.glob("*.zip"))
        began_s = time.perf_counter()
        command = [str(Path(sys.executable).with_name("regbench")), "leaderboard", str(bundles), "--out", str(site)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        waited_s = time.perf_counter() - began_s
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(done.stdout.strip(), done.stderr.strip()[:300])
        print(
            f"{waited_s:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, {used.ru_maxrss / 2**20:.2f} GiB at most"
        )
        files = [path for path in site.rglob("*") if path.is_file()]
        pages = sorted((path.stat().st_size for path in site.rglob("*.html")), reverse=True)
        total = sum(path.stat().st_size for path in files)
        print(f"bundles {size_bytes / 1e6:.1f} MB; site {len(files)} files, {total / 1e6:.1f} MB")
        print(f"largest page {pages[0] / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
