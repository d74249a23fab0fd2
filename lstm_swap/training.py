"""Compile settings (optimizer, loss, metrics) from one container and dialect to another."""

from __future__ import annotations

import copy
from typing import Any

from lstm_swap.formats import ModelFile

#: Arguments of the optimizers of Keras 2 that Keras 3 does not take (keras/src/optimizers).
_GONE = ("decay", "lr", "schedule_decay", "is_legacy_optimizer", "jit_compile")


_DROPPED = "compile settings dropped: compile the loaded model before training it further"


def translate(model: ModelFile, container: str, source: str, target: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The compile settings for the output, as its container spells them; None where there are none.

    `.keras` files keep them in the architecture (`compile_config`), where they are written by this function;
    HDF5 files in an attribute (`training_config`), and nothing reads those of the architecture.

    Returns:
        The settings for an HDF5 file, None in every other case, and what there is to say.
    """
    zipped, to_zip = model.container == "keras", container == "keras"
    assert model.entry is not None
    config = model.training_config
    if config is None or (source == target and zipped == to_zip):
        return (None if to_zip else config), []
    if zipped:
        model.entry.pop("compile_config", None)
    config = _neutral(copy.deepcopy(config))
    if config is None:
        return None, []
    note = _DROPPED if target == "keras2" else _modern(config)
    if note:
        return None, [note]
    if to_zip:
        model.entry["compile_config"] = _zipped(config)
        return None, []
    return config, []


def without_state(model: ModelFile, container: str) -> list[str]:
    """Take the compile settings out of a `.keras` file that will have no optimizer state: Keras 3 would not load it.

    (keras/src/saving/saving_lib.py counts an optimizer whose variables are missing as a failure.)
    """
    if container != "keras" or model.optimizer or not (model.entry or {}).get("compile_config"):
        return []
    assert model.entry is not None
    del model.entry["compile_config"]
    return [_DROPPED]


def _neutral(config: dict[str, Any]) -> dict[str, Any] | None:
    """Compile settings as HDF5 has them; None for a model that was not compiled (`.keras` has {} or no optimizer)."""
    optimizer = config.pop("optimizer", None)
    if isinstance(optimizer, dict) and isinstance(optimizer.get("config"), dict):
        config["optimizer_config"] = {"class_name": optimizer.get("class_name"), "config": optimizer["config"]}
    elif isinstance(optimizer, str):  # a name alone: its defaults
        config["optimizer_config"] = {"class_name": optimizer, "config": {}}
    for key in ("run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss"):
        config.pop(key, None)
    return config if isinstance(config.get("optimizer_config"), dict) else None


def _modern(config: dict[str, Any]) -> str | None:
    """Spell compile settings as Keras 3 reads them, in place; a line where something is not part of it."""
    note = _optimizer(config["optimizer_config"]) or _losses_and_metrics(config)
    for key in ("sample_weight_mode", "is_legacy_optimizer"):
        config.pop(key, None)
    return note


def _zipped(config: dict[str, Any]) -> dict[str, Any]:
    """`compile_config` of a `.keras` file (keras/src/trainers/trainer.py, `get_compile_config`)."""
    optimizer = {"module": "keras.optimizers", **config["optimizer_config"], "registered_name": None}
    kept = {"loss": _located(config.get("loss"), "keras.losses"), "loss_weights": config.get("loss_weights")}
    for key in ("metrics", "weighted_metrics"):
        kept[key] = _located(config.get(key), "keras.metrics")
    return {
        "optimizer": optimizer,
        **kept,
        "run_eagerly": False,
        "steps_per_execution": 1,
        "jit_compile": False,
    }


def _located(value: Any, module: str) -> Any:
    """Objects with the module of their class, without which `.keras` files do not find it."""
    if isinstance(value, list):
        return [_located(v, module) for v in value]
    if not isinstance(value, dict):
        return value
    if "class_name" in value:
        return {"module": module, **value, "registered_name": None}
    return {k: _located(v, module) for k, v in value.items()}


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
    elif isinstance(rate, dict) and isinstance(rate.get("config"), dict):  # a schedule; Keras 3 wants its name or none
        inner = {k: v for k, v in rate["config"].items() if k != "name" or isinstance(v, str)}
        rate = {"module": "keras.optimizers.schedules", "registered_name": None, **rate, "config": inner}
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
