"""`vlm serve`: OpenAI's and KServe's protocols over HTTP."""
