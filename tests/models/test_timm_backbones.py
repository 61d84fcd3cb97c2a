"""Backbones of timm: the grid is timm's own map at any size, of any layer, without weights that no grid depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from models.backbones.base import make
from models.backbones.encoder import Encoder
from tasks.common.errors import AttendError
from tasks.config.stages import GridsConfig
from tasks.grids.weights import load_backbone
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import find
from tests.support import pictures, register_all, run_stage, small

timm = pytest.importorskip("timm")

# Small networks of every form: tokens, rotary embeddings, maps of channels last, and maps of channels first.
FEW = (
    "vit_tiny_patch16_224",
    "eva02_tiny_patch14_224",
    "swin_tiny_patch4_window7_224",
    "convnext_atto",
    "pvt_v2_b0",
)
MORE = (
    "vit_base_patch16_clip_quickgelu_224.openai",
    "vit_small_patch16_rope_mixed_224.naver_in1k",
    "vit_base_patch16_siglip_224.v2_webli",
    "vit_small_patch14_dinov2.lvd142m",
    "vit_small_patch14_reg4_dinov2.lvd142m",
    "vit_small_patch16_dinov3.lvd1689m",
    "convnext_tiny.dinov3_lvd1689m",
    "vit_pe_core_tiny_patch16_384",
    "deit3_small_patch16_224",
    "flexivit_small",
    "swinv2_cr_tiny_224",
    "xcit_nano_12_p16_224",
    "samvit_base_patch16",
    "resnet50_clip.openai",
    "tf_efficientnet_lite2",
    "fastvit_t8",
    "mobilenetv4_conv_small",
    "caformer_s18",
)
NAMES = [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]


def native(network: Any) -> int:
    """Return the size of the photographs that a network was trained on, where that is not large."""
    size: int = network.default_cfg["input_size"][-1]
    return size if size <= 400 else 224


def reference(name: str) -> Any:
    """Return timm's own network, with the weights that `make` draws with seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            return timm.create_model(name, num_classes=0, dynamic_img_size=True).eval()
        except TypeError:
            return timm.create_model(name, num_classes=0).eval()


@pytest.mark.parametrize("name", NAMES)
def test_the_grid_is_timms_map_at_every_size(name: str) -> None:
    network, backbone = reference(name), make(f"timm:{name}", seed=0)
    stride, size = backbone.declared.stride, native(network)
    for side in (size, size + 2 * stride, size - stride):
        photographs = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(side))
        with torch.no_grad():
            grid, found = backbone(photographs), network.forward_features(photographs)
        positions = grid.shape[1] * grid.shape[2]
        if found.ndim == 3:
            assert positions == (side // stride) ** 2
            found = found[:, found.shape[1] - positions :].reshape(grid.shape)
        elif found.shape != grid.shape:
            found = found.permute(0, 2, 3, 1)
        torch.testing.assert_close(grid, found, atol=1e-5, rtol=1e-5)
    Encoder(backbone).check(size)


@pytest.mark.parametrize("name", NAMES)
def test_an_earlier_layer_is_timms_own_and_later_ones_are_not_kept(name: str) -> None:
    network = reference(name)
    backbone = make(f"timm:{name}", seed=0, layer=-2)
    size, layer = native(network), len(network.feature_info) - 2
    photographs = torch.randn(1, 3, size, size)
    with torch.no_grad():
        (found,) = network.forward_intermediates(photographs, indices=[layer], norm=False, intermediates_only=True)
        grid = backbone(photographs)
    torch.testing.assert_close(grid, found.permute(0, 2, 3, 1), atol=1e-5, rtol=1e-5)
    assert len(backbone.state_dict()) < len(make(f"timm:{name}").state_dict())
    Encoder(backbone).check(size)
    used = {id(weight) for block in backbone.tunable(1, size) for weight in block} if backbone.blocks else set()
    assert not backbone.blocks or used


@pytest.mark.parametrize("layer", [None, -2])
@pytest.mark.parametrize("name", [*FEW, "vit_base_patch16_siglip_224"])
def test_a_file_of_all_weights_fits(tmp_path: Path, name: str, layer: int | None) -> None:
    """Also with a classifier, a pool by attention, and blocks after the layer: they are in the file and not kept."""
    torch.manual_seed(1)
    network = timm.create_model(name, pretrained=False)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    size = native(network)
    config = GridsConfig(backbone=f"timm:{name}", weights=str(tmp_path / "weights.pth"), image_size=size, layer=layer)
    backbone = load_backbone(config)
    kept = {name: weight for name, weight in network.state_dict().items() if name in backbone.features.state_dict()}
    assert 0 < len(kept) < len(network.state_dict())
    assert all(torch.equal(backbone.features.state_dict()[name], weight) for name, weight in kept.items())
    assert not [name for name in kept if name.startswith(("attn_pool", "fc_norm", "head"))]


def test_clip_of_openai_has_the_activation_of_its_weights() -> None:
    with pytest.raises(ValueError, match=r"was trained with QuickGELU.*: use timm:vit_base_patch16_clip_quickgelu_224"):
        make("timm:vit_base_patch16_clip_224.openai")
    with torch.device("meta"):
        quick, plain = make("timm:vit_base_patch16_clip_quickgelu_224.openai"), make("timm:vit_base_patch16_clip_224")
    assert type(quick.features.blocks[0].mlp.act).__name__ == "QuickGELU"  # type: ignore[index,union-attr]
    assert type(plain.features.blocks[0].mlp.act).__name__ != "QuickGELU"  # type: ignore[index,union-attr]


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        (
            {"backbone": "timm:vit_tiny_patch16_224", "image_size": 100},
            r"grids\.image_size: .* takes no pictures of 100",
        ),
        (
            {"backbone": "timm:beit_base_patch16_224", "image_size": 256},
            r"grids\.image_size: .*doesn't match model \(224\)",
        ),
        ({"backbone": "timm:vit_tiny_patch16_224", "layer": -13}, r"has 12 layers: give a layer from -2 to -12"),
    ],
)
def test_a_missing_layer_or_block_of_a_backbone_is_refused(grids: dict[str, Any], message: str) -> None:
    values = {"weights": "random:0", "image_size": 224, **grids}
    with pytest.raises(AttendError, match=message):
        load_backbone(GridsConfig(**values))
    for name in ("mobilenet_v2", "torchvision:resnet18"):
        with pytest.raises(ValidationError, match=f"{name} gives its last layer alone"):
            GridsConfig(backbone=name, weights="random:0", image_size=224, layer=-2)


def test_a_layer_is_part_of_the_identity_and_the_last_changes_none(workspace: Path) -> None:
    config = small(workspace, grids__backbone="timm:convnext_atto", grids__image_size=64)
    for stage in ("ingest", "extract"):
        run_stage(config, stage)
    assert "layer" not in config.grids.key_part()
    other = small(workspace, grids__backbone="timm:convnext_atto", grids__image_size=64, grids__layer=-2)
    assert run_stage(other, "extract").state == "stale"
    assert len(list((workspace / "grids").iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layer"), [*((name, None) for name in FEW), ("vit_tiny_patch16_224", -2)])
def test_from_photographs_to_captions_by_torch_and_onnx(workspace: Path, name: str, layer: int | None) -> None:
    size = 112 if "patch14" in name else 96
    config = small(
        workspace,
        grids__backbone=f"timm:{name}",
        grids__image_size=size,
        grids__layer=layer,
        registry__runtimes=["torch", "onnx"],
        training__epochs=4,
    )
    register_all(config)
    photographs = [path.read_bytes() for path in pictures(workspace)[:20]]
    by_torch, by_onnx = (load_captioner(*find(None, workspace), runtime) for runtime in ("torch", "onnx"))
    expected = [result.caption for result in by_torch.caption(photographs)]
    assert [result.caption for result in by_onnx.caption(photographs)] == expected
