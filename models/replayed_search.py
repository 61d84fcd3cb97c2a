"""Searches that are replayed from graphs, a few words in each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .graphs import Graph, Graphs
from .options import Decoding
from .search import BeamSearch, Caption, Sampling, Search, Steps, run, uniform_draws

_WORDS = 4  # in each graph: after each the search looks whether it is done


class ReplayedSearch:
    """The searches of one decoder: the same captions as `search.decode` gives, computed by graphs.

    The decoder's weights may change in place. Each shape of grids, with its decoding but for the seed, is searched as
    usual the first time, recorded the second, and replayed from then on.
    """

    def __init__(self, decoder: Steps[Any], graphs: Graphs, most: int = 4) -> None:
        """Keep the decoder. most: the number of shapes that are recorded; others are searched as usual."""
        self._decoder, self._graphs, self._most = decoder, graphs, most
        self._recorded: dict[Any, _Recorded | None] = {}

    @torch.no_grad()
    def decode(self, grid: Tensor, decoding: Decoding, keys: Sequence[int]) -> list[list[Caption]]:
        """Return the `n_best` captions of each picture of grid (N, h, w, C), best first; keys: see `search.decode`."""
        inputs = [grid]
        if decoding.search == "sample":
            inputs.append(uniform_draws(decoding, keys).to(grid.device))
        key = (grid.shape, grid.dtype, torch.is_autocast_enabled(grid.device.type), *_apart_from_seed(decoding))
        if key not in self._recorded:
            if len(self._recorded) < self._most:
                self._recorded[key] = None
            return run(self._begin(decoding, *inputs))
        recorded = self._recorded[key]
        if recorded is None:
            recorded = self._recorded[key] = _Recorded(lambda *own: self._begin(decoding, *own), inputs, self._graphs)
        return recorded.replay(inputs)

    def _begin(self, decoding: Decoding, grid: Tensor, draws: Tensor | None = None) -> Search:
        """Return a search that has not begun."""
        if draws is not None:
            return Sampling(self._decoder, grid, decoding, draws)
        return BeamSearch(self._decoder, grid, decoding)


class _Recorded:
    """A search recorded in graphs of `_WORDS` words, for one shape of its inputs."""

    def __init__(self, begin: Callable[..., Search], inputs: Sequence[Tensor], graphs: Graphs) -> None:
        """Record the search that `begin(*inputs)` begins. For each graph, keep the search as it is after it."""
        self._inputs = [tensor.clone() for tensor in inputs]
        self._parts: list[tuple[Graph, Search, Tensor]] = []
        search: Search | None = None
        while search is None or search.length < search.max_length:
            graph = graphs()

            def some_words(begun: Search | None = search) -> tuple[Search, Tensor]:
                after = begin(*self._inputs) if begun is None else copy.copy(begun)
                for _ in range(min(_WORDS, after.max_length - after.length)):
                    after.advance()
                return after, after.done().all()

            search, done = graph.record(some_words)
            self._parts.append((graph, search, done))

    def replay(self, inputs: Sequence[Tensor]) -> list[list[Caption]]:
        """Return the captions of other inputs of the same shapes."""
        torch._foreach_copy_(self._inputs, list(inputs))
        for graph, search, done in self._parts:
            graph.replay()
            if bool(done) or search.length == search.max_length:
                return search.results()
        raise AssertionError


def _apart_from_seed(decoding: Decoding) -> tuple[Any, ...]:
    """Return the fields of a decoding, but for the seed, which only the uniform numbers depend on."""
    return tuple(value for name, value in vars(decoding).items() if name != "seed")
