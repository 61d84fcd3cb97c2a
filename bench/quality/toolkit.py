"""Compare our scores with the COCO caption toolkit's: both split the same captions into words and score them.

    python -m bench.quality.toolkit RESULTS ANNOTATIONS

The files have the format of `attend models evaluate CONFIG --results FOLDER`. The toolkit (pycocoevalcap, with the
machine's Java) runs in a separate environment. Hand-made corpora are scored as well: empty captions, one word, words
that no reference has, captions identical to their references, unicode.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.conformance.interfaces import environment
from tasks.evaluation.coco_files import read_references, read_results
from tasks.metrics import ScoredCaption, measure
from tasks.metrics.ptb import tokenize

_SIDE = Path(__file__).with_name("toolkit_scores.py")
_METRICS = ("bleu", "meteor", "rouge", "cider")
Corpus = dict[str, dict[str, Any]]


def main() -> None:
    results, annotations = map(Path, sys.argv[1:])
    captions, references = read_results(results), read_references(annotations)
    corpora = {
        f"{len(captions):,} predictions": {
            "captions": {str(image): text for image, text in captions.items()},
            "references": {str(image): references[image] for image in captions},
        },
        **edge_cases(),
    }
    with tempfile.TemporaryDirectory(prefix="attend-toolkit-") as scratch:
        python = environment(Path(scratch) / "toolkit", ["pycocoevalcap==1.2"]) / "python"
        source, target = Path(scratch) / "corpora.json", Path(scratch) / "scores.json"
        source.write_text(json.dumps(corpora), encoding="utf-8")
        subprocess.run([str(python), str(_SIDE), str(source), str(target)], check=True, stderr=subprocess.DEVNULL)
        theirs = json.loads(target.read_text(encoding="utf-8"))
    print("| corpus | score | toolkit | ours | difference |\n| --- | --- | --- | --- | --- |")
    for name in corpora:
        ours = _ours(theirs[name])
        for score, value in theirs[name]["scores"].items():
            print(f"| {name} | {score} | {value:.6f} | {ours[score]:.6f} | {ours[score] - value:+.1e} |")
    print("\n| corpus | texts | same words |\n| --- | --- | --- |")
    for name, corpus in corpora.items():
        texts = [(text, cut) for text, cut in _texts(corpus, theirs[name])]
        differ = [text for text, cut in texts if tokenize(text) != cut.split()]
        print(f"| {name} | {len(texts):,} | {len(texts) - len(differ):,} | {' / '.join(differ[:4])}")


def _ours(theirs: dict[str, Any]) -> dict[str, float]:
    """Return our scores of the toolkit's tokens."""
    corpus = [
        ScoredCaption(caption[0].split(), [text.split() for text in theirs["references"][image]])
        for image, caption in theirs["captions"].items()
    ]
    scores: dict[str, float] = {}
    for metric in _METRICS:
        scores |= {name: value / 100 for name, value in measure(metric, corpus).items()}
    return scores


def _texts(corpus: dict[str, Any], theirs: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = [(text, theirs["captions"][image][0]) for image, text in corpus["captions"].items()]
    return pairs + [
        pair
        for image, texts in corpus["references"].items()
        for pair in zip(texts, theirs["references"][image], strict=True)
    ]


def edge_cases() -> Corpus:
    """Return corpora of a few pictures, each for one edge case."""
    references = {
        "1": ["A dog runs across the green grass .", "the brown dog is running"],
        "2": ["Two children play with a ball", "kids play football in a park"],
        "3": ["A man rides a red bicycle .", "a cyclist on a road"],
    }
    cases = {
        "one caption empty": {"1": "", "2": "two children play with a ball", "3": "a man on a bicycle"},
        "all empty": {"1": "", "2": "", "3": ""},
        "one word": {"1": "dog", "2": "children", "3": "man"},
        "unseen words": {"1": "zyx wvu", "2": "qqq rrr sss ttt uuu", "3": "xylophone"},
        "identical captions": dict.fromkeys(references, "a dog runs"),
        "its references": {image: texts[0] for image, texts in references.items()},
    }
    corpora = {name: {"captions": captions, "references": references} for name, captions in cases.items()}
    corpora["one picture"] = {"captions": {"1": "a dog runs on grass"}, "references": {"1": references["1"]}}
    corpora["unicode"] = {
        "captions": {
            "1": "a caf\u00e9 in M\u00fcnchen",
            "2": "\u4e00\u53ea\u72d7",
            "3": "the boy\u2019s dog \u2013 it\u2019s big",
        },
        "references": {
            "1": ["a caf\u00e9 in Munich", "people at a caf\u00e9"],
            "2": ["\u4e00\u53ea\u72d7 \u8dd1", "a dog"],
            "3": ["the boy's dog is big", "the boy has a \u201cbig\u201d dog"],
        },
    }
    corpora["punctuation"] = {
        "captions": {
            "1": "a man's T-shirt ( red & white )",
            "2": "can't stop , won't stop !",
            "3": "the U.S. flag at 10:30 a.m.",
        },
        "references": {
            "1": ["A man 's t-shirt (red & white) .", "rock 'n' roll"],
            "2": ["They cannot stop ; they 're running ...", "50% off $5 shoes"],
            "3": ["Mr. Smith 's U.S. flag .", "a black/white dog and/or cat -- no. 5"],
        },
    }
    return corpora


if __name__ == "__main__":
    main()
