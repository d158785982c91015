"""Residual layers of two matrices, y = x + relu(x·A)·B, with a backward pass into given buffers."""

from __future__ import annotations

import torch


def matrices(flat: torch.Tensor, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a layer's two matrices, hidden × inner and inner × hidden, as views of one vector."""
    widen, narrow = flat.chunk(2)
    return widen.view(hidden, -1), narrow.view(-1, hidden)


class LayerShare:
    """One stream's samples on their way through all layers and back, in their own buffers.

    Args:
        inputs: rows × hidden.
        targets: likewise; compared with the last layer's result.
        layers: how many.
        inner: width within a layer.
        scale: factor on the difference to the targets that makes it the loss's gradient.

    """

    def __init__(
        self, inputs: torch.Tensor, targets: torch.Tensor, layers: int, inner: int, scale: float
    ) -> None:
        within = (inputs.shape[0], inner)
        self.inputs = inputs
        self.targets = targets
        # What each layer is given, and at the end the network's result.
        self._between = [inputs, *(torch.empty_like(inputs) for _ in range(layers))]
        self._within = [inputs.new_empty(within) for _ in range(layers)]
        self._gradient = torch.empty_like(inputs)
        self._gradient_within = inputs.new_empty(within)
        self._scale = scale

    def forward(self, layer: int, widen: torch.Tensor, narrow: torch.Tensor) -> None:
        """Compute one layer's result from the previous layer's."""
        given, within = self._between[layer], self._within[layer]
        torch.mm(given, widen, out=within)
        within.relu_()
        torch.addmm(given, within, narrow, out=self._between[layer + 1])

    def backward(
        self,
        layer: int,
        widen: torch.Tensor,
        narrow: torch.Tensor,
        widen_gradient: torch.Tensor,
        narrow_gradient: torch.Tensor,
    ) -> None:
        """Compute one layer's gradient from the next layer's, or the last one's from the loss."""
        given, within = self._between[layer], self._within[layer]
        gradient, gradient_within = self._gradient, self._gradient_within
        if layer == len(self._within) - 1:
            torch.sub(self._between[-1], self.targets, out=gradient)
            gradient.mul_(self._scale)
        torch.mm(within.t(), gradient, out=narrow_gradient)
        torch.mm(gradient, narrow.t(), out=gradient_within)
        gradient_within.mul_(within > 0)
        torch.mm(given.t(), gradient_within, out=widen_gradient)
        gradient.addmm_(gradient_within, widen.t())

    def poison(self) -> None:
        """Make unwritten results fail the check."""
        for buffer in (*self._between[1:], *self._within, self._gradient, self._gradient_within):
            buffer.fill_(float("nan"))
