"""Training steps by how idle threads wait: alone, two programs side by side, and beside four busy ones.

    python -m bench.speed.threads [--seconds 5]

Each program takes steps of the demo's decoder, whose products are so small that threads wait often, and of a decoder on
7x7x1280 grids, in float32. OpenMP's own way lets idle threads spin for milliseconds; `attend` sets what
tasks/common/cores.py says. Of two side by side each should be nearly half as fast as alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.machine import describe

# form -> the environment, beside which nothing of OpenMP's is set
FORMS = {
    "OpenMP's own": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000"},
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "attend": {},
    "attend, one thread": {"OMP_NUM_THREADS": "1"},
}
PROBLEMS = {"demo": (3, 128, 33, 16, 256), "7x7x1280": (7, 1280, 9490, 16, 512)}  # side, C, V, pictures, hidden
BUSY = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--problem", choices=PROBLEMS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.problem:
        print(_steps(given.problem, given.seconds))
        return
    describe()
    beside = f"beside {BUSY} busy"
    print(f"\n| steps | threads wait | alone, steps/s | two side by side, each | of alone | {beside} | of alone |")
    print("| --- " * 7 + "|")
    for problem in PROBLEMS:
        for name, environment in FORMS.items():
            (alone,) = _rates(problem, environment, given.seconds, 1)
            two = min(_rates(problem, environment, given.seconds, 2))
            with _busy():
                (crowded,) = _rates(problem, environment, given.seconds, 1)
            figures = f"{alone:.1f} | {two:.1f} | {two / alone:.0%} | {crowded:.1f} | {crowded / alone:.0%}"
            print(f"| {problem} | {name} | {figures} |", flush=True)


def _rates(problem: str, environment: dict[str, str], seconds: float, programs: int) -> list[float]:
    """Steps a second of so many programs at once."""
    hidden = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    kept = {name: value for name, value in os.environ.items() if name not in hidden} | environment
    command = [sys.executable, "-m", "bench.speed.threads", "--problem", problem, "--seconds", str(seconds)]
    begun = [subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, text=True) for _ in range(programs)]
    return [float(program.communicate()[0]) for program in begun]


@contextmanager
def _busy() -> Iterator[None]:
    """Keep programs beside the block that compute all the time."""
    begun = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for program in begun:
            program.kill()
            program.wait()


def _steps(problem: str, seconds: float) -> float:
    """Steps a second, after two that are not counted."""
    import torch
    from torch.nn import functional

    from models.decoders.base import make

    side, channels, vocabulary, pictures, hidden = PROBLEMS[problem]
    torch.manual_seed(0)
    decoder = make("show_attend_tell", channels, vocabulary, {"hidden": hidden, "dropout_output": 0.0})
    optimiser = torch.optim.Adam(decoder.parameters(), 1e-4, fused=True)
    grid, words = torch.randn(pictures, side, side, channels), torch.randint(4, vocabulary, (pictures, 5, 13))
    places = torch.arange(words[:, :, 1:].numel())
    done, began = -2, time.perf_counter()
    while done < 1 or time.perf_counter() - began < seconds:
        if done == 0:
            began = time.perf_counter()
        loss = functional.cross_entropy(decoder(grid, words[:, :, :-1], places)[0], words[:, :, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        done += 1
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
