"""Kinds of documents that are made to be read."""

PDF_KINDS = ("text", "scan", "table", "photo")
IMAGE_KINDS = ("png", "jpeg")
KINDS = (*PDF_KINDS, *IMAGE_KINDS)
