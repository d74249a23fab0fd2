"""Which variables each built-in Keras layer owns, in the order in which files list them.

A layer's own arrays are listed trainable ones first, then the rest (Keras 1 to 3 agree on that within one
layer). `.keras` files keep them under numbered paths, for some layers in an inner folder (an LSTM's lie in
its cell). Facts from keras/src/layers (3.15), tf_keras/src/layers (2.21) and Keras 1.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lstm_swap.architecture import Node

Config = dict[str, Any]


@dataclass(frozen=True)
class Variables:
    """Names of a layer's own variables.

    folder: where `.keras` files keep them below the layer's own path ("" or "cell").
    places: for layers built from other layers, one (folder, index) per variable instead.
    """

    trainable: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    folder: str = ""
    places: tuple[tuple[str, int], ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        return self.trainable + self.fixed

    def place(self, index: int) -> tuple[str, int]:
        """Folder and number of the variable with this index in a `.keras` file."""
        return self.places[index] if self.places else (self.folder, index)


def _bias(config: Config) -> bool:
    return bool(config.get("use_bias", config.get("bias", True)))


def _kernel(config: Config) -> Variables:
    return Variables(("kernel", "bias") if _bias(config) else ("kernel",))


def _recurrent(config: Config) -> Variables:
    names = ("kernel", "recurrent_kernel")
    return Variables((*names, "bias") if _bias(config) else names, folder="cell")


def _cell(config: Config) -> Variables:
    return Variables(_recurrent(config).trainable)


def _cudnn(config: Config) -> Variables:
    return Variables(("kernel", "recurrent_kernel", "bias"))


def _batch_norm(config: Config) -> Variables:
    trainable = [n for n, key in (("gamma", "scale"), ("beta", "center")) if config.get(key, True)]
    return Variables(tuple(trainable), ("moving_mean", "moving_variance"))


def _gamma_beta(config: Config) -> Variables:
    trainable = [n for n, key in (("gamma", "scale"), ("beta", "center")) if config.get(key, True)]
    return Variables(tuple(trainable))


def _depthwise(config: Config) -> Variables:
    return Variables(("depthwise_kernel", "bias") if _bias(config) else ("depthwise_kernel",))


def _separable(config: Config) -> Variables:
    names = ("depthwise_kernel", "pointwise_kernel")
    return Variables((*names, "bias") if _bias(config) else names)


def _einsum(config: Config) -> Variables:
    return Variables(("kernel", "bias") if config.get("bias_axes") else ("kernel",))


def _attention(config: Config) -> Variables:
    names = ["scale"] if config.get("use_scale", False) else []
    if config.get("score_mode") == "concat":
        names.append("concat_score_weight")
    return Variables(tuple(names))


def _additive_attention(config: Config) -> Variables:
    return Variables(("scale",) if config.get("use_scale", True) else ())


def _multi_head(config: Config) -> Variables:
    parts = ("kernel", "bias") if _bias(config) else ("kernel",)
    names, places = [], []
    for inner, folder in (
        ("query", "query_dense"),
        ("key", "key_dense"),
        ("value", "value_dense"),
        ("attention_output", "output_dense"),
    ):
        for i, part in enumerate(parts):
            names.append(f"{inner}/{part}")
            places.append((folder, i))
    return Variables(tuple(names), places=tuple(places))


def _grouped_query(config: Config) -> Variables:
    known = _multi_head(config)
    return Variables(known.trainable, places=tuple((f"_{folder}", i) for folder, i in known.places))


def _normalization(config: Config) -> Variables:
    if config.get("mean") is not None:
        return Variables()
    return Variables((), ("mean", "variance", "count"))


def _named(*names: str) -> Callable[[Config], Variables]:
    return lambda config: Variables(names)


def _gates(*gates: str) -> Callable[[Config], Variables]:
    """Keras 1: kernel W, recurrent kernel U and bias b of each gate, one array each."""
    return _named(*(f"{part}_{gate}" for gate in gates for part in ("W", "U", "b")))


_TABLE: dict[str, Callable[[Config], Variables]] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "UnifiedLSTM", "UnifiedGRU"), _recurrent),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), _recurrent),
    **dict.fromkeys(("LSTMCell", "GRUCell", "SimpleRNNCell", "ConvLSTM2DCell"), _cell),
    **dict.fromkeys(("CuDNNLSTM", "CuDNNGRU", "FusedLSTM", "FusedGRU"), _cudnn),
    **dict.fromkeys(("Dense", "TimeDistributedDense"), _kernel),
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "Convolution1D", "Convolution2D", "Convolution3D"), _kernel),
    **dict.fromkeys(("AtrousConvolution1D", "AtrousConvolution2D", "Deconvolution2D"), _kernel),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _kernel),
    **dict.fromkeys(("LocallyConnected1D", "LocallyConnected2D"), _kernel),
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D"), _depthwise),
    **dict.fromkeys(("SeparableConv1D", "SeparableConv2D", "SeparableConvolution2D"), _separable),
    **dict.fromkeys(("BatchNormalization", "BatchNormalizationV1", "SyncBatchNormalization"), _batch_norm),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization"), _gamma_beta),
    "RMSNormalization": _named("scale"),
    "Embedding": _named("embeddings"),
    "PReLU": _named("alpha"),
    "EinsumDense": _einsum,
    "Attention": _attention,
    "AdditiveAttention": _additive_attention,
    "MultiHeadAttention": _multi_head,
    **dict.fromkeys(("GroupQueryAttention", "GroupedQueryAttention"), _grouped_query),
    "Normalization": _normalization,
}

_KERAS1: dict[str, Callable[[Config], Variables]] = {
    "LSTM": _gates("i", "c", "f", "o"),
    "GRU": _gates("z", "r", "h"),
    "ConvLSTM2D": _gates("i", "c", "f", "o"),
    "SimpleRNN": _named("W", "U", "b"),
}

#: Built-in layers without variables (or whose variables no file format stores).
_WEIGHTLESS = frozenset(
    """InputLayer Activation Dropout Flatten Reshape Permute RepeatVector Lambda Masking ActivityRegularization
    Identity Rescaling Add Subtract Multiply Average Maximum Minimum Concatenate Dot Merge SpatialDropout1D
    SpatialDropout2D SpatialDropout3D GaussianNoise GaussianDropout AlphaDropout LeakyReLU ELU ReLU Softmax
    ThresholdedReLU MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveMaxPooling1D
    AdaptiveMaxPooling2D UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    Cropping1D Cropping2D Cropping3D UnitNormalization Resizing CenterCrop CategoryEncoding Hashing
    HashedCrossing RandomFlip RandomCrop RandomRotation RandomZoom RandomTranslation RandomContrast
    RandomBrightness RandomHeight RandomWidth TensorFlowOpLayer TFOpLambda SlicingOpLambda Discretization
    TextVectorization StringLookup IntegerLookup MelSpectrogram STFTSpectrogram""".split()
)

#: Layers that own nothing themselves; what they hold are `Node.children`.
_CONTAINERS = frozenset(
    {"TimeDistributed", "Bidirectional", "RNN", "StackedRNNCells", "Sequential", "Model", "Functional"}
)


def variables(node: Node, dialect: str) -> Variables | None:
    """What the layer itself owns; None where its class is not a built-in one that is known here."""
    name = node.class_name
    if dialect == "keras1" and name in _KERAS1:
        return _KERAS1[name](node.config)
    if name in _TABLE:
        return _TABLE[name](node.config)
    if node.is_model or name in _CONTAINERS or name in _WEIGHTLESS:
        return Variables()
    if node.entry.get("module") is not None and str(node.entry["module"]).startswith("keras.src.ops"):
        return Variables()  # an operation that stands as a layer in a functional model
    return None
