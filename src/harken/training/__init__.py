"""Training of assistants and fine-tuning: recordings into windows, windows into examples, examples into weights."""
