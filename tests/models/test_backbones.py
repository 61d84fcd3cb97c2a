"""Backbones: the grids they promise, weights that fit or are refused, and no silent fallback."""

from __future__ import annotations

import contextlib
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision.models
from torch import nn
from torch.nn import functional
from torchvision.models import (
    convnext_tiny,
    densenet121,
    efficientnet_b0,
    mobilenet_v2,
    regnet_x_400mf,
    resnet101,
    vgg11,
    vgg16,
)
from torchvision.models import googlenet as library_googlenet

from models.backbones import BACKBONES
from models.backbones.base import fold_norms, make
from models.backbones.encoder import Encoder, Precision
from models.photographs import normalise
from tasks.common.errors import AttendError
from tasks.config.devices import prepare_compiler
from tasks.config.schema import Config
from tasks.config.stages import GridsConfig
from tasks.grids.weights import load_backbone, weight_digests
from tests.support import run_stage, small


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("tiny", 96, (3, 3, 512)),
        ("regnet_x_400mf", 112, (4, 4, 400)),
        ("mobilenet_v2", 224, (7, 7, 1280)),
        ("resnet101", 256, (8, 8, 2048)),
        ("resnet101", 448, (14, 14, 2048)),
        ("mobilenet_v2", 417, (14, 14, 1280)),
        ("vgg16", 224, (7, 7, 512)),
        ("vgg16_conv5", 224, (14, 14, 512)),
        ("googlenet", 192, (6, 6, 1024)),
        ("torchvision:convnext_tiny", 224, (7, 7, 768)),
        ("torchvision:densenet121", 96, (3, 3, 1024)),
        ("torchvision:efficientnet_b0", 224, (7, 7, 1280)),
        ("torchvision:maxvit_t", 224, (7, 7, 512)),
        ("torchvision:mnasnet0_5", 96, (3, 3, 1280)),
        ("torchvision:mobilenet_v3_small", 224, (7, 7, 576)),
        ("torchvision:regnet_y_400mf", 96, (3, 3, 440)),
        ("torchvision:resnet18", 96, (3, 3, 512)),
        ("torchvision:resnext50_32x4d", 64, (2, 2, 2048)),
        ("torchvision:shufflenet_v2_x0_5", 96, (3, 3, 1024)),
        ("torchvision:swin_t", 224, (7, 7, 768)),
        ("torchvision:vgg11_bn", 96, (3, 3, 512)),
        ("torchvision:vit_b_16", 224, (14, 14, 768)),
        ("torchvision:wide_resnet50_2", 64, (2, 2, 2048)),
        ("timm:resnet18.a1_in1k", 96, (3, 3, 512)),
        ("timm:convnext_atto", 96, (3, 3, 320)),
        ("timm:swin_tiny_patch4_window7_224", 224, (7, 7, 768)),
        ("timm:vit_tiny_patch16_224", 224, (14, 14, 192)),
    ],
)
def test_grid_shapes(name: str, size: int, shape: tuple[int, int, int]) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    # Shapes alone: no weights, no arithmetic; but these compute their widths by torch while they are built.
    computes = "regnet" in name or name == "tiny"
    with contextlib.nullcontext() if computes else torch.device("meta"):
        backbone = make(name, seed=0)
    encoder = Encoder(backbone, device="meta")
    encoder.check(size)  # the grid declared
    grid = encoder(torch.empty((1, 3, size, size), dtype=torch.uint8))
    assert grid.shape == (1, *shape)
    assert grid.dtype == torch.float16


def digests_of(config: Config) -> dict[str, str]:
    return weight_digests(config.grids, config.machine)


@pytest.mark.parametrize(
    "name",
    [
        *BACKBONES,
        "torchvision:efficientnet_b0",
        "torchvision:swin_t",
        "timm:resnet18",
        "timm:tf_efficientnet_lite0",
        "timm:mobilenetv3_small_050",
        "timm:densenet121",
        "timm:convnext_atto",
    ],
)
def test_the_encoder_computes_what_the_backbone_does(name: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    backbone = make(name, seed=0)
    generator = torch.Generator().manual_seed(1)
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d) and module.affine]
    with torch.no_grad():
        for (
            norm
        ) in norms:  # as if trained, so that there is something to fold; damped, as deep random networks are wild
            assert norm.running_var is not None and norm.running_mean is not None
            norm.running_var.uniform_(0.5, 2.0, generator=generator)
            norm.running_mean.normal_(std=0.1, generator=generator)
            norm.weight.uniform_(0.2, 0.6, generator=generator)
            norm.bias.normal_(std=0.1, generator=generator)
        before = {key: value.clone() for key, value in backbone.state_dict().items()}
        size = 224 if name.endswith("swin_t") else 96
        pixels = torch.randint(0, 255, (2, 3, size, size), dtype=torch.uint8, generator=generator)
        true = backbone(backbone.normalised(pixels))
    errors: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.1}
    for precision, most in errors.items():
        encoder = Encoder(backbone, precision)
        grid = encoder(pixels)
        assert grid.isfinite().all()
        error = float((grid.float() - true).norm() / true.norm())
        assert error < most, (precision, error)  # float16 alone makes 3e-4 of it
        left = [module for module in encoder.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        assert not left or name in ("tiny", "timm:densenet121")  # some come after a pooling, or a concatenation
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


class _Interrupted(nn.Module):
    """A network that runs another one in another thread, each time that its own forward pass is run or traced."""

    def __init__(self, other: nn.Module, photographs: torch.Tensor) -> None:
        super().__init__()
        self.own, self._run, self.maps = nn.Conv2d(3, 4, 1), lambda: other(photographs), list[torch.Tensor]()

    def forward(self, photographs: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            self.maps.append(pool.submit(self._run).result(timeout=60))
        maps: torch.Tensor = self.own(photographs)
        return maps


def test_another_thread_captions_while_batch_norms_are_folded() -> None:
    serving, photographs = Encoder(make("tiny", seed=0)).backbone.features, torch.rand(1, 3, 64, 64)
    network = _Interrupted(serving, photographs)
    folded = fold_norms(network)
    assert torch.equal(network.maps[0], serving(photographs))
    assert torch.equal(folded(photographs), network.own(photographs))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_encoder_is_the_encoder(precision: Precision) -> None:
    prepare_compiler()  # or kernels of another instruction set may be taken from torch's cache: wrong numbers
    backbone = make("tiny", seed=0)
    pixels = torch.randint(0, 255, (7, 3, 64, 64), dtype=torch.uint8)
    plain, encoder = Encoder(backbone, precision)(pixels), Encoder(backbone, precision, compile_for=7)
    compiled, sizes = encoder.compiled, []
    assert compiled is not None

    def noted(inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs))
        return compiled(inputs)

    encoder.compiled = noted
    torch.testing.assert_close(encoder(pixels).float(), plain.float(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(encoder(pixels[:3]).float(), plain[:3].float(), rtol=2e-2, atol=2e-2)
    assert sizes == [7]  # the others went uncompiled


def test_a_pooled_grid_has_the_size_asked_for() -> None:
    pixels = torch.randint(0, 255, (1, 3, 256, 256), dtype=torch.uint8)
    assert Encoder(make("resnet101", grid=14))(pixels).shape == (1, 14, 14, 2048)


@pytest.mark.parametrize("name", BACKBONES)
def test_random_weights_are_a_function_of_the_seed(name: str) -> None:
    torch.manual_seed(1)
    first = make(name, seed=5).state_dict()
    torch.manual_seed(2)
    again, other = make(name, seed=5).state_dict(), make(name, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("resnet101", resnet101),
        ("regnet_x_400mf", regnet_x_400mf),
        ("mobilenet_v2", mobilenet_v2),
        ("torchvision:convnext_tiny", convnext_tiny),
        ("torchvision:densenet121", densenet121),
        ("torchvision:efficientnet_b0", efficientnet_b0),
    ],
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
        pooled = pooled.unflatten(1, (-1, 1, 1)) if name.endswith("convnext_tiny") else pooled
        torch.testing.assert_close(head(pooled), network(photographs), atol=1e-4, rtol=1e-3)


def test_vggs_weights_fit_both_of_its_grids(tmp_path: Path) -> None:
    torch.manual_seed(0)
    # The classifier's 120 million weights are there in name only: none of them is read.
    classifier = {"classifier.0.weight": torch.zeros(1), "classifier.0.bias": torch.zeros(1)}
    with torch.device("meta"):
        eleven, full = vgg11(init_weights=False), vgg16(init_weights=False).eval()
    other = {name: torch.zeros(value.shape) for name, value in eleven.features.state_dict(prefix="features.").items()}
    torch.save(other | classifier, tmp_path / "vgg11.pth")
    with pytest.raises(AttendError, match="weights of another architecture"):
        load_backbone(GridsConfig(backbone="vgg16", weights=str(tmp_path / "vgg11.pth"), image_size=64))
    features = full.features.to_empty(device="cpu")
    for weight in features.parameters():
        nn.init.normal_(weight, std=0.05)
    torch.save(features.state_dict(prefix="features.") | classifier, tmp_path / "vgg16.pth")
    photographs = torch.randn(1, 3, 64, 64)
    whole, conv5 = (
        load_backbone(GridsConfig(backbone=name, weights=str(tmp_path / "vgg16.pth"), image_size=64))
        for name in ("vgg16", "vgg16_conv5")
    )
    with torch.no_grad():
        maps = features(photographs)
        torch.testing.assert_close(whole(photographs), maps.permute(0, 2, 3, 1))
        pooled = functional.max_pool2d(conv5(photographs).permute(0, 3, 1, 2), 2)
        torch.testing.assert_close(pooled, maps)


def test_googlenet_sees_the_pixels_its_weights_expect() -> None:
    """Torchvision's own network turns ImageNet's statistics into those of its TensorFlow weights; ours has them."""
    torch.manual_seed(0)
    full = library_googlenet(aux_logits=False, transform_input=True, init_weights=False).eval()
    backbone = make("googlenet")
    backbone.load(full.state_dict())
    pixels = torch.randint(0, 255, (1, 3, 96, 96), dtype=torch.uint8)
    with torch.no_grad():
        pooled = backbone(backbone.normalised(pixels)).mean(dim=(1, 2))
        torch.testing.assert_close(full.fc(pooled), full(normalise(pixels)), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in ("tiny", "googlenet")])
def test_pixels_have_the_statistics_of_the_published_weights(name: str) -> None:
    backbone = make(name)
    assert backbone.published is not None
    wanted = getattr(torchvision.models, backbone.published)["IMAGENET1K_V1"].transforms()
    assert tuple(map(tuple, (wanted.mean, wanted.std))) == backbone.declared.statistics
    assert wanted.interpolation.value == backbone.declared.interpolation


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("vgg16", "IMAGENET1K_FEATURES"),
        ("torchvision:vit_b_16", "IMAGENET1K_SWAG_E2E_V1"),
        ("torchvision:efficientnet_b1", "IMAGENET1K_V2"),
    ],
)
def test_published_weights_that_expect_other_pixels_are_refused(name: str, weights: str) -> None:
    with pytest.raises(AttendError, match="expects other statistics or interpolation"):
        load_backbone(GridsConfig(backbone=name, weights=f"torchvision:{weights}", image_size=224))


@pytest.mark.parametrize(
    ("backbone", "weights", "size", "message"),
    [
        ("torchvision:convnext_huge", "random:0", 64, "unknown backbone 'torchvision:convnext_huge'"),
        ("torchvision:alexnet", "random:0", 64, "torchvision's classifiers of these families are known"),
        ("timm:no_such_model", "random:0", 64, "unknown backbone 'timm:no_such_model'"),
        ("timm:resnet18", "timm:pretrained", 64, "name the weights' tag"),
        ("resnet101", "timm:pretrained", 64, "is for timm's models, and resnet101 is not one"),
        ("timm:resnet18.a1_in1k", "torchvision:IMAGENET1K_V1", 64, "torchvision has no weights for timm:resnet18"),
    ],
)
def test_backbones_and_weights_that_cannot_be_had_are_reported(
    backbone: str, weights: str, size: int, message: str
) -> None:
    if backbone.startswith("timm:"):
        pytest.importorskip("timm")
    with pytest.raises(AttendError, match=message):
        load_backbone(GridsConfig(backbone=backbone, weights=weights, image_size=size))


def test_timms_own_state_dict_fits_and_anothers_does_not(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    for name in ("resnet18", "resnet34"):
        torch.manual_seed(0)
        torch.save(timm.create_model(name, pretrained=False).state_dict(), tmp_path / f"{name}.pth")
    photographs = torch.randn(1, 3, 64, 64)
    network = timm.create_model("resnet18", pretrained=False).eval()
    network.load_state_dict(torch.load(tmp_path / "resnet18.pth", weights_only=True))
    config = GridsConfig(backbone="timm:resnet18", weights=str(tmp_path / "resnet18.pth"), image_size=64)
    with torch.no_grad():
        pooled = load_backbone(config)(photographs).mean(dim=(1, 2))
        torch.testing.assert_close(network.fc(pooled), network(photographs), atol=1e-4, rtol=1e-3)
    with pytest.raises(AttendError, match="weights of another architecture"):
        load_backbone(config.model_copy(update={"weights": str(tmp_path / "resnet34.pth")}))


def test_a_size_that_the_network_does_not_take_is_reported(tmp_path: Path) -> None:
    config = small(tmp_path / "workspace", grids__backbone="torchvision:vit_b_16", grids__image_size=96)
    run_stage(config, "ingest")
    with pytest.raises(AttendError, match=r"grids\.image_size: torchvision:vit_b_16 takes no pictures of 96 px"):
        run_stage(config, "extract")


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
        digests_of(small(tmp_path, grids__weights=weights))


def test_an_unknown_torchvision_name_is_refused() -> None:
    with pytest.raises(AttendError, match=r"IMAGENET1K_V1"):
        load_backbone(GridsConfig(backbone="resnet101", weights="torchvision:IMAGENET9", image_size=64))


def test_the_path_of_weights_is_not_in_their_identity(tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        torch.save({"x": torch.zeros(1)}, tmp_path / name)
    (tmp_path / "b.pth").write_bytes((tmp_path / "a.pth").read_bytes())
    one, two = (digests_of(small(tmp_path, grids__weights=str(tmp_path / name))) for name in ("a.pth", "b.pth"))
    assert one == two


def test_an_encoder_is_freed_with_its_last_reference() -> None:
    encoder = Encoder(make("tiny", seed=0))
    grids = [encoder(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)) for _ in range(3)]
    backbone = weakref.ref(encoder.backbone)
    gc.disable()  # a cycle would be freed by it alone, at some time
    try:
        del encoder, grids
        assert backbone() is None
    finally:
        gc.enable()
