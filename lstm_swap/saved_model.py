"""SavedModel folders: what they hold, and the same without cuDNN nodes.

The parts lie in `lstm_swap.saved_models`; this is the entry. TensorFlow is needed, and imported by the functions alone.
"""

from __future__ import annotations

from lstm_swap.saved_models.layers import KerasModel, keras_architecture, recover_arrays
from lstm_swap.saved_models.reading import is_saved_model
from lstm_swap.saved_models.rewriting import RewriteResult, RewrittenNode
from lstm_swap.saved_models.summary import CudnnNode, SavedModelSummary, Signature, TensorInfo, summarize
from lstm_swap.saved_models.worker import rewrite_apart as rewrite

__all__ = [
    "CudnnNode",
    "KerasModel",
    "RewriteResult",
    "RewrittenNode",
    "SavedModelSummary",
    "Signature",
    "TensorInfo",
    "is_saved_model",
    "keras_architecture",
    "recover_arrays",
    "rewrite",
    "summarize",
]
