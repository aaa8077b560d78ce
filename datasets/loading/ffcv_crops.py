"""The views with FFCV: its loader reads the file, and threads decode each image once and make every
view out of it.

FFCV 1.0.2 is used as published. What to know, and what is different here from its own pipelines:

- FFCV's loader only gives the batches of an epoch, as indices and the mapped file. Work that can
  fail or take long is done after it: an error in FFCV's thread would leave the caller waiting for
  ever, and FFCV reuses its ring of buffers while a receiver may still hold a batch.
- The boxes come from outside (`draws`), because FFCV's augmentation cannot be seeded.
- An epoch may be left early; FFCV's own iterator would keep its thread.
- What the JPEG decoder returns is checked: FFCV delivers whatever lay in the buffer when an image
  cannot be decoded.
- PyTorch's number of threads, which FFCV sets to its own number of workers, is left alone.
- JPEGs are decoded as FFCV does, with the fast inverse DCT of libjpeg-turbo: against Pillow the
  grey levels differ by 1 in the mean (0.8 lower) and by up to 5. Raw images are the same to the
  bit.
- On a CPU, the thread that cuts the views augments and normalises them at once. With a GPU, the GPU
  does that.
- Nothing is compiled per loader: `kernels` is compiled once and kept on disk by numba, in the
  user's cache folder.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty
from typing import Any
from unittest import mock

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numba.typed
import numpy as np
import torch

from regbench.datasets.loading.compiled import Array
from regbench.datasets.loading.crops import Boxes, Chains, CropShape, CropStream, Ints
from regbench.datasets.loading.kernels import decode, show
from regbench.datasets.loading.kernels_cut import FILTERS
from regbench.datasets.loading.photometric import CHAIN, Normalize, blur_taps
from regbench.datasets.stored.beton import Beton

log = logging.getLogger("regbench")

# Batches that are made before they are asked for, in addition to the one that was handed over.
_AHEAD = 4
# Batches in progress at once: while one waits for its last images, threads work on the next.
_AT_WORK = 2
# Parts of a batch for each thread. Images differ, so some threads take more parts than others.
_PARTS_PER_THREAD = 4
# After this wait for a batch, the user is told why.
_COMPILING_S = 2.0


@contextmanager
def _contained() -> Iterator[None]:
    """Suppress FFCV's warnings, and undo its change of PyTorch's number of threads."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


# numba's own threading layer. With TBB, which it prefers where the system has it (Debian's OpenCV
# brings it), a process can wait for ever at its exit, in unload_tbb.
numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]

# During its import FFCV gets plain dictionaries in place of numba's: a single one, of two entries,
# which only Python reads. Compiling numba's would take 2.9 of 3.3 seconds. FFCV also asks whether
# there is a GPU: after torch has looked, forked processes could not use one.
_no_gpu = mock.patch("torch.cuda.is_available", lambda: False)
with _contained(), mock.patch("numba.typed.Dict", dict), _no_gpu:
    import ffcv._libffcv
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader, epoch_iterator
    from ffcv.loader.epoch_iterator import EpochIterator
    from ffcv.pipeline.compiler import Compiler


# FFCV's iterator would make streams, and with them a CUDA context, on the first GPU, whichever is
# ours. Crops are made in main memory, and `epochs` brings them to the device.
epoch_iterator.IS_CUDA = False
# The iterator's thread would set PyTorch's number of threads to its own, in the middle of a
# training step.
Compiler.set_num_threads = lambda _: None


# This makes FFCV's JPEG decoder known, which `kernels` refers to by name.
llvmlite.binding.load_library_permanently(ffcv._libffcv.__file__)


class _Batch(SimpleRGBImageDecoder):  # type: ignore[misc]
    """Passes a batch's indices and the mapped file on, without decoding anything."""

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, None]:
        return replace(previous_state, jit_mode=True, shape=(), dtype=np.dtype(np.uint8)), None

    def generate_code(self) -> Callable[..., Any]:
        def pass_on(batch_indices: Any, storage: Any, metadata: Any, storage_state: Any) -> Any:
            return batch_indices.astype(np.int64), storage_state[0]

        return pass_on


class FfcvCrops:
    """Makes the views of one `.beton` file in threads."""

    def __init__(
        self,
        beton: Beton,
        shape: CropShape,
        batch_size: int,
        workers: int,
        normalize: Normalize | None,
        *,
        pin_memory: bool,
    ) -> None:
        """Make a loader of batches of `batch_size` images.

        It delivers finished views if `normalize` is given. With `pin_memory` crops are in
        page-locked memory, from which a GPU copies them several times as fast.
        """
        self._pin_memory = pin_memory
        self.finishes = normalize is not None
        self._beton = beton
        self._shape = shape
        self._workers = workers
        self._cutting = (FILTERS[shape.interpolation], np.array(shape.sizes), shape.channels)
        # Without a normalization these are not used, but numba needs arrays of the same types.
        nothing = np.empty(0, np.float32)
        scale, shift = normalize.constants() if normalize else (nothing, nothing)
        self._finishing = (np.array([blur_taps(size) for size in shape.sizes]), scale, shift)
        self._image_shapes = np.stack([beton.modes, beton.heights, beton.widths], axis=1)
        # FFCV must not compile: our functions are compiled already, and it would compile them anew
        # for each loader.
        with _contained(), mock.patch.object(Compiler, "is_enabled", False):
            self._loader = Loader(
                str(beton.path),
                batch_size,
                num_workers=1,  # numba's threads, which are not used
                os_cache=True,
                # not used, but without one FFCV takes a number from NumPy's global generator
                seed=0,
                pipelines={"image": [_Batch()], "label": None},
            )
            self._loader.generate_code()

    def stream(self, order: Ints, boxes: Boxes, chains: Chains) -> CropStream:
        """Start an epoch."""
        with _contained():
            batches = EpochIterator(self._loader, order.astype(np.uint64))
        ahead: deque[tuple[Ints, Future[torch.Tensor]]] = deque()
        # Batches and parts have separate pools: in a common one, batches that wait for their parts
        # could take every thread.
        with ThreadPoolExecutor(_AT_WORK) as at_work, ThreadPoolExecutor(self._workers) as pool:
            try:
                for ((indices, file),) in batches:
                    made = at_work.submit(self._make, indices, file, boxes, chains, pool)
                    ahead.append((indices, made))
                    if len(ahead) > _AHEAD:
                        indices, batch = ahead.popleft()
                        yield indices, _result(batch)
                while ahead:
                    indices, batch = ahead.popleft()
                    yield indices, _result(batch)
            finally:
                for _, batch in ahead:
                    batch.cancel()
                _end(batches)

    def _make(
        self, indices: Ints, file: Array, boxes: Boxes, chains: Chains, pool: ThreadPoolExecutor
    ) -> torch.Tensor:
        """Make the views of one batch, as a flat tensor; see `CropShape.split`."""
        count = len(indices)
        numbers = count * self._shape.numbers_per_image
        # Each batch has new memory, so that the receiver may keep it.
        kept = 0 if self.finishes else numbers
        crops = torch.empty(kept, dtype=torch.uint8, pin_memory=self._pin_memory)
        finished = torch.empty(numbers - kept, dtype=torch.float32)
        out = (crops.numpy(), finished.numpy())
        where = (file, self._beton.start, self._beton.size, self._image_shapes)
        box = boxes(indices)
        chain = chains(indices) if self.finishes else np.empty(box.shape[:2], CHAIN)
        failed = np.zeros(count, np.int64)

        how = (box, self._cutting, chain, self._finishing, failed, out)

        def part(first: int, end: int) -> None:
            decode(indices[first:end], first, count, where, *how)

        # A batch may have fewer images than there would be parts.
        parts = min(count, _PARTS_PER_THREAD * self._workers)
        edges = np.linspace(0, count, parts + 1).astype(int).tolist()
        list(pool.map(part, edges[:-1], edges[1:]))
        for n in np.flatnonzero(failed).tolist():
            # FFCV's decoder gives up on flaws that Pillow reads past with a warning, as some
            # ImageNet files have. What Pillow cannot read is refused.
            image = self._beton.image(int(indices[n]))
            show(image, n, count, box[n], self._cutting, chain[n], self._finishing, out)
        return finished if self.finishes else crops


def _result(batch: Future[torch.Tensor]) -> torch.Tensor:
    """Wait for a batch, and log the reason if the first one takes long."""
    try:
        return batch.result(_COMPILING_S)
    except TimeoutError:
        # Only emptiness is tested: numba's dictionary cannot be iterated while a compiling thread
        # adds to it.
        if not decode.overloads:
            log.info("compiling the loader, once on this machine; it takes some 15 s")
        return batch.result()


def _end(batches: Any) -> None:
    """End FFCV's thread, which checks whether it should end only while its queue is full."""
    batches.terminate_event.set()
    batches.iter_ixes = iter(())
    while batches.is_alive():
        try:
            batches.output_queue.get_nowait()
        except Empty:
            batches.join(0.005)
    batches.close()
