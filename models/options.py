"""The options of decoders and of search, which configs check without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict, get_args

Attentions = Literal["additive", "additive_relu", "dot", "scaled_dot", "general", "scaled_general"]  # see attention.py
Outputs = Literal["hidden", "deep", "mlp"]  # see output_features.py
FirstStates = Literal["grid", "linear", "zeros"]  # see decoders/recurrent
Searches = Literal["beam", "sample"]  # see search.py
# What a captioner runs on: torch, or onnxruntime with weights in float32, in float16, or the decoder's in 8 bits.
Runtime = Literal["torch", "onnx", "onnx-float16", "onnx-int8"]


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """The options of every decoder; ValueError for sizes that do not fit together.

    embedding: size E of the word embeddings. hidden: size H of the hidden state, or of all layers. dropout_*: shares,
    in training only. tie_weights: whether the head uses the word embeddings as its weights. pca_dim: the channels that
    annotation vectors are projected to by a fixed basis; None for no projection.
    """

    embedding: int = 512
    hidden: int = 512
    dropout_words: float = 0.0
    dropout_grid: float = 0.0
    dropout_output: float = 0.5
    tie_weights: bool = False
    pca_dim: int | None = None

    @property
    def features(self) -> int:
        """Return F, the size that the head reads."""
        return self.hidden

    def __post_init__(self) -> None:
        if self.tie_weights and self.features != self.embedding:
            raise ValueError(
                f"tie_weights: embedding has size {self.embedding}, the output has {self.features}: "
                f"set decoder.embedding={self.features}"
            )


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions(DecoderOptions):
    """The options of recurrent decoders. output_size: of the `mlp` output."""

    first_state: FirstStates = "grid"
    output: Outputs = "hidden"
    output_size: int = 512

    @property
    def features(self) -> int:
        return {"hidden": self.hidden, "deep": self.embedding, "mlp": self.output_size}[self.output]


@dataclass(frozen=True, kw_only=True)
class AttentionLSTMOptions(RecurrentOptions):
    """The options of an LSTM with attention.

    attention_grid: the side of the attended positions, to which the grid is average-pooled (adaptive); None for the
    grid's own. attention_size: size A of the additive attention's layer.
    """

    attention_grid: int | None = None
    attention: Attentions = "scaled_dot"
    attention_size: int = 512


@dataclass(frozen=True, kw_only=True)
class ShowAttendTellOptions(AttentionLSTMOptions):
    """The options of Show, Attend and Tell. gate: whether the context is scaled by beta (Xu et al. 2015, 4.2.1)."""

    attention: Attentions = "additive"
    gate: bool = True


@dataclass(frozen=True, kw_only=True)
class UpDownOptions(DecoderOptions):
    """The options of Up-Down. attention_size: size A of the additive attention's layer."""

    attention_size: int = 512


@dataclass(frozen=True, kw_only=True)
class TransformerOptions(DecoderOptions):
    """The options of a Transformer.

    hidden: a multiple of 4 and of `heads`. encoder_layers: over the grid. feed_forward: inner size of the feed-forward
    networks. dropout_layers: dropout of sublayers' outputs.
    """

    dropout_output: float = 0.1
    layers: int = 3
    heads: int = 8
    encoder_layers: int = 0
    feed_forward: int = 2048
    dropout_layers: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads or self.hidden % 4:
            raise ValueError(f"hidden: {self.hidden} is not a multiple of 4 and of decoder.heads={self.heads}")


@dataclass(frozen=True)
class Neighbours:
    """How captions are ranked by their similarity to the captions of similar training pictures, the neighbours.

    number: of neighbours. temperature: of their weights, exp(cosine / temperature). factor: the weight with which a
    caption's mean CIDEr-D against their captions, from 0 to 1, is added to its mean log-probability. match: the weight
    of how well its words match the picture, from -1 to 1 (see matcher.py); 0 without a matcher. copies: a neighbour's
    caption replaces the best one if its similarity is more than this many times the best one's; None for no copies.
    """

    number: int = 60
    temperature: float = 0.2
    factor: float = 32.0
    match: float = 2.0
    copies: float | None = None


class DecoderSpec(TypedDict):
    """The arguments of `decoders.ensemble.make`, as decoder.json has them."""

    name: str
    channels: int
    vocabulary: int
    options: dict[str, Any]
    members: NotRequired[int]


@dataclass(frozen=True)
class Decoding:
    """The settings of decoding.

    search: `beam` for beam search with `beam` hypotheses (1 is greedy), ranked by
    log-probability / length ** length_normalisation; `sample` for captions drawn word by word, at a temperature, among
    the top_k likeliest words (0 for all) that make up the share top_p (Holtzman et al. 2020, section 3.1).
    max_length: the most words of a caption, END counted. min_length: the fewest words before END. no_repeat: no n-gram
    of this size may occur twice in a caption (0 for no such rule). no_echo: no word may follow itself. neighbours:
    whether captions of a beam are ranked by the captions of similar training pictures too (see neighbours.py). n_best:
    captions per picture, best first. seed: of sampling. Raises ValueError for settings that do not go together.
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
    no_echo: bool = False
    neighbours: bool = False
    n_best: int = 1

    @property
    def lengths(self) -> range:
        """Return the lengths that a caption may have, END counted."""
        return range(self.min_length + 1, self.max_length + 1)

    @property
    def num_searched(self) -> int:
        """Return how many captions a beam search looks for per picture: a whole beam if neighbours rank them."""
        return self.beam if self.neighbours else self.n_best

    @property
    def num_returned(self) -> int:
        """Return how many captions it returns per picture at most: all that ended if neighbours rank them."""
        return self.beam * self.max_length if self.neighbours else self.n_best

    def __post_init__(self) -> None:
        if self.search not in get_args(Searches):
            raise ValueError(f"search: there is no {self.search!r}: use {' or '.join(get_args(Searches))}")
        if self.search == "sample" and self.neighbours:
            raise ValueError("neighbours: they rank captions of a beam: set search to beam, or neighbours to off")
        if self.search == "beam" and self.n_best > self.beam:
            raise ValueError(
                f"n_best: a beam of {self.beam} cannot give {self.n_best} captions: lower n_best or widen the beam"
            )
        if self.min_length >= self.max_length:
            raise ValueError(f"min_length: {self.min_length} words and END are more than max_length, {self.max_length}")
