"""Compile settings (optimizer, loss, metrics) from one container and dialect to another."""

from __future__ import annotations

import copy
from typing import Any

from lstm_swap.formats import ModelFile

#: Arguments of the optimizers of Keras 2 that Keras 3 does not take (keras/src/optimizers).
_GONE = ("decay", "lr", "schedule_decay", "is_legacy_optimizer", "jit_compile")


def translate(model: ModelFile, container: str, source: str, target: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The compile settings for the output; None where they cannot be kept, with a line that says so."""
    config = model.training_config
    if config is None:
        return None, []
    if model.container == "keras" or container == "keras":
        if model.entry is not None and (container != model.container or source != target):
            dropped = model.entry.pop("compile_config", None) or model.container != "keras"
            if dropped:
                return None, ["compile settings dropped: compile the loaded model before training it further"]
        return config if container != "keras" else None, []
    if source == target or not isinstance(config, dict):
        return config, []
    config = copy.deepcopy(config)
    optimizer = config.get("optimizer_config")
    if target == "keras3" and isinstance(optimizer, dict):
        note = _optimizer(optimizer)
        if note:
            return None, [note]
        for key in ("sample_weight_mode", "is_legacy_optimizer"):
            config.pop(key, None)
    elif target == "keras2":
        return None, ["compile settings dropped: compile the loaded model before training it further"]
    return config, []


#: Optimizers of Keras 3 by their names in lower case, as Keras 1 wrote them.
_OPTIMIZERS = {
    name.lower(): name for name in "SGD RMSprop Adagrad Adadelta Adam Adamax Nadam Ftrl AdamW Adafactor Lion".split()
}


def _optimizer(entry: dict[str, Any]) -> str | None:
    """Rewrite an optimizer's settings for Keras 3 in place; a line where that is not possible."""
    name = str(entry.get("class_name", "")).split(">")[-1]
    known = _OPTIMIZERS.get(name.lower())
    config = entry.get("config")
    if known is None or not isinstance(config, dict):
        return f"compile settings dropped: the optimizer {name!r} is not part of today's Keras"
    rate = config.get("learning_rate", config.get("lr"))
    decay = config.get("decay") or 0.0
    if isinstance(decay, int | float) and decay:
        # lr / (1 + decay * iterations), Keras 2's own rule, is InverseTimeDecay.
        rate = {
            "class_name": "InverseTimeDecay",
            "config": {"initial_learning_rate": rate, "decay_steps": 1, "decay_rate": decay, "staircase": False},
            "module": "keras.optimizers.schedules",
            "registered_name": None,
        }
    for key in _GONE:
        config.pop(key, None)
    if config.get("epsilon", 0) is None:
        config["epsilon"] = 1e-7
    if rate is not None:
        config["learning_rate"] = rate
    for key in ("clipnorm", "clipvalue", "global_clipnorm"):
        if config.get(key, 0) is None:
            config.pop(key)
    entry["class_name"] = known
    return None
