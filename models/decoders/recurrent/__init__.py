"""Recurrent decoders: an RNN or LSTM cell that may attend to the grid before each word.

`decoder` has the cell, its step, teacher forcing and inference; `deferred_gradients` how teacher forcing gets the
gradient of the cell's weights. A family is a subclass of `RecurrentDecoder` in a file beside this folder.
"""

from .decoder import LSTMState, RecurrentDecoder, lstm_cell

__all__ = ["LSTMState", "RecurrentDecoder", "lstm_cell"]
