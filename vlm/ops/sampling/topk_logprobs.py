"""The k highest logits of each row, and the logsumexp that makes log-probabilities of them, in one pass."""

from __future__ import annotations

from torch import Tensor

KERNEL_MOST = 256  # k up to which one pass is faster than torch's topk


def reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    logits = logits.float()
    values, ids = logits.topk(k, dim=-1)
    return values, ids, logits.logsumexp(-1)


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finds in logits [R, V] values [R, k] float32, highest first, their ids [R, k] int64, logsumexp [R] float32. On a
    GPU equal ones come in the order of their ids."""
    if logits.is_cuda and k <= KERNEL_MOST:
        from vlm.ops.kernels.topk_logprobs import topk_logprobs as kernel

        return kernel(logits, k)
    return reference(logits, k)
