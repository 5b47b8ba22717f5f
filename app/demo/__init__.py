"""`vlm demo`: models in a page of the browser."""
