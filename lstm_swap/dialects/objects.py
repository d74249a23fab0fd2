"""Initializers, regularizers, constraints, activations and dtype policies, from any spelling to that of Keras 3.

Each function takes the value of a layer's setting and returns what Keras 3 reads. Initializers and the like act
only when a model is made or trained; the weights are in the file, so an unknown initializer may be replaced.
"""

from __future__ import annotations

from typing import Any

_INITIALIZER_KEYS: dict[str, tuple[str, ...]] = {
    "Zeros": (),
    "Ones": (),
    "Constant": ("value",),
    "RandomNormal": ("mean", "stddev", "seed"),
    "RandomUniform": ("minval", "maxval", "seed"),
    "TruncatedNormal": ("mean", "stddev", "seed"),
    "VarianceScaling": ("scale", "mode", "distribution", "seed"),
    "GlorotUniform": ("seed",),
    "GlorotNormal": ("seed",),
    "HeUniform": ("seed",),
    "HeNormal": ("seed",),
    "LecunUniform": ("seed",),
    "LecunNormal": ("seed",),
    "Orthogonal": ("gain", "seed"),
    "Identity": ("gain",),
}

#: Function and class names of all versions. The snake_case ones are Keras 1 functions and Keras 2 aliases.
_INITIALIZER_NAMES: dict[str, str] = {
    **{name: name for name in _INITIALIZER_KEYS},
    "zero": "Zeros",
    "zeros": "Zeros",
    "one": "Ones",
    "ones": "Ones",
    "constant": "Constant",
    "normal": "RandomNormal",
    "random_normal": "RandomNormal",
    "uniform": "RandomUniform",
    "random_uniform": "RandomUniform",
    "truncated_normal": "TruncatedNormal",
    "variance_scaling": "VarianceScaling",
    "glorot_uniform": "GlorotUniform",
    "glorot_normal": "GlorotNormal",
    "he_uniform": "HeUniform",
    "he_normal": "HeNormal",
    "lecun_uniform": "LecunUniform",
    "lecun_normal": "LecunNormal",
    "orthogonal": "Orthogonal",
    "OrthogonalInitializer": "Orthogonal",
    "identity": "Identity",
    "IdentityInitializer": "Identity",
}

#: What a layer of Keras starts a weight with when nothing is said, by the setting's name.
_NEUTRAL: dict[str, str] = {
    "recurrent_initializer": "Orthogonal",
    "embeddings_initializer": "RandomUniform",
    "gamma_initializer": "Ones",
    "moving_variance_initializer": "Ones",
    "bias_initializer": "Zeros",
    "beta_initializer": "Zeros",
    "moving_mean_initializer": "Zeros",
    "alpha_initializer": "Zeros",
}

_REGULARIZER_KEYS: dict[str, tuple[str, ...]] = {
    "L1": ("l1",),
    "L2": ("l2",),
    "L1L2": ("l1", "l2"),
    "OrthogonalRegularizer": ("factor", "mode"),
}
_REGULARIZER_NAMES: dict[str, str] = {
    **{name: name for name in _REGULARIZER_KEYS},
    "l1": "L1",
    "l2": "L2",
    "l1l2": "L1L2",
    "l1_l2": "L1L2",
    "WeightRegularizer": "L1L2",  # Keras 1
    "L1L2Regularizer": "L1L2",
    "ActivityRegularizer": "L1L2",
    "orthogonal_regularizer": "OrthogonalRegularizer",
}

_CONSTRAINT_KEYS: dict[str, tuple[str, ...]] = {
    "MaxNorm": ("max_value", "axis"),
    "MinMaxNorm": ("min_value", "max_value", "rate", "axis"),
    "NonNeg": (),
    "UnitNorm": ("axis",),
}
_CONSTRAINT_NAMES: dict[str, str] = {
    **{name: name for name in _CONSTRAINT_KEYS},
    "maxnorm": "MaxNorm",
    "max_norm": "MaxNorm",
    "minmaxnorm": "MinMaxNorm",
    "min_max_norm": "MinMaxNorm",
    "nonneg": "NonNeg",
    "non_neg": "NonNeg",
    "unitnorm": "UnitNorm",
    "unit_norm": "UnitNorm",
}
_KERAS1_CONSTRAINT_KEYS = {"m": "max_value", "low": "min_value", "high": "max_value"}

#: keras.activations of Keras 3.15 that older versions had too, or that TensorFlow functions are called.
ACTIVATIONS = frozenset(
    (
        "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu "
        "linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus "
        "softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold"
    ).split()
)
#: TensorFlow function names that tf.keras wrote for the same function.
_ACTIVATION_NAMES = {"softmax_v2": "softmax", "log_softmax_v2": "log_softmax", "relu_v2": "relu"}

_POLICY_CLASSES = {"Policy", "PolicyV1", "DTypePolicy", "FloatDTypePolicy"}


def plain(value: Any) -> Any:
    """A NumPy value as old Keras wrote it into JSON ({"type": "ndarray", "value": 0.3}), as a plain one."""
    if isinstance(value, dict) and set(value) == {"type", "value"}:
        return value["value"]
    return value


def split(value: Any) -> tuple[str, dict[str, Any]] | None:
    """(class or function name, settings) of a serialized object in any spelling; None where it is none."""
    if isinstance(value, str):
        return value.split(">")[-1], {}
    if not isinstance(value, dict):
        return None
    name = value.get("class_name")
    config = value.get("config")
    if isinstance(name, str):
        if name == "function" and isinstance(config, str):
            return config.split(">")[-1], {}
        settings = config if isinstance(config, dict) else {}
        return name.split(">")[-1], {k: plain(v) for k, v in settings.items()}
    if isinstance(value.get("name"), str):  # Keras 1: {"name": "WeightRegularizer", "l1": 0.0, "l2": 0.01}
        return value["name"], {k: plain(v) for k, v in value.items() if k != "name"}
    return None


def _built(module: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


def initializer(value: Any, setting: str) -> tuple[Any, str | None]:
    """The initializer as Keras 3 writes it, and the name of an unknown one that a neutral one stands for.

    Args:
        value: what the file says; setting: the name of the setting, "kernel_initializer" for example.
    """
    if value is None:
        return None, None
    parts = split(value)
    name = _INITIALIZER_NAMES.get(parts[0]) if parts else None
    if parts is None or name is None or (name == "Constant" and not _is_number(parts[1].get("value", 0.0))):
        neutral = _NEUTRAL.get(setting, "GlorotUniform")
        return _built("keras.initializers", neutral, {}), parts[0] if parts else str(value)[:40]
    config = {k: v for k, v in parts[1].items() if k in _INITIALIZER_KEYS[name]}
    if config.get("distribution") == "normal":
        config["distribution"] = "truncated_normal"
    return _built("keras.initializers", name, config), None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def initializer_opens(value: Any) -> bool:
    """Does Keras 3 read this initializer as it stands?"""
    parts = split(value)
    if value is None:
        return True
    name = _INITIALIZER_NAMES.get(parts[0]) if parts else None
    return name is not None and parts is not None and set(parts[1]) <= set(_INITIALIZER_KEYS[name])


def regularizer(value: Any) -> Any:
    """The regularizer as Keras 3 writes it; one that is not built in stays as it is."""
    parts = split(value)
    name = _REGULARIZER_NAMES.get(parts[0]) if parts else None
    if parts is None or name is None:
        return value
    config = {k: v for k, v in parts[1].items() if k in _REGULARIZER_KEYS[name]}
    if isinstance(value, str) and name in ("L1", "L1L2"):
        config.setdefault("l1", 0.01)
    if isinstance(value, str) and name in ("L2", "L1L2"):
        config.setdefault("l2", 0.01)
    return _built("keras.regularizers", name, config)


def constraint(value: Any) -> Any:
    """The constraint as Keras 3 writes it; one that is not built in stays as it is."""
    parts = split(value)
    name = _CONSTRAINT_NAMES.get(parts[0]) if parts else None
    if parts is None or name is None:
        return value
    renamed = {_KERAS1_CONSTRAINT_KEYS.get(k, k): v for k, v in parts[1].items()}
    config = {k: v for k, v in renamed.items() if k in _CONSTRAINT_KEYS[name]}
    return _built("keras.constraints", name, config)


def for_keras2(value: Any, setting: str) -> tuple[Any, str | None]:
    """An initializer, regularizer or constraint as all of Keras 2 reads it: a class and its settings.

    setting: the name of the setting, which tells what it is. Returns also the name of an unknown initializer.
    """
    unknown = None
    if setting.endswith("_initializer"):
        new, unknown = initializer(value, setting)
    else:
        new = regularizer(value) if setting.endswith("_regularizer") else constraint(value)
    if isinstance(new, dict) and str(new.get("module", "")).startswith("keras."):
        new = {"class_name": new["class_name"], "config": new["config"]}
    return new, unknown


def activation(value: Any) -> Any:
    """The name of a built-in activation; anything else (a custom function, a layer) as it is."""
    if value is None:
        return "linear"
    parts = split(value)
    if parts is None or parts[1]:
        return value
    name = _ACTIVATION_NAMES.get(parts[0], parts[0])
    return name if name in ACTIVATIONS else value


def activation_name(value: Any) -> str | None:
    """The function's bare name, custom or not; None for a layer object."""
    value = activation(value)
    if isinstance(value, str):
        return value
    parts = split(value)
    return parts[0] if parts and not parts[1] else None


def dtype(value: Any) -> Any:
    """A dtype or dtype policy as the plain name that all Keras 3 versions read ("mixed_float16").

    Quantized policies of Keras 3 stay objects. None stays None.
    """
    if isinstance(value, dict) and value.get("class_name") in _POLICY_CLASSES:
        config = value.get("config")
        value = config.get("name") if isinstance(config, dict) else None
    if not isinstance(value, str):
        return value
    value = value.removesuffix("_ref")
    # tf.keras 2.0 to 2.3: a policy that takes the dtype of its first input; the variables were floatx.
    return None if value.startswith(("infer", "_infer")) else value
