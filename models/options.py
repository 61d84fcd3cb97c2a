"""The choices that decoders and search leave, for configs: checked without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attentions = Literal["additive", "dot", "scaled_dot", "general", "scaled_general"]  # see attention.py
Heads = Literal["full", "bottleneck", "adaptive"]  # see heads.py
Outputs = Literal["hidden", "deep", "mlp"]  # see output.py
FirstStates = Literal["grid", "zeros"]  # see decoders/recurrent
Searches = Literal["beam", "sample"]  # see search.py


@dataclass(frozen=True)
class Decoding:
    """How captions are found.

    search: `beam` for the likeliest that `beam` hypotheses find (1 is greedy), ranked by
    log-probability / length ** length_normalisation; `sample` for captions drawn word by word, by temperature, among
    the top_k likeliest words (0 for all) that make up the share top_p (Holtzman et al. 2020, section 3.1).
    max_length: words and END at most. min_length: words before END may come. no_repeat: n-grams of this size come
    once (0 for no such rule). n_best: captions a picture, best first. seed: of sampling.
    """

    search: Searches = "beam"
    beam: int = 3
    length_normalisation: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_length: int = 20
    min_length: int = 0
    no_repeat: int = 0
    n_best: int = 1

    def __post_init__(self) -> None:
        if self.search == "beam" and self.n_best > self.beam:
            raise ValueError(f"n_best: {self.n_best} captions cannot come of a beam of {self.beam}")
        if self.min_length >= self.max_length:
            raise ValueError(f"min_length: {self.min_length} words and END are over max_length, {self.max_length}")
