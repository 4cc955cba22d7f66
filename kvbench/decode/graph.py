"""A step of the batch as one CUDA graph: recorded once, launched whole.

Of a small model or a short cache, most of a step is the host's launching. A graph launches the same
kernels on the same addresses, so what a step reads must stay where it is: no row may join, leave or
be absorbed, and the tails must have room (`kvbench.decode.greedy` records anew where that changes).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.model.loading import LoadedModel


def refuse_graphs(model: LoadedModel) -> None:
    """Say why a model's steps cannot be recorded, if they cannot.

    Raises:
        UserError: it lies on no CUDA device, or on several.
    """
    places = sorted({str(weight.device) for weight in model.network.parameters()})
    where = f"decode.graph=true: model {model.spec.name} lies on {', '.join(places)}"
    if not all(place.startswith("cuda") for place in places):
        raise UserError(f"{where}, and only CUDA records graphs: leave decode.graph out")
    if len(places) > 1:
        raise UserError(f"{where}, and a graph is of one device: leave decode.graph out")


class RecordedStep:
    """A forward of ids and positions [V, 1] over rows that stay: logits [V, 1, vocabulary]."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor], ids: Tensor, at: Tensor) -> None:
        """Record a forward, which has been run as it is before: nothing is computed here.

        Args:
            run: the forward.
            ids: [V, 1] on the device.
            at: [V, 1] positions.
        """
        self._ids, self._at = ids.clone(), at.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = run(self._ids, self._at)

    def __call__(self, ids: Tensor, at: Tensor) -> Tensor:
        """Compute the logits of the next tokens; the next call overwrites them."""
        self._ids.copy_(ids)
        self._at.copy_(at)
        self._graph.replay()
        return self._logits
