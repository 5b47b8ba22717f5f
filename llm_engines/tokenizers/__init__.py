"""What families' tokenizers need beside a tokenizer.json: bytes, words, vocabularies of their own."""
