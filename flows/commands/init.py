"""`attend init`: look at a folder or file of captioned pictures, and write a config that reads it."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import yaml

from flows.commands.options import workspace_folder
from tasks.common.errors import AttendError
from tasks.common.wording import counted, counted_by_split, kind_of, listed, shortened

if TYPE_CHECKING:
    from tasks.data.survey import Survey
    from tasks.datasets.base import DatasetOptions

_FEWEST = 20  # pictures, below which one of three splits may be empty, and no score means anything
_FEW = 1_000  # pictures, below which a person is told not to expect much
_UNKNOWN = 0.02  # share of the words of captions that may be too rare for the vocabulary
_NEW = 0.5  # share of the words of held-out captions that train does not have, above which it is told
_CUT = 0.03  # share of the captions that may be longer than captions.max_tokens
_HELD_OUT = 40  # pictures that a test split should have at least, for scores that mean something
_STEPS = 3_000  # of training, about, in all epochs
_JUDGED = 100  # held-out pictures from which gates are written
_GATES = {
    "max_same_caption": 0.5,
    "max_overused_word": 0.5,
    "min_variety": 0.5,
    "min_retrieved": 0.1,
    "max_invented": 0.8,
    "max_slice_loss": 0.2,
}
_USUAL = "flickr8k"
# Of adapters that read the files of a known captioner: the preset of it.
_PRESETS = {"coco_pt": "regnet_attention", "arrays": "googlenet"}
_ABOUT = {
    "flickr8k": "MobileNetV2, and a decoder that attends to its 7x7 grid",
    "regnet_attention": "as the source of coco.pt has it: RegNetX-400MF's 4x4 grids, an LSTM with attention, its words",
    "googlenet": "as the source of such arrays has it: additive attention, captions drawn at random",
}
_WHY_CIDER = "the score by which a new version becomes champion; with few pictures BLEU-4 is often 0"
_WHY_RUNTIMES = "the first is used where it is installed; onnx needs no torch, and starts faster, but takes no GPU"
_UNTOLD = ("adapter", "path", "near_duplicates")  # settings of `data` that are not printed as its form
_LINES = 3  # sample rows
_KINDS = 3  # of invalid rows that are printed
_LISTED = 10  # files that are not read
_SYMBOLS, _PUNCTUATION = 0.2, (".", ",", "-", "!", "?", "&")  # share of words that are symbols, and what is none
_SAMPLE = 200  # rows by whose captions their script is told


class Reviewed(NamedTuple):
    """The folder whose pictures people are asked about, and the file of their answers."""

    answers: Path
    images: Path


def init(
    data: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="a folder of pictures, or a file of captions")],
    out: Annotated[Path | None, typer.Option(help="the file to write; default: NAME.yaml, after the folder")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="weights of the backbone, which is MobileNetV2 for most data: a file, or torchvision's, which are "
            "downloaded once; default: the preset's"
        ),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="the file of captions in FOLDER; default: the one that looks most like captions")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it is there")] = False,
) -> None:
    """Look at what a folder or file holds, and write a config that reads it, with settings that suit its size."""
    from tasks.config.presets import resolve_preset, values_of
    from tasks.data.splits import divides
    from tasks.data.survey import survey
    from tasks.datasets import ADAPTERS
    from tasks.datasets.detection import detect
    from tasks.datasets.sources import with_source

    name = _name_of(data)
    path = out or Path(f"{name}.yaml")
    if not path.parent.is_dir():
        raise AttendError(f"--out: {path}: there is no folder {path.parent}: make it first")
    if path.exists() and not force:
        raise AttendError(f"{path}: already exists: give another name with --out, or replace it with --force")
    options, unread, notes = detect(data, captions)
    adapter = ADAPTERS[options["adapter"]]
    # In the config, what is read is a source beside the answers of people.
    named = partial(with_source, "" if "sources" in options else f"{_source_name(name)}/")
    preset = _preset_for(options["adapter"])
    if adapter.has_grids and weights is not None:
        raise AttendError(f"--weights: {data} holds grids, which need no backbone: leave it out")
    weights = _checked_weights(weights or resolve_preset(values_of(preset))["grids"]["weights"])
    if preset == _USUAL:
        options["near_duplicates"] = "together"
    with tempfile.TemporaryDirectory(prefix="attend-init-") as folder:
        read = adapter.model_validate(options)
        found = survey(read, Path(folder) / "pictures", Path(folder) / "digests.sqlite")
        if len(found.rows) < _FEWEST:
            raise AttendError(
                f"{data}: {counted(len(found.rows), 'captioned picture')}: too few to train, validate and test on: "
                f"{_FEWEST} is the minimum, and captions that read well need some thousands"
                + "".join(f"; {named(line)}" for line in _left_out(found.faults))
            )
    if not divides((row.split for row in found.rows), read):
        options.pop("near_duplicates", None)
    shares = {} if any(row.split is not None for row in found.rows) else _shares(len(found.rows))
    options |= shares
    if shares and found.splits is not None:
        found = found.divided(adapter.model_validate(options))
    alike = 0
    if _empty_splits(found) and options.pop("near_duplicates", None):
        alike = sum(map(len, found.alike or []))
        found = found.divided(adapter.model_validate(options))
    if empty := _empty_splits(found):
        raise AttendError(
            f"{data}: of its {len(found.rows)} pictures none is in the split {listed(empty)}: add some, or a column "
            "or folders that say the split of each (train, validation, test)"
        )
    _tell_how(options, unread, [named(note) for note in notes], shares)
    _tell(found, shares, _unused(data, found), named)
    if alike:
        typer.echo(f"  {alike:,} of them are nearly the same as others: too many to keep these in one split")
    path.write_text(
        _yaml(name, preset, _relative(options, path), _reviewed(read, path), weights, found), encoding="utf-8"
    )
    if _is_named(weights) and not adapter.has_grids:
        typer.echo(
            "  the backbone's weights are downloaded once, by the first run; without a network: attend init --weights "
            "FILE (.safetensors or .pth)"
        )
    typer.echo(f"{path}: written; look at it, and then:\n  attend check {path}\n  attend run {path}")


def _unused(data: Path, found: Survey) -> list[str]:
    """Return the pictures below a folder that no row names; none where a file is given."""
    from tasks.datasets.base import find_pictures

    folder = data.expanduser().absolute()
    if not folder.is_dir():
        return []
    used = {path.absolute() for path in found.paths.values()}
    return [picture.name for picture in find_pictures(folder) if folder / picture.name not in used]


def _reviewed(data: DatasetOptions, config: Path) -> Reviewed | None:
    """Return where people's answers will be; None where the data set is no folder of photographs to ask about."""
    from tasks.datasets.corrections import ANSWERS_FILE

    folders = {part.image_folder(Path()).absolute() for part in data.parts().values() if not part.unpacks}
    if data.has_grids or len(folders) != 1:
        return None
    answers, images = workspace_folder(None) / ANSWERS_FILE, folders.pop()
    return Reviewed(**_relative({"answers": answers, "images": images}, config))


def _has_gpu() -> bool:
    """Return whether the machine has an NVIDIA GPU, by its device file: torch, which would say too, takes seconds."""
    return Path("/dev/nvidia0").exists()


def _name_of(data: Path) -> str:
    """Return the name of a run after its folder or file."""
    stem = data.expanduser().absolute()
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem.name if stem.is_dir() else stem.stem).strip("-_.")
    return words or "captions"


def _source_name(name: str) -> str:
    """Return the name of a source in the config."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _preset_for(adapter: str) -> str:
    """Return the preset for data that an adapter reads."""
    return _PRESETS.get(adapter, _USUAL)


def _is_named(weights: str) -> bool:
    """Return whether weights are torchvision's, which are downloaded."""
    return weights.startswith("torchvision:")


def _shares(pictures: int) -> dict[str, float]:
    """Return the shares of dev and test for pictures that come without splits: a tenth, or more where they are few."""
    share = round(min(0.2, max(0.1, _HELD_OUT / pictures)), 2)
    return {} if share == 0.1 else {"dev_share": share, "test_share": share}


def _checked_weights(weights: str) -> str:
    """Return weights as a config names them: a file by its absolute path. Raises AttendError where there is no file."""
    from tasks.grids.weights import weights_file

    file = weights_file(weights)
    if file is not None and not file.is_file():
        raise AttendError(f"--weights: {file}: no such file: give the file of the backbone's weights")
    return weights if file is None else str(file.absolute())


def _empty_splits(found: Survey) -> list[str]:
    """Return the splits that need pictures and have none."""
    return [] if found.splits is None else [split for split in ("train", "dev") if split not in found.sizes]


def _relative(options: dict[str, Any], config: Path) -> dict[str, Any]:
    """Return the settings of `data` with paths relative to the config's folder, where they lie below it."""
    folder = config.absolute().parent

    def relative(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: relative(item) for name, item in value.items()}
        return value.relative_to(folder) if isinstance(value, Path) and value.is_relative_to(folder) else value

    return {name: relative(value) for name, value in options.items()}


def _shown(value: object) -> str:
    """Return a setting's value as it is printed."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return repr(value) if value is None or not str(value).isprintable() else str(value)


def _tell_how(options: dict[str, Any], unread: list[str], notes: list[str], shares: dict[str, float]) -> None:
    """Print how the data are read, and which files are not. shares: of dev and test, which are printed elsewhere."""
    for note in notes:
        typer.secho(note, fg="yellow")
    for source in options.get("sources", {"": options}).values():
        form = [f"{field} {_shown(value)}" for field, value in source.items() if field not in (*_UNTOLD, *shares)]
        typer.echo(f"{source['path']}: read as {', '.join([source['adapter'], *form])}")
    for line in unread[:_LISTED]:
        typer.echo(f"not read: {line}")
    if len(unread) > _LISTED:
        typer.echo(f"not read: {len(unread) - _LISTED:,} more files")


def _tell(found: Survey, shares: dict[str, float], without: list[str], named: Callable[[str], str]) -> None:
    """Print what a data set holds.

    shares: of dev and test, where they are not the usual tenth. without: pictures that have no caption. named: returns
    a message with the settings as the config names them.
    """
    rows = found.rows
    each = found.captions / len(rows)
    more = "" if found.whole else " (the first; there are more)"
    different = "" if found.distinct == len(rows) else f" ({found.distinct:,} different: some are the same file twice)"
    typer.echo(
        f"  {counted(len(rows), 'picture')}{different} with {counted(found.captions, 'caption')}, {each:.1f} each{more}"
    )
    sizes = counted_by_split(found.sizes)
    if not found.whole:
        typer.echo("  how all of them are divided is known once the first run has unpacked them")
    elif sizes:
        of_few = f" ({shares['dev_share']:.0%} for dev and for test, as they are few)" if shares else ""
        typer.echo(f"  {found.note}{of_few}: {sizes}" if found.note else f"  {sizes}, as the data set divides them")
    for row in rows[:: max(1, len(rows) // _LINES)][:_LINES]:
        others = f" (and {len(row.captions) - 1} more)" if len(row.captions) > 1 else ""
        typer.echo(f"    {row.name}: {shortened(row.captions[0], 70)!r}{others}")
    if without:
        folders = Counter(Path(name).parent.as_posix() for name in without)
        shown = ", ".join(f"{number:,} in {folder}/" for folder, number in folders.most_common(_LISTED))
        typer.echo(
            f"  {counted(len(without), 'other picture')} there without a caption, not used: {shown}, as {without[0]}"
        )
    if len(rows) < _FEW:
        typer.echo(
            "  expect rough captions: 300 photographs of Flickr8k gave BLEU-4 8, its 6,000 give 20 (100 is best)"
        )
    for line in _of_captions(found):
        typer.echo(f"  {line}")
    for line in _left_out(found.faults):
        typer.echo(f"  {named(line)}")


def _left_out(faults: list[str]) -> Iterator[str]:
    """Yield a line for each kind of invalid rows, with the first of each."""
    kinds: dict[str, list[str]] = {}
    for fault in faults:
        kinds.setdefault(kind_of(fault), []).append(fault)
    for own in sorted(kinds.values(), key=len, reverse=True)[:_KINDS]:
        yield f"{counted(len(own), 'invalid row')} left out, such as: {own[0]}"
    if len(kinds) > _KINDS:
        yield f"{len(kinds) - _KINDS} more kinds of invalid rows, which `attend check` lists"


def _of_captions(found: Survey) -> Iterator[str]:
    """Yield what a person should know of the captions: words that training does not know, and markup."""
    from tasks.data.caption_text import markup, unknown_share
    from tasks.data.survey import rough_words

    texts = {
        split: [text for row in found.of_split(split) for text in row.captions] for split in ("train", "dev", "test")
    }
    for split in ("dev", "test") if found.splits is not None else ():
        unknown = unknown_share(texts["train"], texts[split], 1, rough_words)
        if unknown > _NEW:
            yield (
                f"{unknown:.0%} of the words of the captions of {split} are in no caption of train: a model cannot say "
                "them"
            )
    if _are_symbols(" ".join(texts["train"][:_SAMPLE]).split()):
        yield "many words are symbols: the tokeniser whitespace keeps them (captions.tokeniser)"
    tags = markup(text for row in found.rows for text in row.captions)
    if tags:
        shown = ", ".join(f"{tag!r} ({times:,} times)" for tag, times in tags.most_common(3))
        yield f"markup in captions, which a model learns to say: {shown}: remove it"


def _yaml(
    name: str, preset: str, options: dict[str, Any], reviewed: Reviewed | None, weights: str, found: Survey
) -> str:
    """Return the config as commented YAML. reviewed: None for data whose pictures `attend review` cannot show."""
    from tasks.datasets.sources import OF_THE_WHOLE

    of_source = {field: value for field, value in options.items() if field not in OF_THE_WHOLE}
    sources = of_source["sources"] if options["adapter"] == "sources" else {name: of_source}
    lines = [
        f"# Written by `attend init`. Settings that are not here are the preset's (`attend presets {preset}`) or have",
        "# their defaults; `attend settings` lists them all.",
        f"preset: {preset}  # {_ABOUT[preset]}",
        f"name: {_scalar(name)}",
        f"about: captions of the pictures in {name}",
        "data:",
        *(
            _sources(sources, reviewed)
            if reviewed is not None or options["adapter"] == "sources"
            else _settings(of_source, "  ")
        ),
        *_settings({field: value for field, value in options.items() if field in OF_THE_WHOLE}, "  "),
    ]
    if found.faults:
        lines.append(
            f"  on_error: skip  # {counted(len(found.faults), 'row')} not valid: `attend check` lists them; or: stop"
        )
    lines += ["grids:"]
    if options["adapter"] == "arrays":
        lines += [f"  backbone: imported\n  weights: {_scalar(f'imported:{name}')}", "decoder:"]
        lines += ["  pca_dim: null  # the grids' own channels"]
    else:
        lines += [f"  weights: {_scalar(weights)}" + ("  # downloaded once; or a file" if _is_named(weights) else "")]
    if preset == _USUAL:
        lines += _settings_by_size(found)
    elif "test" in found.sizes:
        lines += ["evaluation:", "  split: test"]
    lines += ["registry:", f"  promote_on: cider  # {_WHY_CIDER}"]
    if preset == _USUAL:
        runtimes = "[torch, onnx]" if _has_gpu() else "[onnx, torch]"
        lines += [f"  runtimes: {runtimes}  # {_WHY_RUNTIMES}", *_gates(found)]
    return "\n".join(lines) + "\n"


def _settings(options: Mapping[str, Any], indent: str) -> list[str]:
    return [f"{indent}{field}: {_scalar(value)}" for field, value in options.items()]


def _sources(sources: Mapping[str, Mapping[str, Any]], reviewed: Reviewed | None) -> list[str]:
    """Return the settings of data sets, and of the answers about their pictures, as the sources of the data."""
    from tasks.datasets.corrections import ANSWERS

    lines = ["  adapter: sources", "  sources:"]
    for name, options in sources.items():
        lines += [f"    {_scalar(_source_name(name))}:", *_settings(options, "      ")]
    if reviewed is not None:
        lines += [
            f"    {'people' if 'answers' in sources else 'answers'}:"
            f"  # of `attend review serve {reviewed.images}`: the next run learns from them",
            *_settings({"adapter": ANSWERS, "path": reviewed.answers, "images": reviewed.images}, "      "),
        ]
    return lines


def _settings_by_size(found: Survey) -> list[str]:
    """Return the sections of the usual preset's settings that suit the number and the words of the captions."""
    from models.vocabulary import SPACELESS
    from tasks.data.survey import rough_words

    captions = [rough_words(caption) for row in found.of_split("train") for caption in row.captions]
    texts = " ".join(caption for row in found.rows[:_SAMPLE] for caption in row.captions)
    is_spaceless = len(SPACELESS.findall(texts)) * 2 > sum(map(str.isalpha, texts))
    min_count, words, unknown = _vocabulary(captions)
    is_of_symbols = _are_symbols(texts.split())
    max_tokens, longer = _length(captions)
    evaluated = "test" if found.splits is None or "test" in found.sizes else "dev"
    return [
        "captions:",
        *(["  tokeniser: characters  # words are written without spaces between them"] if is_spaceless else []),
        *(["  tokeniser: whitespace  # many words are symbols, which other tokenisers drop"] if is_of_symbols else []),
        f"  min_count: {min_count}  # about {words:,} words; {unknown:.1%} of what captions say is rarer, and unknown",
        f"  max_tokens: {max_tokens}  # about {longer:.0%} of the captions are longer, and cut",
        *_training(len(captions), len(found.of_split("train"))),
        "evaluation:",
        f"  split: {evaluated}" + ("" if evaluated == "test" else "  # there is no test split"),
        f"  max_length: {max_tokens + 1}",
    ]


def _are_symbols(words: list[str]) -> bool:
    """Return whether many words have no letter and no digit, as in codes."""
    marks = [word for word in words if not any(map(str.isalnum, word)) and word not in _PUNCTUATION]
    return len(marks) > _SYMBOLS * len(words)


def _gates(found: Survey) -> list[str]:
    """Return the settings of `registry` that say what no champion is, where there are pictures enough to say so."""
    held_out = found.sizes.get("test") or found.sizes.get("dev") or 0
    lines = []
    if held_out >= _JUDGED:
        lines += [
            "  # What no champion is, whatever it scores (docs/metrics.md); few pictures would not be enough to say.",
            *(f"  {gate}: {limit:g}" for gate, limit in _GATES.items()),
        ]
    if held_out < 30:
        lines.append(
            f"  # With {counted(held_out, 'held-out picture')} no version is known to be better than another (see "
            "min_pictures): `attend models promote --force` decides."
        )
    return lines


def _vocabulary(captions: list[list[str]]) -> tuple[int, int, float]:
    """Return the largest min_count up to 5 that leaves few words unknown, the words that it keeps, and that share."""
    counts = Counter(word for caption in captions for word in caption)
    total = max(counts.total(), 1)
    for least in (5, 4, 3, 2, 1):
        unknown = sum(count for count in counts.values() if count < least) / total
        if unknown <= _UNKNOWN or least == 1:
            break
    return least, sum(count >= least for count in counts.values()), unknown


def _length(captions: list[list[str]]) -> tuple[int, float]:
    """Return captions.max_tokens, and the share of the captions that are longer."""
    lengths = sorted(map(len, captions)) or [1]
    length = min(60, max(10, lengths[min(len(lengths) - 1, int((1 - _CUT) * len(lengths)))]))
    return length, sum(own > length for own in lengths) / len(lengths)


def _training(captions: int, pictures: int) -> list[str]:
    """Return the sections `decoder` and `training` for a number of captions and pictures to train on."""
    lines = []
    is_small = captions < 5_000
    if is_small:
        lines += ["decoder:  # smaller than the preset's: there are few captions"]
        lines += ["  {embedding: 128, hidden: 256, attention_size: 128, dropout_words: 0.4, dropout_grid: 0.4}"]
    batch = 8 if is_small else 16
    steps = max(1, pictures // batch)  # of an epoch
    epochs = min(60, max(8, round(_STEPS / steps)))
    lines += ["training:", f"  epochs: {epochs}  # at most: see patience"]
    # With few captions the dev score stays at 0 for some epochs before it rises.
    lines += [f"  patience: {12 if is_small else 5}  # training ends after so many epochs without a better dev score"]
    lines += [f"  batch_pictures: {batch}", f"  warmup_steps: {min(100, steps)}"]
    if steps < 1000:
        lines.append(f"  averaging: {round(1 - 1 / max(steps, 10), 3)}  # the mean weights of about one epoch")
    lines.append("  select: cider")
    return lines


def _scalar(value: object) -> str:
    """Return a value as YAML on one line, in JSON's quotes where it needs any: YAML takes a plain `no` for false."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    is_plain = re.fullmatch(r"[A-Za-z/][\w/.@:-]*(?<!:)", text) and yaml.safe_load(text) == text
    return text if is_plain else json.dumps(value if isinstance(value, float) else text, ensure_ascii=False)
