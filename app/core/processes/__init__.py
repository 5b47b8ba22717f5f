"""What runs in processes of ours, beside them, and when they end."""
