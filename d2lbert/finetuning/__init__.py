"""Fine-tuning on labelled tasks: data, metrics, runs and predictions."""
