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
        note = _optimizer(optimizer) or _losses_and_metrics(config)
        if note:
            return None, [note]
        for key in ("sample_weight_mode", "is_legacy_optimizer"):
            config.pop(key, None)
    elif target == "keras2":
        return None, ["compile settings dropped: compile the loaded model before training it further"]
    return config, []


#: Names that Keras 3 takes in compile() but not in a file, and old ones, with those that it takes in both.
_NAMES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "kld": "kl_divergence",
    "kullback_leibler_divergence": "kl_divergence",
    "bce": "binary_crossentropy",
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "logcosh": "log_cosh",
    "huber_loss": "huber",
}

#: Functions and classes that Keras 3 has as losses or metrics.
_FUNCTIONS = frozenset(
    """mean_squared_error mean_absolute_error mean_absolute_percentage_error mean_squared_logarithmic_error
    kl_divergence binary_crossentropy categorical_crossentropy sparse_categorical_crossentropy hinge squared_hinge
    categorical_hinge poisson cosine_similarity log_cosh huber accuracy acc crossentropy ce binary_accuracy
    categorical_accuracy sparse_categorical_accuracy top_k_categorical_accuracy
    sparse_top_k_categorical_accuracy""".split()
)
_CLASSES = frozenset(
    """MeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredLogarithmicError KLDivergence
    BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy Hinge SquaredHinge CategoricalHinge
    Poisson CosineSimilarity LogCosh Huber BinaryFocalCrossentropy CategoricalFocalCrossentropy Accuracy
    BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy TopKCategoricalAccuracy
    SparseTopKCategoricalAccuracy AUC Precision Recall RootMeanSquaredError Mean Sum TruePositives TrueNegatives
    FalsePositives FalseNegatives F1Score FBetaScore R2Score MeanIoU IoU SensitivityAtSpecificity
    SpecificityAtSensitivity PrecisionAtRecall RecallAtPrecision""".split()
)


def _losses_and_metrics(config: dict[str, Any]) -> str | None:
    """Spell losses and metrics as Keras 3 reads them, in place; a line where one is not part of it."""
    try:
        for key in ("loss", "metrics", "weighted_metrics"):
            if config.get(key) is not None:
                config[key] = _spelled(config[key], loss=key == "loss")
    except LookupError as problem:
        return f"compile settings dropped: {problem.args[0]!r} is not part of today's Keras; compile the loaded model"
    config.setdefault("loss_weights", None)
    return None


def _spelled(value: Any, *, loss: bool) -> Any:
    if isinstance(value, list):
        return [_spelled(v, loss=loss) for v in value]
    if isinstance(value, str):
        name = _NAMES.get(value.lower(), value.lower() if value.lower() in _FUNCTIONS else value)
        if name not in _FUNCTIONS:
            raise LookupError(value)
        return name
    if not isinstance(value, dict):
        return value
    if "class_name" not in value:
        return {k: _spelled(v, loss=loss) for k, v in value.items()}
    inner = value.get("config")
    if isinstance(inner, str):  # {"class_name": "function", "config": "mse"}
        return _spelled(inner, loss=loss)
    inner = dict(inner or {})
    function = inner.pop("fn", None)
    name = str(value["class_name"]).split(">")[-1]
    if name in ("MeanMetricWrapper", "LossFunctionWrapper", "SumOverBatchSizeMetricWrapper"):
        return _spelled(function, loss=loss)
    if name not in _CLASSES:
        raise LookupError(name)
    if loss and inner.get("reduction", "auto") == "auto":
        inner["reduction"] = "sum_over_batch_size"
    return {"class_name": name, "config": inner}


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
