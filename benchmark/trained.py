"""A trained backbone to take away: as a module, and as weights that timm and torchvision load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.run import final_state, trained_cell
from regbench.benchmark.rundir.record import read_tuned
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.training.assembly import build_network
from regbench.datasets.config import Interpolation
from regbench.datasets.loading.crops import center_boxes
from regbench.datasets.loading.photometric import Normalize
from regbench.datasets.loading.torchvision_crops import resize
from regbench.datasets.sources.base import ImageFiles
from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.datasets.stored.beton import RAW
from regbench.datasets.stored.encode import Unreadable, encode, to_rgb
from regbench.errors import RegbenchError
from regbench.files import file_sha256, write_bytes, write_text
from regbench.version import __version__


@dataclass(frozen=True)
class Trained:
    """The backbone of a finished run.

    Attributes:
        cell: The run's settings.
        directory: The run directory.
        module: Backbone in evaluation mode: images (n, c, s, s) to representations (n, dim).
        dim: Width of the representation.
    """

    cell: Cell
    directory: Path
    module: nn.Module
    dim: int

    @property
    def interpolation(self) -> Interpolation:
        """Filter of the resize before the centre crop."""
        knn = self.cell.evaluation.evaluations.get("knn", KNN())
        assert isinstance(knn, KNN)
        return knn.interpolation

    def transform(self, image: str | Path | Image.Image) -> Tensor:
        """Return an image, or that of a file, in the form that the module takes: (c, s, s) float32,
        resized, cut and normalised as in the evaluations.

        Raises:
            RegbenchError: If the image cannot be read, or the range of its values is not known.
        """
        dataset = self.cell.dataset
        if isinstance(image, Image.Image):
            try:
                picture, _ = to_rgb(image, getattr(dataset.source, "levels", None))
            except ValueError as error:
                raise RegbenchError(f"the image cannot be read: {error}") from error
        else:
            picture = self._stored(Path(image)).convert("RGB")
        if dataset.channels == 1:
            picture = picture.convert("L")  # of grey its values, of colours what they look like
        pixels = np.atleast_3d(np.asarray(picture))
        height, width = np.array([pixels.shape[:2]]).T
        boxes = center_boxes(height, width, dataset.eval_resize, dataset.image_size)
        to_height, to_width, row, column = boxes[0, 5:].tolist()
        resized = resize(pixels, to_height, to_width, self.interpolation)
        side = dataset.image_size
        crop = torch.from_numpy(resized[row : row + side, column : column + side].copy())
        normalize = Normalize(dataset.mean, dataset.std, torch.device("cpu"))
        return normalize(crop.permute(2, 0, 1)[None].float())[0]

    def _stored(self, path: Path) -> Image.Image:
        """Return the image of a file as `prepare` would store it."""
        source = self.cell.dataset.source
        sample = encode(path, -1, "", source if isinstance(source, ImageFiles) else ImageFolder())
        if isinstance(sample, Unreadable):
            raise RegbenchError(f"{path} cannot be read: {sample.reason}")
        if sample.mode == RAW:
            return Image.frombytes("RGB", (sample.width, sample.height), sample.data)
        return Image.open(BytesIO(sample.data))


def load(directory: Path) -> Trained:
    """Load the backbone of a run directory.

    Raises:
        RegbenchError: If the directory does not hold final weights, or they are not of images.
    """
    cell = trained_cell(directory)
    if cell.baseline is not None and not cell.is_supervised:
        raise RegbenchError(f"{directory} is of {cell.label}, which has no backbone; give another")
    if cell.dataset.source.drawn_shape or cell.dataset.shared_bits:
        what = (
            f"{directory} was trained on {cell.dataset.name!r}, whose examples are no plain images"
        )
        raise RegbenchError(f"{what}; give a run without dataset.shared_bits and latent worlds")
    network = build_network(cell, torch.device("cpu"), final_state(directory, cell))
    module = network.backbone.eval().requires_grad_(False)
    # Other libraries begin with this layout, on which the last bits of features depend.
    module.to(memory_format=torch.contiguous_format)
    return Trained(cell, directory, module, network.representation_dim)


def export(directory: Path, out: Path, *, onnx: bool = False) -> list[Path]:
    """Write the backbone's weights under the names that timm and torchvision have, and a card.

    Args:
        directory: The run directory.
        out: The file of weights, `.safetensors`; the card beside it ends in `.json`.
        onnx: Whether to write the network for ONNX too, in a file that ends in `.onnx`.

    Returns:
        The files.

    Raises:
        RegbenchError: If there are no final weights, or a format cannot be written.
    """
    from safetensors.torch import save

    if out.suffix != ".safetensors":
        what = f"{out}: weights are not exported as {out.suffix or 'a file without an ending'}"
        right = out.parent / f"{out.stem}.safetensors"
        raise RegbenchError(f"{what}; give --out {right}")
    trained = load(directory)
    # What cannot be exported is refused before anything is written.
    graph = _onnx(trained) if onnx else b""
    state = {name: value.contiguous() for name, value in trained.module.state_dict().items()}
    write_bytes(out, save(state, {"format": "pt"}))
    written = [out, out.with_suffix(".json")]
    write_text(written[1], json.dumps(_card(trained, out), indent=2) + "\n")
    if graph:
        written.append(out.with_suffix(".onnx"))
        write_bytes(written[-1], graph)
    return written


def _card(trained: Trained, weights: Path) -> dict[str, Any]:
    """Describe exported weights: what they are, how to load them, what made them."""
    cell, dataset = trained.cell, trained.cell.dataset
    backbone = cell.network.backbone
    card: dict[str, Any] = {
        "file": weights.name,
        "sha256": file_sha256(weights),
        "architecture": cell.network.architecture,
        "representation_dim": trained.dim,
        # Null: timm has no such network.
        "timm": backbone.timm_arguments(dataset.channels, dataset.image_size),
        "input": {
            "channels": dataset.channels,
            "image_size": dataset.image_size,
            "resize_shorter_side": dataset.eval_resize,
            "interpolation": trained.interpolation,
            "mean": dataset.mean,
            "std": dataset.std,
        },
        "method": cell.label,
        "cell_id": cell.id,
        "settings": cell.plain(),
        "regbench_version": __version__,
    }
    if record := read_tuned(trained.directory):
        card["data"] = asdict(record.data)
        card["scores"] = [asdict(score) for score in record.scores]
        card["command"] = record.command
    return card


def _onnx(trained: Trained) -> bytes:
    """Return the backbone for ONNX, for batches of any size."""
    dataset = trained.cell.dataset
    # Torch takes a size of 1 for a constant.
    example = torch.zeros(2, dataset.channels, dataset.image_size, dataset.image_size)
    try:
        program = torch.onnx.export(
            trained.module,
            (example,),
            input_names=["images"],
            output_names=["representations"],
            dynamic_shapes=({0: "n"},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        graph: bytes = program.model_proto.SerializeToString()
        return graph
    except ImportError as error:
        what = f"--onnx needs onnxscript ({error})"
        raise RegbenchError(f"{what}: pip install 'regbench[onnx]'") from error
    except Exception as error:  # torch documents no list of what its exporter raises
        reason = " ".join(str(error).split())[:200]
        what = f"{trained.cell.network.architecture} cannot be exported for ONNX ({reason})"
        raise RegbenchError(f"{what}; leave out --onnx") from error
