"""Which kernel `choice` picks: what was asked for where it can run, else what the measured tables say."""

from __future__ import annotations

import os
from typing import Any

import pytest

from lstm_swap.layers import choice
from lstm_swap.layers.network import Network


def case(
    mode: str = "lstm",
    shape: tuple[int | None, int | None, int, int] = (4, 50, 32, 64),
    dtype: str = "float32",
    masked: bool = False,
    **network: Any,
) -> choice.Case:
    return choice.Case(Network(mode, True, **network), shape, dtype, masked)


ANYWHERE = ["loop", "scan", "xla", "xla2", "xla4"]  # on a CPU, any job


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A table to fill, on a machine of many cores where XLA compiles for both devices."""
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(choice, "table", lambda: rows)
    monkeypatch.setattr(choice, "xla_works", lambda device: True)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    return rows


@pytest.mark.parametrize("job", choice.JOBS)
@pytest.mark.parametrize("device", choice.DEVICES)
def test_explicit_choice_is_honoured(device: str, job: str, rows: list[dict[str, Any]]) -> None:
    """What the layer was given runs, whatever the table says, eagerly and for an unknown shape too."""
    for name in choice.KERNELS[device]:
        if name == "block" and job == "training":
            continue
        speed = {other: 1.0 if other == name else 9.0 for other in choice.KERNELS[device]}
        rows[:] = [row(device, job, speed=speed)]
        for eager in (False, True):
            for shape in ((4, 50, 32, 64), (None, None, 32, 64), (512, 50, 32, 64)):
                assert choice.choose(device, job, case(shape=shape), {f"{device}_{job}": name}, eager=eager) == name
        other_job = {f"{device}_{other}": name for other in choice.JOBS if other != job}
        assert choice.choose(device, job, case(), other_job, eager=False) != name


def row(device: str = "cpu", job: str = "inference", mode: str = "lstm", **more: Any) -> dict[str, Any]:
    return {"device": device, "job": job, "mode": mode, "shape": [4, 50, 32, 64, 1, 1], "speed": {}, **more}


def test_impossible_choice_falls_back(rows: list[dict[str, Any]]) -> None:
    """A kernel that cannot run here is passed over for the best that can."""
    block = {"cpu_inference": "block", "cpu_training": "block"}
    assert choice.choose("cpu", "inference", case(), block, eager=False) == "block"
    for impossible in (case(masked=True), case(mode="gru"), case(dtype="float64")):
        assert choice.choose("cpu", "inference", impossible, block, eager=False) == "loop"
        rows[:] = [row(speed={"block": 9.0, "scan": 2.0})]
        assert choice.choose("cpu", "inference", impossible, block, eager=False) == "scan"
        rows.clear()
    assert choice.choose("cpu", "training", case(), block, eager=False) == "loop"


def test_no_xla_where_it_does_not_work(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where XLA cannot compile for the device, it is neither picked nor taken though asked for."""
    monkeypatch.setattr(choice, "xla_works", lambda device: False)
    for device, safe in choice.SAFE.items():
        assert not [name for name in choice.candidates(device, "training", case()) if name.startswith("xla")]
        asked = {f"{device}_training": "xla"}
        assert choice.choose(device, "training", case(), asked, eager=False) == safe


def test_what_is_saved_holds_the_safe_kernel(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a SavedModel is written, nothing but the safe kernel of each device is taken."""
    monkeypatch.setattr(choice, "saving", lambda: True)
    for device, safe in choice.SAFE.items():
        for name in choice.KERNELS[device]:
            rows[:] = [row(device, speed={name: 9.0})]
            assert choice.choose(device, "inference", case(), {f"{device}_inference": name}, eager=False) == safe
        assert choice.candidates(device, "inference", case()) == [safe]


def test_xla_is_not_picked_where_shapes_vary(rows: list[dict[str, Any]]) -> None:
    """XLA compiles for each shape, so it is no candidate for eager calls or an unknown number of steps."""
    for device in choice.DEVICES:
        for job in choice.JOBS:
            rows[:] = [row(device, job, speed={"xla": 9.0, "scan": 2.0})]
            fixed = case(shape=(4, 50, 32, 64))
            any_rows = case(shape=(None, 50, 32, 64))
            assert choice.choose(device, job, fixed, {}, eager=False) == "xla"
            slow = (device, job) == ("gpu", "inference")  # there it takes seconds, and any number of rows may come
            assert choice.choose(device, job, any_rows, {}, eager=False) == ("cudnn" if slow else "xla")
            without = "scan" if device == "cpu" else "cudnn"
            assert choice.choose(device, job, fixed, {}, eager=True) == without
            assert choice.choose(device, job, case(shape=(4, None, 32, 64)), {}, eager=False) == without


def test_candidates(rows: list[dict[str, Any]]) -> None:
    """The safe kernel comes first; the block is for small batches of a known size; one call of cuDNN is one anyway."""
    assert choice.candidates("cpu", "inference", case(shape=(32, 50, 32, 64))) == ANYWHERE
    assert choice.candidates("cpu", "inference", case(shape=(None, 50, 32, 64))) == ANYWHERE
    assert choice.candidates("cpu", "inference", case(shape=(8, 50, 32, 64))) == [*ANYWHERE, "block"]
    assert choice.candidates("cpu", "training", case(shape=(8, 50, 32, 64))) == ANYWHERE
    assert choice.candidates("cpu", "inference", case(), eager=True) == ["loop", "scan", "block"]
    assert choice.candidates("gpu", "training", case()) == ["cudnn", "xla"]
    for network in ({"num_layers": 2}, {"bidirectional": True}):
        assert choice.candidates("gpu", "inference", case(**network)) == ["cudnn", "cudnn_layers", "xla"]


@pytest.mark.parametrize(
    ("cores", "batch", "most"), [(1, 32, 1), (2, 32, 2), (3, 32, 2), (64, 32, 4), (64, 3, 2), (64, 1, 1)]
)
def test_no_more_shares_than_cores_or_rows(
    cores: int, batch: int, most: int, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is not split further than there are cores to run its shares and rows to fill them."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    names = choice.candidates("cpu", "training", case(shape=(batch, 50, 32, 64)))
    assert max(choice.shares(name) for name in names) == most
    assert choice.choose("cpu", "training", case(), {"cpu_training": "xla4"}, eager=False) == "xla4"  # if asked for


def test_empty_table_gives_the_safe_kernel(rows: list[dict[str, Any]]) -> None:
    """Without measurements for a device and job, what always runs is taken."""
    rows[:] = [row("cpu", "training", speed={"xla": 9.0})]
    assert choice.choose("cpu", "inference", case(), {}, eager=False) == "loop"
    assert choice.choose("gpu", "training", case(), {}, eager=False) == "cudnn"


@pytest.mark.parametrize(
    ("measured", "shape", "network", "name"),
    [
        ("batch", (1, 50, 32, 64), {}, "near"),
        ("batch", (2, 400, 32, 64), {}, "near"),
        ("batch", (100, 50, 32, 64), {}, "far"),
        ("batch", (None, 50, 32, 64), {}, "far"),  # taken for 32
        ("units", (1, 50, 32, 90), {}, "near"),
        ("units", (1, 50, 32, 400), {}, "far"),
        ("layers", (1, 50, 32, 64), {}, "near"),
        ("layers", (1, 50, 32, 64), {"num_layers": 3}, "far"),
        ("directions", (1, 50, 32, 64), {"bidirectional": True}, "far"),
    ],
)
def test_nearest_row_decides(
    measured: str, shape: Any, network: dict[str, Any], name: str, rows: list[dict[str, Any]]
) -> None:
    """Of two rows that differ in one number, the one that is nearer to the layer's own shape says what is fastest."""
    far = {"batch": (0, 64), "units": (3, 512), "layers": (4, 3), "directions": (5, 2)}[measured]
    other = [1, 50, 32, 64, 1, 1]
    other[far[0]] = far[1]
    rows[:] = [row(shape=other, speed={"scan": 3.0}), row(shape=[1, 50, 32, 64, 1, 1], speed={"xla": 3.0})]
    expected = {"near": "xla", "far": "scan"}[name]
    assert choice.choose("cpu", "inference", case(shape=shape, **network), {}, eager=False) == expected


def test_rows_of_the_own_kind_come_first(rows: list[dict[str, Any]]) -> None:
    """A GRU goes by rows of GRUs however far they are, and by those of LSTMs if there are no others."""
    rows[:] = [row(mode="lstm", speed={"xla": 3.0})]
    assert choice.choose("cpu", "inference", case("gru"), {}, eager=False) == "xla"
    rows.append(row(mode="gru", shape=[256, 9, 9, 512, 3, 2], speed={"scan": 3.0}))
    assert choice.choose("cpu", "inference", case("gru"), {}, eager=False) == "scan"
    assert choice.choose("cpu", "inference", case("lstm"), {}, eager=False) == "xla"


def test_fastest_candidate_of_the_row(rows: list[dict[str, Any]]) -> None:
    """The fastest that may run is taken, not the fastest that was measured; of equals the safe one."""
    rows[:] = [row(speed={"loop": 1.0, "scan": 1.5, "xla": 2.0, "block": 9.0})]
    assert choice.choose("cpu", "inference", case(), {}, eager=False) == "block"
    assert choice.choose("cpu", "inference", case(masked=True), {}, eager=False) == "xla"
    assert choice.choose("cpu", "inference", case(masked=True), {}, eager=True) == "scan"
    rows[:] = [row(speed={"scan": 1.0, "loop": 1.0, "xla": 1.0})]
    assert choice.choose("cpu", "inference", case(), {}, eager=False) == "loop"


def test_committed_table() -> None:
    """Each measured row names a device, job and mode, six positive numbers, and kernels that the device has."""
    assert isinstance(choice.table(), list)
    for measured in choice.table():
        assert measured["device"] in choice.DEVICES
        assert measured["job"] in choice.JOBS
        assert measured["mode"] in ("lstm", "gru")
        assert len(measured["shape"]) == 6 and min(measured["shape"]) >= 1
        assert measured["speed"] and set(measured["speed"]) <= set(choice.KERNELS[measured["device"]])
        assert all(speed > 0 for speed in measured["speed"].values())
