"""Builders of text decoders and encoders: one family a file under `models`."""
