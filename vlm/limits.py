"""How much a request may ask for, known without torch."""

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0  # in size, as OpenAI has it
MAX_LOGPROBS = 2**19  # of a server's answer
MAX_STOP_IDS = 1024  # of a request to a server; as many biases, allowed tokens, bad words
MAX_STOP_CHARACTERS = 256  # of a stop string
MAX_STOPS = 16  # stop strings, as OpenAI has it
MAX_QUESTION_CHARACTERS = 4096  # of a question that is drawn on a picture: some 50 lines
CHARACTERS_PER_TOKEN = 64  # that are read of a text, however few tokens they become
MAX_PIXELS = 175_000_000  # of an image: A1 at 475 dpi; Pillow itself refuses more than 178,956,970
MAX_IMAGE_BYTES = 2**30  # of an image's file; a TIFF, of which one frame is read at a time, may have more
MAX_PAGE_PIXELS = 16_000_000  # of a PDF's page: A2 at 200 dpi; larger ones are drawn smaller
MAX_PADDED_PIXELS = 2**26  # of an image that is padded to a square: 8,192 × 8,192; larger ones are scaled down first
MAX_PDF_BYTES = 2**31  # PDFium goes through all of a damaged one
MAX_PAGES = 100_000  # of a PDF
MAX_FRAMES = 10_000  # of a TIFF
MAX_INPUT_SIDE = 4096  # pixels that an image processor may scale to
MEDIA_SECONDS = 60.0  # for all images and pages of a request
MEDIA_MEMORY_MB = 4096  # of the process that reads them, beside what it holds before
MAX_JSON_BYTES = 2**24  # of a configuration or index; DeepSeek-V3's index has 9 MB
MAX_TOKENIZER_BYTES = 2**27  # of a tokenizer.json; Gemma 3's has 33 MB
MAX_ADDED_TOKENS = 2**17  # of a tokenizer; published ones add up to some 33,000
MAX_TEXT_GROWTH = 256  # times as long as it was, by a tokenizer's normalizer; NFKC makes 33 bytes of a character
MAX_WORD_CHARACTERS = 1000  # of a word that is searched for word pieces, in time by its square; BERT has 100
MAX_LAYERS = 1024  # of a network; published ones have up to 200
MAX_PAGE_BLOCKS = 512  # parts that a page's layout may have
MAX_PAGE_COVER = 4  # times that they may cover the page: parts that are read hardly overlap
