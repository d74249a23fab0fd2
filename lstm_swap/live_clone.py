"""A second model from a live one, some of its layers replaced. The original is only read.

A model that is a graph is run once more on new inputs, each of its operations exchanged for its clone: so shared layers
stay shared, and every call keeps its arguments (initial states, masks, `training=True`). Any other layer or model is
made anew from its config, and then the layers that hang on it are exchanged, wherever they hang.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lstm_swap import live_attributes, rewriting
from lstm_swap.errors import UnsupportedLayerError
from lstm_swap.live_rebuild import describes_itself, quiet, rebuilt, users_functions
from lstm_swap.live_stacks import Regroup
from lstm_swap.live_tree import LiveTree, Place, functional_class, places, sublayers, walk
from lstm_swap.planning import Decision
from lstm_swap.rules import FORM_OF_CLASS
from lstm_swap.settings import own_config

LOG = logging.getLogger("lstm_swap")


class Cloner:
    """Clones layers, each once.

    Attributes:
        pairs: (original, clone) of every layer, by id of the original.
        swaps: the decision for each layer that changes its class, by id of the original.
        regroups: rows of layers in a graph that give way to other rows, by id of each of the originals.
    """

    def __init__(self, tree: LiveTree, use_cudnn: Callable[[Any], Any]) -> None:
        """use_cudnn: what a Keras LSTM or GRU shall have in that attribute; takes the original."""
        self.swaps: dict[int, Decision] = {}
        self.regroups: dict[int, Regroup] = {}
        self.pairs: dict[int, tuple[Any, Any]] = {}
        self._use_cudnn = use_cudnn
        self._operations: dict[int, tuple[Any, Any]] = {}
        self._postponed: list[tuple[Any, str, Any]] = []
        self._paths = {id(layer): node_path(tree, key) for key, layer in tree.layers.items()}
        self._changed: dict[int, bool] = {}

    def clone(self, layer: Any) -> Any:
        """The clone of a layer, model or operation.

        Raises:
            UnsupportedLayerError: a class that cannot be made anew from its config.
        """
        import keras

        known = self.pairs.get(id(layer)) or self._operations.get(id(layer))
        if known is not None:
            return known[1]
        if id(layer) in self.regroups:
            return self._regrouped(layer)[0]
        if not isinstance(layer, keras.layers.Layer):
            new = _copied_operation(layer)
            self._operations[id(layer)] = layer, new
            return new
        if id(layer) in self.swaps:
            return self._pair(layer, self._swapped(layer))
        if isinstance(layer, keras.Sequential):
            return self._pair(layer, self._sequential(layer))
        if isinstance(layer, functional_class()):
            return self._pair(layer, self._functional(layer))
        new = self._pair(layer, self._anew(layer))
        self._exchange(layer, new)
        return new

    # Layers

    def _pair(self, layer: Any, new: Any) -> Any:
        self.pairs[id(layer)] = layer, new
        if hasattr(new, "use_cudnn"):
            new.use_cudnn = self._use_cudnn(layer)
            if new.use_cudnn is False:
                new.supports_jit = True  # the standard loop compiles
        self._postpone_initializers(new)
        return new

    def _postpone_initializers(self, new: Any) -> None:
        """Zeros for now: an orthogonal matrix takes most of the time that it takes to build a layer."""
        import keras

        for holder in (new, getattr(new, "cell", new)):
            if not new.built and isinstance(holder, keras.layers.Layer) and "recurrent_initializer" in vars(holder):
                for name in ("kernel_initializer", "recurrent_initializer"):
                    self._postponed.append((holder, name, getattr(holder, name)))
                    setattr(holder, name, keras.initializers.Zeros())
                return

    def _regrouped(self, layer: Any) -> list[Any]:
        """The row that a layer's row gives way to."""
        group = self.regroups[id(layer)]
        made = group.new is not None
        for new in group.made():
            if not made:
                self._postpone_initializers(new)
        return group.made()

    def _swapped(self, layer: Any) -> Any:
        """The layer's computation in another class, with the very initializers, regularizers and constraints."""
        import keras

        decision = self.swaps[id(layer)]
        form = FORM_OF_CLASS[decision.to_class]
        config = rewriting.written_config(own_config(decision.node), decision, form, "keras3")
        config["dtype"] = layer.dtype_policy
        if form == "fused":
            from lstm_swap import layers

            return getattr(layers, decision.to_class)(**config)
        return getattr(keras.layers, decision.to_class)(**config)

    def _anew(self, layer: Any) -> Any:
        import keras

        if type(layer) is keras.layers.Lambda:
            return keras.layers.Lambda(
                layer.function,
                output_shape=layer._output_shape,
                mask=layer.mask,
                arguments=dict(layer.arguments),
                name=layer.name,
                trainable=layer.trainable,
                dtype=layer.dtype_policy,
            )
        try:
            return rebuilt(layer)
        except Exception as caught:
            problem = caught
        if _is_bare(type(layer)) or not describes_itself(layer):
            return self._shell(layer)
        raise UnsupportedLayerError(
            f"{self._where(layer)}: {type(layer).__name__} cannot be made anew from its config ({_line(problem)}); "
            "give the class get_config and from_config that fit its __init__"
        ) from problem

    def _shell(self, layer: Any) -> Any:
        """A layer or subclassed model that cannot describe itself: its attributes are cloned, no `__init__` runs."""
        new = self._pair(layer, live_attributes.shell(layer))
        left = live_attributes.carry_attributes(layer, new, self.clone)
        if left:
            raise UnsupportedLayerError(
                f"{self._where(layer)}: {type(layer).__name__} has no get_config that works, and its attribute "
                f"{left[0]!r} leads to layers or variables of the original; give the class get_config and from_config"
            )
        return new

    def _where(self, layer: Any) -> str:
        return self._paths.get(id(layer)) or str(layer.name)

    # Models

    def _sequential(self, model: Any) -> Any:
        import keras

        layers = []
        for layer in model._layers:  # with the input layer, which `layers` leaves out
            group = self.regroups.get(id(layer))
            if group is None:
                layers.append(self.clone(layer))
            elif layer is group.old[0]:
                layers += self._regrouped(layer)
        new = live_attributes.unmade(model)  # a user's class may have other arguments
        with quiet():
            keras.Sequential.__init__(new, layers, trainable=model.trainable, name=model.name)
        self._carry_attributes(model, new)
        return new

    def _functional(self, model: Any) -> Any:
        import keras

        def new_input(tensor: Any) -> Any:
            return self.clone(tensor._keras_history.operation).output

        inputs = keras.tree.map_structure(new_input, model.input)
        with quiet():
            outputs = model._run_through_graph(inputs, operation_fn=self._operation)
        new = live_attributes.unmade(model)
        functional_class().__init__(new, inputs, outputs, name=model.name, trainable=model.trainable)
        self._carry_attributes(model, new)
        return new

    def _operation(self, operation: Any) -> Callable[..., Any]:
        """What to call in the place of an operation of a graph."""
        group = self.regroups.get(id(operation))
        if group is None:
            return self.clone(operation)  # type: ignore[no-any-return]
        if operation is not group.old[0]:
            return lambda x, **_: x  # the first of the row has done it all
        first, *others = self._regrouped(operation)

        def row(*args: Any, **kwargs: Any) -> Any:
            x = first(*args, **kwargs)
            for layer in others:
                x = layer(x)
            return x

        return row

    def _carry_attributes(self, model: Any, new: Any) -> None:
        """What a user or a user's class has set on a model."""
        new.dtype_policy = model.dtype_policy
        left = live_attributes.carry_attributes(model, new, self.clone)
        if left:
            LOG.warning(
                "%s: not carried over, because they lead to layers of the original: %s", model.name, ", ".join(left)
            )

    # What hangs on a layer

    def _exchange(self, layer: Any, new: Any) -> None:
        """Pair the layers that hang on both; put a clone wherever the copy made by `from_config` will not do."""
        there = dict(places(new))
        for place, inner in places(layer):
            current = there.get(place)
            known = self.pairs.get(id(inner))
            if current is None:
                continue  # the layer makes it when it is built: `finish` comes back to it
            if known is not None:
                if current is not known[1]:
                    replace(new, place, current, known[1])
            elif current is inner or not self._will_do(inner, current):
                replace(new, place, current, self.clone(inner))
            else:
                current.name = inner.name  # an __init__ that gives no names gets new ones from Keras
                self._pair(inner, current)
                self._exchange(inner, current)

    def _will_do(self, layer: Any, copy: Any) -> bool:
        """Is the copy that its owner's `from_config` made as good as a clone?"""
        import keras

        return type(copy) is type(layer) and not isinstance(layer, keras.Model) and not self._changes(layer)

    def _changes(self, layer: Any) -> bool:
        """Is there something in this layer that such a copy would not have?"""
        if id(layer) not in self._changed:
            self._changed[id(layer)] = any(id(inner) in self.swaps or users_functions(inner) for inner in walk(layer))
        return self._changed[id(layer)]

    # Building

    def finish(self, model: Any) -> None:
        """Build what the graphs have not built: layers of subclassed models, in the shapes of the originals."""
        with quiet():
            self._build(model, set())
        for holder, name, initializer in reversed(self._postponed):
            setattr(holder, name, initializer)

    def _build(self, layer: Any, seen: set[int]) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        new = self.pairs[id(layer)][1]
        own = not getattr(type(layer).build, "_is_default", False)
        if layer.built and not new.built and own:
            new.build_from_config(layer.get_build_config())
        if id(layer) in self.swaps:
            return
        self._exchange(layer, new)
        for inner in sublayers(layer):
            if id(inner) in self.pairs:
                self._build(inner, seen)
        if layer.built and not new.built:
            new._build_shapes_dict = layer._build_shapes_dict
            new.built = True
            new._lock_state()


def node_path(tree: LiveTree, key: int) -> str:
    """The path of the node with this id."""
    return next((node.path for node in tree.root.walk() if id(node) == key), "")


def _is_bare(cls: type[Any]) -> bool:
    """A class of the user's without a `get_config`: Keras's own knows of no arguments that the class added."""
    return not _is_keras(cls) and _is_keras(cls.get_config)


def _is_keras(thing: Any) -> bool:
    return str(thing.__module__).split(".")[0] in ("keras", "lstm_swap")


def _copied_operation(operation: Any) -> Any:
    """An operation that is no layer (`x + y`, `ops.relu(x)`) has no state but its arguments."""
    new = object.__new__(type(operation))
    vars(new).update(vars(operation))
    new._inbound_nodes, new._outbound_nodes = [], []
    return new


def replace(owner: Any, place: Place, current: Any, new: Any) -> None:
    """Put another layer in the place of one that hangs on `owner`, keeping its position among the tracked layers."""
    tracker = owner._tracker
    locked = tracker.locked
    tracker.unlock()
    try:
        if current is not None and tracker.is_in_store("layers", current):
            if tracker.is_in_store("layers", new):
                tracker.untrack(current)
            else:
                tracker.replace_tracked_value("layers", current, new)
        name, *rest = place
        setattr(owner, name, _with(getattr(owner, name), rest, new) if rest else new)
    finally:
        if locked:
            owner._lock_state()


def _with(container: Any, place: list[Any], new: Any) -> Any:
    """A container with another item at a place, as a plain list, tuple or dict."""
    key, *rest = place
    item = _with(container[key], rest, new) if rest else new
    if isinstance(container, dict):
        return {**container, key: item}
    items = [*container[:key], item, *container[key + 1 :]]
    return tuple(items) if isinstance(container, tuple) else items


def _line(problem: BaseException) -> str:
    text = " ".join(str(problem).split()).split("Exception encountered: ")[-1]
    return text if len(text) < 200 else text[:200] + "..."
