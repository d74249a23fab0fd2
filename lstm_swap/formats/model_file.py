"""A model file in memory: its architecture, its arrays (unread), and what else it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lstm_swap.architecture import Array, Node

#: The Keras versions that written files name. `keras_version` decides what hard_sigmoid means and which
#: loader reads the file, so a file that changes its dialect must change it too.
WRITTEN_VERSION = {"keras3": "3.15.1", "keras2": "2.15.0"}


@dataclass
class Extra:
    """A file that travels along in a `.keras` zip (assets, notes), by its name inside."""

    name: str
    read: Callable[[], bytes]


@dataclass(eq=False)
class ModelFile:
    """What a container holds.

    Attributes:
        path: the file or folder that was opened.
        container: hdf5, hdf5-weights, keras, weights.h5, saved_model or architecture.
        entry: the architecture's JSON object; None for weights alone.
        root: the tree of layers with their arrays. For weights alone it is guessed from groups and shapes:
            one child per group, with the recurrent layers that can be recognised inside.
        keras_version, backend: as the file says; None where it does not.
        dialect: keras1, keras2 or keras3.
        training_config: the compile settings, as the container spells them.
        optimizer: optimizer arrays by stored order, unread.
        theano: the arrays were written with Theano (its convolutions turn the kernel round).
        warnings: what a reader should know.
    """

    path: Path
    container: str
    entry: dict[str, Any] | None
    root: Node
    keras_version: str | None
    backend: str | None
    dialect: str
    training_config: dict[str, Any] | None = None
    optimizer: list[Array] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)
    theano: bool = False
    warnings: list[str] = field(default_factory=list)
    weights_path: Path | None = None  # where the arrays come from, if that is another file (--weights)
    close: Callable[[], None] = lambda: None
    store: Any = None  # the container's own handle, for editing a copy in place

    @property
    def weights_only(self) -> bool:
        return self.container in ("hdf5-weights", "weights.h5")

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
