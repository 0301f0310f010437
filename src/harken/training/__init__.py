"""Making an assistant, and fine-tuning: recordings into pieces, pieces into labels, labels into weights."""
