"""The benchmark behind ``contdrop bench``: who competes, how time is taken, and what is made of it."""
