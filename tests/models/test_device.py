"""A GPU computes what a processor does: the marker `gpu` selects the tests that need one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from models.backbones.base import make as make_backbone
from models.backbones.encoder import Encoder
from models.decoders import DECODERS
from models.decoders.base import make
from models.options import Decoding
from models.torch_steps import decode
from tasks.training import loop as fitting
from tests.support import artifacts, run_stage, small

HOW: tuple[Decoding, ...] = (
    Decoding(beam=1),
    Decoding(beam=4, n_best=3, no_repeat=2, min_length=3),
    Decoding(search="sample", n_best=2, top_p=0.9, temperature=1.2),
)


@pytest.mark.parametrize("name", DECODERS)
def test_captions_are_the_processors(device: str, name: str) -> None:
    torch.manual_seed(0)
    decoder: Any = make(name, 32, 50, {"embedding": 16, "hidden": 16}).eval()
    grid = torch.rand(9, 3, 3, 32)
    for decoding in HOW:
        own = decode(decoder.cpu().for_inference(), grid, decoding)
        there = decode(decoder.to(device).for_inference(), grid.to(device), decoding)
        assert [[caption.tokens for caption in captions] for captions in there] == [
            [caption.tokens for caption in captions] for captions in own
        ]


def test_grids_are_the_processors(device: str) -> None:
    photographs = torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8)
    backbone = make_backbone("mobilenet_v2", seed=0)
    own, there = (Encoder(backbone, device=name)(photographs).float().cpu() for name in ("cpu", device))
    assert torch.allclose(own, there, rtol=5e-3, atol=5e-3 * float(own.abs().max()))


@pytest.mark.parametrize("options", [{}, {"machine__resident": True}, {"machine__accumulate": 2}])
def test_training_resumes_where_it_was_killed(
    device: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configured(name: str) -> Any:
        return small(tmp_path / name, machine__device=device, machine__checkpoint_seconds=0, **options)

    learn, steps = fitting.TrainingLoop.learn, [0]

    def killed(fit: fitting.TrainingLoop, batch: Any) -> None:
        steps[0] += 1
        if steps[0] == 6:
            raise KeyboardInterrupt
        learn(fit, batch)

    for name in ("whole", "killed"):
        for stage in ("ingest", "extract", "tensorise"):
            run_stage(configured(name), stage)
    run_stage(configured("whole"), "train")
    with monkeypatch.context() as patch:
        patch.setattr(fitting.TrainingLoop, "learn", killed)
        with pytest.raises(KeyboardInterrupt):
            run_stage(configured("killed"), "train")
    run_stage(configured("killed"), "train")
    whole, resumed = (artifacts(configured(name), "train")["train"] for name in ("whole", "killed"))
    weights = [load_file(found.path / "weights.safetensors") for found in (whole, resumed)]
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], rtol=0 if device == "cpu" else 1e-3, atol=1e-6)
