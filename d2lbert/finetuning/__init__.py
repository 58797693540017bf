"""Tasks to fine-tune for: their files, their metrics, windows over texts."""
