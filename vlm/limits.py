"""How much a request may ask for, known without torch."""

MAX_TOP_LOGPROBS = 20
MAX_LOGPROBS = 2**19  # of a server's answer
MAX_STOP_IDS = 1024  # of a request to a server
MAX_PIXELS = 200_000_000  # of an image: A1 at 600 dpi; a bomb has more
MAX_STOP_CHARACTERS = 256  # of a stop string
CHARACTERS_PER_TOKEN = 256  # that are read of a text, however few tokens they become
