"""What the results of an experiment say: which runs are compared, and the answer in sentences. Never imports torch."""
