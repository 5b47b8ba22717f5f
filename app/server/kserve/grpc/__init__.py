"""KServe's protocol over gRPC, with the messages of PyPI's tritonclient."""
