"""Compare the pipeline with the same training with the backbone in the loop, on 2,000 photographs of Flickr8k.

    python -m bench.speed.whole_run DATA WEIGHTS [--pictures 2000] [--epochs 3]

DATA is Flickr8k's folder and WEIGHTS the file of MobileNetV2's weights. In the loop, every batch is decoded and encoded
again, with the same code as in extraction, and so are the dev pictures after each epoch. First run: nothing is cached.
Second run: another learning rate, the grids are cached. Both sides have the same batches and weights, and their curves
are compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from bench.machine import describe, precisions
from bench.pipelines import planned, run_one
from models.backbones.encoder import Encoder
from models.decoders.base import Decoder, make
from tasks.config.schema import Config, validate
from tasks.data.caption_files import CaptionedPicture, read_captions, read_vocabulary
from tasks.data.manifest import files_by_digest, read_pictures
from tasks.grids.photographs import decoders
from tasks.grids.weights import load_backbone
from tasks.training.batches import Batches
from tasks.training.dev import DevEvaluator
from tasks.training.fine_tune_backbone import Views
from tasks.training.loop import TrainingLoop, WeightGroup
from tasks.training.objectives import CrossEntropy
from tasks.training.outputs import HISTORY

DEV = 200
RATES = (8e-4, 7e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    describe()
    print("\n| run | backbone in the loop, s | pipeline, s | ratio | extraction alone |")
    print("| --- " * 5 + "|")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _subset(args.data, folder / "data", args.pictures)
        for name, rate in zip(("first", "second"), RATES, strict=True):
            config = _config(args, folder, rate)
            for stage in ("ingest", "tensorise"):
                run_one(config, stage)
            extraction, whole, losses = _pipeline(config)
            loop, others = _in_the_loop(config, folder / f"loop-{name}")
            if max(abs(one - other) / one for one, other in zip(losses, others, strict=True)) > 1e-3:
                raise SystemExit(f"the curves differ: {losses} {others}")
            print(f"| {name} | {loop:.0f} | {whole:.0f} | {loop / whole:.2f} | {extraction:.0f} s |", flush=True)


def _subset(data: Path, folder: Path, pictures: int) -> None:
    """Return a folder like Flickr8k's with the given number of train pictures and DEV dev pictures."""
    folder.mkdir()
    (folder / "images").symlink_to(data / "images")
    digests: set[str] = set()
    for split, count in (("train", pictures), ("dev", DEV)):
        names = (data / f"Flickr_8k.{split}Images.txt").read_text(encoding="utf-8").split()[:count]
        (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names), encoding="utf-8")
        digests.update(names)
    lines = (data / "Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    chosen = [line for line in lines if line.partition("#")[0] in digests]
    (folder / "Flickr8k.token.txt").write_text("\n".join(chosen), encoding="utf-8")


def _config(args: Any, folder: Path, rate: float) -> Config:
    values = {
        "name": "whole",
        "data": {"adapter": "flickr8k", "path": str(folder / "data")},
        "grids": {"backbone": "mobilenet_v2", "weights": str(args.weights), "image_size": 224},
        "decoder": {"name": "show_attend_tell"},
        "training": {"epochs": args.epochs, "precision": precisions()[-1], "learning_rate": rate},
        "machine": {"workspace": str(folder / "workspace")},
    }
    return validate(values, "whole")


def _pipeline(config: Config) -> tuple[float, float, list[float]]:
    """Return the seconds of extraction and of the whole run, and the loss of each epoch."""
    began = time.perf_counter()
    run_one(config, "extract")
    extracted = time.perf_counter() - began
    trained = run_one(config, "train")
    seconds = time.perf_counter() - began
    history = pq.read_table(trained.path / HISTORY)
    return extracted, seconds, history.column("loss").to_pylist()


class Photographs:
    """Photographs that are encoded to grids on the fly."""

    def __init__(self, config: Config, files: dict[str, Path], encoder: Encoder, pool: Any) -> None:
        self.views = Views(config.grids, encoder.declared.interpolation, files, pool)
        self.encoder = encoder

    def grids(self, digests: Sequence[str]) -> Tensor:
        return self.encoder(self.views.whole(digests)).float()


class LoopBatches(Batches):
    def __init__(self, pictures: Sequence[CaptionedPicture], size: int, seed: int, photographs: Photographs) -> None:
        super().__init__(pictures, size, seed)
        self._photographs = photographs

    def pictures_of(self, captioned: Sequence[CaptionedPicture], epoch: int) -> Tensor:
        return self._photographs.grids([picture.digest for picture in captioned])


class LoopDevEvaluator(DevEvaluator):
    def __init__(self, *dev: Any, photographs: Photographs) -> None:
        super().__init__(*dev)
        self._photographs = photographs

    def decoder_and_grids(self, model: nn.Module) -> tuple[Decoder, Iterator[Tensor]]:
        assert isinstance(model, Decoder)
        digests = [picture.digest for picture in self.pictures]
        return model, (self._photographs.grids(digests[at : at + 64]) for at in range(0, len(digests), 64))


def _in_the_loop(config: Config, out: Path) -> tuple[float, list[float]]:
    """Return the seconds and the loss of each epoch."""
    out.mkdir()
    artifacts = planned(config, "tensorise").by_kind
    manifest, tokens = artifacts["ingest"].path, artifacts["tensorise"].path
    began = time.perf_counter()
    vocabulary = read_vocabulary(tokens)
    encoder = Encoder(load_backbone(config.grids), config.grids.precision)
    with decoders(config.machine) as pool:
        photographs = Photographs(config, files_by_digest(manifest, config.data), encoder, pool)
        batches = LoopBatches(
            read_captions(tokens, "train"), config.training.batch_pictures, config.training.seed, photographs
        )
        dev = LoopDevEvaluator(read_pictures(manifest, "dev"), tokens, config.machine, photographs=photographs)
        torch.manual_seed(config.training.seed)
        decoder = make(config.decoder.name, 1280, len(vocabulary), config.decoder.options())
        groups = [WeightGroup(config.training.learning_rate, decoder.parameters())]
        fit = TrainingLoop(
            decoder, groups, config.training, config.machine, batches, out, CrossEntropy(config.training)
        )
        fit.run(dev)
    return time.perf_counter() - began, [row["loss"] for row in fit.history]


if __name__ == "__main__":
    main()
