"""Micro-batching: pictures that arrive while the model is busy are captioned together.

No picture waits for a batch to fill: when the model is free, it takes the waiting pictures.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from flows.serving.limits import RefusedError
from models.requests import CaptionRow, Params, failed

Predict = Callable[[list[bytes], Params], list[CaptionRow]]
_LOG = logging.getLogger("attend.serve")
_CLOSE_SECONDS = 30.0  # how long to wait for the last pictures


class _Waiting(NamedTuple):
    """A waiting picture, with its parameters and the future of its row."""

    picture: bytes
    params: Params
    answer: Future[CaptionRow]


class Batcher:
    """A queue of pictures, and one thread that captions those with the same parameters together.

    predict: returns a row for each picture; raises RefusedError for wrong parameters. max_batch: the maximum number of
    pictures in a batch. max_waiting: the maximum number of waiting pictures. on_batch: called with each batch's size.
    """

    def __init__(
        self, predict: Predict, max_batch: int, max_waiting: int, on_batch: Callable[[int], None] = lambda _: None
    ) -> None:
        self._predict, self._max_batch, self._max_waiting, self._on_batch = predict, max_batch, max_waiting, on_batch
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="captions", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of waiting pictures."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Return whether the thread that captions is alive."""
        return self._thread.is_alive()

    async def caption(self, pictures: Sequence[bytes], params: Params) -> list[CaptionRow]:
        """Return a row for each picture. On cancellation, pictures whose batch has not begun are dropped.

        Raises RefusedError if too many pictures wait, or for parameters that `predict` refuses.
        """
        items = [_Waiting(picture, params, Future()) for picture in pictures]
        with self._changed:
            if len(self._queue) + len(items) > self._max_waiting:
                raise RefusedError(503, "the server is busy: try again in a moment")
            self._queue.extend(items)
            self._changed.notify()
        try:
            return await asyncio.gather(*(asyncio.wrap_future(item.answer) for item in items))
        finally:
            for item in items:
                item.answer.cancel()

    def close(self) -> None:
        """Caption the remaining pictures, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)  # after that the process ends anyway: the thread is a daemon

    def _work(self) -> None:
        """Caption batches until the batcher is closed and no picture waits."""
        while batch := self._next_batch():
            self._on_batch(len(batch))
            self._caption_batch(batch)

    def _next_batch(self) -> list[_Waiting]:
        """Wait for pictures, and return the first and others with the same parameters; empty when closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return []
                params = self._queue[0].params
                batch: list[_Waiting] = []
                postponed: deque[_Waiting] = deque()
                for item in self._queue:
                    if item.params != params or len(batch) == self._max_batch:
                        if not item.answer.cancelled():
                            postponed.append(item)
                    elif item.answer.set_running_or_notify_cancel():
                        batch.append(item)
                self._queue = postponed
                if batch:
                    return batch

    def _caption_batch(self, batch: list[_Waiting]) -> None:
        """Caption a batch, and set the rows or the error as the results of its futures."""
        try:
            rows = self._predict([item.picture for item in batch], batch[0].params)
            answered = list(zip(batch, rows, strict=True))
        except RefusedError as error:
            for item in batch:
                item.answer.set_exception(error)
        except Exception:
            if len(batch) > 1:  # one picture may be the cause: caption each separately, so that the others get rows
                for item in batch:
                    self._caption_batch([item])
                return
            _LOG.exception("a picture of %d bytes could not be captioned", len(batch[0].picture))
            batch[0].answer.set_result(failed("could not be captioned: the server's log says why"))
        else:
            for item, row in answered:
                item.answer.set_result(row)
