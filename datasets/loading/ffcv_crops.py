"""The views with FFCV's JPEG decoder: threads that decode an image once and make every view out of it.

Of FFCV 1.0.2 the file format and the decoder are used, not its Python loader. Its loader cannot be seeded, waits for
ever when a step of it fails, leaks a thread when an epoch is left early, and shows whatever lay in the buffer when an
image cannot be decoded.

- JPEGs are decoded with the fast inverse DCT of libjpeg-turbo: against Pillow the grey levels differ by 1 in the mean
  (0.8 lower) and by up to 5. Raw images are the same to the bit.
- For a CPU the views are augmented and normalised at once, by the thread that cut them; for a GPU that is left to it.
- Nothing is compiled per loader: `kernels` is compiled once and kept on disk by numba, in the user's cache folder.
"""

from __future__ import annotations

import importlib.util
import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
import torch

from regbench.datasets.beton import Beton
from regbench.datasets.loading.crops import Boxes, Chains, CropShape, CropStream, Ints
from regbench.datasets.loading.kernels import FILTERS, decode, show
from regbench.datasets.loading.photometric import CHAIN, Normalize, blur_taps

log = logging.getLogger("regbench")

# Batches that are made before they are asked for, beside the one that was handed over.
_AHEAD = 4
# Batches that are at work at once: while one waits for its last images, the threads have the next.
_AT_WORK = 2
# Parts of a batch for each thread. Images differ, so some threads take more parts than others.
_PARTS_PER_THREAD = 4
_COMPILING_S = 2.0


def _load_decoder() -> None:
    """Make FFCV's JPEG decoder known to LLVM, which looks up the name that `kernels` calls.

    The library is opened by its path. `import ffcv` would take 3 seconds, set PyTorch's threads to 1, and make a CUDA
    context.

    Raises:
        ImportError: If FFCV is not installed.
    """
    spec = importlib.util.find_spec("ffcv")
    folders = (spec.submodule_search_locations or []) if spec else []
    libraries = [path for folder in folders for path in Path(folder).glob("_libffcv*.so")]
    if not libraries:
        raise ImportError("FFCV's library _libffcv is not there", name="ffcv")
    llvmlite.binding.load_library_permanently(str(libraries[0]))


_load_decoder()


class FfcvCrops:
    """Makes the views of one `.beton` file in threads."""

    def __init__(self, beton: Beton, shape: CropShape, workers: int, normalize: Normalize | None) -> None:
        """Make the loader.

        Args:
            beton: The file.
            shape: What to deliver.
            workers: Threads.
            normalize: Deliver finished views, normalised like this; None: crops.
        """
        self.finishes = normalize is not None
        self._beton = beton
        self._shape = shape
        self._workers = workers
        self._cutting = (FILTERS[shape.interpolation], np.array(shape.sizes), shape.channels)
        # Without a normalization these are not looked at, but numba wants arrays of the same types.
        nothing = np.empty(0, np.float32)
        scale, shift = normalize.constants() if normalize else (nothing, nothing)
        self._finishing = (np.array([blur_taps(size) for size in shape.sizes]), scale, shift)
        image_shapes = np.stack([beton.modes, beton.heights, beton.widths], axis=1)
        self._where = (beton.content, beton.start, beton.size, image_shapes)

    def stream(self, order: Ints, batch_size: int, boxes: Boxes, chains: Chains | None = None) -> CropStream:
        """Start an epoch; see `CropLoader`."""
        ahead: deque[Future[torch.Tensor]] = deque()
        starts = range(0, len(order), batch_size)
        batches = [order[start : start + batch_size] for start in starts]
        # Two pools, because a batch waits for its parts: in one pool, waiting batches could take every thread.
        with ThreadPoolExecutor(_AT_WORK, "regbench batches") as at_work, ThreadPoolExecutor(self._workers) as pool:
            try:
                for number, indices in enumerate(batches):
                    for following in batches[number + len(ahead) : number + 1 + _AHEAD]:
                        ahead.append(at_work.submit(self._make, following, boxes, chains, pool))
                    yield indices, _result(ahead.popleft())
            finally:
                for batch in ahead:
                    batch.cancel()

    def _make(self, indices: Ints, boxes: Boxes, chains: Chains | None, pool: ThreadPoolExecutor) -> torch.Tensor:
        """Make the views of one batch, in one dimension; see `CropShape.split`."""
        count = len(indices)
        numbers = count * self._shape.numbers_per_image
        # New memory for each batch, so that the receiver may keep it.
        crops = np.empty(0 if self.finishes else numbers, np.uint8)
        finished = np.empty(numbers if self.finishes else 0, np.float32)
        out = (crops, finished)
        box = boxes(indices)
        chain = chains(indices) if chains else np.empty((count, len(self._shape.sizes), len(CHAIN)))
        failed = np.zeros(count, np.int64)

        def part(first: int, end: int) -> None:
            rows = indices[first:end]
            decode(rows, first, count, self._where, box, self._cutting, chain, self._finishing, failed, out)

        edges = np.linspace(0, count, min(count, _PARTS_PER_THREAD * self._workers) + 1).astype(int).tolist()
        list(pool.map(part, edges[:-1], edges[1:]))
        for n in np.flatnonzero(failed).tolist():
            # FFCV's decoder gives up on flaws that Pillow reads past with a warning, as some ImageNet files have. What
            # Pillow cannot read is refused.
            image = self._beton.image(int(indices[n]))
            show(image, n, count, box[n], self._cutting, chain[n], self._finishing, out)
        return torch.from_numpy(finished if self.finishes else crops)


def _result(batch: Future[torch.Tensor]) -> torch.Tensor:
    """Wait for a batch, and tell why when the first one takes long."""
    try:
        return batch.result(_COMPILING_S)
    except TimeoutError:
        # Only whether it is empty: numba's dictionary cannot be walked while a thread that compiles adds to it.
        if not decode.overloads:
            log.info("compiling the loader, once on this machine; it takes some 15 s")
        return batch.result()
