"""Imports what draws pages and runs image processors, in the process that workers are forked from."""

import vlm.processing.media.preload  # noqa: F401  first: it settles the number of threads
import vlm_app.ocr.documents.render_pool  # noqa: F401
