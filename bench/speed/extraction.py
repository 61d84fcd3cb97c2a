"""Measure JPEG files -> grids in HDF5, compared with the plain loop, the machine's bound and the forward pass alone.

    python -m bench.speed.extraction [--pictures FOLDER] [ROW ...]

A ROW is a name in ROWS, or BACKBONE@SIZE, such as timm:convnext_small.in12k_ft_in1k@288.

The plain loop is the textbook form: Pillow and torchvision's transforms in a DataLoader, the eager network, rows
written to an HDF5 file. The bound is 1 / (1 / forward + 1 / decode), both measured here over the same pictures with all
cores. All forms take turns; the fastest of their rounds counts. Without --pictures, photographs of 500 x 375 px are
generated: noise with the spectrum of natural pictures, 49 KB each.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from bench.machine import describe, peak_memory, precisions, timed
from models.backbones.base import Backbone, BackboneProperties, make
from models.backbones.encoder import Encoder
from models.encoded_pictures import Pixels, decode, resize
from models.photographs import as_batch
from tasks.config.devices import Precision, prepare_compiler
from tasks.config.machine import MachineConfig
from tasks.config.stages import GridsConfig
from tasks.grids.extraction import ShardResult, jobs_of, make_shards
from tasks.grids.identity import identity_of
from tasks.grids.photographs import decoders
from tasks.grids.reader import GridReader
from tasks.grids.store import GridStore


@dataclass(frozen=True)
class Row:
    """A backbone at a size, the number of pictures, and the goals: ratios to the plain loop."""

    backbone: str
    size: int
    pictures: int
    goals: tuple[float, float] | None = None


ROWS = {
    "regnet": Row("regnet_x_400mf", 112, 1536, (1.8, 3.0)),
    "mobilenet": Row("mobilenet_v2", 224, 1024, (1.8, 3.0)),
    "resnet101": Row("resnet101", 256, 96),
}


def row_of(name: str) -> Row:
    """Return the row of that name, or a row of 64 pictures for BACKBONE@SIZE."""
    backbone, _, size = name.rpartition("@")
    return Row(backbone, int(size), 64) if backbone else ROWS[name]


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [row_of(name) for name in args.rows]
        folder = args.pictures or make_photographs(Path(scratch), max(row.pictures for row in rows))
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
        photographs = [(hashlib.sha256(path.read_bytes()).hexdigest(), path) for path in files]
        if args.memory:
            print(_memory(photographs, args.memory, Path(scratch)))
            return
        describe()
        print(f"{len(files)} pictures of {sum(path.stat().st_size for path in files) / len(files) / 1024:.0f} KB")
        print("\n| backbone | form | pictures/s | ratio | goal | share of the bound | share of the forward pass |")
        print("| --- " * 7 + "|")
        for row in rows:
            _compare(row, photographs[: row.pictures], args, Path(scratch))
        if not args.without_memory:
            for count in (1_000, 20_000):
                print(f"peak memory, {count:,} pictures: {_memory_of(count, folder):,.0f} MiB")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", metavar="ROW", default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--pictures", type=Path, help="a folder of JPEG files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--compile", action="store_true", help="machine.compile")
    parser.add_argument("--without-memory", action="store_true", help="leave out the rows of peak memory")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_photographs(folder: Path, count: int) -> Path:
    """Create photographs of noise in octaves, each twice as fine and half as strong."""
    generator = np.random.default_rng(0)
    for number in range(count):
        total = np.full((375, 500, 3), 128.0)
        for octave in range(8):
            noise = generator.normal(size=(3 << octave, 4 << octave, 3)) * 90 / 1.7**octave
            scaled = [Image.fromarray(noise[..., c].astype(np.float32)).resize((500, 375)) for c in range(3)]
            total += np.stack([np.asarray(channel) for channel in scaled], axis=-1)
        Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(folder / f"{number:05d}.jpg", quality=93)
    return folder


class Files(Dataset[Tensor]):
    """A data set of files, as tutorials write it."""

    def __init__(self, files: list[Path], size: int, declared: BackboneProperties) -> None:
        resized = transforms.Resize((size, size), InterpolationMode(declared.interpolation))
        steps = [resized, transforms.ToTensor(), transforms.Normalize(*declared.statistics)]
        self.files, self.transform = files, transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        pixels: Tensor = self.transform(Image.open(self.files[index]).convert("RGB"))
        return pixels


def tame_network(name: str) -> Backbone:
    """Return a network with random weights and damped batch norms, so that small input changes stay small."""
    backbone = make(name, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in (module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)):
            assert norm.running_var is not None and norm.running_mean is not None
            norm.running_var.uniform_(0.5, 2.0, generator=generator)
            norm.running_mean.normal_(std=0.1, generator=generator)
            norm.weight.uniform_(0.2, 0.6, generator=generator)
            norm.bias.normal_(std=0.1, generator=generator)
    return backbone


def _plain(backbone: Backbone, files: list[Path], size: int, out: Path) -> None:
    loader = DataLoader(Files(files, size, backbone.declared), batch_size=32, num_workers=torch.get_num_threads())
    with h5py.File(out, "w") as file, torch.no_grad():
        rows = None
        done = 0
        for photographs in loader:
            grid = backbone(photographs).numpy()
            if rows is None:
                rows = file.create_dataset("grid", (len(files), *grid.shape[1:]), "float16")
            rows[done : done + len(grid)] = grid
            done += len(grid)


class Pipeline:
    """Run `tasks.grids.extraction` over the pictures, each time into a new store."""

    def __init__(self, row: Row, precision: Any, compiled: bool, scratch: Path, device: Any) -> None:
        self.grids = GridsConfig(
            backbone=row.backbone, weights="random:0", image_size=row.size, precision=precision, grid=None
        )
        self.machine = MachineConfig(device=device)
        if compiled:
            prepare_compiler()
        batch = self.machine.extract_batch if compiled else None
        self.encoder = Encoder(tame_network(row.backbone), precision, device, compile_for=batch)
        self.scratch = scratch

    def run(self, photographs: list[tuple[str, Path]]) -> GridStore:
        store = GridStore(Path(tempfile.mkdtemp(dir=self.scratch)), identity_of(self.grids, "random:0"))
        store.open()

        def publish(result: ShardResult) -> None:
            assert result.draft is not None
            store.publish(result.draft)

        make_shards(jobs_of(photographs, store, self.grids, self.machine), store, self.encoder, publish)
        return store

    def decode(self, photographs: list[tuple[str, Path]]) -> list[Pixels]:
        """Only read, decode and resize."""
        size = self.grids.image_size
        with decoders(self.machine) as pool:
            return list(pool.map(lambda item: resize(decode(item[1].read_bytes()), size, "squash"), photographs))

    def forward(self, pixels: list[Pixels]) -> None:
        """Only run the forward pass."""
        step = self.machine.extract_batch
        for at in range(0, len(pixels), step):
            self.encoder(as_batch(pixels[at : at + step]))


def _compare(row: Row, photographs: list[tuple[str, Path]], args: Any, scratch: Path) -> None:
    backbone = tame_network(row.backbone)
    pipelines = {precision: Pipeline(row, precision, args.compile, scratch, args.device) for precision in precisions()}
    files = [path for _, path in photographs]
    out = scratch / "plain.h5"
    pixels = pipelines["float32"].decode(photographs)
    best: dict[str, float] = {}
    for _ in range(args.rounds):
        timed(best, "plain", lambda: _plain(backbone, files, row.size, out))
        timed(best, "decode", lambda: pipelines["float32"].decode(photographs))
        for precision, pipeline in pipelines.items():
            timed(best, f"forward {precision}", lambda pipeline=pipeline: pipeline.forward(pixels))  # type: ignore[misc]
            timed(best, precision, lambda pipeline=pipeline: pipeline.run(photographs))  # type: ignore[misc]
    _check(out, pipelines, photographs)
    rates = {form: len(photographs) / seconds for form, seconds in best.items()}
    _tell(row, "plain loop", rates["plain"])
    _tell(row, "decode alone", rates["decode"])
    for index, precision in enumerate(precisions()):
        rate, forward = rates[precision], rates[f"forward {precision}"]
        bound = 1 / (1 / forward + 1 / rates["decode"])
        goal = f"{row.goals[index]}" if row.goals else ""
        _tell(row, f"forward alone, {precision}", forward)
        _tell(
            row, precision, rate, f"{rate / rates['plain']:.1f}", goal, f"{rate / bound:.0%}", f"{rate / forward:.0%}"
        )


def _tell(row: Row, form: str, rate: float, *cells: str) -> None:
    cells = cells or ("", "", "", "")
    print("| " + " | ".join([f"{row.backbone}, {row.size} px", form, f"{rate:,.1f}", *cells]) + " |", flush=True)


def _check(out: Path, pipelines: Mapping[Precision, Pipeline], photographs: list[tuple[str, Path]]) -> None:
    """Raise SystemExit if the pipeline's grids differ from those of the plain loop."""
    with h5py.File(out, "r") as file:
        plain = file["grid"][:].astype(np.float32)
    for precision, pipeline in pipelines.items():
        store = pipeline.run(photographs)
        ours = GridReader(store, store.rows()[0]).read([digest for digest, _ in photographs]).astype(np.float32)
        error = float(np.linalg.norm(ours - plain) / np.linalg.norm(plain))
        print(f"{precision}: its grids differ from the plain loop's by {error:.1e}", flush=True)
        if error > (1e-2 if precision == "float32" else 1e-1):
            raise SystemExit(f"{precision}: these are not the plain loop's grids")


def _memory_of(count: int, folder: Path) -> float:
    """Run `_memory` in a separate process."""
    command = [
        sys.executable,
        "-m",
        "bench.speed.extraction",
        "regnet",
        "--memory",
        str(count),
        "--pictures",
        str(folder),
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _memory(photographs: list[tuple[str, Path]], count: int, scratch: Path) -> float:
    """Return the peak memory in MiB that `count` pictures need in addition to the encoder."""
    pipeline = Pipeline(ROWS["regnet"], "float32", False, scratch, "cpu")
    return peak_memory(lambda: pipeline.run([photographs[index % len(photographs)] for index in range(count)]))


if __name__ == "__main__":
    main()
