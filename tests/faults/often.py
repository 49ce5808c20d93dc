"""Has jobs save their state often, in every process that imports this."""

from contdrop.lab import running

running.run.__kwdefaults__["checkpoint_seconds"] = 0.05
