"""torch's column of `gpu_layers.py`, in a process of its own: TensorFlow and torch may need different libraries.

Prints its version. Then reads one request a line, a JSON list, and answers each with a line of JSON:

    ["load", PATH]       an .npz file: x, y, the arrays of each layer and direction in the fused layout, those of the
                         dense layer, and "meta", which is [mode, layers, bidirectional]; answers the output with
                         TensorFloat-32 off
    [JOB, REPEATS]       JOB is "predict" or "train"; answers the seconds
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, arrays: list[Any], dense: list[Any], mode: str, layers: int, both: bool) -> None:
        super().__init__()
        units, features = arrays[1].shape[1], arrays[0].shape[1]
        kind = torch.nn.LSTM if mode == "lstm" else torch.nn.GRU
        self.rnn = kind(features, units, layers, batch_first=True, bidirectional=both)
        self.dense = torch.nn.Linear(len(dense[0]), 1)
        with torch.no_grad():
            # torch's gates lie in cuDNN's order, which is that of the fused layout; it has two sets of biases.
            for i in range(0, len(arrays), 3):
                kernel, recurrent, bias = arrays[i : i + 3]
                biases = np.split(bias, 2) if mode == "gru" else [bias, np.zeros_like(bias)]
                end = f"_l{i // 3 // (1 + both)}" + ("_reverse" if both and i // 3 % 2 else "")
                for name, value in zip(
                    ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (kernel, recurrent, *biases), strict=True
                ):
                    getattr(self.rnn, name + end).copy_(torch.from_numpy(value))
            self.dense.weight.copy_(torch.from_numpy(dense[0].T))
            self.dense.bias.copy_(torch.from_numpy(dense[1]))

    def forward(self, x: Any) -> Any:
        _, state = self.rnn(x)
        h = state[0] if isinstance(state, tuple) else state
        return self.dense(torch.cat([h[-2], h[-1]], 1) if self.rnn.bidirectional else h[-1])


def tensor_float_32(allow: bool) -> None:
    torch.backends.cudnn.allow_tf32 = allow
    torch.backends.cuda.matmul.allow_tf32 = allow


def jobs(path: str) -> tuple[Any, dict[str, Callable[[], Any]]]:
    """The output, and what to time."""
    with np.load(path) as file:
        stored = dict(file)
    mode, layers, both = json.loads(str(stored["meta"]))
    arrays = [stored[f"array{i}"] for i in range(3 * layers * (1 + both))]
    model = Model(arrays, [stored["dense0"], stored["dense1"]], mode, layers, both).to(DEVICE)
    x, y = (torch.from_numpy(stored[name]).to(DEVICE) for name in ("x", "y"))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def predict() -> Any:
        return model(x)

    def train() -> Any:
        optimizer.zero_grad()
        loss = torch.mean((model(x) - y) ** 2)
        loss.backward()
        optimizer.step()
        return loss

    tensor_float_32(False)
    output = predict().cpu().tolist()
    tensor_float_32(True)
    return output, {"predict": predict, "train": train}


def main() -> None:
    found: dict[str, Callable[[], Any]] = {}
    torch.nn.LSTM(2, 2).to(DEVICE)(torch.zeros((1, 1, 2), device=DEVICE))  # fails now if it cannot work here
    print(json.dumps(str(torch.__version__)), flush=True)
    for line in sys.stdin:
        request, argument = json.loads(line)
        answer: Any
        if request == "load":
            answer, found = jobs(argument)
        else:
            start = time.perf_counter()
            for _ in range(argument):
                result = found[request]()
            result.cpu()  # waits for the device
            answer = time.perf_counter() - start
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
