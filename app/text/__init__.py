"""Jobs on texts: reading, tasks, scores, and the comparison with Hugging Face."""
