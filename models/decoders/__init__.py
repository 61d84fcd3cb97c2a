"""Decoders: a grid of annotation vectors -> captions, word by word.

To add a decoder, write a file with a subclass of `base.Decoder` and add a line to `DECODERS`. This registry imports no
decoder, so that configs are checked without loading torch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Member(NamedTuple):
    """A registry entry: the class of a decoder, and its options besides the sizes of grid and vocabulary.

    module: a module of this package, or a full dotted name. name: the class. options: those that a config may set.
    fixed: options whose values the decoder's name determines. attends: whether it attends to the grid before each word.
    """

    module: str
    name: str
    options: tuple[str, ...]
    fixed: Mapping[str, Any] = {}
    attends: bool = True


_SHARED = (
    "embedding",
    "hidden",
    "dropout_words",
    "dropout_grid",
    "dropout_channels",
    "dropout_output",
    "head",
    "bottleneck",
    "tie_weights",
    "pca_dim",
)
_RECURRENT = (*_SHARED, "first_state", "output", "output_size")
_ATTENDING = (*_RECURRENT, "attention_grid", "attention", "attention_size")
_GATED = (*_ATTENDING, "gate")

DECODERS: dict[str, Member] = {
    "rnn": Member("captioning_rnn", "CaptioningRNN", _RECURRENT, {"cell_type": "rnn"}, attends=False),
    "lstm": Member("captioning_rnn", "CaptioningRNN", _RECURRENT, {"cell_type": "lstm"}, attends=False),
    "attention_lstm": Member("captioning_rnn", "CaptioningRNN", _ATTENDING, {"cell_type": "attn"}),
    "show_attend_tell": Member("show_attend_tell", "ShowAttendTell", _GATED),
    "hard_attention": Member(
        "hard_attention", "HardAttention", (*_GATED, "reinforce", "entropy", "baseline_decay", "expected_share")
    ),
    "up_down": Member("up_down", "UpDown", (*_SHARED, "attention_size")),
    "transformer": Member(
        "transformer",
        "Transformer",
        (*_SHARED, "layers", "heads", "encoder_layers", "feed_forward", "dropout_layers"),
    ),
}
