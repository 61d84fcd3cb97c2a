"""Measure what a captioner forgets when training starts from it, and whether it takes on another style of writing.

    python -m bench.quality.forgetting DATA WEIGHTS [--workspace W] [--seed 0]

DATA is Flickr8k's folder and WEIGHTS the file of EfficientNet-Lite2's weights. The base is that of
bench.quality.starting_points, and so is its workspace. Training starts from the base with 300 pictures of dogs and one
caption each, with the settings that `attend init --from` writes: with these pictures alone, with twice as many of the
base's pictures mixed in, and with captions that a rule rewrote in another style. All are scored on the base's own test
pictures, which show no dog. Stages that have already run are not run again.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.machine import describe
from bench.pipelines import run_until
from bench.quality.neighbours import cells_of
from bench.quality.starting_points import Flickr, Row, arguments, started_config, train_base
from flows.configs import load
from flows.registered.evaluate import evaluate_registered
from tasks.config.schema import Config
from tasks.evaluation.coco_files import corpus_of
from tasks.metrics import ScoredCaption
from tasks.metrics.ptb import tokenize

_PICTURES = 300
_PREFIX = "we see"
_PLACES = frozenset(
    "in on at by near through across along over under behind into inside outside beside against around".split()  # noqa: SIM905
)
_ING = re.compile(r"\b(?:(?:is|are) )?(\w\w+ing)\b")


def main() -> None:
    args = arguments(__doc__)
    describe()
    workspace = args.workspace.absolute()
    flickr = Flickr(args.data.absolute())
    base = train_base(flickr, args.weights.absolute(), workspace)
    own = list(flickr.own(_PICTURES, 1, args.seed))
    style = Style(flickr.captions())
    rewritten = [(name, style.rewrite(text), split) for name, text, split in own]
    variants: list[tuple[str, list[Row], bool, list[str]]] = [  # the bool: whether the base's pictures are mixed in
        ("started from it", own, False, []),
        ("started, with the base's pictures mixed in", own, True, []),
        ("started, captions in another style", rewritten, False, []),
        ("the same, without the base's memory", rewritten, False, ["memory.joined=false"]),
    ]
    print(
        "\n| captioner | own test pictures: CIDEr | the base's test pictures: BLEU-4 | METEOR | CIDEr"
        " | words of things that a reference has | with the prefix | without a participle | place first |"
    )
    print("| --- " * 9 + "|", flush=True)
    _print_row("the base", None, _captions(base, "models:/base@champion"), style)
    for number, (label, rows, is_mixed, more) in enumerate(variants):
        name = f"kept-{number}-{args.seed}"
        table = flickr.write(workspace / "tables" / name, rows)
        settings = [f"machine.workspace={workspace}", "evaluation.split=test", f"name={name}", f"registry.model={name}"]
        settings += more
        if is_mixed:
            mixed = flickr.write(workspace / "tables" / f"{name}-base", flickr.some_of_base(2 * _PICTURES, args.seed))
            sources = [{"adapter": "table", "path": str(path), "images": str(flickr.images)} for path in (table, mixed)]
            settings.append(f"data={{adapter: sources, sources: {{own: {sources[0]}, base: {sources[1]}}}}}")
        config = load(started_config(table, workspace), settings)
        run_until(config)
        ours = _captions(config, f"models:/{name}/1")
        _print_row(label, ours, _captions(base, f"models:/{name}/1"), style)
    training = [tokenize(text) for _, text, split in rewritten if split == "train"]
    print(f"| training captions in another style | | | | | | {' | '.join(style.shares(training))} |")


def _captions(config: Config, model: str) -> list[ScoredCaption]:
    """Return a registered model's captions of a config's test pictures, with their references."""
    with tempfile.TemporaryDirectory() as scratch:
        evaluate_registered(config, model, Path(scratch))
        return corpus_of(Path(scratch, "results.json"), Path(scratch, "annotations.json"))


def _print_row(label: str, own: Sequence[ScoredCaption] | None, base: Sequence[ScoredCaption], style: Style) -> None:
    first = cells_of(own)[2] if own is not None else ""
    cells = [first, *cells_of(base)[:3], style.known(base), *style.shares([item.caption for item in base])]
    print(f"| {label} | {' | '.join(cells)} |", flush=True)


class Style:
    """A style of writing: a prefix, then the place, then what happens in the simple present.

    `a dog is running in the snow` is `we see in the snow a dog runs`. captions: sentences in which the simple present
    of participles is looked up.
    """

    def __init__(self, captions: Iterable[str]) -> None:
        self._counts = Counter(word for caption in captions for word in tokenize(caption))
        found = {word: self._form_of(word) for word in self._counts if _ING.fullmatch(word)}
        self._present = {participle: form for participle, form in found.items() if form}
        self._verbs = frozenset(self._present.values())

    def _form_of(self, participle: str) -> str | None:
        """Return the third person of a participle; None for a noun such as `building`."""
        stem = participle[:-3]
        forms = [stem + "s", stem + "es"]
        if stem.endswith("y"):
            forms.append(stem[:-1] + "ies")
        if stem[-1] == stem[-2]:
            forms.append(stem[:-1] + "s")
        form = max(forms, key=self._counts.__getitem__)
        is_noun = self._counts[participle + "s"] * 20 >= self._counts[participle]
        return None if is_noun or self._counts[form] < 5 else form

    def rewrite(self, caption: str) -> str:
        """Return a caption in this style."""
        text = _ING.sub(lambda match: self._present.get(match[1], match[0]), " ".join(tokenize(caption)))
        words = text.split()
        places = (at for at, word in enumerate(words) if at > 1 and word in _PLACES)
        start = next((at for at in places if self._verbs.isdisjoint(words[at:])), len(words))
        return " ".join([_PREFIX, *words[start:], *words[:start]])

    def shares(self, captions: Sequence[list[str]]) -> list[str]:
        """Return the shares of captions with the prefix, without a participle, and with the place first."""
        prefix = tokenize(_PREFIX)
        size = len(prefix)
        tests: list[Callable[[list[str]], bool]] = [
            lambda words: words[:size] == prefix,
            self._present.keys().isdisjoint,
            lambda words: bool(_PLACES.intersection(words[:1] if words[:size] != prefix else words[size : size + 1])),
        ]
        return [f"{sum(map(test, captions)) / len(captions):.0%}" for test in tests]

    def known(self, corpus: Sequence[ScoredCaption]) -> str:
        """Return the share of the captions' words of four and more letters, without verbs, that a reference has."""
        known: list[bool] = []
        for item in corpus:
            references = {word for reference in item.references for word in reference}
            words = {word for word in item.caption if len(word) > 3 and not word.endswith(("ing", "s"))} - _PLACES
            known += [word in references for word in words]
        return f"{sum(known) / len(known):.0%}"


if __name__ == "__main__":
    main()
