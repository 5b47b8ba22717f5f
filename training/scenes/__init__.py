"""Rendered scenes and questions about them: what mini-llava and mini-blip2 are trained on."""
