"""The options of decoders and of search, which configs check without loading torch."""

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
    """The settings of decoding.

    search: `beam` for beam search with `beam` hypotheses (1 is greedy), ranked by
    log-probability / length ** length_normalisation; `sample` for captions drawn word by word, at a temperature, among
    the top_k likeliest words (0 for all) that make up the share top_p (Holtzman et al. 2020, section 3.1).
    max_length: the most words of a caption, END counted. min_length: the fewest words before END. no_repeat: no n-gram
    of this size may occur twice in a caption (0 for no such rule). n_best: captions per picture, best first. seed: of
    sampling.
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
            raise ValueError(
                f"n_best: a beam of {self.beam} cannot give {self.n_best} captions: lower n_best or widen the beam"
            )
        if self.min_length >= self.max_length:
            raise ValueError(f"min_length: {self.min_length} words and END are more than max_length, {self.max_length}")
