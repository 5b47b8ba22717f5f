"""The k highest logits of each row, and the logsumexp that makes log-probabilities of them, in one pass."""

from __future__ import annotations

from torch import Tensor

KERNEL_MOST = 256  # k up to which one pass is faster than torch's topk


def reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    logits = logits.float()
    values, ids = logits.topk(k, dim=-1)
    return values, ids, logits.logsumexp(-1)


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finds in logits [R, V] values [R, k] float32, highest first, their ids [R, k] int64, logsumexp [R] float32."""
    if logits.is_cuda and k <= KERNEL_MOST:
        from vlm.ops.kernels.topk_logprobs import topk_logprobs as kernel

        return kernel(logits, k)
    return reference(logits, k)


def log_probabilities(logits: Tensor) -> Tensor:
    """Takes logits [R, V] -> float32 [R, V]"""
    if not logits.is_cuda:
        return logits.float().log_softmax(-1)
    _, _, logsumexp = topk_logprobs(logits, 1)
    return logits - logsumexp[:, None]  # reads 16 bits, where torch would write and read them as 32 first
