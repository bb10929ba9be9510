"""What is kept of a model call: the record, the local journal, and the way into the store."""
