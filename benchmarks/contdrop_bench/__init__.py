"""The benchmark of ``contdrop bench``: contestants, timing, and what is made of the measurements."""
