"""Sinks: what they are given, over kills too, and that none of them stops a training."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark import run as run_module
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.directory import numbered_files, run_directory
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training import sinks
from regbench.benchmark.training.sinks import SINKS, Sinks
from tests.refusals import is_refused
from tests.there import there

SHORT = ("method=vicreg", "evaluation.protocols=[knn]", "evaluation.while_training=[knn]")


class Service:
    """Stands in for the module wandb, whose functions it has with the arguments that we give.

    Attributes:
        begun: What each run was begun with.
        given: Step and numbers, in order.
        ended: How many runs were ended.
        before: Called with each step before it is taken.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[dict[str, Any]] = []
        self.given: list[tuple[int, Mapping[str, float]]] = []
        self.ended = 0
        self.before: Callable[[int], None] = lambda step: None
        module = types.ModuleType("wandb")
        module.__spec__ = ModuleSpec("wandb", None)
        vars(module).update(init=self.init, Settings=dict)
        monkeypatch.setitem(sys.modules, "wandb", module)

    def init(self, **options: Any) -> Service:
        given = {"project", "group", "id", "name", "config", "dir", "resume", "settings"}
        assert options.keys() == given
        assert options["settings"] == {"console": "off"}
        self.begun.append(options)
        return self

    def log(self, numbers: Mapping[str, float], *, step: int) -> None:
        self.before(step)
        self.given.append((step, numbers))

    def finish(self) -> None:
        self.ended += 1


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def rows(directory: Path) -> list[dict[str, Any]]:
    lines = numbered_files(directory, "metrics.jsonl")[0].read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_resumed_run_goes_on_in_its_services(tiny: list[str], service: Service) -> None:
    cell, runtime = load_run([*tiny, *SHORT, "runtime.sinks=[wandb]"])
    directory = run_directory(runtime, "a_sweep", cell)

    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    service.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, runtime, "a_sweep")
    service.before = lambda step: None
    assert run_cell(cell, runtime, "a_sweep")
    first, second = service.begun
    assert first == second
    assert (first["resume"], first["group"]) == ("allow", "a_sweep")
    assert first["config"]["method"]["name"] == "vicreg"
    assert service.ended == 2
    assert [step for step, _ in service.given] == [1, 2]
    for row, (step, numbers) in zip(rows(directory), service.given, strict=True):
        assert numbers["epoch"] == step == row["epoch"]
        for name in ("loss", "learning_rate"):  # the history has six digits
            assert numbers[name] == pytest.approx(row[name], rel=1e-5)
        assert {f"terms/{name}" for name in row["terms"]} <= set(numbers)
        (score,) = (score for score in row["scores"] if score["name"] == "knn_top1")
        assert numbers[f"scores/knn_top1_{score['split']}"] == score["value"]


@pytest.mark.parametrize("where", ["init", "log"])
def test_a_sink_that_fails_is_named_once_and_the_run_goes_on(
    where: str, tiny: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    failing, given = Service(monkeypatch), []

    class Other:
        def __init__(self, *_: object) -> None: ...

        def write(self, epoch: int, numbers: Mapping[str, float]) -> None:
            given.append(epoch)

        def close(self) -> None: ...

    monkeypatch.setitem(SINKS, "tensorboard", Other)
    monkeypatch.setattr(run_module, "require_sinks", lambda names: None)
    failing.before = fails
    if where == "init":
        monkeypatch.setattr(importlib.import_module("wandb"), "init", fails)
    cell, runtime = load_run([*tiny, *SHORT, "runtime.sinks=[wandb,tensorboard]"])
    record = there(run_cell(cell, runtime, "manual"))
    assert record.status == "done"
    assert record.cell_id == load_run([*tiny, *SHORT])[0].id  # a sink is no part of what is run
    (said,) = (entry.message for entry in caplog.records if entry.levelname == "WARNING")
    assert said == "wandb failed and gets nothing more of this run: OSError: no route to host"
    assert given == [1, 2]


def test_the_same_cell_in_another_folder_is_another_run(tmp_path: Path, service: Service) -> None:
    cell = load_run([])[0]
    for place in ("here", "there", "here"):
        directory = tmp_path / place / "a_sweep" / cell.id
        directory.mkdir(parents=True, exist_ok=True)
        with Sinks(("wandb",), cell, directory, 1):
            pass
    first, second, third = (begun["id"] for begun in service.begun)
    assert first == third != second
    assert first.startswith(f"a_sweep-{cell.id}-")


def test_a_sink_that_does_not_end_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "CLOSE_TIMEOUT_S", 0.05)
    sent = threading.Event()
    monkeypatch.setattr(Service(monkeypatch), "finish", sent.wait)
    with Sinks(("wandb",), load_run([])[0], tmp_path, 1):
        pass
    sent.set()
    assert "wandb has not ended after 0.05 s and is left behind" in caplog.text


def test_a_signal_while_the_last_epoch_is_written_stops_the_run(
    tiny: list[str], service: Service
) -> None:
    interruption = Interruption()
    cell, runtime = load_run([*tiny, *SHORT, "runtime.sinks=[wandb]"])

    def ask(step: int) -> None:
        if step == cell.epochs:
            interruption.requested = signal.SIGTERM

    service.before = ask
    with pytest.raises(Interrupted):
        run_cell(cell, runtime, "manual", interruption=interruption)
    record = there(run_cell(cell, runtime, "manual"))
    assert record.status == "done"
    assert len(service.begun) == 1  # nothing was left to train


def test_an_epoch_that_was_stopped_in_its_evaluation_is_given_later(
    tiny: list[str], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one, after which nothing is left to train."""
    interruption = Interruption()
    cell, runtime = load_run([*tiny, *SHORT, "runtime.sinks=[wandb]"])
    select = KNN.select

    def ask(self: KNN, *arguments: Any) -> Any:
        if len(service.given) == cell.epochs - 1:
            signal.raise_signal(signal.SIGUSR1)
        return select(self, *arguments)

    monkeypatch.setattr(KNN, "select", ask)
    with interruption.listening(signal.SIGUSR1), pytest.raises(Interrupted):
        run_cell(cell, runtime, "manual", interruption=interruption)
    monkeypatch.setattr(KNN, "select", select)
    assert [step for step, _ in service.given] == [1]
    run_cell(cell, runtime, "manual")
    assert [step for step, _ in service.given] == [1, 2]
    assert "scores/knn_top1_tuning" in service.given[-1][1]


def test_a_sink_that_is_not_installed_is_refused_and_none_is_imported_unasked(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SINKS, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # to import it would fail
    for name in SINKS:
        cell, runtime = load_run([*tiny, *SHORT, f"runtime.sinks=[{name}]"])
        with is_refused(rf"runtime.sinks: {name} is not .* pip install 'regbench\[{name}\]'"):
            run_cell(cell, runtime, "manual")
    assert not (tmp_path / "runs").exists()
    untrained = load_run([*tiny, "epochs=0", "evaluation.protocols=[knn]"])
    assert run_cell(*untrained, "manual") is not None


def test_tensorboard_shows_each_epoch_once_after_a_kill(tmp_path: Path) -> None:
    reason = "TensorBoard is not installed: pip install 'regbench[tensorboard]'"
    pytest.importorskip("tensorboard", reason=reason)
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    cell = load_run([])[0]
    for attempt, epochs in ((1, (1, 2, 3)), (2, (2, 3, 4))):
        with Sinks(Runtime(sinks=("tensorboard",)).sinks, cell, tmp_path, epochs[0]) as sinks:
            for epoch in epochs:
                loss = 10.0 * attempt + epoch
                sinks.write({"epoch": epoch, "loss": loss, "terms": {"variance": 0.5}})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "terms/variance"}
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(1, 11), (2, 22), (3, 23), (4, 24)]
