"""May this layer take that form? Pure functions from settings to a `Verdict`, one rule each.

What the forms can do:

* `cudnn`: the classes CuDNNLSTM and CuDNNGRU of Keras 2 (tf_keras/src/layers/rnn/cudnn_lstm.py): tanh and sigmoid,
  two bias sets, GRU with `reset_after`, no dropout of either kind, no mask.
* `fused`: `lstm_swap.layers` (cuDNN's own operation): the same mathematics; dropout on the input, masks, and
  constraints on the standard view of the weights are all right.
* `standard`: the Keras layers; everything can be written so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

FORMS = ("standard", "fused", "cudnn")

#: The class that writes down each kind in each form.
CLASSES = {
    ("lstm", "standard"): "LSTM",
    ("gru", "standard"): "GRU",
    ("lstm", "fused"): "FusedLSTM",
    ("gru", "fused"): "FusedGRU",
    ("lstm", "cudnn"): "CuDNNLSTM",
    ("gru", "cudnn"): "CuDNNGRU",
}
FORM_OF_CLASS = {name: form for (_, form), name in CLASSES.items()}


@dataclass(frozen=True)
class Reason:
    """Why a layer cannot take a form. `code` is one of the words in the README's table."""

    code: str
    field: str
    value: Any
    message: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Settings:
    """A recurrent layer's settings in the words of today's Keras, with every default filled in.

    mask: a mask reaches the layer. constants: it is called with constants. use_cudnn: as a live layer says.
    """

    kind: str
    class_name: str
    units: int | None
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"
    use_bias: bool = True
    reset_after: bool = True
    dropout: float = 0.0
    recurrent_dropout: float = 0.0
    unroll: bool = False
    time_major: bool = False
    dtype: str = "float32"
    cell: str | None = None
    constraints: tuple[tuple[str, str], ...] = ()
    mask: bool = False
    constants: bool = False
    use_cudnn: bool | str = "auto"

    @property
    def form(self) -> str:
        """The form that the layer is in now."""
        return FORM_OF_CLASS.get(self.class_name, "standard")


@dataclass(frozen=True)
class Verdict:
    """May the layer be swapped? False in a condition when it may not; then `reasons` says why.

    rewrites: settings that change on the way, each exact: {field: new value}; notes say so in words.
    """

    form: str
    to_class: str
    reasons: tuple[Reason, ...] = ()
    rewrites: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons


Rule = Callable[[Settings, str], Iterator[Reason]]


#: Not of any rule: nothing but a live model can be taken apart into its layers.
SEVERAL_LAYERS = Reason(
    "class",
    "num_layers",
    None,
    "this fused layer holds several layers or both directions in one",
    "open the model in Keras, and save lstm_swap.standardize(model)",
)


def _class(s: Settings, form: str) -> Iterator[Reason]:
    if s.kind not in ("lstm", "gru") and s.cell is None:
        yield Reason(
            "class",
            "class_name",
            s.class_name,
            f"cuDNN has LSTM and GRU here; {s.class_name} has no such form",
            "it stays as it is, and runs anywhere",
        )


def _cell(s: Settings, form: str) -> Iterator[Reason]:
    if s.cell is not None and s.cell not in ("LSTMCell", "GRUCell"):
        yield Reason(
            "cell",
            "cell",
            s.cell,
            f"only LSTMCell and GRUCell have a layer of their own, and this is RNN({s.cell})",
            "build the layer from LSTMCell or GRUCell, or leave it",
        )
    if s.constants:
        yield Reason(
            "state", "constants", True, "the layer is called with constants, which cuDNN does not know", "leave it"
        )


def _activation(s: Settings, form: str) -> Iterator[Reason]:
    if s.kind in ("lstm", "gru") and s.activation != "tanh":
        yield Reason(
            "activation",
            "activation",
            s.activation,
            f"cuDNN computes tanh, and this layer uses {s.activation}",
            "train it with activation='tanh'; another function gives other numbers",
        )


def _recurrent_activation(s: Settings, form: str) -> Iterator[Reason]:
    if s.kind in ("lstm", "gru") and s.recurrent_activation != "sigmoid":
        yield Reason(
            "recurrent_activation",
            "recurrent_activation",
            s.recurrent_activation,
            f"cuDNN's gates are sigmoid, and this layer's are {s.recurrent_activation}",
            "train it with recurrent_activation='sigmoid'; exchanging the function gives other numbers",
        )


def _reset_after(s: Settings, form: str) -> Iterator[Reason]:
    if s.kind == "gru" and not s.reset_after:
        yield Reason(
            "reset_after",
            "reset_after",
            False,
            "cuDNN applies the reset gate after the matrix product; this GRU (reset_after=False) does it before",
            "train it with reset_after=True; the weights cannot be converted",
        )


def _use_bias(s: Settings, form: str) -> Iterator[Reason]:
    if s.kind in ("lstm", "gru") and not s.use_bias:
        yield Reason(
            "use_bias",
            "use_bias",
            False,
            "cuDNN needs a bias, and this layer has none",
            "--inference adds a bias of zeros (the numbers stay; training would move it)",
        )


def _recurrent_dropout(s: Settings, form: str) -> Iterator[Reason]:
    if s.recurrent_dropout:
        yield Reason(
            "recurrent_dropout",
            "recurrent_dropout",
            s.recurrent_dropout,
            "cuDNN has no dropout between time steps",
            "--inference sets it to 0 (predictions stay; training would differ)",
        )


def _dropout(s: Settings, form: str) -> Iterator[Reason]:
    if s.dropout and form == "cudnn":
        yield Reason(
            "dropout",
            "dropout",
            s.dropout,
            "the legacy CuDNN classes have no dropout on their input",
            "--inference sets it to 0, or put a Dropout layer in front",
        )


def _mask(s: Settings, form: str) -> Iterator[Reason]:
    if s.mask and form == "cudnn":
        yield Reason(
            "mask",
            "mask",
            True,
            "a mask (from Embedding(mask_zero=True) or Masking) reaches this layer, and the legacy CuDNN classes "
            "do not support masking",
            "leave it standard, or use --to fused, which takes masks",
        )


def _constraint(s: Settings, form: str) -> Iterator[Reason]:
    if form == "cudnn":
        for name, value in s.constraints:
            yield Reason(
                "constraint",
                name,
                value,
                f"{name} ({value}) would act on other axes in the GPU layout, so training would go another way",
                "--inference drops it (predictions stay)",
            )


def _dtype(s: Settings, form: str) -> Iterator[Reason]:
    supported = {"float16", "float32", "float64", "mixed_float16"}
    if form == "fused":
        supported |= {"bfloat16", "mixed_bfloat16"}
    if s.dtype not in supported:
        yield Reason("dtype", "dtype", s.dtype, f"the {form} form does not compute in {s.dtype}", "leave it standard")


def _time_major(s: Settings, form: str) -> Iterator[Reason]:
    if s.time_major:
        yield Reason(
            "time_major", "time_major", True, f"the {form} form is batch-major, and this layer time-major", "leave it"
        )


def _use_cudnn(s: Settings, form: str) -> Iterator[Reason]:
    if s.use_cudnn is False:
        yield Reason(
            "use_cudnn",
            "use_cudnn",
            False,
            "the layer says use_cudnn=False",
            "set use_cudnn='auto' on the layer if that was not meant",
        )


RULES: tuple[Rule, ...] = (
    _class,
    _cell,
    _activation,
    _recurrent_activation,
    _reset_after,
    _use_bias,
    _recurrent_dropout,
    _dropout,
    _mask,
    _constraint,
    _dtype,
    _time_major,
    _use_cudnn,
)

#: Reasons that --inference removes, because they matter in training alone.
TRAINING_ONLY = frozenset({"use_bias", "recurrent_dropout", "dropout", "constraint"})


def judge(settings: Settings, form: str, *, inference: bool = False) -> Verdict:
    """May a layer with these settings be written in this form?

    inference: changes that only training would notice are allowed (see the reasons' remedies).
    """
    to_class = CLASSES.get((settings.kind, form), settings.class_name)
    if form == "standard":
        return Verdict(form, to_class)
    reasons = [reason for rule in RULES for reason in rule(settings, form)]
    rewrites: dict[str, Any] = {}
    notes: list[str] = []
    if inference:
        for reason in [r for r in reasons if r.code in TRAINING_ONLY]:
            reasons.remove(reason)
            rewrites[reason.field] = {"use_bias": True, "constraint": None}.get(reason.code, 0.0)
            notes.append(f"{reason.field}: {reason.value} dropped for inference")
    if settings.unroll:
        rewrites["unroll"] = False
        notes.append("unroll=True became False (the same computation, as a loop)")
    if settings.cell is not None and not reasons:
        notes.append(f"RNN({settings.cell}) became {to_class}")
    return Verdict(form, to_class, tuple(reasons), rewrites, tuple(notes))
