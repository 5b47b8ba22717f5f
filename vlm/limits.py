"""How much a request may ask for, known without torch."""

MAX_TOP_LOGPROBS = 20
MAX_STOP_IDS = 1024  # of a request to a server
MAX_PIXELS = 200_000_000  # of an image: A1 at 600 dpi; a bomb has more
MEDIA_SECONDS = 60.0  # for all images and pages of a request
MEDIA_MEMORY_MB = 4096  # of the process that reads them, beside what it holds before
