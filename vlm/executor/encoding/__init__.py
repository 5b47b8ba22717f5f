"""The networks ahead of a decoder, and what is kept of their outputs."""
