"""JPEG files -> grids in HDF5, beside the plain loop and the forward pass alone; and what binds.

    python -m bench.gpu.extraction [--device cpu]

`decode on gpu` is `grids.decode_on: gpu`. The plain loop decodes by Pillow in workers, computes in float32 and writes
rows one batch after another. Seconds waited are those of the extraction's own account: what it waits for longest
binds.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import h5py
import torch
from torch.utils.data import DataLoader

from bench.gpu.machine import begin, head, row, seconds_of, synchronise
from bench.speed.extraction import Files, make_photographs, tame_network
from models.backbones.encoder import Encoder
from models.graphs import cuda_graphs
from tasks.common.progress import Stopwatch
from tasks.config.devices import prepare_compiler
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.encoding import ExtractionResult, extract_grids
from tasks.grids.identity import identity_of
from tasks.grids.store import GridStore

# Backbone, size, side that the grid is pooled to, photographs.
ROWS = (
    ("resnet101", 256, None, 4096),
    ("resnet101", 448, None, 2048),
    ("regnet_x_400mf", 112, None, 8192),
    ("mobilenet_v2", 224, None, 8192),
)
REHEARSAL = (("mobilenet_v2", 96, None, 64),)


def main() -> None:
    device = begin(__doc__)
    rows = ROWS if device.type == "cuda" else REHEARSAL
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_photographs(Path(scratch), 512 if device.type == "cuda" else 64)
        files = [(hashlib.sha256(path.read_bytes()).hexdigest(), path) for path in sorted(folder.iterdir())]
        head(("backbone", "form", "pictures/s", "ratio", "of the forward pass", "waited, s: read, compute, write"))
        for backbone, size, side, pictures in rows:
            # The same files again under other names: a photograph may be encoded more than once.
            wanted = [
                (f"{name}#{turn}" if turn else name, path)
                for turn in range(-(-pictures // len(files)))
                for name, path in files
            ][:pictures]
            _compare((backbone, size, side), wanted, device, Path(scratch))


def _compare(spec: tuple[str, int, int | None], wanted: list[tuple[str, Path]], device: torch.device, to: Path) -> None:
    """Print the rows of one backbone."""
    backbone, size, side = spec
    label = f"{backbone}, {size} px"
    network = tame_network(backbone)
    network.grid = side
    gpu = device.type == "cuda"
    precision: Any = "bfloat16" if gpu else "float32"
    if gpu:
        prepare_compiler()
    batch = MachineConfig().extract_batch
    encoder = Encoder(network, precision, device, batch if gpu else None, cuda_graphs(device) if gpu else None)
    pixels = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8).to(device)
    forward = batch / seconds_of(lambda: encoder(pixels), device, 10 if gpu else 2)
    some = [path for _, path in wanted[: len(wanted) // 4]]
    plain = len(some) / _plain(network, some, size, device, to / "plain.h5")
    row(label, "plain loop", f"{plain:,.0f}", "1.0", f"{plain / forward:.0%}", "")
    row(label, f"forward pass alone, {precision}", f"{forward:,.0f}", f"{forward / plain:.1f}", "100%", "")
    for decode_on in (None, "gpu"):
        watch, result = _extract(spec, encoder, wanted, decode_on, to)
        rate = len(wanted) / watch
        waited = ", ".join(f"{seconds:.1f}" for seconds in result.seconds.values())
        form = "decode on gpu" if decode_on else "decode on the processor"
        row(label, form, f"{rate:,.0f}", f"{rate / plain:.1f}", f"{rate / forward:.0%}", waited)


def _extract(
    spec: tuple[str, int, int | None], encoder: Encoder, wanted: list[tuple[str, Path]], decode_on: Any, to: Path
) -> tuple[float, ExtractionResult]:
    """Return the seconds of an extraction, and its result."""
    backbone, size, side = spec
    grids = GridsConfig(backbone=backbone, weights="random:0", image_size=size, grid=side, decode_on=decode_on)
    with tempfile.TemporaryDirectory(dir=to) as folder:
        store = GridStore(Path(folder), identity_of(grids, "random:0"))
        store.open()
        watch = Stopwatch()
        result = extract_grids(store.write, encoder, grids, MachineConfig(device=encoder.device.type), wanted)
        return watch.seconds(), result


def _plain(network: Any, files: list[Path], size: int, device: torch.device, out: Path) -> float:
    """Return the seconds of the plain loop."""
    network = network.to(device)
    watch = Stopwatch()
    loader = DataLoader(Files(files, size), batch_size=32, num_workers=8 if device.type == "cuda" else 1)
    with h5py.File(out, "w") as file, torch.no_grad():
        rows, done = None, 0
        for photographs in loader:
            grid = network(photographs.to(device)).cpu().numpy()
            if rows is None:
                rows = file.create_dataset("grid", (len(files), *grid.shape[1:]), "float16")
            rows[done : done + len(grid)] = grid
            done += len(grid)
    synchronise(device)
    network.cpu()
    return watch.seconds()


if __name__ == "__main__":
    main()
