"""The config that `attend init` writes, as commented YAML with settings that suit the size of the data."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from tasks.common.wording import counted

if TYPE_CHECKING:
    from tasks.config.starting_point import StartingPoint
    from tasks.data.survey import Survey

USUAL = "flickr8k"  # the preset for photographs
# Value of `attend init --backbone` -> the preset with its settings.
BACKBONES = {"lite2": "base", "clip": "clip", "siglip": "siglip", "dinov2": "dinov2", "convnext": "convnext"}
SAMPLE = 200  # rows whose captions are used to detect the script
_UNKNOWN = 0.02  # share of the words of captions that may be too rare for the vocabulary
_CUT = 0.03  # share of the captions that may be longer than captions.max_tokens
# Training captions below which the decoder is an ensemble, or a small one; measured in docs/measured.md.
_FEWEST, _SMALL = 700, 5_000
# Approximate training steps in all epochs, with fewer pictures than _FEW_PICTURES and with more.
_STEPS_OF_FEW, _STEPS, _FEW_PICTURES = 800, 3_000, 700
# For training that starts from a captioner; measured in docs/few-photographs.md.
_START_BATCH, _START_EPOCHS, _START_STEPS, _START_RATE = 16, 10, 100, 0.0001  # steps: at least, in all epochs
_JUDGED = 100  # held-out pictures from which gates are written
_GATES = {
    "max_same_caption": 0.5,
    "max_overused_word": 0.5,
    "min_retrieved": 0.1,
    "max_slice_loss": 0.2,
}
_ABOUT = {
    "flickr8k": "MobileNetV2, and a decoder that attends to its 7x7 grid",
    "regnet_attention": "as the source of coco.pt has it: RegNetX-400MF's 4x4 grids, an LSTM with attention, its words",
    "googlenet": "as the source of such arrays has it: additive attention, captions drawn at random",
}
_WHY_CIDER = "the score by which a new version becomes champion; with few pictures BLEU-4 is often 0"
_WHY_RUNTIMES = "the first is used where it is installed; onnx needs no torch, and starts faster, but takes no GPU"
_SYMBOLS, _PUNCTUATION = 0.2, (".", ",", "-", "!", "?", "&")  # share of words that are symbols, and what does not count


class Reviewed(NamedTuple):
    """The folder of the pictures that people review, and the file of their answers."""

    answers: Path
    images: Path


class Started(NamedTuple):
    """The captioner that training starts from, and the settings that name it."""

    start_from: str
    start_store: str | None
    point: StartingPoint


def config_text(
    name: str,
    preset: str,
    options: dict[str, Any],
    reviewed: Reviewed | None,
    grids: Mapping[str, Any],
    survey: Survey,
    started: Started | None,
) -> str:
    """Return the config as commented YAML.

    grids: settings of the backbone that differ from the preset's, and always `weights`. reviewed: None for data whose
    pictures `attend review` cannot show. started: None for training from the beginning.
    """
    from tasks.datasets.sources import OF_THE_WHOLE

    of_source = {field: value for field, value in options.items() if field not in OF_THE_WHOLE}
    sources = of_source["sources"] if options["adapter"] == "sources" else {name: of_source}
    lines = [
        f"# Written by `attend init`. Settings that are not here are the preset's (`attend presets {preset}`) or have",
        "# their defaults; `attend settings` lists them all.",
        f"preset: {preset}  # {_shown(preset, grids, started)}",
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
    if survey.faults:
        lines.append(
            f"  on_error: skip  # {counted(len(survey.faults), 'row')} not valid: `attend check` lists them; or: stop"
        )
    if started is not None:
        lines += _settings_after_start(survey, started)
    elif options["adapter"] == "arrays":
        lines += ["grids:", f"  backbone: imported\n  weights: {_scalar(f'imported:{name}')}", "decoder:"]
        lines += ["  pca_dim: null  # the grids' own channels"]
    else:
        comment = "  # downloaded once; or a file" if is_downloaded(grids["weights"]) else ""
        settings = {field: value for field, value in grids.items() if field != "weights"}
        lines += ["grids:", *_settings(settings, "  "), f"  weights: {_scalar(grids['weights'])}{comment}"]
    if preset == USUAL and started is None:
        lines += _settings_by_size(survey)
    elif started is None and "test" in survey.sizes:
        lines += ["evaluation:", "  split: test"]
    lines += ["registry:", f"  promote_on: cider  # {_WHY_CIDER}"]
    if preset == USUAL:
        runtimes = "[torch, onnx]" if _has_gpu() else "[onnx, torch]"
        lines += [f"  runtimes: {runtimes}  # {_WHY_RUNTIMES}", *_gates(survey)]
    return "\n".join(lines) + "\n"


def _shown(preset: str, grids: Mapping[str, Any], started: Started | None) -> str:
    """Describe a preset, or which parts of it the config replaces."""
    if started is not None:
        return "but for grids and decoder, which are the captioner's"
    return "on another backbone's grids" if "backbone" in grids else _ABOUT[preset]


def _settings(options: Mapping[str, Any], indent: str) -> list[str]:
    return [f"{indent}{field}: {_scalar(value)}" for field, value in options.items()]


def _sources(sources: Mapping[str, Mapping[str, Any]], reviewed: Reviewed | None) -> list[str]:
    """Return the settings of data sets, and of the answers about their pictures, as `data.sources`."""
    from tasks.datasets.corrections import ANSWERS

    lines = ["  adapter: sources", "  sources:"]
    for name, options in sources.items():
        lines += [f"    {_scalar(source_name(name))}:", *_settings(options, "      ")]
    if reviewed is not None:
        lines += [
            f"    {'people' if 'answers' in sources else 'answers'}:"
            f"  # of `attend review serve {reviewed.images}`: the next run learns from them",
            *_settings({"adapter": ANSWERS, "path": reviewed.answers, "images": reviewed.images}, "      "),
        ]
    return lines


def _settings_after_start(survey: Survey, started: Started) -> list[str]:
    """Return the sections for training that starts from a captioner and keeps its words and memory."""
    from tasks.data.survey import approximate_words

    captions = [approximate_words(caption) for row in survey.of_split("train") for caption in row.captions]
    length, before = _length(captions)[0], int(started.point.sections()["captions"]["max_tokens"])
    max_tokens = max(length, before)
    steps = max(1, len(survey.of_split("train")) // _START_BATCH)  # of an epoch
    evaluated = "test" if survey.splits is None or "test" in survey.sizes else "dev"
    lines = ["training:", f"  start_from: {_scalar(started.start_from)}"]
    if started.start_store is not None:
        lines.append(f"  start_store: {_scalar(started.start_store)}")
    lines += [
        f"  epochs: {max(_START_EPOCHS, round(_START_STEPS / steps))}",
        f"  batch_pictures: {_START_BATCH}",
        f"  learning_rate: {_START_RATE}  # lower than from the beginning, so that what it knows is not lost",
        f"  warmup_steps: {min(10, steps)}",
        f"  averaging: {round(1 - 1 / max(steps / 2, 10), 3)}  # the mean weights of about half an epoch",
        "  select: likelihood  # CIDEr of few dev captions is mostly chance",
        "captions:",
        "  vocabulary: joined  # its words, and the new ones of these captions",
        "  min_count: 1",
        *([f"  max_tokens: {max_tokens}"] if max_tokens != before else []),
        "memory:",
        "  joined: true  # its pictures are consulted too",
        "evaluation:",
        f"  split: {evaluated}" + ("" if evaluated == "test" else "  # there is no test split"),
        f"  max_length: {max_tokens + 1}",
    ]
    return lines


def _settings_by_size(survey: Survey) -> list[str]:
    """Return the sections that adapt the usual preset to the number and the words of the captions."""
    from models.vocabulary import SPACELESS
    from tasks.data.survey import approximate_words

    captions = [approximate_words(caption) for row in survey.of_split("train") for caption in row.captions]
    texts = " ".join(caption for row in survey.rows[:SAMPLE] for caption in row.captions)
    is_spaceless = len(SPACELESS.findall(texts)) * 2 > sum(map(str.isalpha, texts))
    min_count, words, unknown = _vocabulary(captions)
    is_of_symbols = are_symbols(texts.split())
    max_tokens, longer = _length(captions)
    evaluated = "test" if survey.splits is None or "test" in survey.sizes else "dev"
    return [
        "captions:",
        *(["  tokeniser: characters  # words are written without spaces between them"] if is_spaceless else []),
        *(["  tokeniser: whitespace  # many words are symbols, which other tokenisers drop"] if is_of_symbols else []),
        f"  min_count: {min_count}  # about {words:,} words; {unknown:.1%} of what captions say is rarer, and unknown",
        f"  max_tokens: {max_tokens}  # about {longer:.0%} of the captions are longer, and cut",
        *_training(len(captions), len(survey.of_split("train"))),
        "evaluation:",
        f"  split: {evaluated}" + ("" if evaluated == "test" else "  # there is no test split"),
        f"  max_length: {max_tokens + 1}",
        *(["  no_echo: false  # a character may follow itself"] if is_spaceless else []),
    ]


def are_symbols(words: list[str]) -> bool:
    """Return whether many words have no letter and no digit, as in codes."""
    marks = [word for word in words if not any(map(str.isalnum, word)) and word not in _PUNCTUATION]
    return len(marks) > _SYMBOLS * len(words)


def _gates(survey: Survey) -> list[str]:
    """Return the gates of `registry` if there are enough held-out pictures for them, with comments."""
    held_out = survey.sizes.get("test") or survey.sizes.get("dev") or 0
    lines = []
    if held_out >= _JUDGED:
        lines += [
            "  # What no champion is, whatever it scores (docs/champions.md); few pictures would not be enough to say.",
            *(f"  {gate}: {limit:g}" for gate, limit in _GATES.items()),
        ]
    if held_out < 30:
        lines.append(
            f"  # With {counted(held_out, 'held-out picture')} no version is known to be better than another (see "
            "min_pictures): `attend models promote --force` decides."
        )
    return lines


def _vocabulary(captions: list[list[str]]) -> tuple[int, int, float]:
    """Return the largest min_count up to 5 that leaves few words unknown, the words it keeps, and the unknown share."""
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
    is_small = captions < _SMALL
    if is_small:
        together = ", members: 3" if captions < _FEWEST else ""
        lines += [
            "decoder:  # a small Transformer, which learns more from so few captions than the preset's LSTM",
            f"  {{name: transformer{together}, output: null, layers: 2, embedding: 256, hidden: 256, pca_dim: 256,",
            "   tie_weights: true, dropout_words: 0.4, dropout_grid: 0.4, dropout_layers: 0.3}",
        ]
    batch = 8 if is_small else 16
    steps = max(1, pictures // batch)  # of an epoch
    # The learning rate falls to 0 over all epochs, and with few pictures the best epoch comes early.
    epochs = min(60, max(8, round((_STEPS_OF_FEW if pictures < _FEW_PICTURES else _STEPS) / steps)))
    lines += ["training:", f"  epochs: {epochs}  # at most: see patience"]
    # With few captions the dev score stays at 0 for some epochs before it rises.
    lines += [f"  patience: {12 if is_small else 5}  # training ends after so many epochs without a better dev score"]
    lines += [f"  batch_pictures: {batch}", f"  warmup_steps: {min(100, steps)}"]
    if steps < 1000:
        lines.append(f"  averaging: {round(1 - 1 / max(steps, 10), 3)}  # the mean weights of about one epoch")
    return lines


def _scalar(value: object) -> str:
    """Return a value as YAML on one line, quoted as in JSON if necessary: YAML reads a plain `no` as false."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_scalar, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    is_plain = re.fullmatch(r"[A-Za-z/][\w/.@:-]*(?<!:)", text) and yaml.safe_load(text) == text
    return text if is_plain else json.dumps(value if isinstance(value, int | float) else text, ensure_ascii=False)


def _has_gpu() -> bool:
    """Return whether the machine has an NVIDIA GPU, by its device file, because importing torch takes seconds."""
    return Path("/dev/nvidia0").exists()


def source_name(name: str) -> str:
    """Return the name of a source in the config."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def is_downloaded(weights: str) -> bool:
    """Return whether weights are torchvision's or timm's, which are downloaded."""
    return weights.startswith(("torchvision:", "timm:"))
