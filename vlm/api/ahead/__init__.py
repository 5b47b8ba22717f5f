"""What is prepared or encoded before its turn."""
