"""Where jobs are done."""
