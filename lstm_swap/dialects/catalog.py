"""Which layers each Keras knows, and which settings Keras 3 takes for them.

The key tables are the constructor signatures of Keras 3.15.1 and tf_keras 2.21 (the last Keras 2); a test compares
them with the installed libraries. Keras 3 refuses to open a layer whose config holds any other key.
"""

from __future__ import annotations


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Settings that every layer takes.
COMMON = _keys("name trainable dtype activity_regularizer")

_KERNEL = (
    "activation use_bias kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
    "kernel_constraint bias_constraint"
)
_CELL = (
    "units activation use_bias kernel_initializer recurrent_initializer bias_initializer kernel_regularizer "
    "recurrent_regularizer bias_regularizer kernel_constraint recurrent_constraint bias_constraint dropout "
    "recurrent_dropout seed"
)
_RNN = "return_sequences return_state go_backwards stateful unroll zero_output_for_mask"
_CONV = "filters kernel_size strides padding data_format dilation_rate " + _KERNEL
_DEPTHWISE = (
    "kernel_size strides padding depth_multiplier data_format dilation_rate activation use_bias "
    "depthwise_initializer bias_initializer depthwise_regularizer bias_regularizer depthwise_constraint "
    "bias_constraint"
)
_NORM = (
    "axis epsilon center scale beta_initializer gamma_initializer beta_regularizer gamma_regularizer "
    "beta_constraint gamma_constraint"
)
_LOOKUP = (
    "max_tokens num_oov_indices mask_token oov_token vocabulary vocabulary_dtype idf_weights invert output_mode "
    "sparse pad_to_max_tokens oov_method salt"
)
_RANDOM_AFFINE = (
    "height_factor width_factor fill_mode interpolation seed fill_value data_format factor bounding_box_format"
)

_GROUPS: dict[str, str] = {
    # core
    "InputLayer": "batch_shape sparse ragged optional",
    "Activation": "activation",
    "ActivityRegularization": "l1 l2",
    "Dense": "units " + _KERNEL,
    "EinsumDense": "equation output_shape bias_axes " + _KERNEL.replace("use_bias ", ""),
    "Embedding": "input_dim output_dim embeddings_initializer embeddings_regularizer embeddings_constraint mask_zero",
    "Lambda": "function output_shape mask arguments",
    "Masking": "mask_value",
    "Permute": "dims",
    "RepeatVector": "n",
    "Reshape": "target_shape",
    "Flatten": "data_format",
    "Identity": "",
    "Rescaling": "scale offset",
    "TimeDistributed": "layer",
    "Bidirectional": "layer merge_mode backward_layer",
    "SpectralNormalization": "layer power_iterations",
    # recurrent
    "LSTM": f"{_CELL} recurrent_activation unit_forget_bias {_RNN}",
    "LSTMCell": f"{_CELL} recurrent_activation unit_forget_bias",
    "GRU": f"{_CELL} recurrent_activation reset_after {_RNN}",
    "GRUCell": f"{_CELL} recurrent_activation reset_after",
    "SimpleRNN": f"{_CELL} {_RNN}",
    "SimpleRNNCell": _CELL,
    "RNN": "cell " + _RNN,
    "StackedRNNCells": "cells",
    # merging
    **dict.fromkeys(("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"), ""),
    "Concatenate": "axis",
    "Dot": "axes normalize",
    # activations
    "ELU": "alpha",
    "LeakyReLU": "negative_slope",
    "PReLU": "alpha_initializer alpha_regularizer alpha_constraint shared_axes",
    "ReLU": "max_value negative_slope threshold",
    "Softmax": "axis",
    # attention
    "AdditiveAttention": "use_scale dropout score_mode seed",
    "Attention": "use_scale score_mode dropout seed",
    "MultiHeadAttention": (
        "num_heads key_dim value_dim dropout use_bias output_shape attention_axes kernel_initializer bias_initializer "
        "kernel_regularizer bias_regularizer kernel_constraint bias_constraint sliding_window flash_attention use_gate "
        "seed"
    ),
    # regularization
    "AlphaDropout": "rate noise_shape seed",
    "Dropout": "rate noise_shape seed",
    "GaussianDropout": "rate seed",
    "GaussianNoise": "stddev seed",
    "SpatialDropout1D": "rate seed",
    "SpatialDropout2D": "rate data_format seed",
    "SpatialDropout3D": "rate data_format seed",
    # normalization
    "BatchNormalization": (
        f"{_NORM} momentum moving_mean_initializer moving_variance_initializer renorm renorm_clipping "
        "renorm_momentum synchronized"
    ),
    "GroupNormalization": "groups " + _NORM,
    "LayerNormalization": _NORM,
    "UnitNormalization": "axis",
    "Normalization": "axis mean variance invert",
    # convolution
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), _CONV + " groups"),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _CONV + " output_padding"),
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D"), _DEPTHWISE),
    **dict.fromkeys(
        ("SeparableConv1D", "SeparableConv2D"),
        _DEPTHWISE + " filters pointwise_initializer pointwise_regularizer pointwise_constraint",
    ),
    **dict.fromkeys(
        ("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
        f"{_CONV} {_CELL.replace('units ', '')} recurrent_activation unit_forget_bias {_RNN}",
    ),
    # pooling and shapes
    **dict.fromkeys(
        [f"{kind}Pooling{n}D" for kind in ("Average", "Max") for n in "123"], "pool_size strides padding data_format"
    ),
    **dict.fromkeys([f"Global{kind}Pooling{n}D" for kind in ("Average", "Max") for n in "123"], "data_format keepdims"),
    "Cropping1D": "cropping",
    "Cropping2D": "cropping data_format",
    "Cropping3D": "cropping data_format",
    "UpSampling1D": "size",
    "UpSampling2D": "size data_format interpolation",
    "UpSampling3D": "size data_format",
    **dict.fromkeys(("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D"), "padding data_format"),
    # preprocessing
    "CategoryEncoding": "num_tokens output_mode sparse",
    "CenterCrop": "height width data_format factor bounding_box_format",
    "Discretization": "bin_boundaries num_bins epsilon output_mode sparse",
    "HashedCrossing": "num_bins output_mode sparse",
    "Hashing": "num_bins mask_value salt output_mode sparse",
    "IntegerLookup": _LOOKUP,
    "StringLookup": _LOOKUP + " encoding",
    "TextVectorization": (
        "max_tokens standardize split ngrams output_mode output_sequence_length pad_to_max_tokens vocabulary "
        "idf_weights sparse ragged encoding"
    ),
    "RandomBrightness": "factor value_range seed bounding_box_format data_format",
    "RandomContrast": "factor value_range seed bounding_box_format data_format",
    "RandomCrop": "height width seed data_format factor bounding_box_format",
    "RandomFlip": "mode seed data_format factor bounding_box_format",
    "RandomRotation": "factor fill_mode interpolation seed fill_value data_format bounding_box_format",
    "RandomTranslation": _RANDOM_AFFINE,
    "RandomZoom": _RANDOM_AFFINE,
    "Resizing": (
        "height width interpolation crop_to_aspect_ratio pad_to_aspect_ratio fill_mode fill_value antialias "
        "data_format factor bounding_box_format"
    ),
}

#: Built-in layers that both Keras 2 and Keras 3 have, with the settings that Keras 3 takes.
KERAS3_KEYS: dict[str, frozenset[str]] = {name: _keys(text) | COMMON for name, text in _GROUPS.items()}
# The legacy GPU layers keep the keys that their standard form takes, until a swap renames them.
KERAS3_KEYS["CuDNNLSTM"] = KERAS3_KEYS["LSTM"]
KERAS3_KEYS["CuDNNGRU"] = KERAS3_KEYS["GRU"]
# These do not pass what they do not know on to Layer.
for _name in ("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"):
    KERAS3_KEYS[_name] -= {"activity_regularizer", "trainable"}
KERAS3_KEYS["Discretization"] -= {"activity_regularizer", "trainable"}
KERAS3_KEYS["InputLayer"] = _keys("batch_shape sparse ragged optional name dtype")

#: Layers that only Keras 3 has.
ONLY_KERAS3 = _keys(
    "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D "
    "AdaptiveMaxPooling2D AdaptiveMaxPooling3D AugMix AutoContrast ContrastLimitedAdaptiveHistogramEqualization "
    "CutMix Equalization FlaxLayer GroupQueryAttention GroupedQueryAttention JaxLayer MaxNumBoundingBoxes "
    "MelSpectrogram MixUp Pipeline RMSNormalization RandAugment RandomColorDegeneration RandomColorJitter "
    "RandomElasticTransform RandomErasing RandomGaussianBlur RandomGrayscale RandomHue RandomInvert "
    "RandomPerspective RandomPosterization RandomSaturation RandomSharpness RandomShear ReversibleEmbedding "
    "STFTSpectrogram Solarization TFSMLayer TorchModuleWrapper"
)

#: Layers of Keras 2 that Keras 3 has no form for.
ONLY_KERAS2 = _keys("AbstractRNNCell DenseFeatures LocallyConnected1D LocallyConnected2D")

#: Other names of the same class, in any version of Keras 1 to 3.
ALIASES: dict[str, str] = {
    "UnifiedLSTM": "LSTM",
    "UnifiedGRU": "GRU",
    # populate_deserializable_objects in tf_keras/src/layers/serialization.py
    "SyncBatchNormalization": "BatchNormalization",
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    **{f"Convolution{n}D": f"Conv{n}D" for n in "123"},
    **{f"Convolution{n}DTranspose": f"Conv{n}DTranspose" for n in "123"},
    "Deconvolution2D": "Conv2DTranspose",
    "Deconvolution3D": "Conv3DTranspose",
    "SeparableConvolution1D": "SeparableConv1D",
    "SeparableConvolution2D": "SeparableConv2D",
    **{f"AvgPool{n}D": f"AveragePooling{n}D" for n in "123"},
    **{f"MaxPool{n}D": f"MaxPooling{n}D" for n in "123"},
    **{f"GlobalAvgPool{n}D": f"GlobalAveragePooling{n}D" for n in "123"},
    **{f"GlobalMaxPool{n}D": f"GlobalMaxPooling{n}D" for n in "123"},
}

#: Layers that have a translation rule although Keras 3 lacks the class.
TRANSLATED = _keys("RandomHeight RandomWidth ThresholdedReLU TensorFlowOpLayer TFOpLambda SlicingOpLambda")

#: Layer classes of Keras 1 under names that Keras 2 dropped.
ONLY_KERAS1 = _keys(
    "AtrousConv1D AtrousConv2D AtrousConvolution1D AtrousConvolution2D Highway MaxoutDense Merge ParametricSoftplus "
    "SReLU TimeDistributedDense GraphMerge CosineConvolution2D CosineConv2D"
)
