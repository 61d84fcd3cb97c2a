"""Every reader of outside input: a strategy of inputs, valid and spoiled, and the law that each of them must keep.

A reader returns a value, or refuses the input with one line that names the file, row or field. Any other exception,
more than five seconds, and more than a GiB of memory are findings. `tests/test_fuzzing.py` feeds each reader a few
inputs, `bench/soak/fuzz.py` many.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import re
import resource
import shutil
import signal
import struct
import tarfile
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Literal, TypeVar, cast

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from PIL import Image

from flows.commands.cli import app
from flows.serving.app import Server
from flows.serving.limits import Limits, RefusedError
from flows.serving.requests import parse
from models.encoded_pictures import admit, decode
from models.requests import failed
from models.vocabulary import SPECIAL, Vocabulary
from tasks.common.errors import AttendError
from tasks.config.schema import load
from tasks.config.stages import TOKENISERS, CaptionsConfig
from tasks.data import tokenisers
from tasks.data.caption_files import build_vocabulary
from tasks.data.manifest import SCHEMA
from tasks.datasets import ADAPTERS
from tasks.evaluation.caption_and_score import read_predictions
from tasks.evaluation.coco_files import corpus_of
from tasks.grids.identity import Identity
from tasks.grids.store import GridStore, read_shard, stores
from tasks.grids.weights import _file_state
from tasks.metrics.ptb import tokenize
from tasks.pipeline.ledger import Artifact, Ledger, differences, digest_of
from tests.support import HERE

SECONDS, MEMORY, LONGEST = 5.0, 2**30, 600
Files = dict[str, bytes]  # path in a folder -> content
Outcome = Literal["value", "refused"]
Thing = TypeVar("Thing")


class Finding(Exception):  # noqa: N818
    """A breach of the law. kind: `traceback`, `hang`, `memory` or `message`. where: the innermost project frame."""

    def __init__(self, kind: str, what: str, where: str, details: str = "") -> None:
        super().__init__(f"{kind}: {what} in {where}\n{details}")
        self.kind, self.what, self.where = kind, what, where


class Refusal(Exception):  # noqa: N818
    """A refusal in another form than AttendError: an HTTP status, a usage error, a picture's ValueError."""


@dataclass(frozen=True)
class Reader:
    """A reader of outside input.

    inputs: what it is given. read: reads an input in an empty folder. mentions: a refusal holds one of these, or the
    folder's path. found: inputs that it once did not bear.
    """

    name: str
    inputs: SearchStrategy[Any]
    read: Callable[[Any, Path], object]
    mentions: tuple[str, ...] = ()
    found: tuple[Any, ...] = ()


def feed(reader: Reader, value: Any) -> Outcome:
    """Give an input to a reader, in a folder of its own. Raises Finding where the reader breaks the law."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    before, begun = _peak_memory(), time.process_time()
    try:
        with _alarm():
            try:
                reader.read(value, folder)
                outcome: Outcome = "value"
            except (AttendError, Refusal) as error:
                _check_message(reader, error, folder)
                outcome = "refused"
    except _SlowError as error:
        raise Finding("hang", "slower than 5 s", _frame_of(error)) from None
    except Finding:
        raise
    except Exception as error:
        details = "".join(traceback.format_exception(error))[-2000:]
        raise Finding("traceback", type(error).__name__, _frame_of(error), details) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if time.process_time() - begun > SECONDS:
        raise Finding("hang", "slower than 5 s", reader.name)
    if _peak_memory() - before > MEMORY:
        raise Finding("memory", "more than 1 GiB", reader.name)
    return outcome


class _SlowError(BaseException):
    """The end of a reader's time; no `except Exception` stops it."""


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise _SlowError in the block when a reader's time is over: that of the processor, which others may use too."""

    def ring(_: int, frame: FrameType | None) -> None:
        raise _SlowError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _frame_of(error: BaseException) -> str:
    """Return the file and function of the innermost frame of the project, but its tests, that the error passed."""
    frames = [(Path(frame.filename), frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(path.relative_to(HERE), name) for path, name in frames if path.is_relative_to(HERE) and name != "ring"]
    inner = [f"{path}:{name}" for path, name in own if path.parts[0] in ("tasks", "flows", "models")]
    return inner[-1] if inner else f"{own[-1][0]}:{own[-1][1]}"


def _check_message(reader: Reader, error: Exception, folder: Path) -> None:
    """Raise Finding where a refusal is long, of several lines, or says not what is refused."""
    message, where = str(error), _frame_of(error)
    if len(message) > LONGEST:
        raise Finding("message", f"{len(message):,} characters", where, message[:200])
    if not message.isprintable():
        raise Finding("message", "holds line ends or control characters", where, ascii(message))
    if not any(mention in message for mention in (*reader.mentions, str(folder))):
        raise Finding("message", "names neither file nor field", where, message)


# Oddities. Each takes the place of a word, a number or a text of a valid input.
_DEEP = 200_000
ODD_TEXTS = ("", " ", "\x00", "\ud800", "a\udcff", "\u202e", "\x1b[31m", "é", "e\u0301", "٣", "²", "1_0", "-1", "#²", "~", "~nobody/x", "../x", "/etc/passwd", "/dev/zero", "a/b", "a\\b", "CON", "<UNK>", "</w>", "\ue000", "a" * 255 + ".png", "a" * 256, "a" * 5_000, "é" * 200, "a/" * 3_000, "nan", "inf", "1e999", "9" * 20, "9" * 6_000, "0" * 6_000, "0x1F", "010", "1:30", "restval", "training", "TRAIN ", "a\nb", "a\tb", "a,b", '"', "x" * 9_990, "w " * 4_000, "b" * 1_000_000)  # fmt: skip
ODD_JSON = ("null", "true", "0", "-1", "1.5", "1e999", "-0.0", "NaN", "Infinity", "9" * 6_000, "-" + "9" * 30, "[]", "{}", "[[]]", '[""]', '{"a":1,"a":2}', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', "[" * _DEEP, "[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP, "- " * 3_000, '"' + "a" * 5_000 + '"', '"' + "b" * 1_000_000 + '"', "٣", "1_0", "&a [*a]", "*a", "2024-13-45", "!!python/object:os.system x", "!!int x", "!!timestamp x", "? x", "<<: 1", "0b", "1:99", "'", '"', "\ufeff")  # fmt: skip
ODD_BYTES = (*(text.encode("utf-8", "surrogatepass") for text in (*ODD_TEXTS, *ODD_JSON)), b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xff\xfe", b"\r", b"\n\n", b"\x00" * 40, b"\xff" * 8, b"\x7f\xff\xff\xff")  # fmt: skip
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s,:#="\[\]{}]+')


def picked(values: Sequence[Thing]) -> SearchStrategy[Thing]:
    """Return a strategy of these values, without a description that would quote them all."""
    return st.integers(0, len(values) - 1).map(lambda number: values[number])


texts = st.sampled_from(["a dog", "A cat , on grass .", "c\u00e9", "one\n", "x"]) | picked(ODD_TEXTS)
names = st.sampled_from(["a.png", "b.jpg", "dir/c.png", "000000000009.jpg"])
odd_names = names | picked(ODD_TEXTS)
splits = st.sampled_from(["train", "val", "test", "restval", "training", "testing", "dev"])
scalars: SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=9) | texts
things = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@st.composite
def spoiled(draw: DrawFn, source: SearchStrategy[bytes] | bytes, most: int = 3) -> bytes:
    """Return valid bytes with up to `most` edits."""
    data = source if isinstance(source, bytes) else draw(source)
    for _ in range(draw(st.integers(0, most) | st.sampled_from([0, 1]))):
        edit = draw(st.sampled_from(_EDITS))
        data = edit(draw, data)
    return data


def _place(draw: DrawFn, data: bytes) -> int:
    return draw(st.integers(0, min(len(data), draw(st.sampled_from([40, 400, 10**9])))))


def _flip(draw: DrawFn, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def _flip_number(draw: DrawFn, data: bytes) -> bytes:
    at, size = _place(draw, data), draw(st.sampled_from([2, 4, 8]))
    return data[:at] + draw(st.sampled_from([b"\xff", b"\x00", b"\x7f"])) * size + data[at + size :]


def _cut(draw: DrawFn, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _remove(draw: DrawFn, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + data[at + draw(st.integers(1, 50)) :]


def _repeat(draw: DrawFn, data: bytes) -> bytes:
    at, size = _place(draw, data), draw(st.integers(1, 200))
    return data[:at] + data[at : at + size] * draw(st.sampled_from([2, 3, 100])) + data[at + size :]


def _insert(draw: DrawFn, data: bytes) -> bytes:
    at = _place(draw, data)
    return data[:at] + draw(picked(ODD_BYTES)) + data[at:]


def _replace_token(draw: DrawFn, data: bytes) -> bytes:
    found = [match.span() for match in _TOKENS.finditer(data[:20_000])]
    if not found:
        return data
    begin, end = draw(st.sampled_from(found))
    return data[:begin] + draw(picked(ODD_BYTES)) + data[end:]


def _recode(draw: DrawFn, data: bytes) -> bytes:
    encoding = draw(st.sampled_from(["utf-16", "utf-8-sig", "utf-32", "latin-1"]))
    return data.decode("utf-8", "replace").encode(encoding, "replace")


_EDITS = (_flip, _flip_number, _cut, _remove, _repeat, _insert, _replace_token, _replace_token, _replace_token, _recode)


def write(files: Files, folder: Path) -> None:
    """Write files into a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def file(name: str, source: SearchStrategy[bytes] | bytes, **others: bytes) -> SearchStrategy[Files]:
    """Return a strategy of a file whose valid content is spoiled."""
    return spoiled(source).map(lambda data: {name: data, **others})


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def as_parquet(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """Return a Parquet file of these columns, as texts where Arrow or Parquet cannot hold them."""
    out = pa.BufferOutputStream()
    try:
        pq.write_table(_arrow(columns).replace_schema_metadata(metadata), out)
    except (pa.ArrowException, UnicodeEncodeError):
        return as_parquet(_as_texts(columns), metadata)
    return bytes(out.getvalue())


def _as_arrow_stream(columns: dict[str, Any]) -> bytes:
    """Return a stream of Arrow's format of these columns."""
    out, table = pa.BufferOutputStream(), _arrow(columns)
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _arrow(columns: dict[str, Any]) -> pa.Table:
    try:
        return pa.table({_sent(name): values for name, values in columns.items()})
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):
        return pa.table(_as_texts(columns))


def _as_texts(columns: dict[str, Any]) -> dict[str, list[str]]:
    return {_sent(name): [ascii(value)[:100] for value in values] for name, values in columns.items()}


def _sent(text: str) -> str:
    """Return a text without half surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


# Data sets.


def rows_of(adapter: str, name: str = "", **options: object) -> Callable[[Files, Path], object]:
    """Return a function that reads a data set with an adapter, and uses its rows as the manifest does."""

    def read(files: Files, folder: Path) -> object:
        write(files, folder)
        data = ADAPTERS[adapter].model_validate({"path": folder / name, **options})
        rows = list(data.rows(folder / "generated"))
        for row in rows:
            (folder / row.name).is_file()
        records = [{"name": row.name, "captions": list(row.captions), "split": row.split} for row in rows]
        return pa.Table.from_pylist(records, schema=SCHEMA)

    return read


def _coco_document() -> SearchStrategy[bytes]:
    image = st.fixed_dictionaries({"id": st.integers(1, 9), "file_name": names | odd_names})
    caption = st.fixed_dictionaries({"id": st.integers(1, 99), "image_id": st.integers(1, 9), "caption": texts})
    return st.builds(
        lambda images, captions: as_json({"info": {}, "images": images, "annotations": captions}),
        st.lists(image, min_size=1, max_size=3, unique_by=lambda item: item["id"]),
        st.lists(caption, max_size=3),
    )


def _karpathy_document() -> SearchStrategy[bytes]:
    sentence = st.fixed_dictionaries({"raw": texts, "tokens": st.just(["a"]), "sentid": st.integers(0, 9)})
    image = st.fixed_dictionaries(
        {"filename": odd_names, "split": splits, "sentences": st.lists(sentence, min_size=1, max_size=3)},
        optional={"filepath": odd_names | things.filter(lambda value: not _has_bytes(value))},
    )
    return st.lists(image, max_size=3).map(lambda images: as_json({"images": images, "dataset": "coco"}))


def _has_bytes(value: Any) -> bool:
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, bytes) or any(map(_has_bytes, items))


def _table(delimiter: str, header: str) -> bytes:
    lines = [header, "a.jpg,one dog,train", 'b.jpg,"says ""hi""",val', "a.jpg,three,train"]
    return "\n".join(line.replace(",", delimiter) for line in lines).encode()


def _records() -> SearchStrategy[dict[str, list[Any]]]:
    value = odd_names | things
    column = st.lists(value, min_size=2, max_size=2)
    good = st.fixed_dictionaries(
        {"image": st.just(["a.jpg", "b.jpg"]), "caption": st.lists(texts, min_size=2, max_size=2)},
        optional={"split": st.just(["train", "val"])},
    )
    return good | st.dictionaries(
        st.sampled_from(["image", "caption", "split", "\ud800", "x" * 5_000]), column, min_size=1
    )


def _tar(members: list[tuple[str, bytes]], form: int, encoding: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding=encoding, errors="surrogateescape") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            try:
                tar.addfile(info, io.BytesIO(data))
            except (ValueError, UnicodeError):  # the format cannot hold this name
                continue
    return out.getvalue()


_TINY = Image.new("RGB", (8, 8), (9, 0, 90))


def encoded(form: str = "PNG", image: Image.Image = _TINY) -> bytes:
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def _tars() -> SearchStrategy[Files]:
    stem = st.sampled_from(["000000001", "000000002", "b/a", "a" * 300, "caf\udce9", "..", "", "../../x", "/tmp/x", "a\x00b"])  # fmt: skip
    suffix = st.sampled_from(["png", "txt", "json", "", "jpg", "tar.gz", "a" * 300, "PNG"])
    data = st.sampled_from([encoded(), b"a dog", b'{"caption": "a cat", "split": "val"}', b"\xff", *ODD_BYTES[-60:]])
    member = st.tuples(st.builds("{}.{}".format, stem, suffix), data)
    sample = stem.map(lambda key: [(f"{key}.png", encoded()), (f"{key}.txt", b"a dog"), (f"{key}.json", b'{"caption": "a"}')])  # fmt: skip
    members = st.builds(lambda one, more: one + more, sample, st.lists(member, max_size=3))
    tars = st.builds(_tar, members, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]), st.sampled_from(["utf-8", "latin-1"]))  # fmt: skip
    return file("00000.tar", tars)


def _web_rows(files: Files, folder: Path) -> None:
    """Read the tar files by their .txt, and by a field of their .json."""
    rows_of("webdataset")(files, folder)
    rows_of("webdataset", caption_field="caption")(files, folder)


_STATE: dict[str, Any] = {"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "a", "_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": "train"}  # fmt: skip
_FEATURES = {"image": {"_type": "Image"}, "caption": {"dtype": "string", "_type": "Value"}}


def _images(image: dict[str, Any]) -> pa.Array:
    return pa.array([image], pa.struct({"bytes": pa.binary(), "path": pa.string()}))


@st.composite
def _hugging_face(draw: DrawFn) -> Files:
    path = draw(st.none() | st.sampled_from(["/etc/passwd", "../../secret", "data.arrow", "/dev/zero", "x\x00", "a" * 5_000, "\udcff"]))  # fmt: skip
    data = draw(st.sampled_from([encoded(), None, b"", b"\xff\xd8"]))
    columns = (
        {"image": _images({"bytes": data, "path": _sent(path) if path else None}), "caption": [draw(texts)]}
        if draw(st.integers(0, 3))
        else draw(_records())
    )
    if draw(st.booleans()):
        info = as_json({"features": _FEATURES})
    else:
        info = draw(spoiled(as_json({"features": _FEATURES}), 1))
    edits = 1 if draw(st.integers(0, 4)) == 0 else 0
    return {
        "data.arrow": draw(spoiled(_as_arrow_stream(columns), edits)),
        "dataset_info.json": info,
        "state.json": draw(spoiled(as_json(_STATE), 1 - edits)),
    }


def _torch_file(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


@st.composite
def _coco_pt(draw: DrawFn) -> Files:
    odd: SearchStrategy[Any] = st.sampled_from(
        [None, "x", 3, float("nan"), [], {}, torch.zeros(2), torch.zeros(1, 3, 8, 8)]
    )
    words: Any = [*SPECIAL, "a", "dog", draw(st.sampled_from(["red"] * 9 + [3, None, "\ud800", b"x", ["x"]]))]
    if draw(st.booleans()):
        words = dict(enumerate(words))
        words[draw(st.sampled_from([6, 6, 6, 6, "x", None, 1.5]))] = "blue"
    kind = draw(st.sampled_from([torch.int64] * 9 + [torch.float32, torch.bool, torch.complex64, torch.uint8]))
    ids = torch.tensor([[1, 4, 5, draw(st.sampled_from([0, 3, 4, 5, 6, -1, 7, 2**40])), 2, 0]]).to(kind)
    if kind is torch.float32:
        ids[0, 1] = draw(st.sampled_from([1.5, float("nan"), float("inf"), 4.0]))
    document = {
        "train_images": torch.zeros(1, 3, 8, 8, dtype=draw(st.sampled_from([torch.uint8] * 9 + [torch.float32]))),
        "train_captions": ids,
        "vocab": {"idx_to_token": words},
    }
    if draw(st.integers(0, 9)) == 9:
        document[draw(st.sampled_from(list(document)))] = draw(odd)
    return {"coco.pt": draw(spoiled(_torch_file(document), draw(st.sampled_from([0, 2]))))}


@st.composite
def _arrays(draw: DrawFn) -> Files:
    """Grids, and captions as an array of objects; more often than not one of the two is spoiled."""
    shape = draw(
        st.sampled_from([(2, 3, 3, 5), (2, 5, 3, 3), (2, 5, 9), (2, 9, 5), (2, 3), (0, 3, 3, 5), (2, 3, 3, 3)])
    )
    kind = draw(st.sampled_from([np.float32, np.float16, np.float64, np.int64, np.complex64]))
    row = texts | st.lists(texts, max_size=3) | st.sampled_from([None, 3, b"x", [1], {"a": 1}, np.str_("a dog")])
    said = np.empty(draw(st.sampled_from([2, 2, 2, 1])), dtype=object)
    for number in range(len(said)):
        said[number] = draw(row)
    captions = _npy(said) if draw(st.booleans()) else _npy(np.array(["a dog", "a cat"]))
    return {"grids.npy": draw(spoiled(_npy(np.ones(shape, kind)))), "captions.npy": draw(spoiled(captions))}


def _read_arrays(files: Files, folder: Path) -> object:
    (grids,) = [name for name in files if name.startswith("grids")]
    return rows_of("arrays", grids, captions=folder / "captions.npy")(files, folder)


_TOKENS_FILE = b"a.jpg#0\tA dog .\na.jpg#1\tTwo dogs , on grass .\nb.jpg#0\tA cat .\n"


# The config and the command line.


_CONFIG = b"""name: mine
preset: demo
about: one line
data: {adapter: scenes, path: data, pictures: 60}
grids: {backbone: tiny, weights: "random:0", image_size: 64}
captions:
  min_count: 1
  units: words
training:
  epochs: 2
  learning_rate: 0.005
evaluation: {beam: 2}
machine: {workspace: here, device: cpu, dask_resources: {GPU: 1}}
"""


def _read_config(files: Files, folder: Path) -> object:

    write(files, folder)
    config = load(str(folder / "config.yaml"))
    return config.data.key_part(), config.workspace, _keys(config)


def _read_overrides(overrides: list[str], folder: Path) -> object:

    config = load("demo", [f"machine.workspace={folder}", *overrides])
    return config.data.key_part(), config.workspace, _keys(config)


def _keys(config: Any) -> object:
    """Return what digests and files hold of a config."""

    return config.model_dump_json().encode(), digest_of(config.captions.key_part()), digest_of(config.data.key_part())


def _overrides() -> SearchStrategy[list[str]]:
    path = st.sampled_from(["training.epochs", "evaluation.beam", "machine.shard_rows", "captions.tokeniser", "data.seed", "name", "grids", "a", "about", "", ".", "machine.workspace", "preset", "training.learning_rate", "\ud800", "x" * 5_000])  # fmt: skip
    value = st.sampled_from(["3", "1e-3", "words", "{a: 1}", "{a: 1, a: 2}", *ODD_TEXTS, *ODD_JSON])
    return st.lists(st.builds("{}={}".format, path, value) | picked(ODD_TEXTS), min_size=1, max_size=2)


def _read_port(text: str, _: Path) -> object:
    """Parse a command's port; a number that is not in plain digits must not be taken."""
    import typer

    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    try:
        port = command.make_context("serve", [f"--port={text}"], resilient_parsing=False).params["port"]
    except Exception as error:
        if hasattr(error, "format_message"):  # Click's usage error: the command line prints it, and exits with 2
            raise Refusal(f"--port: {error.format_message()[: LONGEST // 2]!r}") from None
        raise
    assert re.fullmatch(r"[+-]?[0-9]+", text.strip(), re.ASCII), f"{text!r} was taken as {port}"
    return port


# Pictures.


@functools.cache
def _pictures() -> tuple[bytes, ...]:
    modes = {"RGB": ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"), "P": ("PNG", "GIF"), "RGBA": ("PNG", "WEBP"), "I;16": ("PNG", "TIFF"), "CMYK": ("JPEG",), "1": ("PNG", "BMP"), "F": ("TIFF",)}  # fmt: skip
    results = []
    for mode, forms in modes.items():
        image = Image.new("I;16", (9, 8)) if mode == "I;16" else _TINY.resize((9, 8)).convert(mode)
        results += [encoded(form, image) for form in forms]
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    _TINY.save(out, "JPEG", exif=exif, progressive=True)
    return (*results, out.getvalue())


def bomb(side: int, rows: int, depth: int = 8) -> bytes:
    """Return a PNG that says it is `side` x `side` px of `depth` bits, grey, and holds a few rows."""
    data = zlib.compress(bytes(rows * (side * depth // 8 + 1)), 9)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    parts = (struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body)) for tag, body in chunks)  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _read_picture(data: bytes, _: Path) -> object:
    """Look at a picture as the server does, and decode it as extraction does."""
    refused = None
    for look in (admit, decode):
        try:
            result = look(data)
        except ValueError as error:
            refused = Refusal(f"picture: {error}")
    if refused is not None:
        raise refused
    return result


# Grids of others.


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=array.dtype == object)
    return out.getvalue()


def _npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


_odd_ids = st.sampled_from([np.array(["a", "b"]), np.array([b"a", b"\xff"]), np.array([1, 2]), np.array([[1, 2]]), np.array(7), np.array(["a\ud800", "b"]), np.array([1.5, np.nan]), np.array(["9" * 6_000, "٣"]), np.array(["a"]), np.array([True, False]), np.array(["2024", "x"], dtype="U9"), np.zeros(2, [("x", int)]), np.array(["2024-01"] * 2, "M8[D]")])  # fmt: skip
_grids = st.sampled_from([np.zeros((2, 3, 3, 5), np.float32), np.zeros((2, 5, 3, 3), np.float64), np.full((2, 3, 3, 5), np.nan, np.float16), np.zeros((2, 3, 3, 3), np.float32), np.zeros((2, 3, 3, 5), int), np.zeros((0, 3, 3, 5), np.float32), np.zeros((2, 0, 0, 5), np.float32), np.zeros((2, 3), np.float32), np.zeros((2, 3, 3, 5), np.complex64), np.zeros((2, 3, 3, 5), np.longdouble)])  # fmt: skip

_TWO_CAPTIONS = _npy(np.array([["a dog"], ["a cat"]], dtype=object))


@st.composite
def _npz_files(draw: DrawFn) -> Files:
    whole = _npz(grids=draw(_grids), ids=draw(_odd_ids))
    return {"grids.npz": draw(spoiled(whole, draw(st.sampled_from([0, 2])))), "captions.npy": _TWO_CAPTIONS}


def hdf5(kind: str, grids: Any, ids: Any) -> bytes:
    """Return an HDF5 file of grids. kind: how it refers to what lies outside it, or `plain`."""
    out = io.BytesIO()
    with h5py.File(out, "w") as into:
        if kind == "link":
            into["grids"] = h5py.ExternalLink("/etc/hostname", "/grids")
        elif kind == "linked ids":
            into["ids"] = h5py.ExternalLink("other.h5", "/ids")
        elif kind == "external":
            into.create_dataset("grids", (2, 3, 3, 5), np.float32, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((2, 3, 3, 5), np.float32)
            layout[:] = h5py.VirtualSource("other.h5", "grids", (2, 3, 3, 5))
            into.create_virtual_dataset("grids", layout)
        elif kind == "huge":
            into.create_dataset("grids", (2**40, 3, 3, 5), np.float32, chunks=(1, 3, 3, 5))
            into.create_dataset("ids", (2**40,), np.int64, chunks=(9,))
        elif kind == "soft":
            into["grids"] = h5py.SoftLink("/nowhere")
        elif kind == "loop":
            into["grids"] = h5py.SoftLink("/grids")
        if not into.id.links.exists(b"grids"):  # `in` follows links
            into["grids"] = grids
        if not into.id.links.exists(b"ids"):
            into["ids"] = np.char.encode(ids, "utf-8", "replace") if ids.dtype.kind == "U" else ids
    return out.getvalue()


def in_hdf5(kind: str) -> Files:
    """Return the files of two grids, their captions, and a file that the HDF5 file may refer to; kind: see `hdf5`."""
    two = np.ones((2, 3, 3, 5), np.float32), np.array([1, 2])
    return {"grids.h5": hdf5(kind, *two), "other.h5": hdf5("plain", *two), "captions.npy": _TWO_CAPTIONS}


@st.composite
def _hdf5_files(draw: DrawFn) -> Files:
    kind = draw(st.sampled_from(["plain"] * 4 + ["link", "linked ids", "external", "virtual", "huge", "soft", "loop"]))
    ids = draw(_odd_ids.filter(lambda ids: ids.dtype.kind != "M"))
    other = hdf5("plain", np.ones((2, 3, 3, 5), np.float32), np.array([1, 2]))
    whole = draw(spoiled(hdf5(kind, draw(_grids), ids), draw(st.sampled_from([0, 2]))))
    return {"grids.h5": whole, "other.h5": other, "captions.npy": _TWO_CAPTIONS}


# What the pipeline itself has written.


def _read_shard(files: Files, folder: Path) -> object:

    write(files, folder)
    shard = read_shard(folder / "shard-00000.parquet")
    return shard.damage(verify=True), set(shard.digests)


def _shards() -> SearchStrategy[Files]:
    metadata = as_json({"format": 1, "identity": "i", "size": 4, "sha256": "0" * 64})
    digests = st.lists(st.none() | st.sampled_from(["a", "b"]), max_size=2) | st.lists(st.integers(), max_size=2)
    whole = st.builds(
        lambda ids, meta: as_parquet(
            {"digest": ids, "row": [0] * len(ids)}, {"attend": meta.decode("utf-8", "replace")}
        ),
        digests,
        spoiled(metadata, 1),
    )
    return file("shard-00000.parquet", whole, **{"shard-00000.h5": b"grid"})


def _read_predictions(files: Files, folder: Path) -> object:

    write(files, folder)
    return read_predictions(folder / "predictions.parquet")


def _predictions() -> SearchStrategy[Files]:
    facts = st.lists(st.sampled_from([None, "{}", "{", "[" * _DEEP, "9" * 6_000]), min_size=1, max_size=1)
    good = st.fixed_dictionaries({
        "digest": st.just(["d"]),
        "caption": st.lists(texts.filter(lambda text: len(text) < 99_999), min_size=1, max_size=1),
        "references": st.just([["a dog", "a cat"]]) | st.lists(things, min_size=1, max_size=1),
        "facts": facts,
    })  # fmt: skip
    return file("predictions.parquet", good.map(as_parquet))


def _odd_predictions() -> tuple[Files, ...]:
    good = {"digest": ["d"], "caption": ["a dog"], "references": [["a dog"]], "facts": [None]}
    whole = as_parquet(good)
    odd: tuple[dict[str, list[Any]], ...] = (
        *({"facts": [text]} for text in ("{", "[" * _DEEP, "9" * 6_000)),
        *({"references": [value]} for value in (None, [1], [None])),
        {"caption": [None]},
        {"digest": [[1]]},
    )
    spoilt = (as_parquet({**good, **columns}) for columns in odd)
    no_utf_8 = whole.replace(b"digest", b"d\xffgest")  # names of columns
    return tuple({"predictions.parquet": data} for data in (*spoilt, whole[:4] + b"\xff" * 30 + whole[34:], no_utf_8))


def _read_ledger(files: Files, folder: Path) -> object:

    write(files, folder)
    ledger = Ledger.read(folder)
    if ledger is None:
        raise Refusal(f"{folder}: no ledger")
    return Artifact(folder, ledger).files(folder), differences(ledger.parts, ledger.parts), dict(ledger.products)


_LEDGER = as_json({"stage": "ingest", "key": "k", "parts": {"stage": "ingest", "version": 1, "config": {"data": {"a": 1}}, "upstream": {}, "inputs": {}}, "products": {"train": "0"}, "files": {"f": {"size": 1, "sha256": "0"}}, "shared": {}, "counts": {"n": 1}, "notes": [], "seconds": 1.5, "versions": {}, "made_from": {}, "format": 1})  # fmt: skip
_IDENTITY = {"backbone": "tiny", "weights": "w", "image_size": 64, "fit": "squash", "grid": None, "precision": "float32", "version": 2, "dtype": "float16", "format": 1}  # fmt: skip


def _read_identity(files: Files, folder: Path) -> object:

    own = GridStore(folder, Identity(**_IDENTITY))  # type: ignore[arg-type]
    write({f"{own.folder.name}/identity.json": files["identity.json"]}, folder)
    found = [store.identity.digest for store in stores(folder)]
    own.open()
    return found


def _read_scored(files: Files, folder: Path) -> object:
    write(files, folder)
    return corpus_of(folder / "results.json", folder / "annotations.json")


_RESULTS = as_json([{"image_id": 1, "caption": "a dog"}, {"image_id": "x", "caption": "a cat"}])
_ANNOTATIONS = as_json({"images": [{"id": 1}, {"id": "x"}], "annotations": [{"image_id": 1, "caption": "dogs"}, {"image_id": "x", "caption": "cats"}]})  # fmt: skip


@st.composite
def _weights(draw: DrawFn) -> Files:
    state: dict[str, Any] = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float16)}
    whole = safetensors.numpy.save(state)
    size = struct.unpack("<Q", whole[:8])[0]
    if draw(st.booleans()):
        header = draw(spoiled(whole[8 : 8 + size]))
        return {"w.safetensors": struct.pack("<Q", len(header)) + header + whole[8 + size :]}
    if draw(st.booleans()):
        return {"w.safetensors": draw(spoiled(whole))}
    document: Any = draw(st.sampled_from([{"a": torch.zeros(2)}, {"state_dict": {"a": 1}}, [], 3, {"state_dict": {}}]))
    return {"w.pth": draw(spoiled(_torch_file(document), 2)) if draw(st.booleans()) else pickle.dumps(document)}


def _read_weights(files: Files, folder: Path) -> object:

    write(files, folder)
    return _file_state(str(folder / next(iter(files))))


# Words.


def _read_captions(given: tuple[list[str], CaptionsConfig], folder: Path) -> object:
    """Read captions with an adapter, and turn them into token ids and words as `tensorise` and `evaluate` do."""

    captions, config = given
    lines = [as_json({"file_name": f"{number}.png", "text": text}) for number, text in enumerate(captions)]
    pictures = {f"{number}.png": b"" for number in range(len(captions))}
    write({"metadata.jsonl": b"\n".join(lines), **pictures}, folder)
    texts = [
        text for row in ADAPTERS["imagefolder"].model_validate({"path": folder}).rows(folder) for text in row.captions
    ]
    words = [tokenisers.tokeniser(config.tokeniser)(text) for text in texts]
    for text in texts:
        " ".join(tokenize(text))
    pairs = tokenisers.BytePairs(words, config) if config.units == "bpe" else None
    units = [pairs(text) for text in words] if pairs else words
    vocabulary = build_vocabulary(units, config, pairs.pairs() if pairs else [])
    ids = [vocabulary.encode(text, config.max_tokens) for text in units]
    return Vocabulary.from_json(vocabulary.to_json()), [vocabulary.decode(row) for row in ids]


def _captions() -> SearchStrategy[tuple[list[str], CaptionsConfig]]:
    kinds = [(units, name) for units in ("words", "bpe") for name in sorted(TOKENISERS)]
    kinds.remove(("bpe", "unicode"))  # a config refuses these two together
    config = st.builds(
        lambda kind, merges: CaptionsConfig(units=kind[0], tokeniser=kind[1], min_count=1, merges=merges),
        st.sampled_from(kinds),
        st.sampled_from([1, 50, 4000]),
    )
    chars = st.text(st.characters(exclude_categories=[]), max_size=30)
    repeated = st.builds(lambda text, times: text * (times // max(len(text), 1)), chars, st.sampled_from([100, 9_000]))
    return st.tuples(st.lists(texts | chars | repeated, min_size=1, max_size=3), config)


# HTTP.

KNOWN = {"beam_size": int, "n_best": int, "temperature": float, "top_p": float, "return_attention": bool}
_BODY = as_json({"inputs": ["QUJD", "iVBORw=="], "params": {"beam_size": 3, "return_attention": True}})
_FRAME = as_json({"dataframe_split": {"columns": ["id", "image"], "data": [[1, "QUJD"]]}, "params": {"top_p": 0.5}})
_CSV = b"id,image\n1,QUJD\n2,QUJD\n"
_media = st.sampled_from(["application/json", "text/csv", "application/json; charset=utf-16", "text/plain"])


_odd_parameters = st.sampled_from([text for text in ODD_TEXTS if len(text) < 20_000])


def _bodies() -> SearchStrategy[tuple[str, bytes]]:
    params = st.dictionaries(st.sampled_from([*KNOWN]) | _odd_parameters, st.integers() | st.floats() | _odd_parameters)
    whole = params.map(lambda values: as_json({"inputs": ["QUJD"], "params": values}))
    given = st.tuples(st.just("application/json"), spoiled(_BODY) | spoiled(_FRAME) | whole) | st.tuples(st.just("text/csv"), spoiled(_CSV))  # fmt: skip
    return given | st.tuples(_media, spoiled(_BODY))


def _refused(why: str) -> Refusal:
    """Return the refusal that an HTTP error is: as JSON, in which control characters are no danger."""
    assert len(why.splitlines()) == 1, f"{why!r} is not one line"
    return Refusal(f"request: {why!a}")


def _read_body(given: tuple[str, bytes], _: Path) -> object:

    try:
        request = parse(*given, Limits(pictures=8))
    except RefusedError as error:
        assert 400 <= error.status < 500
        raise _refused(error.why) from None
    for name, value in request.params.items():
        assert type(value) is KNOWN[name]
    return request


def _requests() -> SearchStrategy[tuple[str, dict[str, str], str, bytes]]:
    """Return a strategy of path, query, Content-Type and body."""
    query = st.dictionaries(
        st.sampled_from([*KNOWN, "x"]) | _odd_parameters, _odd_parameters | st.just("3"), max_size=2
    )
    single = st.tuples(st.just("/caption"), query, st.just("image/png"), st.deferred(lambda: spoiled(encoded())))
    return single | _bodies().map(lambda given: ("/invocations", cast(dict[str, str], {}), *given))


@functools.cache
def _client() -> Any:
    """Return a client of the server with a model that needs no registry."""
    from starlette.testclient import TestClient

    about = SimpleNamespace(model="fake", version="1", parameters=list(KNOWN))
    current = SimpleNamespace(uri="models:/fake/1", about=about)
    served = SimpleNamespace(
        current=current,
        failure=None,
        watch=lambda: None,
        stop=lambda: None,
        predict=lambda pictures, _: [failed("") for _ in pictures],
    )
    app = Server(cast(Any, served), Limits(body=3_000_000, pictures=8), 4, {"localhost"}).app()
    client = TestClient(app, base_url="http://localhost")
    client.__enter__()  # one event loop for all requests
    return client


def _ask(given: tuple[str, dict[str, str], str, bytes], _: Path) -> object:
    path, query, media_type, body = given
    query = {_sent(name): _sent(value) for name, value in query.items()}
    response = _client().post(path, params=query, content=body, headers={"Content-Type": media_type})
    told = response.json()
    assert response.status_code == 200 or 400 <= response.status_code < 500, (response.status_code, told)
    if response.status_code != 200:
        raise _refused(told["error"])
    return told


_SURROGATE = b'"\\ud800"'
_LONG = b'"' + b"a" * 5_000 + b'.png"'
_JSON_FOUND = (b"[" * _DEEP, b"9" * 6_000, _SURROGATE, _LONG)


def _laughs() -> bytes:
    """Return a list of YAML that stands for ten to the fifteenth texts."""
    lists = ["&a0 [x, x, x, x, x, x, x, x, x, x]"]
    lists += [f"&a{level} [" + f"*a{level - 1}, " * 9 + f"*a{level - 1}]" for level in range(1, 15)]
    return f"[{', '.join(lists)}]".encode()


def _in_coco(value: bytes, field: bytes = b'"a.png"') -> Files:
    whole = b'{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"id": 1, "image_id": 1, "caption": "x"}]}'
    return {"annotations/captions_val2017.json": whole.replace(field, value)}


def _in_karpathy(value: bytes, field: bytes = b'"a.png"') -> Files:
    whole = b'{"images": [{"filepath": "d", "filename": "a.png", "split": "val", "sentences": [{"raw": "x"}]}]}'
    return {"dataset_coco.json": whole.replace(field, value)}


def in_jsonl(name: bytes, caption: bytes = b"x") -> Files:
    """Return a data set of one row. name: of its picture, as JSON."""
    return {"metadata.jsonl": b'{"file_name": %s, "text": "%s"}' % (name, caption)}


def _tensors(**changes: Any) -> Files:
    words = [*SPECIAL, "a", "dog"]
    document: dict[str, Any] = {"train_images": torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "train_captions": torch.tensor([[1, 4, 2]]), "vocab": {"idx_to_token": words}}  # fmt: skip
    return {"coco.pt": _torch_file(document | changes)}


def pictured(path: str) -> Files:
    """Return a data set of one row, which names its picture by a path."""
    columns = {"image": _images({"bytes": None, "path": path}), "caption": ["a"]}
    return {"data.arrow": _as_arrow_stream(columns), "dataset_info.json": as_json({"features": _FEATURES}), "state.json": as_json(_STATE)}  # fmt: skip


def _sample(key: str, encoding: str = "utf-8") -> Files:
    return {"00000.tar": _tar([(f"{key}.png", encoded()), (f"{key}.txt", b"a")], tarfile.GNU_FORMAT, encoding)}


def _torn_pictured() -> Files:
    """Return a data set whose texts are said to lie a GiB beyond the end of the file."""
    files = pictured("a" * 33)
    return files | {"data.arrow": files["data.arrow"].replace(struct.pack("<ii", 0, 33), struct.pack("<ii", 0, 2**30))}


def _vast_sample() -> Files:
    """Return a tar file with a member that is said to have eight TiB."""
    info = tarfile.TarInfo("1.png")
    info.size = 2**43
    return {"00000.tar": info.tobuf(tarfile.GNU_FORMAT) + bytes(2048)}


READERS: tuple[Reader, ...] = (
    Reader(
        "coco",
        file("annotations/captions_train2017.json", _coco_document()),
        rows_of("coco"),
        found=(*map(_in_coco, _JSON_FOUND), _in_coco(b"[" * _DEEP, b'"x"'), _in_coco(b"9" * 6_000, b"1")),
    ),
    Reader(
        "karpathy",
        file("dataset_coco.json", _karpathy_document()),
        rows_of("karpathy"),
        found=(*map(_in_karpathy, _JSON_FOUND), _in_karpathy(b"[]", b'"d"'), _in_karpathy(_SURROGATE, b'"d"')),
    ),
    Reader(
        "csv",
        file("t.csv", _table(",", "image,caption,split")),
        rows_of("table", "t.csv"),
        found=({"t.csv": b"image,caption\n" + b"a" * 5_000 + b",x\n"}, {"t.csv": b"image,caption\n\x00,x\n"}),
    ),
    Reader("tsv", file("t.tsv", _table("\t", "image,caption,split")), rows_of("table", "t.tsv")),
    Reader(
        "jsonl",
        file(
            "metadata.jsonl",
            b'{"file_name": "x.png", "text": "one"}\n{"file_name": "y.png", "text": ["two"], "split": "val"}',
        ),
        rows_of("imagefolder"),
        found=tuple(map(in_jsonl, _JSON_FOUND)),
    ),
    Reader("parquet", file("t.parquet", _records().map(as_parquet)), rows_of("table", "t.parquet")),
    Reader(
        "flickr8k",
        spoiled(_TOKENS_FILE).flatmap(
            lambda tokens: file("Flickr_8k.trainImages.txt", b"a.jpg\nb.jpg\n", **{"Flickr8k.token.txt": tokens})
        ),
        rows_of("flickr8k"),
        found=(
            {"Flickr8k.token.txt": "a.jpg#²\tA dog .".encode()},
            {"Flickr8k.token.txt": b"a.jpg#" + b"1" * 6_000 + b"\tA dog ."},
            {"Flickr8k.token.txt": b"a" * 5_000 + b".jpg#1\tA dog ."},
        ),
    ),
    Reader("flickr30k", file("results_20130124.token", _TOKENS_FILE), rows_of("flickr30k")),
    Reader("texts", file("a.txt", spoiled(b"A dog runs.\nIt is brown.\n"), **{"a.png": encoded()}), rows_of("texts")),
    Reader(
        "texts of JSON",
        file("a.json", spoiled(b'{"caption": ["a dog", "a brown dog"]}'), **{"a.png": encoded()}),
        rows_of("texts", suffix=".json"),
    ),
    Reader(
        "webdataset",
        _tars(),
        _web_rows,
        found=(_vast_sample(), _sample("a" * 300), _sample("caf\udce9"), _sample("caf\xe9", "latin-1")),
    ),
    Reader(
        "huggingface",
        _hugging_face(),
        rows_of("huggingface"),
        found=(_torn_pictured(), pictured("/etc/passwd"), pictured("x\x00"), pictured("a" * 5_000)),
    ),
    Reader(
        "coco.pt",
        _coco_pt(),
        rows_of("coco_pt", "coco.pt"),
        found=(
            _tensors(train_captions=torch.tensor([[1, 4.5, 2]])),
            _tensors(vocab={"idx_to_token": [*SPECIAL, 3]}),
            _tensors(vocab={"idx_to_token": dict(enumerate(SPECIAL)) | {"x": "a"}}),
        ),
    ),
    Reader("arrays", _arrays(), _read_arrays),
    Reader(
        "config",
        file("config.yaml", _CONFIG),
        _read_config,
        found=(
            {"config.yaml": b"a: " + b"[" * 5_000},
            {"config.yaml": b"a: " + b"9" * 6_000},
            {"config.yaml": b"preset: demo\nevaluation: &e {metrics: [*e, bleu], beam: *e}"},
            {"config.yaml": b"preset: demo\ngrids: " + _laughs()},
            {"config.yaml": b"a: 2024-13-45"},
            {"config.yaml": b"preset: " + b"a" * 5_000 + b".yaml"},
            {"config.yaml": b"preset: demo\nname: \xff"},
            {"config.yaml": b'preset: demo\nabout: "\\ud800"'},
        ),
    ),
    Reader(
        "overrides",
        _overrides(),
        _read_overrides,
        mentions=("demo:", "override", "=", "x" * 99),
        found=(
            ["training.epochs=" + "[" * 5_000],
            ["data.seed=" + "9" * 6_000],
            ["about=\ud800"],
            ["training=" + "a" * 9_000],
        ),
    ),
    Reader(
        "port",
        picked(ODD_TEXTS) | st.integers(0, 70_000).map(str),
        _read_port,
        mentions=("--port",),
        found=("1_0", "٣"),
    ),
    Reader(
        "pictures",
        st.deferred(lambda: spoiled(st.sampled_from(_pictures())))
        | st.builds(
            bomb, st.sampled_from([3_000, 12_000, 30_000]), st.sampled_from([1, 300]), st.sampled_from([1, 8, 16])
        ),
        _read_picture,
        mentions=("picture",),
    ),
    Reader("npz", _npz_files(), _read_arrays),
    Reader(
        "hdf5",
        _hdf5_files(),
        _read_arrays,
        found=tuple(in_hdf5(kind) for kind in ("link", "linked ids", "external", "virtual", "huge", "soft", "loop")),
    ),
    Reader("shard index", _shards(), _read_shard),
    Reader("predictions", _predictions(), _read_predictions, found=_odd_predictions()),
    Reader(
        "results",
        file("results.json", _RESULTS, **{"annotations.json": _ANNOTATIONS})
        | file("annotations.json", _ANNOTATIONS, **{"results.json": _RESULTS}),
        _read_scored,
    ),
    Reader(
        "ledger",
        file("ledger.json", _LEDGER),
        _read_ledger,
        found=(
            {"ledger.json": b"[" * _DEEP},
            {"ledger.json": _LEDGER.replace(b'"products": {"train": "0"}', b'"products": 3')},
        ),
    ),
    Reader(
        "identity",
        file("identity.json", as_json(_IDENTITY)),
        _read_identity,
        found=tuple(
            {"identity.json": data} for data in (b'{"backbone', b"\xff", b"{}", b"3", b"[" * _DEEP, b"9" * 6_000)
        ),
    ),
    Reader("weights", _weights(), _read_weights, found=({"w.pth": b"e\xcc"}, {"w.pth": b"\x80\x02."})),
    Reader(
        "captions",
        _captions(),
        _read_captions,
        found=(
            (["b" * 1_000_000], CaptionsConfig(units="bpe", min_count=1)),
            (["\ud800"], CaptionsConfig(min_count=1)),
        ),
    ),
    Reader(
        "request",
        _bodies(),
        _read_body,
        mentions=("request:",),
        found=(
            ("application/json", b'{"inputs": ["QUJD"], "params": {"beam_size": "1_0"}}'),
            ("application/json", b'{"inputs": ["QUJD"], "params": {"a\\nb": 1}}'),
        ),
    ),
    Reader("server", _requests(), _ask, mentions=("request:",)),
)
BY_NAME = {reader.name: reader for reader in READERS}
