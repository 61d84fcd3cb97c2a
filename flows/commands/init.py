"""`attend init`: examine a folder or file of captioned pictures, and write a config that reads it."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.init_config import (
    BACKBONES,
    SAMPLE,
    USUAL,
    Reviewed,
    Started,
    are_symbols,
    config_text,
    is_downloaded,
    source_name,
)
from flows.commands.options import workspace_folder
from tasks.common.errors import AttendError
from tasks.common.wording import counted, counted_by_split, kind_of, listed, shortened
from tasks.config.starting_point import VOCABULARY

if TYPE_CHECKING:
    from tasks.data.survey import Survey
    from tasks.datasets.base import DatasetOptions

_FEWEST = 20  # pictures: with fewer, one of three splits may be empty, and scores are meaningless
_FEW = 1_000  # pictures: with fewer, a line warns that captions will be rough
_NEW = 0.5  # warn if train lacks a larger share of the words of held-out captions
_HELD_OUT = 45  # pictures of a test split; replacing a champion needs 30, and chance may leave fewer than intended
# Adapter that reads the files of a known captioner -> that captioner's preset; for the others it is USUAL.
_PRESETS = {"coco_pt": "regnet_attention", "arrays": "googlenet"}
_NOT_PRINTED = ("adapter", "path", "near_duplicates")  # settings of `data` that are not printed
_LINES = 3  # sample rows
_KINDS = 3  # kinds of invalid rows printed
_KNOWN = 0.5  # warn if a captioner knows a smaller share of the words
_LISTED = 10  # unread files listed


def init(
    data: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="a folder of pictures, or a file of captions")],
    out: Annotated[Path | None, typer.Option(help="file to write; default: NAME.yaml, named after the folder")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="weights of the backbone (for most data MobileNetV2): a file, or torchvision's, which are downloaded "
            "once; default: the preset's"
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="backbone to use instead of MobileNetV2: lite2 (EfficientNet-Lite2), clip, siglip, dinov2 or convnext "
            "(docs/backbones.md)"
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="CAPTIONER",
            help="start training from this captioner: models:/NAME@ALIAS, or the folder or URL of an exported one; "
            "with a few hundred photographs, this helps more than all other settings",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="with --from models:/...: workspace or MLflow server with the captioner; default: ATTEND_WORKSPACE, "
            "or ./workspace"
        ),
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="caption file in FOLDER; default: the file that looks most like captions")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
) -> None:
    """Examine a folder or file of captioned pictures, and write a config for it, with settings that suit its size."""
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
    # In the config, the data set read here is one source, and people's answers are another.
    named = partial(with_source, "" if "sources" in options else f"{source_name(name)}/")
    preset = _PRESETS.get(options["adapter"], USUAL)
    started = _starting_point(start, store, weights, preset)
    grids = _grids_of(backbone, weights, preset, started, adapter.has_grids)
    if preset == USUAL:
        options["near_duplicates"] = "together"
    with tempfile.TemporaryDirectory(prefix="attend-init-") as folder:
        read = adapter.model_validate(options)
        contents = survey(read, Path(folder) / "pictures", Path(folder) / "digests.sqlite")
        if len(contents.rows) < _FEWEST:
            raise AttendError(
                f"{data}: {counted(len(contents.rows), 'captioned picture')}: too few to train, validate and test on: "
                f"{_FEWEST} is the minimum, and captions that read well need some thousands"
                + "".join(f"; {named(line)}" for line in _left_out(contents.faults))
            )
    given_splits = [row.split for row in contents.rows]
    if not divides(given_splits, read):
        options.pop("near_duplicates", None)
    shares = _shares(given_splits) if contents.whole else {}
    options |= shares
    if shares and contents.splits is not None:
        contents = contents.divided(adapter.model_validate(options))
    alike = 0
    if _empty_splits(contents) and options.pop("near_duplicates", None):
        alike = sum(map(len, contents.alike or []))
        contents = contents.divided(adapter.model_validate(options))
    if empty := _empty_splits(contents):
        raise AttendError(
            f"{data}: of its {len(contents.rows)} pictures none is in the split {listed(empty)}: add some, or a column "
            "or folders that say the split of each (train, validation, test)"
        )
    _print_format(options, unread, [named(note) for note in notes], shares)
    _print_contents(contents, shares, _unused(data, contents), named)
    if len(contents.rows) < _FEW and started is None:
        _print_better_ways(data, with_backbone=backbone is None and preset == USUAL)
    if alike:
        typer.echo(f"  {alike:,} of them are nearly the same as others: too many to keep these in one split")
    path.write_text(
        config_text(name, preset, _relative(options, path), _reviewed(read, path), grids, contents, started),
        encoding="utf-8",
    )
    if started is not None:
        _print_start(started, contents)
    elif is_downloaded(grids["weights"]) and not adapter.has_grids:
        typer.echo(
            f"  the backbone's weights are downloaded once, by the first run; without a network: attend init {data} "
            f"{f'--backbone {backbone} ' if backbone else ''}--weights FILE (.safetensors or .pth)"
        )
    typer.echo(f"{path}: written; look at it, and then:\n  attend check {path}\n  attend run {path}")


def _starting_point(start: str | None, store: str | None, weights: str | None, preset: str) -> Started | None:
    """Return the captioner that --from names; AttendError if there is none, or it does not suit the data."""
    from tasks.registry.starting_points import find_starting_point

    if start is None:
        if store is not None:
            raise AttendError("--store: says where the captioner of --from is: give that too")
        return None
    if weights is not None:
        raise AttendError("--weights: the captioner of --from has its own backbone: leave one of the two out")
    if preset != USUAL:
        raise AttendError("--from: is for photographs, and these data are grids: leave it out")
    if "://" not in start and not start.startswith("models:/"):
        start = str(Path(start).expanduser().absolute())
    if store is not None and "://" not in store:
        store = str(Path(store).expanduser().absolute())
    return Started(start, store, find_starting_point(start, store, workspace_folder(None)))


def _grids_of(
    backbone: str | None, weights: str | None, preset: str, started: Started | None, has_grids: bool
) -> dict[str, Any]:
    """Return the settings of `grids` for the config: the weights, and the backbone if it is not the preset's.

    A weights file is named by its absolute path. has_grids: whether the data are grids. Raises AttendError for an
    unknown backbone or file, and for options that do not go together.
    """
    from tasks.common.errors import suggestion
    from tasks.config.presets import resolve_preset, values_of
    from tasks.grids.weights import weights_file

    if has_grids and weights is not None:
        raise AttendError("--weights: these data are grids, which need no backbone: leave it out")
    if backbone is not None and (started is not None or preset != USUAL):
        raise AttendError("--backbone: is for photographs, and a captioner of --from has its own: leave it out")
    if backbone is not None and backbone not in BACKBONES:
        raise AttendError(
            f"--backbone: {backbone}: give one of {', '.join(BACKBONES)}{suggestion(backbone, BACKBONES)}; others are "
            "set in the config (grids.backbone)"
        )
    grids: dict[str, Any] = resolve_preset(values_of(BACKBONES[backbone] if backbone else preset))["grids"]
    named = {} if backbone is None else grids
    weights = str(weights or grids["weights"])
    file = weights_file(weights)
    if file is not None and not file.is_file():
        raise AttendError(f"--weights: {file}: no such file: give the file of the backbone's weights")
    return {**named, "weights": weights if file is None else str(file.absolute())}


def _print_start(started: Started, survey: Survey) -> None:
    """Print the captioner that training starts from, and the share of the words that it knows."""
    from tasks.data.survey import approximate_words

    vocabulary = set(json.loads((started.point.folder / VOCABULARY).read_text(encoding="utf-8"))["words"])
    words = [word for row in survey.of_split("train") for text in row.captions for word in approximate_words(text)]
    share = sum(word in vocabulary for word in words) / max(len(words), 1)
    typer.echo(
        f"  training starts from {started.point.address}, which knows {share:.0%} of the words of these captions and "
        f"{len(vocabulary):,} in all"
    )
    if share < _KNOWN:
        typer.secho(
            "  that is little: in another language, or of another kind, a training from the beginning may be better "
            "(leave --from out)",
            fg="yellow",
        )


def _unused(data: Path, survey: Survey) -> list[str]:
    """Return the pictures below a folder that no row names; empty if `data` is a file."""
    from tasks.datasets.base import find_pictures

    folder = data.expanduser().absolute()
    if not folder.is_dir():
        return []
    used = {path.absolute() for path in survey.paths.values()}
    return [picture.name for picture in find_pictures(folder) if folder / picture.name not in used]


def _reviewed(data: DatasetOptions, config: Path) -> Reviewed | None:
    """Return where people's answers will be; None if the data set is not a folder of photographs to review."""
    from tasks.datasets.corrections import ANSWERS_FILE

    folders = {part.image_folder(Path()).absolute() for part in data.parts().values() if not part.unpacks}
    if data.has_grids or len(folders) != 1:
        return None
    answers, images = workspace_folder(None) / ANSWERS_FILE, folders.pop()
    return Reviewed(**_relative({"answers": answers, "images": images}, config))


def _name_of(data: Path) -> str:
    """Return the name of a run, from the name of its folder or file."""
    stem = data.expanduser().absolute()
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem.name if stem.is_dir() else stem.stem).strip("-_.")
    return words or "captions"


def _shares(given_splits: Sequence[str | None]) -> dict[str, float]:
    """Return the shares of dev and test, or of dev if only that is missing: empty for a tenth, or more if they are few.

    given_splits: the split that the data set gives each picture, if any.
    """
    if not any(given_splits):
        missing: tuple[str, ...] = ("dev", "test")
        pictures = len(given_splits)
    elif None not in given_splits and "dev" not in given_splits:
        missing, pictures = ("dev",), given_splits.count("train")
    else:
        return {}
    share = round(min(0.2, max(0.1, _HELD_OUT / max(pictures, 1))), 2)
    return {} if share == 0.1 else {f"{split}_share": share for split in missing}


def _empty_splits(survey: Survey) -> list[str]:
    """Return the splits that need pictures and have none."""
    if survey.splits is None or not survey.whole:
        return []
    return [split for split in ("train", "dev") if split not in survey.sizes]


def _relative(options: dict[str, Any], config: Path) -> dict[str, Any]:
    """Return the settings of `data`, with paths below the config's folder relative to it."""
    folder = config.absolute().parent

    def relative(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: relative(item) for name, item in value.items()}
        return value.relative_to(folder) if isinstance(value, Path) and value.is_relative_to(folder) else value

    return {name: relative(value) for name, value in options.items()}


def _shown(value: object) -> str:
    """Return a setting's value for printing."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return repr(value) if value is None or not str(value).isprintable() else str(value)


def _print_format(options: dict[str, Any], unread: list[str], notes: list[str], shares: dict[str, float]) -> None:
    """Print how the data are read, and which files are not read. shares: of dev and test, printed elsewhere."""
    for note in notes:
        typer.secho(note, fg="yellow")
    for source in options.get("sources", {"": options}).values():
        form = [f"{field} {_shown(value)}" for field, value in source.items() if field not in (*_NOT_PRINTED, *shares)]
        typer.echo(f"{source['path']}: read as {', '.join([source['adapter'], *form])}")
    for line in unread[:_LISTED]:
        typer.echo(f"not read: {line}")
    if len(unread) > _LISTED:
        typer.echo(f"not read: {len(unread) - _LISTED:,} more files")


def _print_contents(survey: Survey, shares: dict[str, float], without: list[str], named: Callable[[str], str]) -> None:
    """Print the contents of a data set.

    shares: of dev and test, if they are not the usual tenth. without: pictures without a caption. named: renames the
    settings in a message to those of the config.
    """
    rows = survey.rows
    each = survey.captions / len(rows)
    more = "" if survey.whole else " (the first; there are more)"
    note = "" if survey.distinct == len(rows) else f" ({survey.distinct:,} different: some are the same file twice)"
    typer.echo(
        f"  {counted(len(rows), 'picture')}{note} with {counted(survey.captions, 'caption')}, {each:.1f} each{more}"
    )
    sizes = counted_by_split(survey.sizes)
    if not survey.whole:
        typer.echo("  how all of them are divided is known once the first run has unpacked them")
    elif sizes:
        held_out = " and for ".join(name.removesuffix("_share") for name in shares)
        of_few = f" ({shares['dev_share']:.0%} for {held_out}, as they are few)" if shares else ""
        typer.echo(f"  {survey.note}{of_few}: {sizes}" if survey.note else f"  {sizes}, as the data set divides them")
    for row in rows[:: max(1, len(rows) // _LINES)][:_LINES]:
        more_captions = f" (and {len(row.captions) - 1} more)" if len(row.captions) > 1 else ""
        typer.echo(f"    {row.name}: {shortened(row.captions[0], 70)!r}{more_captions}")
    if without:
        folders = Counter(Path(name).parent.as_posix() for name in without)
        shown = ", ".join(f"{number:,} in {folder}/" for folder, number in folders.most_common(_LISTED))
        typer.echo(
            f"  {counted(len(without), 'other picture')} there without a caption, not used: {shown}, as {without[0]}"
        )
    for line in _caption_notes(survey):
        typer.echo(f"  {line}")
    for line in _left_out(survey.faults):
        typer.echo(f"  {named(line)}")


def _print_better_ways(data: Path, with_backbone: bool) -> None:
    """Print what improves the captions of few pictures. with_backbone: including `--backbone`."""
    typer.echo(
        "  expect rough captions of so few pictures; to start from a captioner that has seen more helps most:\n"
        f"  attend init {data} --from models:/NAME@champion, or a folder\n"
        "  where there is none, `attend run base` makes one of COCO or Flickr30k, once: docs/few-photographs.md"
    )
    if with_backbone:
        typer.echo(
            f"  a better backbone than MobileNetV2 helps next: attend init {data} --backbone lite2 (docs/backbones.md)"
        )


def _left_out(faults: list[str]) -> Iterator[str]:
    """Yield a line for each kind of invalid rows, with its first row."""
    kinds: dict[str, list[str]] = {}
    for fault in faults:
        kinds.setdefault(kind_of(fault), []).append(fault)
    for faults_of_kind in sorted(kinds.values(), key=len, reverse=True)[:_KINDS]:
        yield f"{counted(len(faults_of_kind), 'invalid row')} left out, such as: {faults_of_kind[0]}"
    if len(kinds) > _KINDS:
        yield f"{len(kinds) - _KINDS} more kinds of invalid rows, which `attend check` lists"


def _caption_notes(survey: Survey) -> Iterator[str]:
    """Yield notes on the captions: unknown words, symbols, several captions in a text, and markup."""
    from tasks.data.caption_text import markup, repeated, several_in_one, unknown_share
    from tasks.data.survey import approximate_words

    texts = {
        split: [text for row in survey.of_split(split) for text in row.captions] for split in ("train", "dev", "test")
    }
    for split in ("dev", "test") if survey.splits is not None else ():
        unknown = unknown_share(texts["train"], texts[split], 1, approximate_words)
        if unknown > _NEW:
            yield (
                f"{unknown:.0%} of the words of the captions of {split} are in no caption of train: a model cannot say "
                "them"
            )
    if are_symbols(" ".join(texts["train"][:SAMPLE]).split()):
        yield "many words are symbols: the tokeniser whitespace keeps them (captions.tokeniser)"
    yield from (*several_in_one(survey.rows), *repeated(survey.rows))
    tags = markup(text for row in survey.rows for text in row.captions)
    if tags:
        shown = ", ".join(f"{tag!r} ({times:,} times)" for tag, times in tags.most_common(3))
        parts = counted(tags.total(), "part")
        yield f"{parts} of captions that are not language, which a model learns to say, such as {shown}: remove them"
