"""What a loaded model opens, and what ends with it."""
