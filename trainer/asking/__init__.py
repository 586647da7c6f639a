"""Ask a trained model: about a raw video or a cached one, one question, several, or a test set."""
