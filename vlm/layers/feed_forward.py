"""Feed-forward layers: two products with an activation between them, which may be gated."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer
from vlm.ops.activation import Activation


class FeedForward(nn.Module):
    """Computes down(activation(up(x))), and where it is gated down(activation(gate(x)) · up(x)).

    `activation`: a name of vlm.ops.activation. `out_fp32`: in float16 the result is float32.
    """

    def __init__(
        self,
        hidden: int,
        inner: int,
        activation: str,
        *,
        context: ModelContext,
        gated: bool = False,
        bias: bool = True,
        out_fp32: bool = False,
    ):
        super().__init__()
        self.activation = Activation(activation, gated)
        parts = {"gate": inner, "up": inner} if gated else {"up": inner}
        self.up = Linear(hidden, parts, bias=bias, axis="column", context=context)
        self.down = Linear(inner, hidden, bias=bias, axis="row", out_fp32=out_fp32, context=context)
        # positive scales pass relu, and the product with a gate
        self.producers = {"down": Producer("up", "up")} if gated or activation == "relu" else {}

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps x [R, hidden] -> [R, hidden]"""
        return self.down(self.up(x, batch, self.activation), batch)
