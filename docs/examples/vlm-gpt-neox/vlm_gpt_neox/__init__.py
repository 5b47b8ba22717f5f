"""GPT-NeoX, Pythia and Dolly for vlm."""
