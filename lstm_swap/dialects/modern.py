"""Keras 3's own files, with what its HDF5 files leave out: the module of each class.

An HDF5 file of Keras 3 names classes alone (`legacy/saving/serialization.py`). Keras 3 finds layers by their names,
but not operations (`x + 1` is called Add, as a layer is), and a `.keras` file needs the module everywhere.
"""

from __future__ import annotations

from typing import Any

from lstm_swap.architecture import Change, Node
from lstm_swap.dialects.catalog import ALIASES, KERAS3_KEYS, ONLY_KERAS3
from lstm_swap.dialects.graph import is_functional
from lstm_swap.dialects.known import is_own_class

#: keras.src.ops modules of Keras 3.15.1 and their Operation classes, without those that make no sense in a graph.
OPERATIONS: dict[str, frozenset[str]] = {
    "numpy": frozenset(
        (
            "Absolute Abs Add All Amax Amin Any Append Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh "
            "Argmax Argmin Argsort Average BroadcastTo Ceil Clip Concatenate Conj Conjugate Copy Cos Cosh "
            "CountNonzero Cross Cumprod Cumsum Diag Diagonal Diff Digitize Divide DivideNoNan Dot Einsum Equal "
            "Exp Exp2 ExpandDims Expm1 Flip Floor FloorDivide FullLike GetItem Greater GreaterEqual Hstack Imag "
            "Inner Isclose Isfinite Isinf Isnan Less LessEqual Log Log10 Log1p Log2 Logaddexp LogicalAnd "
            "LogicalNot LogicalOr LogicalXor Matmul Max Maximum Mean Median Min Minimum Mod Moveaxis Multiply "
            "NanToNum Ndim Negative NotEqual OnesLike Outer Pad Power Prod Quantile Ravel Real Reciprocal Repeat "
            "Reshape Roll Rot90 Round Sign Sin Sinh Size Sort Split Sqrt Square Squeeze Stack Std Subtract Sum "
            "Swapaxes Take TakeAlongAxis Tan Tanh Tensordot Tile Trace Transpose Tril Triu TrueDivide Trunc Var "
            "Vdot Vstack Where ZerosLike"
        ).split()
    ),
    "nn": frozenset(
        (
            "AveragePool Celu Conv ConvTranspose CTCDecode CTCLoss DepthwiseConv DotProductAttention Elu Gelu Glu "
            "HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool Moments "
            "MultiHot Normalize OneHot Relu Relu6 RMSNorm Selu SeparableConv Sigmoid Silu Softmax SoftShrink "
            "Softplus Softsign SparsePlus SparseSigmoid Sparsemax Squareplus TanhShrink Threshold"
        ).split()
    ),
    "math": frozenset("Erf Erfinv FFT FFT2 InTopK IRFFT Logsumexp RFFT Rsqrt SegmentMax SegmentSum STFT TopK".split()),
    "core": frozenset(
        "Cast ConvertToTensor SaturateCast Scatter ScatterUpdate Slice SliceUpdate StopGradient Unstack".split()
    ),
    "linalg": frozenset("Cholesky Det Eig Eigh Inv LuFactor Norm Qr Solve SolveTriangular SVD".split()),
    "image": frozenset(["AffineTransform", "CropImages", "ExtractPatches", "MapCoordinates", "PadImages", "Resize"]),
}


#: Layers whose class has another name than the one under which `keras.layers` exports it.
EXPORTED_AS = {"GroupedQueryAttention": "GroupQueryAttention"}


def modernize(root: Node) -> list[Change]:
    """State the module of every built-in class of a Keras 3 architecture that lacks it, in place."""
    changes = []
    for node in root.walk():
        entry = node.entry
        if entry.get("module") is not None or node.implicit or is_own_class(entry):
            continue
        name, module = node.class_name, None
        if node.is_model:
            if name in ("Model", "Functional") and is_functional(entry):
                entry["class_name"], module = "Functional", "keras.src.models.functional"
            elif name == "Sequential":
                module = "keras"
        else:
            module = _operation_module(entry)
            if module is not None:
                message = f"{name} is an operation here, which Keras 3 cannot find by its name alone"
                changes.append(Change(node.path, "module", None, module, "opens", message))
            elif ALIASES.get(name, name) in KERAS3_KEYS or name in ONLY_KERAS3:
                module = "keras.layers"
                entry["class_name"] = EXPORTED_AS.get(name, name)
        if module is not None:
            entry["module"] = module
            entry["registered_name"] = None
    return changes


def _operation_module(entry: dict[str, Any]) -> str | None:
    """The module of an operation; None for a layer, whose config says whether it is trainable."""
    config = entry.get("config")
    if not isinstance(config, dict) or "trainable" in config or entry.get("class_name") == "InputLayer":
        return None
    name = entry.get("class_name")
    return next((f"keras.src.ops.{module}" for module, names in OPERATIONS.items() if name in names), None)
