"""Sentences in English and German: the words, how they inflect, and how they are joined."""
