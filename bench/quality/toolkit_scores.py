"""Score captions with the COCO caption toolkit, for bench/quality/toolkit.py. Needs pycocoevalcap and Java.

    python toolkit_scores.py corpora.json scores.json

corpora.json: name -> {"captions": {id: text}, "references": {id: [text]}}. scores.json: name -> the toolkit's scores
and its tokens.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name, corpus in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
            captions = {image: [{"caption": text}] for image, text in corpus["captions"].items()}
            references = {image: [{"caption": text} for text in texts] for image, texts in corpus["references"].items()}
            texts, true = PTBTokenizer().tokenize(captions), PTBTokenizer().tokenize(references)
            scores = dict(zip(("bleu1", "bleu2", "bleu3", "bleu4"), Bleu(4).compute_score(true, texts)[0], strict=True))
            scores["meteor"] = Meteor().compute_score(true, texts)[0]
            scores["rouge_l"] = float(Rouge().compute_score(true, texts)[0])
            scores["cider"] = float(Cider().compute_score(true, texts)[0])
            found[name] = {"scores": scores, "captions": texts, "references": true}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
