"""How much a request may ask for: sizes of the device's state, known without torch."""

MAX_STOP_IDS = 16
MAX_TOP_LOGPROBS = 20
MAX_NGRAM = 8  # of no_repeat_ngram_size
MAX_WORDS, MAX_WORD = 32, 8  # bad words a request, tokens a word
MAX_PIXELS = 200_000_000  # of an image: A1 at 600 dpi; a bomb has more
