"""How tokens are chosen, and what is kept of their logits."""
