"""How much a request may ask for, known without torch."""

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0  # in size, as OpenAI has it
MAX_STOP_IDS = 1024  # of a request to a server; as many biases, allowed tokens, bad words
MAX_PIXELS = 200_000_000  # of an image: A1 at 600 dpi; a bomb has more
MAX_STOP_CHARACTERS = 256  # of a stop string
CHARACTERS_PER_TOKEN = 256  # that are read of a text, however few tokens they become
MEDIA_SECONDS = 60.0  # for all images and pages of a request
MEDIA_MEMORY_MB = 4096  # of the process that reads them, beside what it holds before
