"""What data sets of four sizes take, of forty thousand to a billion pictures: bytes, hours and our own memory.

    python -m bench.capacity

Nothing is measured here: rates that bench/README.md has of two cores are multiplied. A GPU's rate is one that timm
publishes (ResNet-101 at 224 px, mixed precision, RTX 3090), scaled by pixels; it was not measured here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

PICTURES = (40_000, 123_000, 10_000_000, 1_000_000_000)
SHARD_ROWS = 512
CORES = 2  # of the machine that the rates are of
READ_DISK = 1_551 * 802_816 / 1e9  # GB/s, cold, in blocks: `reading`
READ_STORAGE = 1.25  # GB/s: a line of 10 Gbit/s
INDEX_BYTES, NIGHT_SECONDS = 1_500, 14e-6  # a picture: `month` at 123 thousand and a million
TASK_SECONDS = 0.09  # a shard, handed to a Dask cluster through Prefect: `cluster`, by number of shards of one picture


class Form(NamedTuple):
    """Grids of h x w x C in float16. encoded: pictures/s on two cores. gpu: on one GPU, as published.

    trained: pictures/s of a training step on two cores, five captions each. Both in float32, then in bfloat16.
    """

    name: str
    shape: tuple[int, int, int]
    encoded: tuple[float, float]
    gpu: float
    trained: tuple[float, float]


FORMS = (
    Form("MobileNetV2, 224 px, 7x7x1280", (7, 7, 1280), (166.3, 323.9), math.nan, (16 / 0.558, 16 / 0.197)),
    Form(
        "ResNet-101, 448 px, 14x14x2048",
        (14, 14, 2048),
        (20.8 * (256 / 448) ** 2, 41.5 * (256 / 448) ** 2),
        2288 / 4,
        (16 / 0.979, 16 / 0.402),
    ),
)


def main() -> None:
    for form in FORMS:
        size = 2 * math.prod(form.shape)
        print(f"\n{form.name}, {size / 1e6:.3f} MB a picture\n")
        print("| what | " + " | ".join(f"{number:,}" for number in PICTURES) + " |\n| --- " + "| --- " * 3 + "|")
        rows = {
            "grids": [f"{_bytes(number * size)}" for number in PICTURES],
            "shards; objects in storage": [f"{_shards(number):,}; {2 * _shards(number):,}" for number in PICTURES],
            "requests: to write, to list, to read an epoch": [
                f"{2 * _shards(number):,}; {math.ceil(2 * _shards(number) / 1000):,}; {_shards(number):,}"
                for number in PICTURES
            ],
            "extraction, compiled: 2 cores, float32": [_hours(number / form.encoded[0]) for number in PICTURES],
            "extraction, compiled: 2 cores, bfloat16": [_hours(number / form.encoded[1]) for number in PICTURES],
            "extraction, compiled: 64 cores, bfloat16": [_hours(number / form.encoded[1] / 32) for number in PICTURES],
            "extraction: 8 GPUs, by timm's rate": [_hours(number / form.gpu / 8) for number in PICTURES],
            "handing out its shards": [_hours(_shards(number) * TASK_SECONDS) for number in PICTURES],
            "an epoch read: one disk": [_hours(number * size / 1e9 / READ_DISK) for number in PICTURES],
            "an epoch read: storage, 10 Gbit/s": [_hours(number * size / 1e9 / READ_STORAGE) for number in PICTURES],
            "an epoch trained: 2 cores, float32": [_hours(number / form.trained[0]) for number in PICTURES],
            "an epoch trained: 2 cores, bfloat16": [_hours(number / form.trained[1]) for number in PICTURES],
            "our memory for the index": [_bytes(number * INDEX_BYTES) for number in PICTURES],
            "our bookkeeping, a night": [_hours(number * NIGHT_SECONDS) for number in PICTURES],
        }
        for name, values in rows.items():
            print(f"| {name} | {' | '.join(values)} |")


def _shards(pictures: int) -> int:
    return math.ceil(pictures / SHARD_ROWS)


def _bytes(number: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e6:,.0f} MB"


def _hours(seconds: float) -> str:
    if math.isnan(seconds):
        return "not known"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


if __name__ == "__main__":
    main()
