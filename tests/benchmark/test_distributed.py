"""Several processes train as one does: gloo on CPUs, started as torchrun starts them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.directory import run_directory
from regbench.benchmark.rundir.record import Record, read_record
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.distributed import World, environment_ranks, synchronize_batch_norm
from tests.conftest import TINY
from tests.history import all_digits
from tests.ranks import launch
from tests.refusals import is_refused
from tests.there import there

# Steps of one batch each, so that an epoch's row is a step's. At this low rate four of them are not
# yet chaotic.
STEPS = (
    *("method=vicreg", "precision=fp32", "batch_size=120"),
    *("optimizer.warmup_epochs=2", "optimizer.base_lr=0.005"),
    *("evaluation.protocols=[knn]", "runtime.checkpoint_epochs=9"),
)
CROPS = ("augmentation=small_grey_crops", "augmentation.views.local.count=2")
EMA = ("network.teacher=ema", "network.momentum=0.5")
# A copy of the backbone is trained with the labels of the same images.
SAME_IMAGES = [each.removeprefix("dataset.") for each in TINY if each.startswith("dataset.")]
SAME_IMAGES += ["source.held_out=null", "channels=3", "mean=[0.5,0.5,0.5]", "std=[0.2,0.2,0.2]"]
FINE_TUNED = (
    *("evaluation.protocols=[knn,labels1]", "evaluation.labels1.epochs=1"),
    "evaluation.labels1.dataset=imagefolder",
    *(f"evaluation.labels1.dataset.{override}" for override in SAME_IMAGES),
)
CASES = {
    "plain": ("epochs=4",),
    # Three steps an epoch; all ranks hear of the signal one step later, in the middle of the first
    # epoch.
    "stopped": ("epochs=2", "batch_size=40", "optimizer.warmup_epochs=1"),
    "random": ("epochs=4", "method=sigreg", "method.directions=8"),
    "bf16": ("epochs=4", "precision=bf16"),
    "teacher": ("epochs=4", "method=byol", "network.predictor.depth=2", *EMA),
    "centred": ("epochs=4", "method=dino", "method.prototypes=24", *EMA),
    "memory": (
        *("epochs=3", "method=tico", "method.covariance_momentum=0.5"),
        "network.teacher=stop_gradient",
    ),
    "labels": ("epochs=3", "baseline=supcon"),
    # The last, as evaluations that fail leave the other ranks alone with what follows.
    "micro": ("epochs=3", "micro_batch_size=40", *CROPS, *FINE_TUNED),
}
SPREAD = ("alignment", "uniformity", "effective_rank", "feature_spread")
# Ranks need different amounts of memory and energy. The last one alone gets a signal, in the first
# step of "stopped".
DRIVER = """
import json, logging, os, signal, sys
import torch
import torch.distributed as dist
from regbench.benchmark.training import journal
from regbench import RegbenchError
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.rundir.interruption import Interrupted, Interruption
from regbench.benchmark.machine.meters import PeakMemory
from regbench.benchmark.run import run_cell
from regbench.benchmark.training.step import Step
logging.basicConfig(level=logging.INFO)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
class Meter:
    looks = 0
    def __init__(self, device):
        pass
    def read_joules(self):
        self.looks += 1
        return {"cpu": 10.0 * self.looks, "gpu": (rank + 1.0) * self.looks}
journal.EnergyMeter = Meter
if rank:
    # The first rank alone finds what its history needs, and reads the checkpoint of "stopped" for all.
    journal.spread_metrics = torch.load = None
PeakMemory.read_bytes = lambda self: 1000 * (rank + 1)
PeakMemory.read_reserved_bytes = lambda self: 3000 * (size - rank)
step, steps = Step.__call__, 0
def counted(self, *views):
    global steps
    steps += 1
    if (name, steps, rank + 1) == ("stopped", 1, size):
        os.kill(os.getpid(), signal.SIGUSR1)
    states = [None] * size
    dist.all_gather_object(states, torch.get_rng_state().numpy().tobytes())
    assert len(set(states)) == size  # stochastic layers do not drop the same images on all ranks
    return step(self, *views)
Step.__call__ = counted
for name, overrides in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)  # the first rank may still hold the last
    cell, runtime = load_run(overrides)
    interruption, steps = Interruption(), 0
    try:
        with interruption.listening(signal.SIGUSR1):
            run_cell(cell, runtime, name, interruption=interruption)
    except (Interrupted, RegbenchError) as error:
        print(name, error)
"""


def record_of(tiny: list[str], name: str) -> Record:
    cell, runtime = load_run([*tiny, *STEPS, *CASES[name]])
    return there(read_record(run_directory(runtime, name, cell)))


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, list(CASES)[:2]),
        pytest.param(2, list(CASES)[2:], marks=pytest.mark.slow),
        pytest.param(4, list(CASES), marks=pytest.mark.slow),
    ],
)
def test_processes_train_as_one_does(
    shared: list[str], tiny: list[str], size: int, names: list[str]
) -> None:
    cases = {name: [*tiny, *STEPS, *CASES[name]] for name in names}
    lives = [("odd", [*tiny, "method=vicreg", "batch_size=33"]), *cases.items()]
    if "stopped" in cases:  # twice, so that the second life goes on from the first
        lives.append(("stopped", cases["stopped"]))
    for process in launch(size, DRIVER, json.dumps(lives)):
        assert process.returncode == 0, process.stderr
        told = dict(line.split(" ", 1) for line in process.stdout.splitlines())
        assert told.keys() == {"odd"} | ({"stopped"} & set(names))
        assert told.get("stopped", "interrupted by SIGUSR1") == "interrupted by SIGUSR1"
        assert "batch_size=33 cannot be shared equally between" in told["odd"]
    for name in names:
        cell, runtime = load_run([*shared, *STEPS, *CASES[name]])
        run_cell(cell, runtime, name)  # unless an earlier test did
        if name == "stopped":  # by all ranks, whose one checkpoint serves any number of them
            resumed = there(run_cell(*load_run(cases[name]), name))
            assert [attempt.from_step for attempt in resumed.attempts] == [None, 2, 3]
            assert resumed.environment["world_size"] == f"{size}, then 1"
        record = record_of(tiny, name)
        rows, expected = all_digits(record), all_digits(record_of(shared, name))
        # bf16 rounds what is summed in another order; float32 does so ten thousand times less, and
        # training amplifies.
        early, late = (1e-2, 1e-2) if name == "bf16" else (2e-6, 1e-4)
        for key in ("loss", *SPREAD, "learning_rate", "images"):
            for number, (row, other) in enumerate(zip(rows, expected, strict=True)):
                rel = early if number < 3 else late
                assert row[key] == pytest.approx(other[key], rel=rel), (name, key, number)
        assert rows[-1]["loss"] != pytest.approx(rows[0]["loss"], rel=1e-4)
        if name != "stopped":
            # The most that a rank needed, the processors of their one machine, and a GPU for each.
            cost = record.cost
            assert (cost.peak_memory_bytes, cost.peak_reserved_bytes) == (1000 * size, 3000 * size)
            assert cost.energy_cpu_joules == 10 * len(rows)
            assert cost.energy_gpu_joules == sum(range(1, size + 1)) * len(rows)
            assert record.environment["world_size"] == size


# Three steps an epoch; a checkpoint after each of them.
TRANSFORMER = (
    *("network=vit_tiny_28", "network.backbone.options.depth=2"),
    *("network.backbone.drop_path_rate=0.3", *CROPS, "method=vicreg", "precision=fp32"),
    *("optimizer=adamw", "epochs=3", "evaluation.protocols=[knn]"),
)
# The last rank is killed in the middle of the second epoch.
KILLED = """
import json, os, signal, sys
from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.step import Step
step, steps = Step.__call__, 0
def counted(self, *views):
    global steps
    steps += 1
    if (steps, os.environ["RANK"], sys.argv[2]) == (5, "1", "kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *views)
Step.__call__ = counted
run_cell(*load_run(json.loads(sys.argv[1])), "killed")
"""


@pytest.mark.slow
def test_a_transformer_of_many_views_on_two_ranks_goes_on_after_a_kill_as_if_there_was_none(
    tiny: list[str], tmp_path: Path
) -> None:
    """Drop path draws on each rank what it would have drawn.

    The curve and the scores are the same to the bit.
    """
    records = {}
    for name, lives in {"undisturbed": ["run"], "killed": ["kill", "run"]}.items():
        overrides = [*tiny, *TRANSFORMER, f"runtime.runs_dir={tmp_path / name}"]
        for life in lives:
            ended = launch(2, KILLED, json.dumps(overrides), life)
            codes = [process.returncode for process in ended]
            assert codes == [1, -signal.SIGKILL] if life == "kill" else codes == [0, 0]
        cell, runtime = load_run(overrides)
        records[name] = there(read_record(run_directory(runtime, "killed", cell)))
    killed, undisturbed = records["killed"], records["undisturbed"]
    assert [attempt.from_step for attempt in killed.attempts] == [None, 3]
    assert killed.scores == undisturbed.scores
    parts = ("step", "data", "forward", "loss", "backward", "optimizer")
    timed = dict.fromkeys(("epoch_s", *(f"{part}_ms" for part in parts)))
    rows = []
    for record in (killed, undisturbed):
        rows.append([{**row, **timed} for row in record.history])
    assert rows[0] == rows[1] and len(rows[0]) == 3


# The first rank is in an exchange that nothing ends but an abort, as with NCCL.
STUCK = """
import sys, threading, torch
import torch.distributed as dist
from regbench.benchmark.training.distributed import connect
released = threading.Event()
dist.ProcessGroup.abort = lambda group: released.set()
try:
    with connect(torch.device("cpu")) as world:
        if world.rank:
            raise ValueError("the true error")
        ended = released.wait(120)
        print("goes on with numbers that are not whole", ended)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_others_wherever_they_wait() -> None:
    first, second = launch(2, STUCK)
    assert second.stderr == "ValueError: the true error\n"
    assert first.stderr == "RegbenchError: rank 1: ValueError: the true error\n"
    assert first.stdout == ""


# The store answers a second late, as where its process is not given a core.
LATE = """
import datetime, threading, torch
import torch.distributed as dist
from regbench.benchmark.training import distributed
asked = threading.Event()
def check(store, keys):
    asked.set()
    try:
        store.wait(["never"], datetime.timedelta(seconds=1))
    except dist.DistStoreError:
        return False
dist.TCPStore.check = check
distributed._WATCH_S, before = 0.0, threading.active_count()
with distributed.connect(torch.device("cpu")) as world:
    asked.wait()
print(threading.active_count() - before)
"""


@pytest.mark.slow
def test_no_thread_is_left_within_the_store() -> None:
    """The end of the interpreter would abort the process, and Slurm run a job again that is
    done.
    """
    for rank in launch(2, LATE):
        assert (rank.returncode, rank.stdout) == (0, "0\n")


def test_a_layer_that_does_more_than_bn_is_not_taken_for_bn() -> None:
    """timm's rectifies too, which would be lost."""
    from timm.layers.norm_act import BatchNormAct2d

    kinds = [BatchNormAct2d(4), nn.BatchNorm2d(4, momentum=None)]
    for layer in (*kinds, nn.BatchNorm2d(4, track_running_stats=False)):
        with is_refused(f"{type(layer).__name__} of the network cannot take its statistics over"):
            world = World(size=2, group=cast("dist.ProcessGroup", object()))
            synchronize_batch_norm(nn.Sequential(layer), world, torch.device("cpu"))


def test_a_launcher_that_says_half_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with is_refused("LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"):
        environment_ranks()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert environment_ranks() == (0, 1, 0, 1)


def test_what_two_processes_share_is_as_one_has_it() -> None:
    """BN of unequal batches; losses; states; the operations of an update; agreement.

    A transformer and clipping.
    """
    code = """
import sys, torch, warnings
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import TorchDispatchMode
from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.settings.architecture import NetworkConfig, ProjectorConfig
from regbench.benchmark.training.distributed import Agreement, connect, synchronize_batch_norm
from regbench.benchmark.training.network import SiameseNetwork
from regbench.benchmark.training.optimizers.lars import LARSConfig
from regbench.benchmark.training.optimizers.sgd import SGDConfig
from regbench.benchmark.training.step import Step
from regbench.benchmark.training.sync_batch_norm import Kernels, SyncBatchNorm
from regbench.methods import Engine, build
from regbench.methods.forms import engine

cpu, operations = torch.device("cpu"), []

class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operations.append(func)
        return func(*args, **(kwargs or {}))

def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

def batch_norm(world):
    # Value, both gradients and running statistics.
    x, weights = draw(0, 7, 4, 3, 3) * 3 + 1, draw(1, 7, 4, 3, 3)
    def run(network, x, weights):
        x = x.clone().requires_grad_()
        (network(x) * weights).sum().backward()
        return x.grad
    whole = nn.Sequential(nn.BatchNorm2d(4))
    expected = run(whole, x, weights)
    network = nn.Sequential(nn.BatchNorm2d(4))
    synchronize_batch_norm(network, world, cpu)
    assert network.state_dict().keys() == whole.state_dict().keys()
    rows = slice(0, 5) if world.rank == 0 else slice(5, 7)
    close(run(network, x[rows], weights[rows]), expected[rows])
    for mine, theirs in zip(network.parameters(), whole.parameters()):
        dist.all_reduce(mine.grad)
        close(mine.grad, theirs.grad)
    for mine, theirs in zip(network.buffers(), whole.buffers()):
        close(mine, theirs)
    network.eval(), whole.eval()
    close(network(x), whole(x))
    whole, network = nn.Sequential(nn.BatchNorm2d(4, affine=False)), nn.Sequential(nn.BatchNorm2d(4, affine=False))
    synchronize_batch_norm(network, world, cpu)
    assert network.state_dict().keys() == whole.state_dict().keys() and not [*network.parameters()]
    close(run(network, x[rows], weights[rows]), run(whole, x, weights)[rows])

def batch_norm_kernels(world):
    # torch's own layer and ours make the same calls of the kernels, which are CUDA's, with the same numbers: in layouts
    # and precisions of a training, and with unequal shares. Plain torch stands for the kernels here.
    # Ours has no operation for which a GPU's host would wait.
    from torch.nn.modules._functions import SyncBatchNorm as Theirs
    calls = []
    def noting(name):
        def kernel(*arguments):
            calls.append((name, [a.clone() if torch.is_tensor(a) else a for a in arguments]))
            return getattr(Kernels, name)(*arguments)
        return kernel
    names = [name for name in vars(Kernels) if name.startswith("batch_norm")]
    originals = {name: getattr(torch, name) for name in names}
    for name in names:
        setattr(torch, name, noting(name))
    images = draw(world.rank, 5 - world.rank, 4, 3, 3)
    for x in (
        images,
        images.bfloat16().contiguous(memory_format=torch.channels_last),
        images.transpose(2, 3),
        draw(3, 6, 4),
        images.flatten(2),
    ):
        noted = []
        for ours in (True, False):
            whole = nn.BatchNorm2d(4)
            leaf = x.clone().requires_grad_()
            operations.clear()
            with Operations():
                if ours:
                    out = SyncBatchNorm(whole, world.group, torch)(leaf)
                else:
                    settings = whole.running_mean, whole.running_var, whole.eps, whole.momentum, world.group, world.size
                    out = Theirs.apply(leaf, whole.weight, whole.bias, *settings)
                out.backward(draw(4, *out.shape).to(out.dtype))
            names = {func.overloadpacket.__name__ for func in operations}
            waits = {"index", "nonzero", "masked_select", "_local_scalar_dense"} & names
            assert ours == (not waits), (ours, waits)
            noted.append([*calls, ("out", [out, leaf.grad, whole.weight.grad, whole.bias.grad, *whole.buffers()][:-1])])
            calls.clear()
        assert len(noted[0]) == len(noted[1]) == 6
        for (name, mine), (other, theirs) in zip(*noted):
            assert name == other and len(mine) == len(theirs), (name, other)
            for a, b in zip(mine, theirs):
                if torch.is_tensor(a):
                    assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), name
                    assert torch.equal(a, b), name
                else:
                    assert a == b, name
    for name, kernel in originals.items():
        setattr(torch, name, kernel)

def equal_shares(world):
    z1, z2 = draw(0, 8, 5), draw(1, 8, 5)
    rows = slice(0, 4) if world.rank == 0 else slice(4, 8)
    expected = build("sfrik").loss(z1, z2)
    close(build("sfrik").loss(z1[rows], z2[rows], engine=Engine(group=world.group, even=True)), expected)

def random_directions(world):
    # Of a seed that all ranks know: nobody has to be told, and no GPU to wait.
    z1, z2 = draw(0, 8, 5), draw(1, 8, 5)
    rows = slice(0, 4) if world.rank == 0 else slice(4, 8)
    method = build("sigreg", directions=3)
    torch.manual_seed(world.rank)
    broadcast, dist.broadcast = dist.broadcast, None
    shared = method.loss(z1[rows], z2[rows], engine=Engine(group=world.group, even=True, draw_seed=lambda: 5))
    dist.broadcast = broadcast
    with warnings.catch_warnings(action="ignore"):  # of the one that is alone
        close(shared, method.loss(z1, z2, engine=Engine(draw_seed=lambda: 5)))

def states(world):
    # The first rank alone has one.
    weights = {"w": draw(0, 5, 4, 3, 3).contiguous(memory_format=torch.channels_last), "b": draw(1, 6).bfloat16()}
    given = {"network": weights, "optimizer": {0: {"step": torch.tensor(3)}}}, "the name"
    state, name = world.state_from_first(given if world.rank == 0 else None, cpu)
    assert name == "the name" and list(state) == ["network", "optimizer"] and state["optimizer"][0]["step"] == 3
    for key, tensor in weights.items():
        found = state["network"][key]
        assert found.dtype == tensor.dtype and found.stride() == tensor.stride() and torch.equal(found, tensor)
    assert world.state_from_first(None, cpu) is None

def update(world):
    # It takes no operation for each of the tensors, whose gradients lie in buckets.
    operations.clear()
    config = NetworkConfig(backbone=BACKBONES.build("resnet18"), projector=ProjectorConfig(norm="layer"))
    network = SiameseNetwork(config, 16, 1, 28, 0)
    marks = []
    step = Step(
        network=DDP(network, gradient_as_bucket_view=True, static_graph=True),
        optimizer=LARSConfig().build_clipping(network.parameters()),
        method=build("vicreg"),
        engine=Engine(group=world.group, even=True),
        precision="fp32",
        mark=lambda: marks.append(sum(not func.is_view for func in operations)),
    )
    for _ in range(2):  # the first one makes the momentum
        with Operations():
            step(*(draw(i, 4, 1, 28, 28) for i in range(2)))
    tensors = [*network.parameters()]
    assert 0 < marks[-1] - marks[-2] < 25 < len(tensors), (marks[-1] - marks[-2], len(tensors))
    assert all(p.grad is not None and not p.grad.any() for p in tensors)

def agreement(world):
    # Answers come to all ranks one call later, or at once where that is asked; what was answered is done.
    agree, mine = Agreement(world), float(world.rank)
    asked = [(0, False), (9, False), (9, False), (0, False), (0, False), (9, True), (0, True), (9, False), (9, True)]
    assert [agree(mine * what, now=now) for what, now in asked] == [[0], [0], [9], [0], [0], [9], [0], [0], [9]]

def transformer(world):
    # Views of two sizes; the class token matters by the patches alone.
    options = dict(depth=2, embed_dim=24, num_heads=2)
    backbone = BACKBONES.build("timm", patch_size=4, representation="mean", options=options)
    config = NetworkConfig(backbone=backbone, projector=ProjectorConfig(norm="layer"))
    alone, shared = (SiameseNetwork(config, 16, 1, 28, 0) for _ in range(2))
    views = [draw(i, 8, 1, size, size) for i, size in enumerate((28, 16))]
    for network, group in ((alone, None), (shared, world.group)):
        module = network if group is None else DDP(network, gradient_as_bucket_view=True, static_graph=True)
        optimizer = SGDConfig(clip_grad_norm=0.1).build_clipping(network.parameters())
        for parameters in optimizer.param_groups:
            parameters["lr"] = 0.3
        with warnings.catch_warnings(action="ignore"):  # of the one that is alone
            settings = dict(method=build("vicreg"), engine=Engine(group=group), precision="fp32")
            step = Step(network=module, optimizer=optimizer, **settings)
            for _ in range(3):
                step(*(x if group is None else x.chunk(2)[world.rank] for x in views))
    for mine, theirs in zip(shared.parameters(), alone.parameters()):
        close(mine, theirs)

with connect(cpu) as world:
    checks = batch_norm, batch_norm_kernels, equal_shares, random_directions, states, update, agreement, transformer
    for check in checks:
        check(world)
"""
    for process in launch(2, code):
        assert process.returncode == 0, process.stderr
