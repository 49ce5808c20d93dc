"""Comparisons, verdict and caveats of a study's results. Never imports torch."""
