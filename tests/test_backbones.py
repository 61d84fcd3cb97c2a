"""Backbones: the grids they promise, weights that fit or are refused, and no silent fallback."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torchvision.models import mobilenet_v2, regnet_x_400mf, resnet101

from models.backbones import BACKBONES
from models.backbones.base import make
from tasks.config import GridsConfig
from tasks.errors import AttendError
from tasks.weights import load_backbone, weight_digests
from tests.conftest import small


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("tiny", 96, (3, 3, 512)),
        ("regnet_x_400mf", 112, (4, 4, 400)),
        ("mobilenet_v2", 224, (7, 7, 1280)),
        ("resnet101", 256, (8, 8, 2048)),
        ("resnet101", 448, (14, 14, 2048)),
    ],
)
def test_grid_shapes(name: str, size: int, shape: tuple[int, int, int]) -> None:
    pixels = torch.randint(0, 255, (1, 3, size, size), dtype=torch.uint8)
    grid = make(name, seed=0).encode(pixels)
    assert grid.shape == (1, *shape)
    assert grid.dtype == torch.float16
    assert grid.isfinite().all()


def test_a_pooled_grid_has_the_size_asked_for() -> None:
    pixels = torch.randint(0, 255, (1, 3, 256, 256), dtype=torch.uint8)
    assert make("resnet101", grid=14).encode(pixels).shape == (1, 14, 14, 2048)


@pytest.mark.parametrize("name", BACKBONES)
def test_random_weights_are_a_function_of_the_seed(name: str) -> None:
    torch.manual_seed(1)
    first = make(name, seed=5).state_dict()
    torch.manual_seed(2)
    again, other = make(name, seed=5).state_dict(), make(name, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "full"), [("resnet101", resnet101), ("regnet_x_400mf", regnet_x_400mf), ("mobilenet_v2", mobilenet_v2)]
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_torchvisions_weights_fit_and_give_its_features(tmp_path: Path, name: str, full: object, suffix: str) -> None:
    torch.manual_seed(0)
    network = full().eval()  # type: ignore[operator]
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(network.state_dict(), path)
    else:
        safetensors.torch.save_file(network.state_dict(), path)
    backbone = load_backbone(GridsConfig(backbone=name, weights=str(path), image_size=64))
    photographs = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        pooled = backbone(photographs).mean(dim=(1, 2))
        head = network.fc if hasattr(network, "fc") else network.classifier
        torch.testing.assert_close(head(pooled), network(photographs), atol=1e-4, rtol=1e-3)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code in a weight file ran",))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: torch.save(regnet_x_400mf().state_dict(), p), "weights of another architecture"),
        (lambda p: torch.save({"features.0.0.weight": torch.zeros(1)}, p), "weights of another architecture"),
        (lambda p: torch.save([1, 2], p), "holds no state dict"),
        (lambda p: torch.save(Evil(), p), "not readable as weights"),
        (lambda p: p.write_bytes(b"nothing of the kind"), "not readable as weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, write: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.pth"
    write(path)  # type: ignore[operator]
    with pytest.raises(AttendError, match=message) as caught:
        load_backbone(GridsConfig(backbone="mobilenet_v2", weights=str(path), image_size=64))
    assert "weights.pth" in str(caught.value) and "\n" not in str(caught.value)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("weights", ["missing.pth", "random:x", "imagenet", "torchvision:"])
def test_weights_that_are_not_there_are_refused(tmp_path: Path, weights: str) -> None:
    with pytest.raises(AttendError, match=r"grids\.weights"):
        weight_digests(small(tmp_path, grids__weights=weights))


def test_an_unknown_torchvision_name_is_refused() -> None:
    with pytest.raises(AttendError, match=r"IMAGENET1K_V1"):
        load_backbone(GridsConfig(backbone="resnet101", weights="torchvision:IMAGENET9", image_size=64))


def test_the_path_of_weights_is_not_in_their_identity(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        torch.save({"x": torch.zeros(1)}, tmp_path / name)
    (tmp_path / "b.pth").write_bytes((tmp_path / "a.pth").read_bytes())
    one, two = (weight_digests(small(tmp_path, grids__weights=str(tmp_path / name))) for name in ("a.pth", "b.pth"))
    assert one == two
