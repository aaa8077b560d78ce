"""The views with FFCV: a decoder that decodes each image once and makes every view out of it.

FFCV 1.0.2 is used as published. What to know, and what is different here from its own loader:

- The boxes come from outside (`draws`), because FFCV's augmentation cannot be seeded.
- An epoch may be left early; FFCV's own iterator would keep its thread and buffers. An error in the thread behind an
  epoch reaches the caller, who would wait for ever with FFCV's own.
- What the JPEG decoder returns is checked: FFCV delivers whatever lay in the buffer when an image cannot be decoded.
- PyTorch's number of threads, which FFCV sets to its own number of workers, is put back.
- JPEGs are decoded as FFCV does, with the fast inverse DCT of libjpeg-turbo: against Pillow the grey levels differ by
  1 in the mean (0.8 lower) and by up to 5. Raw images are the same to the bit.
- For a CPU the views are augmented and normalised at once, by the thread that cut them; for a GPU that is left to it.
- Nothing is compiled per loader: `kernels` is compiled once and kept on disk by numba, in the user's cache folder.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import Empty, Full, Queue
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numba.typed
import numpy as np
import numpy.typing as npt
import torch

from regbench.datasets.beton import Beton
from regbench.datasets.loading.crops import BOX, Boxes, Chains, CropShape, CropStream, Ints
from regbench.datasets.loading.kernels import decode, show
from regbench.datasets.loading.kernels_cut import FILTERS
from regbench.datasets.loading.photometric import CHAIN, Normalize, blur_taps

log = logging.getLogger("regbench")
Array = npt.NDArray[Any]


@contextmanager
def _contained() -> Iterator[None]:
    """Keep FFCV's warnings and its setting of PyTorch's threads to itself."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _plain_dictionaries() -> Iterator[None]:
    """Let FFCV's import make plain dictionaries where it asks for numba's.

    It makes a single one, of two entries, which only Python reads. Compiling it takes 2.9 of the import's 3.3 seconds.
    """
    typed = numba.typed.Dict
    numba.typed.Dict = dict
    try:
        yield
    finally:
        numba.typed.Dict = typed


# numba's own threading layer. With TBB, which it prefers where the system has it (Debian's OpenCV brings it), a process
# can wait for ever at its exit, in unload_tbb.
numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]

with _contained(), _plain_dictionaries():
    import ffcv._libffcv
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader, epoch_iterator
    from ffcv.loader.epoch_iterator import EpochIterator
    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler


# Its iterator would make streams, and with them a CUDA context, on the first GPU, whichever is ours. Crops are made in
# main memory, and `epochs` brings them to the device.
epoch_iterator.IS_CUDA = False


@contextmanager
def _not_compiled() -> Iterator[None]:
    """Have FFCV leave functions as they are: ours are compiled already, and it would compile anew for each loader."""
    enabled = Compiler.is_enabled
    Compiler.set_enabled(False)
    try:
        yield
    finally:
        Compiler.set_enabled(enabled)


_BATCHES_AHEAD = 2
# Buffers: for the batches ahead, for the two that are at work, and for the one that was handed over.
_SLOTS = _BATCHES_AHEAD + 3

# `kernels` names FFCV's JPEG decoder, which this makes known.
llvmlite.binding.load_library_permanently(ffcv._libffcv.__file__)


class _ViewDecoder(SimpleRGBImageDecoder):  # type: ignore[misc]
    """Decodes an image once and makes its views.

    Memory per sample: boxes (views, 9) and chains (views, 11), set before; status (1,), 0 when decoded; crops, unless
    they are finished at once: their memory is new for every batch, so that it can be handed on.
    """

    def __init__(
        self, beton: Beton, shape: CropShape, normalize: Normalize | None, pool: Executor, workers: int
    ) -> None:
        super().__init__()
        self._beton = beton
        self._shape = shape
        self._finishes = normalize is not None
        scale, shift = normalize.constants() if normalize else (np.empty(0, np.float32),) * 2
        taps = np.array([blur_taps(size) for size in shape.sizes])
        self._cutting = (FILTERS[shape.interpolation], np.array(shape.sizes), shape.channels)
        self._finishing = (taps, scale, shift)
        self._workers = workers
        self._pool = pool

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, tuple[Any, ...]]:
        shape = self._shape
        crops = (0 if self._finishes else shape.numbers_per_image,)
        queries = (
            AllocationQuery((len(shape.sizes), len(BOX)), np.dtype(np.int64)),
            AllocationQuery((len(shape.sizes), len(CHAIN)), np.dtype(np.float64)),
            AllocationQuery((1,), np.dtype(np.int64)),
            AllocationQuery(crops, np.dtype(np.uint8)),
        )
        return replace(previous_state, jit_mode=True, shape=crops, dtype=np.dtype(np.uint8)), queries

    def generate_code(self) -> Callable[..., Any]:
        beton = self._beton
        image_shape = np.stack([beton.modes, beton.heights, beton.widths], axis=1)
        numbers = self._shape.numbers_per_image if self._finishes else 0

        def make_views(batch_indices: Any, storage: Any, metadata: Any, storage_state: Any) -> Any:
            boxes, chains, status, crops = storage
            count = len(batch_indices)
            out = (crops.reshape(-1), np.empty(count * numbers, np.float32))

            def part(first: int, end: int) -> None:
                where = storage_state[0], beton.start, beton.size, image_shape
                rows = batch_indices[first:end]
                decode(rows, first, count, where, boxes, self._cutting, chains, self._finishing, status, out)

            def mend() -> Array:
                for n in np.flatnonzero(status[:, 0]).tolist():
                    # FFCV's decoder gives up on flaws that Pillow reads past with a warning, as some ImageNet files
                    # have; what Pillow cannot read is refused.
                    image = beton.image(int(batch_indices[n]))
                    show(image, n, count, boxes[n], self._cutting, chains[n], self._finishing, out)
                return out[1 if self._finishes else 0]

            # Numba's own threads serve one parallel loop at a time, and two loaders may run at once. Some parts more
            # than threads, because images differ.
            edges = np.linspace(0, count, min(count, 4 * self._workers) + 1).astype(int).tolist()
            parts = [self._pool.submit(part, *ends) for ends in pairwise(edges)]
            return _Pending(batch_indices.astype(np.int64), parts, mend)

        return make_views


@dataclass
class _Pending:
    """A batch that is at work in other threads."""

    indices: Ints
    parts: list[Future[None]]
    mend: Callable[[], Array]

    def result(self) -> tuple[Ints, torch.Tensor]:
        for part in self.parts:
            part.result()
        return self.indices, torch.from_numpy(self.mend())

    def stop(self) -> None:
        for part in self.parts:
            part.cancel()
        wait(self.parts)


class _Stream(EpochIterator):  # type: ignore[misc]
    """One epoch: a thread that fills a ring of buffers, with an end that always comes."""

    def __init__(self, loader: Any, order: Ints, boxes: Boxes, chains: Chains | None) -> None:
        self._boxes = boxes
        self._chains = chains
        self._done = False
        self._ready: Queue[Any] = Queue(_BATCHES_AHEAD)
        super().__init__(loader, order.astype(np.uint64))

    def run(self) -> None:
        # A batch is begun before the one before it is waited for, so that the workers always have something to do.
        at_work: deque[_Pending] = deque()
        try:
            (node,) = self.memory_allocations["operation"]
            box_slots, chain_slots = self.memory_allocations["operation"][node][:2]
            for number, indices in enumerate(self.iter_ixes):
                slot = number % _SLOTS
                plain = indices.astype(np.int64)
                box_slots[slot][: len(indices)] = self._boxes(plain)
                if self._chains is not None:
                    chain_slots[slot][: len(indices)] = self._chains(plain)
                at_work.extend(self.run_pipeline(number, indices, slot, None))
                if len(at_work) > 1 and not self._put(at_work.popleft().result()):
                    return
            while at_work:
                self._put(at_work.popleft().result())
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            for batch in at_work:
                batch.stop()

    def _put(self, item: Any) -> bool:
        """Hand over to the consumer; False if it has gone."""
        while not self.terminate_event.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return True
            except Full:
                pass
        return False

    def __next__(self) -> tuple[Ints, torch.Tensor]:
        if self._done:
            raise StopIteration
        try:
            item = self._ready.get(timeout=2.0)
        except Empty:
            # Only whether it is empty: numba's dictionary cannot be walked while a thread that compiles adds to it.
            if not decode.overloads:
                log.info("compiling the loader, once on this machine; it takes some 15 s")
            item = self._ready.get()
        if isinstance(item, tuple):
            return item
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        if self._done:
            return
        self._done = True
        self.terminate_event.set()
        while self.is_alive():
            try:
                self._ready.get_nowait()
            except Empty:
                self.join(0.005)
        self.memory_allocations: dict[str, Any] = {}
        super().close()
        self.closed = True


class FfcvCrops:
    """Makes the views of one `.beton` file in FFCV's loader."""

    def __init__(
        self, beton: Beton, shape: CropShape, batch_size: int, workers: int, normalize: Normalize | None
    ) -> None:
        """Make a loader of at most `batch_size` images; it delivers finished views if it is told how to normalise."""
        self.finishes = normalize is not None
        self._pool = ThreadPoolExecutor(workers)
        with _contained(), _not_compiled():
            self._loader = Loader(
                str(beton.path),
                batch_size,
                num_workers=1,  # numba's threads, which are not used
                os_cache=True,
                seed=0,  # not used, but without one FFCV takes a number from NumPy's global generator
                pipelines={"image": [_ViewDecoder(beton, shape, normalize, self._pool, workers)], "label": None},
                batches_ahead=_SLOTS - 2,
            )

    def stream(self, order: Ints, batch_size: int, boxes: Boxes, chains: Chains | None = None) -> CropStream:
        """Start an epoch."""
        with _contained():
            self._loader.batch_size = batch_size
            stream: CropStream = _Stream(self._loader, order, boxes, chains)
            return stream

    def close(self) -> None:
        """Let go of the file and end the threads."""
        self._loader = None
        self._pool.shutdown()
