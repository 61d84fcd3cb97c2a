"""The laws of the project on a GPU: what it computes is what the processor computes, resumed is uninterrupted.

    python -m bench.gpu.laws [--device cpu]

Each law is a row with the difference that was found and the one that is allowed; the exit code is 1 where one is
broken. The weights are drawn, so that nothing is downloaded.
"""

from __future__ import annotations

import copy
import io
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, distributed

from bench.gpu.machine import begin, head, row
from bench.speed.extraction import tame_network
from models.backbones import base as backbones
from models.backbones.encoder import Encoder
from models.captioner import Captioner
from models.decoders import DECODERS
from models.decoders.base import make
from models.graphs import Graphs, cuda_graphs
from models.options import Decoding
from models.replayed_search import ReplayedSearch
from models.search import decode
from models.vocabulary import END, START, Vocabulary
from tasks.config.machine import MachineConfig
from tasks.config.training import TrainingConfig
from tasks.device.copies import copies_for
from tasks.grids.photograph_batches import BatchDecoder, Shape
from tasks.training.batches import Batch
from tasks.training.loop import LossModule, TrainingLoop, WeightGroup, synchronised
from tasks.training.objectives import CrossEntropy, count

V, SIDE, CHANNELS = 300, 7, 64
# Relative (L2), but for captions and weights that are the same or not: the share of those that differ.
TOLERANCE = {
    "grids, float32": 2e-3,
    "grids, bfloat16": 5e-2,
    "pixels decoded by the GPU": 3e-2,
    "loss, float32": 1e-4,
    "gradients, float32": 1e-3,
    "loss, bfloat16": 2e-2,
    "captions": 0.02,
    "replayed captions": 0.0,
    "resumed weights": 0.0,
    "replayed training": 1e-3,
    "one-process NCCL": 1e-4,
    "registered model's captions": 0.02,
}


def main() -> None:
    device = begin(__doc__)
    broken = []
    head(("law", "difference", "allowed", "held"))
    for law in (_grids, _pixels, _gradients, _captions, _training, _data_parallel, _saved_model):
        try:
            found = law(device)
        except Exception as error:  # a law that cannot be tried is broken, and the others are tried all the same
            found = {law.__name__.strip("_"): float("inf")}
            print(f"{law.__name__}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        for name, difference in found.items():
            allowed = TOLERANCE.get(name.partition(":")[0], 0.0)
            held = difference <= allowed
            broken += [] if held else [name]
            row(name, f"{difference:.1e}", f"{allowed:.0e}", "yes" if held else "**no**")
    if broken:
        raise SystemExit(f"{len(broken)} laws are broken: {', '.join(broken)}")


def _graphs(device: torch.device) -> Graphs | None:
    return cuda_graphs(device) if device.type == "cuda" else None


def _apart(one: Tensor, other: Tensor) -> float:
    """Return the relative difference of two tensors."""
    one, other = one.double().cpu(), other.double().cpu()
    size = float(other.norm())
    assert size > 0, "nothing is compared"
    return float((one - other).norm()) / size


def _grids(device: torch.device) -> dict[str, float]:
    """The encoder's grids, as they are and replayed, against the processor's in float32."""
    backbone = tame_network("mobilenet_v2")
    pixels = torch.randint(0, 256, (8, 3, 96, 96), dtype=torch.uint8)
    true = Encoder(backbone)(pixels)
    found = {}
    for precision in ("float32", "bfloat16"):
        encoder = Encoder(backbone, precision, device, graphs=_graphs(device))
        encoder._compile_for = 8  # replayed from the third call on, without the compiler
        for _ in range(3):
            grids = encoder(pixels)
        found[f"grids, {precision}"] = _apart(grids, true)
    return found


def _pixels(device: torch.device) -> dict[str, float]:
    """The pixels of JPEG files that the device decodes and resizes, against the processor's."""
    smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 12, 16) * 255, (375, 500), mode="bicubic").clamp(0, 255)
    out = io.BytesIO()
    Image.fromarray(smooth[0].permute(1, 2, 0).numpy().astype("uint8")).save(out, "JPEG", quality=92)
    files, items = [out.getvalue()] * 4, [(str(index), Path("photograph.jpg")) for index in range(4)]
    pixels = []
    with ThreadPoolExecutor(2) as pool:
        for where in (None, device):
            decoder = BatchDecoder(Shape(224, "squash", "bilinear"), None, pool, copies_for(device), where)
            pixels.append(decoder.decode(items, files)[1].cpu())
    return {"pixels decoded by the GPU": _apart(pixels[1], pixels[0])}


def _batch(pictures: int = 6) -> Batch:
    torch.manual_seed(1)
    tokens = torch.randint(4, V, (pictures, 3, 12))
    tokens[:, :, 0], tokens[:, 0, -1] = START, END
    tokens[:, 1, 8:] = 0
    return Batch.of(torch.randn(pictures, SIDE, SIDE, CHANNELS), tokens)


def _decoder(name: str) -> Any:
    torch.manual_seed(0)
    # Without dropout, whose random numbers are a device's own.
    drop = {"dropout_output": 0.0} | ({"dropout_layers": 0.0} if name == "transformer" else {})
    return make(name, CHANNELS, V, {"embedding": 32, "hidden": 64, **drop})


def _gradients(device: torch.device) -> dict[str, float]:
    """A training step's loss and gradients, of each decoder."""
    found = {}
    batch = _batch()
    for name in DECODERS:
        if name == "hard_attention":
            continue  # it draws positions
        for precision in ("float32", "bfloat16"):
            results = []
            for where in (torch.device("cpu"), device):
                decoder = _decoder(name).train().to(where)
                on_device = _moved(batch, where)
                objective = CrossEntropy(TrainingConfig(precision=precision if where == device else "float32"))
                loss = objective(decoder, on_device, count(on_device), torch.tensor(0.0, device=where)).loss
                loss.backward()
                weights = [weight.grad.flatten().cpu() for weight in decoder.parameters() if weight.grad is not None]
                results.append((loss.detach(), torch.cat(weights)))
            found[f"loss, {precision}: {name}"] = _apart(results[1][0], results[0][0])
            if precision == "float32":
                found[f"gradients, float32: {name}"] = _apart(results[1][1], results[0][1])
    return found


def _captions(device: torch.device) -> dict[str, float]:
    """Beam search's and sampling's captions, against the processor's, and replayed ones against those of the device."""
    found = {}
    grid = torch.randn(24, SIDE, SIDE, CHANNELS)
    for name in DECODERS:
        decoder = _decoder(name).eval()
        with torch.no_grad():
            decoder.head.get_parameter("weight").mul_(6)
        there = copy.deepcopy(decoder).to(device)
        for decoding in (Decoding(beam=5), Decoding(search="sample", n_best=3, top_p=0.9)):
            own = decode(there, grid.to(device), decoding)
            if decoding.search == "beam":
                true = decode(decoder, grid, decoding)
                found[f"captions: {name}"] = _share(own, true)
            graphs = _graphs(device)
            if graphs is not None:
                replayed = ReplayedSearch(there, graphs)
                for _ in range(3):
                    again = replayed.decode(grid.to(device), decoding, range(len(grid)))
                found[f"replayed captions: {name}, {decoding.search}"] = _share(again, own)
    return found


def _share(some: list[list[Any]], others: list[list[Any]]) -> float:
    """Return the share of pictures whose best captions differ."""
    pairs = zip(some, others, strict=True)
    return sum(bool(one[0].tokens != other[0].tokens) for one, other in pairs) / len(some)


class _FixedBatches:
    """Batches of one kind, over and over."""

    size, rows, captioned = 6, 3, ("a picture",)

    def __len__(self) -> int:
        return 6

    def shown(self, pictures: Tensor) -> Tensor:
        return pictures


def _training(device: torch.device) -> dict[str, float]:
    """Six steps with dropout, resumed in the middle, and replayed from graphs."""

    def weights(compiled: bool, stops: bool, rounded: bool = False) -> Tensor:
        with tempfile.TemporaryDirectory() as folder:
            loop = made(folder, compiled)
            for step in range(6):
                if stops and step == 3:
                    loop.checkpoint()
                    loop = made(folder, compiled)
                loop.learn(loop.upload(_batch().rounded() if rounded else _batch()))
            loop.tally.read()
            return torch.cat([weight.detach().flatten().cpu() for weight in loop.model.parameters()])

    def made(folder: str, compiled: bool) -> TrainingLoop:
        torch.manual_seed(0)
        decoder = make("show_attend_tell", CHANNELS, V, {"embedding": 32, "hidden": 64})
        training = TrainingConfig(epochs=1, precision="float32", warmup_steps=0)
        machine = MachineConfig(device=device.type, compile=compiled)
        groups: Any = [WeightGroup(1e-3, decoder.parameters())]
        batches: Any = _FixedBatches()
        return TrainingLoop(decoder, groups, training, machine, batches, Path(folder), CrossEntropy(training))

    found = {"resumed weights": _apart(weights(False, True), weights(False, False))}
    if device.type == "cuda":
        found["replayed training"] = _apart(weights(True, False), weights(False, False, rounded=True))
    return found


def _moved(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on the device."""
    return Batch.of_tensors([tensor.to(device) for tensor in batch.tensors()])


def _data_parallel(device: torch.device) -> dict[str, float]:
    """The gradient of a process group of one, NCCL's on a GPU."""
    batch = _moved(_batch(), device)
    objective = CrossEntropy(TrainingConfig(precision="float32"))
    gradients: list[Tensor] = []

    def gradient(wrap: Callable[[LossModule], Any]) -> Tensor:
        decoder = _decoder("show_attend_tell").train().to(device)
        done = torch.tensor(0.0, device=device)
        module = wrap(LossModule(decoder, objective))  # which must live until its gradients are exchanged
        module(batch, count(batch), done).loss.backward()
        return torch.cat([weight.grad.flatten() for weight in decoder.parameters() if weight.grad is not None])

    gradients.append(gradient(lambda module: module))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        gradients.append(gradient(synchronised))
    finally:
        distributed.destroy_process_group()
    return {"one-process NCCL": _apart(gradients[1], gradients[0])}


def _saved_model(device: torch.device) -> dict[str, float]:
    """The captions of a captioner that was saved and is loaded on the device, from photographs."""
    words = [f"word{index}" for index in range(60)]
    vocabulary = Vocabulary(tuple(words), {"units": "words", "lower": True, "max_tokens": 12})
    backbone = backbones.make("tiny", seed=0)
    decoder: dict[str, Any] = {"name": "show_attend_tell", "channels": 512, "vocabulary": len(words) + 4, "options": {}}
    config = {
        "backbone": {"name": "tiny", "image_size": 64, "fit": "squash", "grid": None, "precision": "float32"},
        "decoder": decoder,
        "decoding": vars(Decoding(max_length=12)),
    }
    torch.manual_seed(0)
    module = make(**decoder)
    with torch.no_grad():
        module.head.get_parameter("weight").mul_(20)
    files = []
    for seed in range(16):
        pixels = torch.randint(0, 256, (60, 80, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(out, "PNG")
        files.append(out.getvalue())
    with tempfile.TemporaryDirectory() as folder:
        Captioner(config, vocabulary, backbone, module).save(Path(folder))
        captions = [
            [result.caption for result in Captioner.load(Path(folder), where).caption(files)]
            for where in ("cpu", device)
        ]
    different = sum(one != other for one, other in zip(*captions, strict=True))
    return {"registered model's captions": different / len(files)}


if __name__ == "__main__":
    main()
