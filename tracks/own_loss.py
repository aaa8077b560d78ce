"""A loss in a file of its own, as a plug-in: a regularizer, or a plain function or `nn.Module` of
two embeddings.

The processes of a sweep find methods by entry points. So the file is copied into a folder that
looks like an installed distribution, and the folder is put on Python's path. The copy stays as it
is when the file is edited.

Shapes: N = images in the batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from regbench.errors import RegbenchError
from regbench.files import write_text
from regbench.instruments.audit.target import scalar
from regbench.methods import METHODS
from regbench.methods.base import Metadata, Regularizer, register

# A process of a sweep imports nothing but entry points, so the copy enters the loss by itself.
_FOOTER = """

# Added by `regbench challenge`.
from regbench.tracks.own_loss import enter as _enter

_enter(__name__, {name!r}, {chosen!r})
"""
_IMPORTED: list[Path] = []  # files that this process imports right now


@dataclass(frozen=True)
class LossFile:
    """A file with a loss.

    Attributes:
        path: The file.
        chosen: Name of the function or class in it; empty if there is only one.
        source: Text of the file when it was read.
    """

    path: Path
    chosen: str
    source: str

    @classmethod
    def of(cls, loss: object) -> LossFile:
        """Read the file of a loss, given as `my_loss.py`, `my_loss.py:Name`, or as a class or
        function.

        Raises:
            RegbenchError: If there is no such file, or the file of a loss begins a challenge.
        """
        if _IMPORTED:
            raise RegbenchError("it begins a challenge; put that under if __name__ == '__main__':")
        if isinstance(loss, str | Path):
            name, _, chosen = str(loss).partition(":")
        else:
            chosen = getattr(loss, "__name__", "")
            try:
                name = inspect.getfile(loss)  # type: ignore[arg-type]
            except (OSError, TypeError) as error:
                what = f"{loss!r} is in no file; save it in one, and give that"
                raise RegbenchError(what) from error
        path = Path(name)
        if path.suffix != ".py" or not path.is_file():
            raise RegbenchError(f"there is no file {name}; give my_loss.py, or my_loss.py:Name")
        try:
            return cls(path, chosen, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise RegbenchError(f"{name} is no text in UTF-8; save it as such") from error

    @property
    def name(self) -> str:
        """The name of the method, if the file does not register one itself."""
        return re.sub(r"\W", "_", self.chosen or self.path.stem, flags=re.ASCII).lower()

    @property
    def module(self) -> str:
        """The name of the copy, another for each text: an edited file is another challenge."""
        sha256 = hashlib.sha256(f"{self.chosen}\n{self.source}".encode()).hexdigest()
        return f"{self.name[:60]}_{sha256[:8]}"  # part of a folder's name

    @contextmanager
    def on_path(self, folder: Path) -> Iterator[None]:
        """Let processes that this one starts find the loss, for as long as the context lasts.

        Args:
            folder: Folder for the copy.
        """
        footer = _FOOTER.format(name=self.name, chosen=self.chosen)
        write_text(folder / f"{self.module}.py", self.source + footer)
        info = folder / f"{self.module}-1.0.dist-info"
        write_text(info / "METADATA", f"Metadata-Version: 2.1\nName: {self.module}\nVersion: 1.0\n")
        write_text(info / "entry_points.txt", f"[regbench.methods]\n{self.name} = {self.module}\n")
        METHODS.names()  # entry points are found once: this process must not find the folder's
        paths = os.environ.get("PYTHONPATH")
        place = str(folder.resolve())
        sys.path.insert(0, place)
        # Jobs of Slurm get the environment, and not this process's `sys.path`.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [place, paths]))
        try:
            yield
        finally:
            sys.path.remove(place)
            del os.environ["PYTHONPATH"]
            if paths is not None:
                os.environ["PYTHONPATH"] = paths

    @contextmanager
    def loaded(self, folder: Path) -> Iterator[Regularizer]:
        """Run the file: its loss is a method of this process, and of those that it starts, while
        the context lasts.

        Args:
            folder: Folder for the copy.

        Yields:
            The method with its defaults.

        Raises:
            RegbenchError: If the file holds no loss, or several.
        """
        before = set(METHODS.names())
        with self.on_path(folder):
            try:
                # Python may have listed the folder before the copy was in it.
                importlib.invalidate_caches()
                _IMPORTED.append(self.path)
                try:
                    importlib.import_module(self.module)
                except RegbenchError as error:
                    raise RegbenchError(f"{self.path}: {error}") from error
                finally:
                    _IMPORTED.pop()
                new = sorted(set(METHODS.names()) - before)
                if len(new) != 1:
                    found = ", ".join(new) or "none"
                    what = f"{self.path} must register one method with @register(NAME)"
                    raise RegbenchError(f"{what}, and registers {found}")
                yield METHODS.build(new[0])
            finally:
                # Another file may hold a loss of the same name.
                added = set(METHODS.names()) - before
                for name in {METHODS.name(METHODS.build(name)) for name in added}:
                    METHODS.unregister(name)
                sys.modules.pop(self.module, None)


class Plain(Regularizer):
    """A function of two embeddings, or an `nn.Module` that is made anew for each batch.

    Attributes:
        loss_of: The function, or the class of the module.
    """

    loss_of: ClassVar[Callable[..., Any]]
    random = True  # nothing says that it draws no random numbers

    def made(self, z_NQ: Tensor) -> Callable[..., Any]:
        """Make the loss with its hyperparameters, on the device of the embeddings `z_NQ`."""
        settings = dataclasses.asdict(self)  # type: ignore[call-overload]
        if not inspect.isclass(self.loss_of):
            return functools.partial(self.loss_of, **settings)
        made: Any = self.loss_of(**settings)
        module: nn.Module = made.to(z_NQ)  # buffers too have to be where the embeddings are
        if list(module.parameters()):
            what = f"{self.label} has parameters, which nobody would train"
            raise RegbenchError(f"{what}; a loss must have none")
        return module

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> dict[str, Tensor]:
        """Compute the loss as a single addend."""
        output = self.made(z1_NQ)(z1_NQ.clone(), z2_NQ.clone())  # it may work in place
        if isinstance(output, tuple | list):  # of which an audit takes the first
            raise RegbenchError(f"{self.label} must return one scalar; add up what it returns")
        return {"loss": scalar(output, self.label)}


def enter(module_name: str, name: str, chosen: str) -> None:
    """Register the loss in a module under a name, unless it has registered itself; the copy of a
    file ends with this call.

    Raises:
        RegbenchError: If the module holds none, or several.
    """
    modules, functions = [], []
    for key, value in vars(sys.modules[module_name]).items():
        is_own = getattr(value, "__module__", None) == module_name and not key.startswith("_")
        # What the module imports is no loss of its own.
        if not is_own or key != (chosen or key):
            continue
        if inspect.isclass(value) and issubclass(value, Regularizer):
            return
        if inspect.isclass(value) and issubclass(value, nn.Module):
            modules.append(value)
        elif inspect.isfunction(value):
            functions.append(value)
    losses: list[Any] = modules or functions  # functions beside a module are its helpers
    if len(losses) != 1:
        names = ", ".join(loss.__name__ for loss in losses)
        names = names or "none (an imported one does not count: subclass or wrap it)"
        raise RegbenchError(
            f"it must hold one loss of two embeddings, and holds {names}; give FILE:NAME"
        )
    wrapped = _wrapped(losses[0])
    try:
        register(name)(wrapped)
    except RegbenchError as error:
        raise RegbenchError(f"{error}: rename the file, or give FILE:NAME") from error


def _wrapped(loss: Any) -> type[Regularizer]:
    """Make the regularizer of a function or a module; what has a default is a hyperparameter."""
    every = inspect.signature(loss).parameters.values()
    # A module without `__init__` has that of nn.Module(*args, **kwargs), and gets none of these.
    parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    # A function takes the embeddings as its first arguments, a module takes them in its call.
    settings = parameters if inspect.isclass(loss) else parameters[2:]
    first = [p for p in parameters[:2] if p.kind < p.VAR_POSITIONAL and p.default is p.empty]
    if settings is not parameters and len(first) < 2:
        what = f"{loss.__name__} must begin with two embeddings"
        raise RegbenchError(f"{what}, as in {loss.__name__}(z1, z2, weight=1.0)")
    fields = []
    for parameter in settings:
        kind = type(parameter.default)
        if hasattr(Plain, parameter.name) or parameter.name == "name":
            raise RegbenchError(
                f"{loss.__name__}: every method has something else of the name {parameter.name}; "
                "give the parameter another name"
            )
        if kind not in (bool, int, float, str):
            what = f"{loss.__name__}: the default of {parameter.name}"
            what += " must be a number, a switch or text"
            raise RegbenchError(f"{what}; a loss gets two embeddings, and no labels or third view")
        default = parameter.default
        # A whole number may count something, as the width of a layer does.
        if kind is int and parameter.annotation in (float, "float"):
            kind, default = float, float(default)
        fields.append((parameter.name, kind, default))
    metadata = Metadata(
        title=loss.__name__,
        reference="unpublished",
        url="",
        formula=f"the code of {loss.__name__}",
        time="unknown",
        memory="unknown",
        published="none; the defaults are those of its signature",
        symmetric=False,
        ordered=False,
    )
    lines = [f"    {name}: A parameter of {loss.__name__}." for name, _, _ in fields]
    attributes = ["", "Attributes:", *lines] if fields else []
    return dataclasses.make_dataclass(
        loss.__name__,
        fields,
        bases=(Plain,),
        frozen=True,
        kw_only=True,
        namespace={
            "__module__": loss.__module__,
            "__doc__": "\n".join([f"The loss {loss.__name__}.", *attributes]),
            "loss_of": staticmethod(loss),
            "metadata": metadata,
            "space": getattr(loss, "space", None),
        },
    )
