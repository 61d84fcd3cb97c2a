"""What a GPU does, on the processor: graphs give what the plain form gives, nothing waits, late copies harm nobody."""

from __future__ import annotations

import io
import math
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models.backbones import base as backbones
from models.backbones.encoder import Encoder
from models.decoders import DECODERS, transformer
from models.decoders.base import make
from models.decoders.recurrent import decoder as recurrent
from models.drawing import draw
from models.encoded_pictures import is_plain_jpeg
from models.graphs import Replayed
from models.options import Decoding
from models.photographs import resize, resize_in_float
from models.replayed_search import ReplayedSearch
from models.search import BeamSearch, Greedy, Sampling, decode, uniform_draws
from tasks.common.errors import AttendError
from tasks.common.threads import run_ahead
from tasks.config.schema import Config
from tasks.config.training import TrainingConfig
from tasks.data.manifest import files_by_digest
from tasks.device.copies import NoCopies
from tasks.evaluation import caption_and_score
from tasks.grids import encoding
from tasks.grids.failures import FailedPhotograph
from tasks.grids.identity import identity_of
from tasks.grids.index import open_grids
from tasks.grids.photograph_batches import BatchDecoder, Shape
from tasks.training import batches as batching
from tasks.training import loop as fitting
from tasks.training import outputs as trained
from tasks.training import reinforce_decoder as reinforcing
from tasks.training.batches import Batch
from tasks.training.objectives import CrossEntropy, count
from tasks.training.tally import NotFiniteError, Sums, Tally
from tests.device_fakes import LateCopies, RecordedGraph, WaitedError, nothing_waits
from tests.support import artifacts, names_of, run_stage, small

Searches = dict[str, Callable[..., Any]]
SIZES: dict[str, Any] = {"embedding": 16, "hidden": 16}


def decoder_of(name: str) -> Any:
    torch.manual_seed(0)
    decoder = make(name, 8, 40, SIZES).eval()
    with torch.no_grad():
        decoder.head.get_parameter("weight").mul_(8)
    return decoder


def run_up_to(config: Config, last: str) -> None:
    """Bring a stage and all before it up to date."""
    names = names_of(config)
    for name in names[: names.index(last) + 1]:
        run_stage(config, name)


def same_weights(one: Path, other: Path) -> bool:
    first, second = (safetensors.torch.load_file(path / trained.LAST) for path in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


def test_a_recorded_graph_is_as_strict_as_a_gpus() -> None:
    """The fake itself: recording does nothing, a replay reads tensors and no variables of Python."""
    total, factor = torch.zeros(3), 2.0
    own = torch.ones(3)
    graph = RecordedGraph()

    def work() -> Tensor:
        total.add_(own * factor)
        return total + 1

    made = graph.record(work)
    assert total.tolist() == [0, 0, 0] and made.isnan().all()
    factor = 100.0
    for times in (1, 2):
        own.fill_(times)
        graph.replay()
    assert total.tolist() == [6, 6, 6] and made.tolist() == [7, 7, 7]


def test_a_replayed_function_gives_what_it_gives() -> None:
    calls = []

    def function(one: Tensor, other: Tensor) -> Tensor:
        calls.append(1)
        return (one @ other).relu().sum(dim=0)

    replayed = Replayed(function, RecordedGraph, most=2)
    for turn in range(4):
        for size in (2, 3, 4):  # the third shape is one too many: it is computed each time
            one, other = torch.randn(5, size), torch.randn(size, 6)
            assert torch.equal(replayed(one, other), (one @ other).relu().sum(dim=0)), (turn, size)
    assert len(calls) == 2 + 2 + 4


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(beam=3, max_length=10, n_best=2),
        Decoding(beam=2, max_length=7, no_repeat=2, min_length=3, length_normalisation=0.7),
        Decoding(search="sample", n_best=3, max_length=10, top_p=0.9, temperature=0.8),
    ],
)
def test_replayed_searches_find_the_same_captions(name: str, decoding: Decoding) -> None:
    decoder = decoder_of(name)
    replayed = ReplayedSearch(decoder, RecordedGraph)
    for turn in range(4):
        grid, keys = torch.randn(6, 3, 3, 8), list(range(turn, turn + 6))
        assert replayed.decode(grid, decoding, keys) == decode(decoder, grid, decoding, keys)
        with torch.no_grad():  # training changes the weights in place
            decoder.head.get_parameter("weight").mul_(0.9)


@pytest.mark.parametrize("name", DECODERS)
def test_no_word_of_a_search_waits(name: str) -> None:
    decoder, decoding = decoder_of(name), Decoding(beam=3, no_repeat=2, min_length=2)
    sampled = Decoding(search="sample", n_best=3, top_k=5, top_p=0.9)
    grid = torch.randn(4, 3, 3, 8)
    draws = uniform_draws(sampled, range(4))
    with torch.no_grad(), nothing_waits():
        for stepper in (decoder, decoder.for_inference()):
            for search in (
                BeamSearch(stepper, grid, decoding),
                Greedy(stepper, grid, decoding),
                Sampling(stepper, grid, sampled, draws),
            ):
                for _ in range(6):
                    search.advance()
                search.done()


def test_the_fake_notices_who_waits() -> None:
    values = torch.arange(4)
    waiting: tuple[Callable[[], Any], ...] = (
        lambda: bool(values.any()),
        lambda: values[values > 2],
        values.nonzero,
        lambda: values.sum().item(),
        lambda: values.float().masked_select(values > 1),
    )
    for work in waiting:
        with pytest.raises(WaitedError), nothing_waits():
            work()


def test_draws_are_those_of_multinomial() -> None:
    probabilities = torch.rand(50, 7).softmax(dim=1)
    torch.manual_seed(0)
    own = draw(probabilities)
    torch.manual_seed(0)
    assert torch.equal(own, torch.multinomial(probabilities, 1).squeeze(1))


@pytest.mark.parametrize("name", DECODERS)
def test_a_search_on_a_gpu_leaves_the_gpu_for_nothing(name: str) -> None:
    """On tensors that have the device of a GPU, and no values: nothing is made in the host's memory and copied there."""
    with FakeTensorMode(), torch.device("cuda"):
        decoder = make(name, 8, 40, SIZES).eval()
        grid = torch.randn(4, 3, 3, 8)
        for decoding in (Decoding(beam=3, no_repeat=2, min_length=2), Decoding(search="sample", n_best=3, top_k=5)):
            with torch.no_grad():
                search: Any = (
                    BeamSearch(decoder, grid, decoding)
                    if decoding.search == "beam"
                    else Sampling(decoder, grid, decoding, torch.rand(4, 3, decoding.max_length))
                )
                for _ in range(3):
                    search.advance()
        places = torch.arange(4)
        words = torch.full((4, 1, 3), 5)
        logits, _ = decoder(grid, words, places)
    assert logits.device.type == "cuda" and search.words.device.type == "cuda"


def decoder_section(name: str) -> dict[str, Any]:
    sizes = {"heads": 4, "layers": 2} if name == "transformer" else {}
    return {"name": name, "embedding": 16, "hidden": 24, **sizes}


STEPS: dict[str, dict[str, Any]] = {
    "train": {"training__scheduled_sampling": 0.3, "training__unknown_words": 0.2, "decoder__dropout_words": 0.3},
    "self_critical": {"self_critical": {"epochs": 2, "batch_pictures": 8, "learning_rate": 0.003, "warmup_steps": 0}},
}


@pytest.fixture(autouse=True)
def ends_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have decoders compute all steps: on a GPU the host does not know which captions have ended."""

    def all_rows(_: Tensor, shape: Sequence[int]) -> recurrent.Reading:
        every = torch.arange(math.prod(shape))
        return recurrent.Reading(torch.arange(shape[1]).expand(*shape[:2]), [shape[1]] * shape[2], every, every)

    monkeypatch.setattr(recurrent, "longest_first", all_rows)
    monkeypatch.setattr(transformer, "words_read", lambda *_: None)


@pytest.fixture
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a training as a GPU would take it, refused where it waits."""
    take_step, add = fitting.TrainingLoop._take_step, Tally.add

    def strict_step(fit: Any, *inputs: Tensor) -> Tensor:
        with nothing_waits():
            return take_step(fit, *inputs)

    def strict_add(tally: Any, outcome: Tensor, step: int) -> None:
        with nothing_waits():
            add(tally, outcome, step)

    monkeypatch.setattr(fitting.TrainingLoop, "_take_step", strict_step)
    monkeypatch.setattr(Tally, "add", strict_add)


@pytest.mark.parametrize("name", ["show_attend_tell", "hard_attention", "transformer", "up_down"])
def test_no_step_waits(name: str, finished: Path, without_waiting: None, workspace: Path) -> None:
    penalty = {"training__doubly_stochastic": 1.0} if name != "hard_attention" else {}
    config = small(workspace, decoder=decoder_section(name), **penalty, **STEPS["train"])
    run_up_to(config, "train")
    assert artifacts(config, "train")["train"].path.exists()


def last_of(config: Any, stage: str) -> Path:
    return artifacts(config, stage)[stage].path


@pytest.mark.parametrize("stage", STEPS)
def test_late_copies_change_nothing(
    stage: str, finished: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, without_waiting: None
) -> None:
    """Batches that arrive only when they are used, and sums that come back late: the same weights and history."""
    settings = {**STEPS["train"], **STEPS[stage], "machine__checkpoint_seconds": 0}
    plain, late = (small(workspace / name, **settings) for name in ("plain", "late"))
    run_up_to(plain, stage)
    copies = LateCopies()
    for module in (fitting, batching):
        monkeypatch.setattr(module, "copies_for", lambda _: copies)
    run_up_to(late, stage)
    assert copies.made > 20
    assert same_weights(last_of(plain, stage), last_of(late, stage))
    histories = [
        pq.read_table(last_of(config, stage) / trained.HISTORY).drop_columns("seconds").to_pylist()
        for config in (plain, late)
    ]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("name", ["show_attend_tell", "hard_attention", "transformer", "up_down", "lstm"])
def test_replayed_steps_train_the_same_weights(name: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of rounded shapes, replayed or not: dropout, sampled words and the optimiser's state are those of each."""
    stages = ["train"] if name == "hard_attention" else ["train", "self_critical"]
    settings: dict[str, Any] = {**STEPS["train"], **STEPS[stages[-1]], "decoder": decoder_section(name)}
    plain, replayed = (small(workspace / place, **settings) for place in ("plain", "replayed"))
    with monkeypatch.context() as changed:
        changed.setattr(fitting.TrainingLoop, "_shaped", lambda _, batch: batch.rounded())
        run_up_to(plain, stages[-1])
    graphs: list[RecordedGraph] = []

    def graph() -> RecordedGraph:
        graphs.append(RecordedGraph())
        return graphs[-1]

    for module in (fitting, reinforcing):
        monkeypatch.setattr(module, "graphs_for", lambda *_: graph)
    run_up_to(replayed, stages[-1])
    assert len(graphs) > 1
    for stage in stages:
        assert same_weights(last_of(plain, stage), last_of(replayed, stage))


def test_replayed_evaluation_gives_the_same_captions(
    finished: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last batch is smaller: it is searched as usual."""
    shutil.copytree(finished, workspace, dirs_exist_ok=True)
    shutil.rmtree(workspace / "artifacts" / "evaluate")
    config = small(workspace, machine__decode_batch=1)
    monkeypatch.setattr(caption_and_score, "graphs_for", lambda *_: RecordedGraph)
    run_up_to(config, "evaluate")
    found = [artifacts(small(place), "evaluate")["evaluate"] for place in (finished, workspace)]
    assert found[0].products == found[1].products
    captions = [pq.read_table(artifact.path / "predictions.parquet")["caption"].to_pylist() for artifact in found]
    assert captions[0] == captions[1] and len(captions[0]) > 1


def test_rounded_batches_are_the_same_captions() -> None:
    torch.manual_seed(0)
    decoder = make("show_attend_tell", 8, 40, {**SIZES, "dropout_output": 0.0})
    tokens = torch.tensor([[[1, 5, 6, 2, 0, 0], [1, 7, 2, 0, 0, 0]], [[1, 8, 9, 10, 11, 2], [0, 0, 0, 0, 0, 0]]])
    batch = Batch.of(torch.randn(2, 3, 3, 8), tokens)
    rounded = batch.rounded()
    assert rounded.words.shape[2] == 8 and len(rounded.places) % 4 == 0
    valid = rounded.next_words != 0
    assert torch.equal(rounded.next_words[valid], batch.next_words)
    assert torch.equal(rounded.targets.flatten()[rounded.places[valid]], batch.next_words)
    torch.testing.assert_close(_loss(decoder, batch), _loss(decoder, rounded))


def _loss(decoder: Any, batch: Batch) -> list[Tensor]:
    decoder.zero_grad()
    objective = CrossEntropy(TrainingConfig(doubly_stochastic=1.0, label_smoothing=0.1))
    output = objective(decoder, batch, count(batch), torch.tensor(0.0))
    output.loss.backward()
    assert int(output.number) == len(batch.next_words[batch.next_words != 0])
    return [output.loss.detach(), *(weight.grad.clone() for weight in decoder.parameters() if weight.grad is not None)]


def test_a_loss_that_is_not_finite_is_told_by_its_step() -> None:
    copies: Any = LateCopies()
    tally = Tally(torch.device("cpu"), copies, Sums())
    for step, loss in enumerate([1.0, float("inf"), float("nan"), 2.0]):
        tally.add(torch.tensor([loss, 3.0, 2.0]), step)
    with pytest.raises(NotFiniteError) as error:
        tally.read()
    assert error.value.step == 1


def grids_of(config: Config, names: list[str]) -> Any:
    """The stored grids of these digests, float16."""
    run_up_to(config, "extract")
    return open_grids(artifacts(config, "extract")["extract"], config.machine).read(names)


def all_digests(config: Config) -> list[str]:
    run_up_to(config, "ingest")
    return sorted(files_by_digest(artifacts(config, "ingest")["ingest"].path, config.data))


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> LateCopies:
    """Extraction as for a GPU: batches decoded ahead by a thread, copies that come late."""
    copies = LateCopies()
    monkeypatch.setattr(encoding, "copies_for", lambda _: copies)
    monkeypatch.setattr(encoding, "decodes_ahead", lambda _: True)
    return copies


def test_grids_extracted_as_on_a_gpu_are_the_same(workspace: Path, like_a_gpu: LateCopies) -> None:
    config = small(workspace / "ahead", machine__extract_batch=7)
    names = all_digests(config)
    ahead = grids_of(config, names)
    assert like_a_gpu.made > 2 * len(names) // 7
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(encoding, "copies_for", lambda _: NoCopies())
        changed.setattr(encoding, "decodes_ahead", lambda _: False)
        plain = grids_of(small(workspace / "plain", machine__extract_batch=7), names)
    assert ahead.tobytes() == plain.tobytes()


def test_a_replayed_encoder_gives_the_same_grids() -> None:
    backbone = backbones.make("tiny", seed=0)
    pixels = torch.randint(0, 256, (19, 3, 64, 64), dtype=torch.uint8)
    plain, replayed = Encoder(backbone), Encoder(backbone, graphs=RecordedGraph)
    replayed._compile_for = 6  # without the compiler, which takes long
    for _ in range(3):
        for size in (6, 6, 6, 1):
            chosen = pixels[torch.randperm(19)[:size]]
            assert torch.equal(replayed(chosen), plain(chosen))


def photographs(folder: Path) -> dict[str, bytes]:
    """Photographs that every decoder takes, and all kinds of others."""
    smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 12, 16) * 255, (90, 120), mode="bicubic").clamp(0, 255)
    picture = Image.fromarray(smooth[0].permute(1, 2, 0).numpy().astype("uint8"))
    files = {}
    turned = Image.Exif()
    turned[0x0112] = 6
    for name, image, options in (
        ("plain.jpg", picture, {"quality": 90}),
        ("grey.jpg", picture.convert("L"), {}),
        ("progressive.jpg", picture, {"progressive": True}),
        ("turned.jpg", picture, {"exif": turned}),
        ("cmyk.jpg", picture.convert("CMYK"), {}),
        ("lossless.png", picture, {}),
    ):
        out = io.BytesIO()
        image.save(out, "PNG" if name.endswith("png") else "JPEG", **options)
        files[name] = out.getvalue()
    files["cut.jpg"] = files["plain.jpg"][:-400]
    files["damaged.jpg"] = files["plain.jpg"][:300] + bytes(200) + files["plain.jpg"][500:]
    return files


def test_a_gpu_decodes_what_every_decoder_reads_alike(tmp_path: Path) -> None:
    files = photographs(tmp_path)
    assert [name for name, data in files.items() if is_plain_jpeg(data)][:3] == [
        "plain.jpg",
        "grey.jpg",
        "progressive.jpg",
    ]
    assert not any(is_plain_jpeg(files[name]) for name in ("turned.jpg", "cmyk.jpg", "lossless.png", "cut.jpg"))
    items = [(name, tmp_path / name) for name in files]
    shape = Shape(48, "crop", "bilinear")
    with ThreadPoolExecutor(2) as pool:
        found = [
            BatchDecoder(shape, None, pool, NoCopies(), device).decode(items, list(files.values()))
            for device in (None, torch.device("cpu"))
        ]
    # Which photographs can be decoded, and why others cannot, is the same; pixels differ by rounding alone.
    assert found[0][0] == found[1][0] and found[0][1].shape == found[1][1].shape
    assert any(isinstance(outcome, FailedPhotograph) for outcome in found[0][0])
    difference = (found[0][1].int() - found[1][1].int()).abs()
    assert int(difference.max()) == 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [32, 200])
def test_resizing_by_float_numbers_is_resizing(size: int, interpolation: Any) -> None:
    photograph = torch.randint(100, 150, (3, 90, 121), dtype=torch.uint8)  # no value overshoots and is clipped
    one, other = (form(photograph, size, "crop", interpolation) for form in (resize, resize_in_float))
    assert int((one.int() - other.int()).abs().max()) <= 1


def test_grids_of_a_gpus_pixels_are_others(workspace: Path) -> None:
    """They have an identity of their own, and are not made where there is no GPU."""
    plain, of_gpu = small(workspace), small(workspace, grids__decode_on="gpu")
    identities = [identity_of(config.grids, "weights") for config in (plain, of_gpu)]
    assert identities[0].digest != identities[1].digest and "decode_on" not in identities[0].as_dict
    with pytest.raises(AttendError, match=r"grids.decode_on: gpu: this machine has no GPU"):
        run_up_to(of_gpu, "extract")


def test_items_made_ahead_are_the_items() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            made.append(item)
            yield item
        raise ValueError

    found: Any = run_ahead(items(), 2)
    assert next(found) == 0 and [next(found) for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(ValueError):
        next(found)
    made.clear()
    found = run_ahead(items(), 2)
    next(found)
    found.close()
    assert len(made) <= 3  # whoever stops early is not waited for longer than what was begun


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device that decodes them")
def test_a_device_that_decodes_no_jpeg_file_is_refused(workspace: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(AttendError, match=r"grids.decode_on: cuda cannot decode JPEG"):
        BatchDecoder(Shape(32, "squash", "bilinear"), None, pool, NoCopies(), torch.device("cuda"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told to keep freed memory")
def test_freed_memory_is_kept_and_given_back() -> None:
    """In a process of its own, because the C library adjusts to what was allocated before."""
    code = """
import resource
from pathlib import Path
import numpy as np
from tasks.device.freed_memory import freed_memory_kept

def faults():  # the pages that the system gives for a block of 64 MB that is written once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(64 << 20, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before, usual = resident(), faults()
with freed_memory_kept():
    faults()
    kept, held = faults(), resident()
print(usual, kept, faults(), held - before, resident() - before)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    usual, kept, afterwards, held, left = map(int, ended.stdout.split())
    assert kept * 10 < usual and afterwards * 2 > usual
    assert held > 48 << 20 and left < 16 << 20
