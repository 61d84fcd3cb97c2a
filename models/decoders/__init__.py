"""Decoders: a grid of annotation vectors -> captions, word by word.

Adding one: a file with a class that keeps the contract of `base.Decoder`, and a line here. The registry
imports nothing, so that configs are checked without loading torch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Member(NamedTuple):
    """Where a decoder is, and which options its class takes beside the sizes of grid and vocabulary.

    module: of this package, or with its package's name before it. fixed: options that the name itself settles.
    attends: whether it attends to the grid before each word.
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
_LOOKING = (*_RECURRENT, "attention_grid", "attention", "attention_size")
_SOFT = (*_LOOKING, "gate")

DECODERS: dict[str, Member] = {
    "rnn": Member("captioning_rnn", "CaptioningRNN", _RECURRENT, {"cell_type": "rnn"}, attends=False),
    "lstm": Member("captioning_rnn", "CaptioningRNN", _RECURRENT, {"cell_type": "lstm"}, attends=False),
    "attention_lstm": Member("captioning_rnn", "CaptioningRNN", _LOOKING, {"cell_type": "attn"}),
    "show_attend_tell": Member("show_attend_tell", "ShowAttendTell", _SOFT),
    "hard_attention": Member(
        "hard_attention", "HardAttention", (*_SOFT, "reinforce", "entropy", "baseline_decay", "expected_share")
    ),
    "up_down": Member("up_down", "UpDown", (*_SHARED, "attention_size")),
    "transformer": Member(
        "transformer",
        "Transformer",
        (*_SHARED, "layers", "heads", "encoder_layers", "feed_forward", "dropout_layers"),
    ),
}
