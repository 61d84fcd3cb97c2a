"""The captioner on onnxruntime says what the captioner in torch says, of every decoder, without torch."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

from flows.commands.cli import app
from flows.serving.app import Server
from flows.serving.exported_model import ExportedModel
from flows.serving.limits import Limits
from models.backbones import base as backbones
from models.captioned import BaseCaptioner, Grids
from models.captioner import Captioner
from models.confidence import FEATURES, Confidence
from models.decoders import DECODERS
from models.decoders.ensemble import make
from models.matcher import Matcher
from models.neighbours import Memory, StoredCaptions
from models.ngrams import Frequencies
from models.onnx.captioner import OnnxCaptioner
from models.requests import answer
from models.vocabulary import END, Vocabulary
from tasks.captioner.bundle import seal
from tasks.captioner.exported import folder as exported_folder
from tasks.captioner.exported import graphs
from tasks.captioner.exported.folder import write_exported
from tasks.captioner.exported.small_weights import quantise, store_as_float16
from tasks.common.errors import AttendError
from tasks.config.schema import Config
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import load_captioner
from tasks.mlflow_store.versions import find
from tasks.neighbours.make_memory import memory_of
from tests.support import pictures, register_all, small, trained

ALL = ["torch", "onnx", "onnx-float16", "onnx-int8"]
WORDS = 60
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"beam": 1},
    {"beam": 5, "n_best": 3, "no_repeat": 2, "min_length": 4, "length_normalisation": 0.7},
    {"beam": 3, "no_echo": True},
    {"beam": 6, "n_best": 2, "neighbours": True},
    {"temperature": 1.3, "n_best": 2, "seed": 7, "no_echo": True},
    {"top_k": 5, "top_p": 0.8},
)


def config_of(workspace: Path) -> Config:
    """A config whose captions have a confidence, on every runtime."""
    shares = {"data__pictures": 400, "data__test_share": 0.3, "data__dev_share": 0.3, "training__epochs": 8}
    return trained(workspace, **shares, registry__runtimes=ALL, registry__max_runtime_loss=100.0)


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a version that was registered for every runtime."""
    workspace = tmp_path_factory.mktemp("onnx") / "workspace"
    register_all(config_of(workspace))
    return workspace


@pytest.fixture(scope="module")
def photographs(everywhere: Path) -> list[bytes]:
    return [path.read_bytes() for path in pictures(everywhere)[:40]]


def loaded(workspace: Path, runtime: Any) -> Any:
    return load_captioner(*find(None, workspace), runtime)


def bundles(workspace: Path) -> Path:
    files = find(None, workspace).files
    assert files is not None
    return files / "artifacts"


def untrained(name: str, members: int = 1, backbone: str = "tiny", **options: Any) -> Captioner:
    """A captioner of random weights, large enough that its words differ."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"name": name, "channels": 512, "vocabulary": WORDS + 4, "members": members}
    shape["options"] = {"embedding": 32, "hidden": 32, **options}
    decoder = make(**shape)
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.mul_(3)
    vocabulary = Vocabulary(tuple(f"word{number}" for number in range(WORDS)))
    spec = {"name": backbone, "image_size": 64, "fit": "squash", "grid": None, "precision": "float32"}
    config = {"backbone": spec, "decoder": shape, "decoding": {"beam": 3, "max_length": 9}}
    config["neighbours"] = {"number": 8, "temperature": 0.1, "factor": 16.0, "match": 3.0, "copies": 1.2}
    fitted = ([0.0] * len(FEATURES), [20.0, 3.0, 0.2, 3.0, 1.0], [0.5, 0.5, 0.3, 1.0, -1.0], [2.0], [0.55, 0.05])
    confidence = Confidence(*(np.array(values, np.float32) for values in fitted))
    return Captioner(config, vocabulary, backbones.make(backbone), decoder, some_memory(512), confidence=confidence)


def some_memory(channels: int) -> Memory:
    """A memory of twenty pictures, with three captions of random words each."""
    memory = memory_of(torch.rand(2, 2, channels).numpy(), torch.rand(20, channels).numpy(), 16)
    captions = torch.randint(4, WORDS + 4, (60, 6)).numpy()
    captions[:, -1] = END
    frequencies = Frequencies.from_references(list(captions.reshape(20, 3, 6)))
    kept = StoredCaptions.make(captions.reshape(-1), np.full(60, 6), np.full(20, 3), frequencies)
    matcher = Matcher(*(torch.randn(shape).half().numpy() for shape in ((16, 8), (8,), (WORDS + 4, 8))))
    return replace(memory, captions=kept, matcher=matcher)


class Both(NamedTuple):
    """A captioner in torch, and the folder of its export."""

    in_torch: Captioner
    folder: Path

    @property
    def exported(self) -> OnnxCaptioner:
        return OnnxCaptioner(self.folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("exported") / "captioner"
    captioner = untrained("show_attend_tell", tie_weights=True)
    write_exported(captioner, folder, "onnx")
    return Both(captioner, folder)


def drawn(number: int) -> Image.Image:
    """A picture of random rectangles."""
    generator = np.random.default_rng(number)
    pixels = np.full((60, 80, 3), 120, np.uint8)
    for _ in range(6):
        top, left = generator.integers(0, 50, 2)
        pixels[top : top + 20, left : left + 20] = generator.integers(0, 256, 3)
    return Image.fromarray(pixels)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def same(one: BaseCaptioner, other: BaseCaptioner, grid: Grids, close: float = 1e-3) -> None:
    """Assert that both say the same of grids, in every way of decoding."""
    keys = list(range(1000, 1000 + len(grid)))
    for way in WAYS:
        if way.get("neighbours") and one.neighbours is None:  # they did not help, and are not in the model
            continue
        found = one.from_grid(grid, keys, attention=one.attends, **way)
        again = other.from_grid(grid, keys, attention=one.attends, **way)
        for a, b in zip(found, again, strict=True):
            assert (a.caption, a.tokens) == (b.caption, b.tokens), way
            assert [text for text, _ in a.alternatives] == [text for text, _ in b.alternatives], way
            assert a.log_probability == pytest.approx(b.log_probability, abs=close)
            assert a.token_probabilities == pytest.approx(b.token_probabilities, abs=close)
            assert a.confidence is None or a.confidence == pytest.approx(b.confidence, abs=close)
            assert a.distance is None or a.distance == pytest.approx(b.distance, abs=close)
            if a.attention is not None:
                assert b.attention is not None
                assert a.attention.shape == b.attention.shape
                assert np.allclose(a.attention, b.attention, atol=close)
    for row, said in enumerate(one.from_grid(grid[:2])):
        part = grid[row : row + 1]
        likely = one.likely_words(part, said.tokens, 3)
        assert [[word for word, _ in place] for place in likely] == [
            [word for word, _ in place] for place in other.likely_words(part, said.tokens, 3)
        ]
        # The words of the caption have the probabilities that were told with it.
        every = [dict(place) for place in other.likely_words(part, said.tokens, WORDS)]
        probabilities = [place[token] for place, token in zip(every, said.tokens, strict=True)]
        assert probabilities == pytest.approx(said.token_probabilities, abs=close)


def grids(count: int, side: int = 2) -> Grids:
    return np.random.default_rng(1).random((count, side, side, 512)).astype(np.float16)


# What the decoders that presets use may be made of.
MADE: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in DECODERS},
    "attention over fewer positions": {"name": "attention_lstm", "attention_grid": 1},
    "a basis, tied weights and an output of its own": {
        "name": "show_attend_tell",
        "pca_dim": 16,
        "tie_weights": True,
        "output": "deep",
        "attention": "additive_relu",
    },
    "an output by an MLP": {"name": "lstm", "output": "mlp", "output_size": 32},
    "an encoder over the grid": {"name": "transformer", "encoder_layers": 1, "heads": 4, "feed_forward": 48},
    "an ensemble": {"name": "attention_lstm", "members": 2},
    "first states of zeros": {"name": "show_attend_tell", "first_state": "zeros", "attention": "scaled_general"},
}


@pytest.mark.slow
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_every_decoder_says_the_same(made: dict[str, Any], tmp_path: Path) -> None:
    captioner = untrained(**made)
    graphs.export(captioner, tmp_path / "exported")
    same(captioner, OnnxCaptioner(tmp_path / "exported"), grids(7))


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone",
    [
        "mobilenet_v2",
        "regnet_x_400mf",
        "googlenet",
        "resnet101",
        "vgg16",
        "timm:tf_efficientnet_lite2",
        "torchvision:vit_b_16",
    ],
)
def test_every_backbone_gives_the_same_grids(backbone: str, tmp_path: Path) -> None:
    network = backbones.make(backbone)
    side = 224 if "vit" in backbone else 64
    shape = network(torch.zeros(1, 3, side, side)).shape
    captioner = untrained("lstm")
    spec = {**captioner.config["backbone"], "name": backbone, "image_size": side}
    decoder_shape = {**captioner.config["decoder"], "channels": shape[-1]}
    config = {**captioner.config, "backbone": spec, "decoder": decoder_shape}
    captioner = Captioner(config, captioner.vocabulary, network, make(**decoder_shape), some_memory(shape[-1]))
    graphs.export(captioner, tmp_path / "exported")  # which compares the grids
    picture = io.BytesIO()
    Image.radial_gradient("L").save(picture, "PNG")
    ours = OnnxCaptioner(tmp_path / "exported").grids([picture.getvalue()]).astype(np.float32)
    theirs = captioner.grids([picture.getvalue()]).astype(np.float32)
    np.testing.assert_allclose(ours, theirs, atol=5e-3 * np.abs(theirs).max())


def test_both_say_the_same(both: Both) -> None:
    exported = both.exported
    for count in (30, 1):
        same(both.in_torch, exported, grids(count))
    few = grids(12)
    middle = float(np.median([item.confidence or 0.0 for item in both.in_torch.from_grid(few)]))
    one, other = (model.from_grid(few, min_confidence=middle, otherwise="?") for model in (both.in_torch, exported))
    assert [item.caption for item in one] == [item.caption for item in other]
    assert 0 < sum(item.caption == "?" for item in one) < len(one)


def test_odd_photographs(both: Both) -> None:
    picture, turned = drawn(0), Image.Exif()
    turned[0x0112] = 6
    deep = Image.fromarray(np.asarray(picture.convert("L"), np.uint16) * 257)
    odd = [
        saved(picture, "JPEG", quality=80),
        saved(picture.convert("L"), "JPEG"),
        saved(picture, "JPEG", exif=turned),
        saved(picture.convert("CMYK"), "JPEG"),
        saved(picture.convert("P"), "GIF"),
        saved(picture.convert("LA"), "PNG"),
        saved(deep, "PNG"),
        saved(picture.resize((700, 31)), "WEBP", quality=60),
    ]
    exported = both.exported
    assert np.abs(exported.grids(odd) - both.in_torch.grids(odd)).max() < 0.05
    assert [item.caption for item in both.in_torch.caption(odd)] == [item.caption for item in exported.caption(odd)]
    for broken in (b"", b"no picture", odd[0][:200]):
        (refused,) = exported.caption([broken])
        assert refused.error and not refused.caption and bool(both.in_torch.caption([broken])[0].error)


def test_a_line_of_millions_of_pixels_is_not_resized(both: Both) -> None:
    """A PNG of some bytes, whose filter would take minutes and gigabytes."""
    (row,) = answer(both.exported, [saved(Image.new("L", (1_000_000, 1)), "PNG")], {})
    assert row["error"] == "is 1,000,000 pixels wide or high, over the limit of 65,535"


def test_contradictory_options_are_refused_by_every_runtime(both: Both, tmp_path: Path) -> None:
    for way in ({"beam": 2, "temperature": 1.0}, {"beam": 2, "n_best": 4}, {"max_length": 2, "min_length": 2}):
        said = []
        captioners: Any = ((both.in_torch, grids(1)), (both.exported, grids(1)))
        for captioner, grid in captioners:
            with pytest.raises(ValueError) as refused:
                captioner.from_grid(grid, **way)
            said.append(str(refused.value))
        assert said[0] == said[1]


def test_integers_have_seven_bits_and_narrow_matrices_stay(both: Both, tmp_path: Path) -> None:
    shutil.copytree(both.folder, tmp_path / "exported")
    quantise(tmp_path / "exported")
    graph = onnx.load(tmp_path / "exported" / "step.onnx").graph
    values = [numpy_helper.to_array(item) for item in graph.initializer if item.data_type == onnx.TensorProto.INT8]
    matrices = [matrix for matrix in values if matrix.ndim == 2]
    assert len(matrices) >= 5 and all(np.abs(matrix.astype(int)).max() <= 64 for matrix in matrices)
    assert not any(min(matrix.shape) == 1 for matrix in matrices)  # the additive attention's score
    assert (WORDS + 4) in {size for matrix in matrices for size in matrix.shape}  # the head, tied to the embeddings
    assert OnnxCaptioner(tmp_path / "exported").from_grid(grids(2))[0].caption


def test_float16_stores_the_nearest_values(both: Both, tmp_path: Path) -> None:
    shutil.copytree(both.folder, tmp_path / "exported")
    store_as_float16(tmp_path / "exported")
    before, after = (
        {item.name: numpy_helper.to_array(item) for item in onnx.load(folder / "step.onnx").graph.initializer}
        for folder in (both.folder, tmp_path / "exported")
    )
    halved = [name for name in before if f"{name}.float16" in after]
    assert halved
    for name in halved:
        stored = after[f"{name}.float16"]
        assert stored.dtype == np.float16 and np.array_equal(stored, before[name].astype(np.float16))
    sizes = [(folder / "step.onnx").stat().st_size for folder in (both.folder, tmp_path / "exported")]
    assert sizes[1] < 0.7 * sizes[0]


_WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "mlflow", "pandas", "safetensors", "onnx"):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Refuse())
import pathlib, runpy, json
folder, photo = map(pathlib.Path, sys.argv[1:])
captioner, requests = runpy.run_path(str(folder / "load.py"))["load"](folder)
print(json.dumps(requests.answer(captioner, [photo.read_bytes()], {"n_best": 2})))
"""


def test_the_page_of_an_exported_folder(both: Both, tmp_path: Path) -> None:
    """Its Python, as it stands there, captions as the captioner in torch does."""
    shutil.copytree(both.folder, tmp_path / "captioner")
    # Of the backbone's size, so that it is not resized: Pillow's pixels are not quite torch's.
    photo = saved(drawn(1).resize((64, 64)), "PNG")
    (tmp_path / "photo.jpg").write_bytes(photo)
    use, reader = re.findall(r"```python\n(.*?)```", (both.folder / "README.md").read_text(), re.DOTALL)
    text = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert both.in_torch.caption([photo], beam=5)[0].caption in text
    command = [sys.executable, "-c", reader, "captioner", "photo.jpg"]
    text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert text.strip() == both.in_torch.caption([photo], beam=1, max_length=20)[0].caption
    assert len(reader.strip().splitlines()) <= 40


def test_exported_code_runs_without_torch_and_mlflow(both: Both, tmp_path: Path) -> None:
    photo = saved(drawn(2), "JPEG")
    (tmp_path / "photo.jpg").write_bytes(photo)
    command = [sys.executable, "-c", _WITHOUT, str(both.folder), "photo.jpg"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    row = json.loads(done.stdout)[0]
    assert not (tmp_path / "cache").exists()  # in which onnxruntime would identify this machine, to send usage data
    (expected,) = both.in_torch.caption([photo], n_best=2)
    assert row["caption"] == expected.caption and row["alternatives"][0]["caption"] == expected.alternatives[0][0]


def test_damage_to_an_exported_file_is_refused(both: Both, tmp_path: Path) -> None:
    shutil.copytree(both.folder, tmp_path / "captioner")
    graph = tmp_path / "captioner" / "step.onnx"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="do not match the digest"):
        runpy.run_path(str(tmp_path / "captioner" / "load.py"))["load"](tmp_path / "captioner")


def test_an_exported_folder_is_complete_and_imports_no_torch(both: Both, tmp_path: Path) -> None:
    shutil.copytree(both.folder, tmp_path / "again", ignore=shutil.ignore_patterns("__pycache__"))
    assert seal(tmp_path / "again") == json.loads((both.folder / "bundle.json").read_text())["digest"]
    for path in (both.folder / "models").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) torch", path.read_text(), re.MULTILINE), path


@pytest.mark.slow
def test_a_registered_captioner_says_the_same_on_both(everywhere: Path, photographs: list[bytes]) -> None:
    in_torch, exported = loaded(everywhere, "torch"), loaded(everywhere, "onnx")
    assert in_torch.confidence is not None and exported.confidence is not None
    same(in_torch, exported, in_torch.grids(photographs))
    for one, other in zip(in_torch.caption(photographs), exported.caption(photographs), strict=True):
        assert (one.caption, one.error) == (other.caption, other.error)
    middle = float(np.median([item.confidence for item in in_torch.caption(photographs)])) + 1e-5
    withhold = [model.caption(photographs, min_confidence=middle, otherwise="?") for model in (in_torch, exported)]
    assert [item.caption for item in withhold[0]] == [item.caption for item in withhold[1]]
    assert 0 < sum(item.caption == "?" for item in withhold[0]) < len(photographs)


@pytest.mark.slow
def test_smaller_weights_are_smaller_and_say_much_the_same(everywhere: Path, photographs: list[bytes]) -> None:
    captions = {runtime: loaded(everywhere, runtime).caption(photographs) for runtime in ALL}
    alike = {
        name: sum(a.caption == b.caption for a, b in zip(captions["torch"], captions[name], strict=True))
        for name in ALL
    }
    assert alike["onnx"] == len(photographs)
    assert min(alike["onnx-float16"], alike["onnx-int8"]) > 0.8 * len(photographs)
    folder = bundles(everywhere)
    bytes_of = {name: sum(path.stat().st_size for path in (folder / name).glob("*.onnx")) for name in ALL[1:]}
    assert bytes_of["onnx-float16"] < 0.6 * bytes_of["onnx"] and bytes_of["onnx-int8"] < 0.6 * bytes_of["onnx"]


@pytest.mark.slow
def test_an_exported_folder_needs_neither_torch_nor_mlflow(everywhere: Path, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["export", "--to", str(tmp_path / "captioner"), "--workspace", str(everywhere)])
    assert answer.exit_code == 0 and "README.md says how to use it" in answer.stdout, answer.output
    folder, photo = tmp_path / "captioner", pictures(everywhere)[0]
    command = [sys.executable, "-c", _WITHOUT, str(folder), str(photo)]
    row = json.loads(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout)[0]
    (expected,) = loaded(everywhere, "torch").caption([photo.read_bytes()], n_best=2)
    assert row["caption"] == expected.caption and row["alternatives"][0]["caption"] == expected.alternatives[0][0]
    assert json.loads((folder / "origin.json").read_text()) == {"model": "small", "version": "1", "runtime": "onnx"}
    again = CliRunner().invoke(app, ["export", "--to", str(folder), "--workspace", str(everywhere)])
    assert isinstance(again.exception, AttendError) and "is there already" in str(again.exception)


@pytest.mark.slow
def test_mlflow_loads_the_runtime_that_is_asked_for(everywhere: Path, photographs: list[bytes]) -> None:
    import mlflow

    tracking.connect(everywhere)
    uri = "models:/small@champion"
    by_default = mlflow.pyfunc.load_model(uri).predict({"image": photographs[:3]})
    model = mlflow.pyfunc.load_model(uri, model_config={"runtimes": ["onnx-int8", "onnx"]})
    assert isinstance(model.unwrap_python_model()._captioner, object)
    assert type(model.unwrap_python_model()._captioner).__name__ == "OnnxCaptioner"
    assert [row.keys() for row in model.predict({"image": photographs[:3]})] == [row.keys() for row in by_default]
    with pytest.raises(mlflow.exceptions.MlflowException, match="beam_size is 99"):
        model.predict({"image": photographs[:1]}, params={"beam_size": 99})
    with pytest.raises(mlflow.exceptions.MlflowException, match="none of tensorrt"):
        mlflow.pyfunc.load_model(uri, model_config={"runtimes": ["tensorrt"]})


def test_a_runtime_that_a_version_lacks_is_reported(registered: Path) -> None:
    with pytest.raises(AttendError, match=r"runs on torch, not on onnx: name it in registry\.runtimes"):
        loaded(registered, "onnx")


@pytest.mark.slow
def test_a_runtime_that_scores_too_low_is_left_out(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(folder: Path) -> None:
        model = onnx.load(folder / "step.onnx")
        for weight in model.graph.initializer:
            values = numpy_helper.to_array(weight)
            if values.dtype == np.float32 and values.ndim == 2:
                weight.CopyFrom(numpy_helper.from_array(values[::-1].copy(), weight.name))
        onnx.save(model, folder / "step.onnx")

    monkeypatch.setattr(exported_folder, "quantise", spoil)
    config = trained(workspace, registry__runtimes=["torch", "onnx-int8"])
    register_all(config)
    client = tracking.connect(workspace)
    tags = client.get_model_version("small", "1").tags
    assert tags["attend.runtime.onnx-int8"].startswith("left out: it falls short of torch"), tags
    assert not (bundles(workspace) / "onnx-int8").exists() and (bundles(workspace) / "bundle").is_dir()
    assert "left out" in str(client.get_model_version("small", "1").description)
    with pytest.raises(AttendError, match="runs on torch, not on onnx-int8"):
        loaded(workspace, "onnx-int8")


def test_a_captioner_that_cannot_be_exported_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = untrained("lstm")
    start: Any = captioner.decoder.start

    def by_value(grid: torch.Tensor) -> Any:
        return start(grid * (2 if float(grid.sum()) > 0 else 1))

    monkeypatch.setattr(captioner.decoder, "start", by_value)
    with pytest.raises(
        AttendError, match=r"registry.runtimes: onnx: the decoder lstm cannot be exported.*leave onnx out"
    ):
        write_exported(captioner, tmp_path / "exported", "onnx")


def test_graphs_that_compute_something_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = untrained("lstm")
    write = graphs._write

    def other(module: Any, *arguments: Any) -> None:
        if isinstance(module, graphs._Step):
            with torch.no_grad():
                module.decoder.head.bias[5] += 1
        write(module, *arguments)
        if isinstance(module, graphs._Step):
            with torch.no_grad():
                module.decoder.head.bias[5] -= 1

    monkeypatch.setattr(graphs, "_write", other)
    with pytest.raises(AttendError, match="differs from its own log-probabilities"):
        graphs.export(captioner, tmp_path / "exported")


def test_runtimes_are_checked() -> None:
    for wrong in (["onnx"], ["torch", "torch"], ["torch", "tensorrt"]):
        with pytest.raises(AttendError, match=r"registry\.runtimes"):
            small(Path("nowhere"), registry__runtimes=wrong)


@pytest.mark.slow
def test_a_version_whose_graphs_are_damaged_is_registered_again(workspace: Path) -> None:
    config = trained(workspace, registry__runtimes=["onnx", "torch"])
    register_all(config)
    # MLflow installs what the preferred runtime needs, and not torch's gigabytes.
    requirements = bundles(workspace).parent / "requirements.txt"
    assert {line.split("==")[0] for line in requirements.read_text().splitlines()} == {
        *("mlflow", "safetensors", "pillow", "simplejpeg", "numpy", "pandas", "onnxruntime")
    }
    (bundles(workspace) / "onnx" / "step.onnx").unlink()
    with pytest.raises(AttendError, match="damaged"):
        loaded(workspace, None)
    register_all(config)
    assert find(None, workspace).address == "models:/small/2" and loaded(workspace, None).takes_grids is False
    assert type(loaded(workspace, None)).__name__ == "OnnxCaptioner"


@pytest.mark.slow
def test_other_runtimes_make_another_version_and_the_same_make_none(workspace: Path) -> None:
    register_all(trained(workspace))
    register_all(trained(workspace, registry__runtimes=["torch", "onnx"]))
    register_all(trained(workspace, registry__runtimes=["torch", "onnx"], registry__certainty=0.9))
    versions = tracking.connect(workspace).search_model_versions("name = 'small'")
    assert sorted(int(version.version) for version in versions) == [1, 2]


@pytest.mark.slow
def test_an_exported_folder_is_served(everywhere: Path, photographs: list[bytes], tmp_path: Path) -> None:
    for name, runtime in (("captioner", "onnx"), ("other", "onnx-int8")):
        command = ["export", "--to", str(tmp_path / name), "--runtime", runtime, "--workspace", str(everywhere)]
        assert CliRunner().invoke(app, command).exit_code == 0
    served = ExportedModel(tmp_path / "captioner", 3600)
    captioner = loaded(everywhere, "torch")
    with TestClient(Server(served, Limits(), 8, {"localhost"}).app(), base_url="http://localhost") as client:
        row = client.post(
            "/caption?beam_size=4&n_best=2&return_attention=true",
            content=photographs[0],
            headers={"Content-Type": "image/png"},
        ).json()
        (expected,) = captioner.caption([photographs[0]], beam=4, n_best=2, attention=True)
        assert row["caption"] == expected.caption and row["confidence"] == pytest.approx(expected.confidence, abs=1e-3)
        np.testing.assert_allclose(row["attention"], expected.attention, atol=1e-3)
        refused = client.post("/caption?beam_size=99", content=photographs[0], headers={"Content-Type": "image/png"})
        assert refused.status_code == 400 and "beam_size is 99" in refused.json()["error"]
        about = client.get("/model").json()
        assert (about["model"], about["version"], about["runtime"]) == ("small", "1", "onnx")
        first = served.current.identity
        served.check_for_another()
        assert served.current.identity == first, "the same folder"
        (tmp_path / "captioner").rename(tmp_path / "old")
        (tmp_path / "other").rename(tmp_path / "captioner")
        served.check_for_another()
        assert served.current.identity != first and served.failure is None
        (tmp_path / "captioner" / "bundle.json").unlink()
        served.check_for_another()
        assert "bundle.json" in client.get("/ready").json()["failure"]
    with pytest.raises(AttendError, match="is no whole folder that `attend export` wrote"):
        ExportedModel(tmp_path, 3600)
