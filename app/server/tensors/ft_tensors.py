"""FasterTransformer's tensors that a model here does not have: taken at their neutral values, else refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vlm.errors import InputError

NONE: tuple[int, ...] = ()
# name -> (neutral values, what to do instead)
INPUTS = {
    "is_return_context_embeddings": ((0,), "context embeddings are not given; leave it out, or false"),
    "request_prompt_type": ((0, 1), "rows of request_prompt_embedding stand before the ids: 1, a soft prompt"),
    "session_len": (NONE, "no session is kept; send all of a conversation in each request"),
    "memory_len": (NONE, "no session is kept; send all of a conversation in each request"),
}
OUTPUTS = {"context_embeddings": "context embeddings are not given; /v1/embeddings and T5-Encoder give an encoder's"}
BATCH_INPUTS = ("input_ids_item_shape", "request_prompt_embedding_item_shape")  # which its backend gives itself


def without_neutral(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors without those at neutral values. Raises InputError for one that asks for something."""
    for name, (neutral, remedy) in INPUTS.items():
        if name in inputs and not np.isin(inputs[name], neutral).all():
            raise InputError(f"input {name} is not taken here: {remedy}.")
    return {name: array for name, array in inputs.items() if name not in INPUTS}
