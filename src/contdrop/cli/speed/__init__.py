"""What ``contdrop bench`` measures: who competes, how time is taken, and what is made of it."""
