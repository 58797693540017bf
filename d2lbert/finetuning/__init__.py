"""Tasks to fine-tune for: files, metrics, heads, runs, predictions."""
