"""What the benchmarks share: interleaved timing, a description of the machine, Markdown.

A machine's speed drifts, and other programs run on it. So every candidate runs once in each round, in a shuffled order,
and what is compared is the ratio within a round; the reported figures are medians over the rounds. Rounds in which
other programs were busy can be left out.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

#: In a quiet round other programs use less than this share of the CPUs.
QUIET = 0.05

#: Runs something so many times and returns the seconds that all of it took.
Timer = Callable[[int], float]


def timer(call: Callable[[], Any], wait: Callable[[Any], Any] = lambda result: result) -> Timer:
    """A Timer of a function; `wait` is given the last result and returns when it is there (a GPU runs on its own)."""

    def run(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            result = call()
        wait(result)
        return time.perf_counter() - start

    return run


def compare(
    timers: Mapping[str, Timer],
    base: str,
    *,
    rounds: int,
    deadline: float = math.inf,
    seconds: float = 0.03,
    least: int = 3,
    patience: int = 1,
) -> dict[str, Any]:
    """Time the candidates against each other.

    Args:
        timers: the candidates, already warmed up if the first call does more than the others.
        base: the candidate whose time all others are compared with.
        rounds: how many rounds.
        deadline: of `time.monotonic()`; no round starts after it, save the first `least`.
        seconds: about how long a candidate runs in a round: as often as fits, at least once.
        patience: do up to this many times as many rounds, until there are enough in which other programs used less than
            QUIET of the CPUs; the rounds in which they used least are those that count.

    Returns:
        "ms": the median time of one call; "speed": the median, over the rounds, of base's time by the candidate's;
        "rounds": how many count; "busy": the share of the CPUs that other programs used in the worst of them.
    """
    repeats = {}
    for name, run in timers.items():
        took = run(1)
        if took < seconds:
            took = run(1)
        repeats[name] = max(1, min(1000, int(seconds / max(took, 1e-6))))
    order = list(timers)
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in timers}
    busy: list[float] = []
    gc.collect()
    for done in range(rounds * patience):
        if (done >= least and time.monotonic() > deadline) or sum(share < QUIET for share in busy) >= rounds:
            break
        shuffle(order)
        before, start = cpu_time_elsewhere(), time.monotonic()
        for name in order:
            time.sleep(0.005)  # threads of the one before may still be spinning
            if repeats[name] > 1:
                timers[name](1)
            times[name].append(timers[name](repeats[name]) / repeats[name])
        busy.append((cpu_time_elsewhere() - before) / (time.monotonic() - start) / (os.cpu_count() or 1))
    counted = sorted(range(len(busy)), key=lambda i: busy[i])[:rounds]
    times = {name: [t[i] for i in counted] for name, t in times.items()}
    return {
        "ms": {name: round(statistics.median(t) * 1000, 4) for name, t in times.items()},
        "speed": {
            name: float(f"{statistics.median(b / a for a, b in zip(t, times[base], strict=True)):.4g}")
            for name, t in times.items()
        },
        "rounds": len(counted),
        "busy": max(0.0, round(busy[counted[-1]], 3)),
    }


def cpu_time_elsewhere() -> float:
    """Seconds of CPU time that other processes have used since the machine started; 0 where that cannot be known."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    own = os.times()
    all_of_them = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return all_of_them - own.user - own.system


def geometric_mean(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    return round(statistics.geometric_mean(found), 3) if found else None


def versions(*packages: str) -> dict[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine(gpu: str | None = None) -> str:
    """The GPU if there is one, the CPU's name and the number of cores that this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ", ".join(filter(None, [gpu, names[0] if names else platform.processor(), f"{cores} cores"]))


def write(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def headline(result: Mapping[str, Any]) -> str:
    """The machine and the versions of a result, as a line above its table."""
    return f"{result['machine']}; {', '.join(f'{name} {version}' for name, version in result['versions'].items())}"


def table_row(*cells: Any) -> str:
    """A row of a Markdown table; what was not measured (None) is a dash."""
    return "| " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |"


def table_head(*titles: str) -> str:
    return f"{table_row(*titles)}\n{'|---' * len(titles)}|"
